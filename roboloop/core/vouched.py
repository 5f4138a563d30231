"""What the user of this process typed, and so vouches for: see ``run/trust.py``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata

from roboloop.core.errors import DataError

FLAG = "--trust"
_OURS = {"roboloop", "gymnasium"}
_PLUGINS = ("roboloop.", "gymnasium.envs")
"""Groups of entry points by which a package says that it is a plug-in."""


class Vouched:
    """Words that the user typed in this command; ``--trust`` vouches for everything that a file names.

    In Python each call vouches for what it was given, in its own thread and until it returns.
    """

    def __init__(self) -> None:
        self._command = _Words()
        self._calls = threading.local()

    def take(self, args: Sequence[str]) -> list[str]:
        """Return the words of a command without ``--trust``, and remember them."""
        self._command = _Words(FLAG in args)
        self._command.words = {part for word in args for part in (word, word.partition("=")[2]) if part}
        return [word for word in args if word != FLAG]

    @contextmanager
    def during(self, words: Iterable[str], everything: bool = False) -> Iterator[None]:
        """Vouch for words, or for everything, in this thread while this is entered."""
        outer = self._of_call
        self._calls.words = _Words(everything or bool(outer and outer.everything))
        self._calls.words.words = {*words, *(outer.words if outer else ())}
        try:
            yield
        finally:
            self._calls.words = outer

    def add(self, words: Iterable[str]) -> None:
        """Take words for typed: the user named the file that they are in."""
        (self._of_call or self._command).words.update(words)

    def __contains__(self, word: str) -> bool:
        return any(each.everything or word in each.words for each in (self._command, self._of_call) if each)

    @property
    def _of_call(self) -> _Words | None:
        return getattr(self._calls, "words", None)


class _Words:
    def __init__(self, everything: bool = False) -> None:
        self.everything = everything
        self.words: set[str] = set()


vouched = Vouched()


def check_code(key: str, name: str, modules: Iterable[str], where: object = "") -> None:
    """Refuse a name of code unless it was typed or all its modules are of roboloop or of an installed plug-in."""
    tops = {module.partition(".")[0] for module in modules}
    if name in vouched or (tops and tops <= _OURS | _plugins()):
        return
    prefix = f"{where}: " if where else ""
    what = f"{key} {name!r} is neither of roboloop nor of an installed plug-in"
    raise DataError(f"{prefix}{what}; {FLAG} uses it (in Python, trust=True)")


def _plugins() -> set[str]:
    """Return the top-level modules of installed plug-ins."""
    points = metadata.entry_points()
    groups = [group for group in points.groups if group.startswith(_PLUGINS)]
    return {point.module.partition(".")[0] for group in groups for point in points.select(group=group)}
