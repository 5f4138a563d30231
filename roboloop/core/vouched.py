"""What the user of this process typed, and so vouches for: see ``run/trust.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FLAG = "--trust"


class Vouched:
    """Words that the user typed in this command; ``--trust`` vouches for everything that a file names."""

    def __init__(self) -> None:
        self._everything = False
        self._words: set[str] = set()

    def take(self, args: Sequence[str]) -> list[str]:
        """Return the words of a command without ``--trust``, and remember them."""
        self._everything = FLAG in args
        self._words = {part for word in args for part in (word, word.partition("=")[2]) if part}
        return [word for word in args if word != FLAG]

    def add(self, words: Iterable[str]) -> None:
        """Take words for typed: the user named the file that they are in."""
        self._words.update(words)

    def __contains__(self, word: str) -> bool:
        return self._everything or word in self._words


vouched = Vouched()
