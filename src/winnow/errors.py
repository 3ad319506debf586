"""Errors that speak to the user: what was wrong, where, and what to do.

Every error a user can cause derives from [`WinnowError`][winnow.errors.WinnowError]; the command line prints it as
one line and exits with the class's `exit_code`, so that scripts can tell the kinds apart.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable


class WinnowError(Exception):
    """Anything the user can put right; its text is one sentence of what, where and how."""

    exit_code = 1


class ConfigError(WinnowError):
    """A setting is unknown, of the wrong type, or contradicts another."""

    exit_code = 2


class UnknownPartError(ConfigError):
    """A name is that of no part, such as a loss or a pooling; what is saved with one may have been made elsewhere."""


class DataError(WinnowError):
    """Images, labels or splits cannot be used as they are."""

    exit_code = 3


class ModelError(WinnowError):
    """Weights, a checkpoint or a saved model do not fit."""

    exit_code = 4


class TrainingError(WinnowError):
    """Training could not go on, for example because the loss is not finite."""

    exit_code = 5


class OutputError(WinnowError):
    """A file could not be written."""

    exit_code = 7


class MissingExtraError(WinnowError):
    """An optional dependency is not installed."""

    exit_code = 6

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}; install with: {sys.executable} -m pip install 'winnow-dml[{extra}]'"
        )


def unknown_here(error: Exception) -> str:
    """Return what to do about a saved run or model whose part is not known here, or nothing for other errors."""
    if not isinstance(error, UnknownPartError):
        return ""
    return (
        "; if it is one of your own, give the command to the script that adds it (`python YOURS.py` in place of "
        "`winnow`), or import that script before loading in Python"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known name closest to `name`, or nothing."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{match[0]}'?)" if match else ""
