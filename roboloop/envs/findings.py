"""What is wrong with an environment: one line per kind of problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from roboloop.core.errors import UserError
from roboloop.core.raised import CRASHES, where

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class Finding:
    """One problem, and what to change."""

    level: str
    text: str
    refuses: bool = False
    """Whether nothing can be learned from such an environment."""

    def __str__(self) -> str:
        return f"{self.level}: {self.text}"


BUDGET_S = 10.0
"""Longest time for which an environment is played at random, in seconds."""


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
        except CRASHES as error:
            raise self.give_up("crash", f"{what} raised {where(error)}") from error
