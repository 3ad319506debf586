"""What is wrong with the memory of a search, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from winnow.errors import ModelError


@contextmanager
def telling(memory: Path) -> Iterator[None]:
    """Tell what keeps Optuna from reading or writing a search's database while in this context.

    Args:
        memory: The database, named in errors.

    Raises:
        ModelError: when it is damaged, in use, not to be opened or written, or of another version of Optuna.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DatabaseError, OperationalError

    try:
        yield
    except (StorageInternalError, DatabaseError) as error:
        # Optuna wraps what happens within its transactions, and nothing of what happens while it opens the file.
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        if isinstance(cause, DatabaseError) and not isinstance(cause, OperationalError):
            raise ModelError(
                f"{memory} is damaged: remove it, and the search finds its finished trials again by their folders"
            ) from None
        reason = cause.orig if isinstance(cause, DatabaseError) else cause or error
        # Not to be removed: another process may be writing to it.
        raise ModelError(
            f"{memory} cannot be read or written ({reason}): see that no other search uses it, who may write to it and "
            "that the disk is not full; given again, the search goes on"
        ) from None
    except RuntimeError as error:
        if "table schema" not in str(error):  # all that tells it from other errors
            raise
        raise ModelError(
            f"{memory} was made by another version of Optuna: install that one, or remove the file and begin "
            "the search anew"
        ) from None
