"""What is wrong with an environment: one line per kind of problem."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from roboloop.core.errors import UserError
from roboloop.core.text import printable

ERROR, WARNING = "error", "warning"
MOST_CHARS = 300
"""Longest message of an exception that is shown."""


@dataclass(frozen=True)
class Finding:
    """One problem, and what to change."""

    level: str
    text: str
    refuses: bool = False
    """Whether nothing can be learned from such an environment."""

    def __str__(self) -> str:
        return f"{self.level}: {self.text}"


class Unusable(Exception):
    """An environment is so broken that nothing more can be checked; the reason is among the findings."""


class Findings:
    """What was found so far; a kind of problem is told once, where it is first seen."""

    def __init__(self, tell: Callable[[Finding], None] = lambda finding: None) -> None:
        self._found: dict[str, Finding] = {}
        self._tell = tell

    def _add(self, kind: str, finding: Finding) -> None:
        if kind not in self._found:
            self._found[kind] = finding
            self._tell(finding)

    def error(self, kind: str, text: str, refuses: bool = True) -> None:
        """Note a problem that breaks the contract."""
        self._add(kind, Finding(ERROR, text, refuses))

    def warn(self, kind: str, text: str) -> None:
        """Note a problem that one can live with."""
        self._add(kind, Finding(WARNING, text))

    def give_up(self, kind: str, text: str) -> Unusable:
        """Note a problem after which nothing more can be checked, and return what to raise."""
        self.error(kind, text)
        return Unusable(text)

    def has(self, kind: str) -> bool:
        """Say whether a kind of problem was found."""
        return kind in self._found

    @property
    def all(self) -> list[Finding]:
        """All findings in the order in which they were seen."""
        return list(self._found.values())

    @property
    def errors(self) -> list[Finding]:
        """The findings that break the contract."""
        return [finding for finding in self.all if finding.level == ERROR]

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Note an exception of the environment's own code as one line and give up."""
        try:
            yield
        except (Unusable, UserError):
            raise
        except Exception as error:
            raise self.give_up("crash", f"{what} raised {where(error)}") from error


def where(error: BaseException) -> str:
    """Return type, place and message of an exception in one line; the place is in the environment's own code."""
    message = " ".join(str(error).split())
    shown = message if len(message) <= MOST_CHARS else f"{message[:MOST_CHARS]}..."
    return printable(f"{place_of(error)}{': ' + shown if shown else ''}")


def place_of(error: BaseException) -> str:
    """Return type and place of an exception, such as ``ValueError at my_env.py:30``."""
    return f"{type(error).__name__}{_place(error)}"


@functools.cache
def _between() -> tuple[str, ...]:
    """Return where roboloop and Gymnasium are: what is between us and an environment."""
    gymnasium = find_spec("gymnasium")
    origins = [Path(__file__).parent, *([Path(gymnasium.origin)] if gymnasium and gymnasium.origin else [])]
    return tuple(f"{origin.parent}{os.sep}" for origin in origins)


@functools.cache
def _libraries() -> tuple[str, ...]:
    return (*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "<")


def _place(error: BaseException) -> str:
    """Return `` at FILE:LINE`` of the deepest frame of the environment's own code, or of what is nearest to it."""
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    beyond = [f for f in frames if not f.filename.startswith(_between())]
    own = [f for f in beyond if not f.filename.startswith(_libraries())]
    frame = next(iter(own or beyond or frames), None)
    if frame is None:
        return ""
    path = Path(frame.filename)
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" at {near}:{frame.lineno}"
