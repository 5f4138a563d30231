"""What the user of this process typed, and so vouches for: see ``run/trust.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata

from roboloop.core.errors import DataError

FLAG = "--trust"
_OURS = {"roboloop", "gymnasium"}
_PLUGINS = ("roboloop.", "gymnasium.envs")
"""Groups of entry points by which a package says that it is a plug-in."""


class Vouched:
    """Words that the user typed in this command; ``--trust`` vouches for everything that a file names."""

    def __init__(self) -> None:
        self._everything = False
        self._words: set[str] = set()

    def take(self, args: Sequence[str]) -> list[str]:
        """Return the words of a command without ``--trust``, and remember them."""
        self._everything = FLAG in args
        typed = {part for word in args for part in (word, word.partition("=")[2]) if part}
        self._words = typed | {word.partition("/")[0] for word in typed}  # module:suite/task
        return [word for word in args if word != FLAG]

    def add(self, words: Iterable[str]) -> None:
        """Take words for typed: the user named the file that they are in."""
        self._words.update(words)

    def __contains__(self, word: str) -> bool:
        return self._everything or word in self._words


vouched = Vouched()


def check_code(key: str, name: str, modules: Iterable[str], where: object = "") -> None:
    """Refuse a name of code unless it was typed or all its modules are of roboloop or of an installed plug-in."""
    tops = {module.partition(".")[0] for module in modules}
    if name in vouched or (tops and tops <= _OURS | _plugins()):
        return
    prefix = f"{where}: " if where else ""
    raise DataError(f"{prefix}{key} {name!r} is neither of roboloop nor of an installed plug-in; {FLAG} uses it")


def _plugins() -> set[str]:
    """Return the top-level modules of installed plug-ins."""
    points = metadata.entry_points()
    groups = [group for group in points.groups if group.startswith(_PLUGINS)]
    return {point.module.partition(".")[0] for group in groups for point in points.select(group=group)}
