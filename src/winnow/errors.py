"""Errors that a user can fix: location, problem, and remedy.

Every such error derives from [`WinnowError`][winnow.errors.WinnowError] and from the matching built-in exception. The
command line prints it as one line and exits with the `exit_code` of its class.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path


class WinnowError(Exception):
    """Base of all errors that a user can fix; the text is one line.

    Args:
        message: Location, problem, and what to do, in terms of arguments, config keys, and files.
        hint: Kind of problem, for which the command line names the option that fixes it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(WinnowError, ValueError):
    """A setting is unknown, has the wrong type, or contradicts another setting."""

    exit_code = 2


class UnknownComponentError(ConfigError):
    """No component, such as a loss or a pooling, has this name.

    A saved model may use a component from outside winnow.
    """


class DataError(WinnowError, ValueError):
    """Images, labels, or splits cannot be used."""

    exit_code = 3


class ModelError(WinnowError):
    """Weights, a checkpoint, or a saved model do not fit."""

    exit_code = 4


class TrainingError(WinnowError):
    """Training cannot continue, for example because the loss is not finite."""

    exit_code = 5


class OutputError(WinnowError, OSError):
    """A file could not be written."""

    exit_code = 7


class MissingExtraError(WinnowError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 6

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        root = Path(__file__).resolve().parents[2]
        is_checkout = (root / "pyproject.toml").is_file() and (root / "src/winnow").is_dir()
        target = f"-e '{root}[{extra}]'" if is_checkout else f"'winnow-dml[{extra}]'"
        super().__init__(f"{purpose} requires {package}. Install it with: {sys.executable} -m pip install {target}")


def add_component_hint(error: Exception) -> str:
    """Return the remedy for a saved model with an unknown component.

    The text is empty for other errors.
    """
    if not isinstance(error, UnknownComponentError):
        return ""
    return " If the component is your own, import the script that adds it before loading."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name closest to `name`.

    The result is "." if none is close.
    """
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else "."


def warn_caller(message: str, category: type[Warning]) -> None:
    """Give a warning that names the first line outside winnow and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("winnow", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
