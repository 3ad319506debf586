"""All studies in one go: what one cannot do costs the others nothing."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from winnow.errors import DataError, MissingExtraError, WinnowError
from winnow.studies.base import Study, Task, write_findings


@dataclass(frozen=True)
class Ended:
    """How a study ended.

    Attributes:
        name: The study's.
        seconds: What it took.
        outcome: `done`, `left out` where its data or an extra is not there, or `failed`.
        text: What it found, or why it found nothing.
        paths: What it wrote.
    """

    name: str
    seconds: float
    outcome: str
    text: str
    paths: tuple[Path, ...] = ()


def run_studies(studies: Mapping[str, Study], make_task: Callable[[str], Task], folder: Path) -> Iterator[Ended]:
    """Run studies one after another and write what each finds into a folder; yield how each ended.

    Args:
        studies: Name to study.
        make_task: What a study of a name is asked for.
        folder: Where tables, figures and settings go.
    """
    for name, study in studies.items():
        started = time.perf_counter()

        def took(started: float = started) -> float:
            return time.perf_counter() - started

        try:
            found = study(make_task(name))
            paths = tuple(write_findings(name.replace("-", "_"), found, folder))
            yield Ended(name, took(), "done", found.text, paths)
        except (DataError, MissingExtraError) as error:
            yield Ended(name, took(), "left out", str(error))
        except WinnowError as error:
            yield Ended(name, took(), "failed", str(error))
        except Exception:  # a fault in one study must not cost the others
            yield Ended(name, took(), "failed", traceback.format_exc())


def summary(ended: list[Ended]) -> str:
    """Return how all of them ended: a line for each, and the whole."""
    width = max(len(one.name) for one in ended)
    lines = [f"{one.name:<{width}}  {one.outcome:<8}  {one.seconds:6.0f} s" for one in ended]
    counts = {outcome: sum(one.outcome == outcome for one in ended) for outcome in ("done", "left out", "failed")}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    return "\n".join([*lines, f"{told}, in {sum(one.seconds for one in ended) / 60:.1f} minutes"])
