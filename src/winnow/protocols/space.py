"""What a search for settings looks through: ranges and choices of the config's keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnow.errors import ConfigError

if TYPE_CHECKING:
    from optuna.trial import Trial

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")


@dataclass(frozen=True)
class Range:
    """Numbers between two ends: whole ones if both ends are, evenly or by their logarithm."""

    low: float
    high: float
    log: bool
    whole: bool


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[str, ...]


Space = Mapping[str, Range | Choice]


def parse_space(words: Sequence[str]) -> tuple[dict[str, Range | Choice], list[str]]:
    """Part words such as `train.lr=1e-6..1e-3:log`, `dim=64..512` and `loss=c2|ms` from plain settings.

    What is searched is no plain setting too, wherever it stands.

    Raises:
        ConfigError: for a range that is none, or a key with two of them.
    """
    space: dict[str, Range | Choice] = {}
    plain = []
    for word in words:
        key, _, text = word.partition("=")
        match = _RANGE.fullmatch(text)
        if match is None and "|" not in text:
            plain.append(word)
            continue
        if key in space:
            raise ConfigError(f"{key} is given twice: search it in one range")
        if match is None:
            space[key] = Choice(tuple(text.split("|")))
            continue
        low, high, log = float(match[1]), float(match[2]), match[3] is not None
        if low >= high or (log and low <= 0):
            raise ConfigError(f"{word}: a range goes up{', from above 0 where it is logarithmic' if log else ''}")
        whole = all(re.fullmatch(r"[-+]?\d+", text) for text in (match[1], match[2]))
        space[key] = Range(low, high, log, whole)
    return space, [word for word in plain if word.partition("=")[0] not in space]


def suggest(trial: Trial, key: str, where: Range | Choice) -> Any:
    """Let a trial of Optuna choose a value."""
    if isinstance(where, Choice):
        return trial.suggest_categorical(key, where.values)
    if where.whole:
        return trial.suggest_int(key, int(where.low), int(where.high), log=where.log)
    return trial.suggest_float(key, where.low, where.high, log=where.log)


def first(where: Range | Choice) -> Any:
    """Return the lower end of a range, or the first of a choice."""
    if isinstance(where, Choice):
        return where.values[0]
    return int(where.low) if where.whole else where.low
