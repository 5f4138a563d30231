"""The journal of a search, on disk: Optuna's own, which is opened only if it is a regular file that can be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from roboloop.core.errors import DataError
from roboloop.core.files import is_regular, remove

if TYPE_CHECKING:
    import optuna

_DAMAGED = (LookupError, ValueError, TypeError, AttributeError, RecursionError, AssertionError, MemoryError)
"""What Optuna raises for a journal that is none."""


def journal_storage(journal: Path) -> optuna.storages.JournalStorage:
    """Open a journal, or begin one; a damaged one is a DataError."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    _check_regular(journal)
    try:
        return optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
    except _DAMAGED as error:
        raise DataError(f"{journal} is damaged: {type(error).__name__} {error}") from None


def mend(journal: Path) -> None:
    """Cut a line that was never finished, and take away a lock that a killed search left: we are alone here."""
    for lock in journal.parent.glob(f"{journal.name}.lock*"):
        remove(lock)
    if os.path.lexists(journal):
        _check_regular(journal)
        text = journal.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            with open(journal, "rb+") as file:
                file.truncate(whole)


def _check_regular(journal: Path) -> None:
    if os.path.lexists(journal) and not is_regular(journal):
        raise DataError(f"{journal} is not a regular file")
