"""Texts from elsewhere on a terminal: names of files and what files hold may be anybody's."""

from __future__ import annotations

import functools


def printable(text: object, keep: str = "") -> str:
    """Return a text in which control characters, line breaks and undecodable bytes are shown as escapes."""
    text = str(text)
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


@functools.lru_cache(maxsize=1 << 12)
def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how Python holds a byte of a name that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
