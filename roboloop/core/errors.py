"""Errors that reach the user as one line; anything else is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Something the user can mend: shown as one line, without a traceback."""

    exit_code = 2

    @property
    def shown(self) -> str:
        """What the user sees of it."""
        return str(self)


class ConfigError(UserError):
    """A config key, value or combination that cannot be used."""


class DataError(UserError):
    """A run directory, checkpoint, journal or dataset that is foreign or damaged."""


class MissingExtra(UserError):
    """An optional dependency that is not installed."""


class DiskError(UserError):
    """The disk is full, failing or read-only; the last good state is intact."""

    exit_code = 5


class Unreadable(DataError):
    """A file that the disk itself does not give back."""

    exit_code = DiskError.exit_code


class RunExists(UserError):
    """The run is already finished or running: nothing is touched."""

    exit_code = 3


class Diverged(UserError):
    """Weights or actions are not finite: nothing is saved over good state."""

    exit_code = 6


class WorkerLost(UserError):
    """Simulators or their processes broke more often than allowed; the last checkpoint is intact."""

    exit_code = 7


def is_out_of_memory(error: Exception) -> bool:
    """Say whether an error is of memory that is not there; torch has no type for that on a CPU."""
    words = ("can't allocate memory", "not enough memory", "invalid storage size", "storage size calculation overflow")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ``; did you mean 'reach-v3'?`` or nothing."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""


@contextmanager
def needs_extra(what: str, packages: Collection[str], extra: str) -> Iterator[None]:
    """Turn the absence of one of an extra's packages into one line that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise MissingExtra(f"{what} needs {error.name}: pip install 'roboloop[{extra}]'") from error


class RobotFault(RuntimeError):
    """The robot can no longer be trusted in this episode: hold, end it where it was last seen whole, begin anew."""
