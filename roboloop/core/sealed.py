"""Texts that carry their own checksum, so that a changed digit is found: rows of a log, and a config file."""

from __future__ import annotations

import hashlib
import re
import zlib

_TAIL = re.compile(rb', "crc": "([0-9a-f]{8})"\}')
TAIL_BYTES = len(b', "crc": "00000000"}')
_HEAD = b"# sha256 "


class Chain:
    """The checksum of all rows of a log so far: each row carries it, so a changed, lost or moved row is found."""

    def __init__(self, value: int | None = None) -> None:
        self.value = value
        """None: no row has had a checksum yet; those of older versions have none."""

    def seal(self, body: bytes) -> bytes:
        """Return a row, a JSON object that is not empty, with its checksum as the last key."""
        self.value = zlib.crc32(body, self.value or 0)
        return body[:-1] + b', "crc": "%08x"}' % self.value

    def opened(self, line: bytes) -> bytes:
        """Return a row without its checksum; one that does not match is a ValueError."""
        tail = _TAIL.fullmatch(line, max(0, len(line) - TAIL_BYTES))
        if tail is None:
            if self.value is not None:
                raise ValueError("has no checksum, the rows before it have one")
            return line
        body = line[:-TAIL_BYTES] + b"}"
        self.value = zlib.crc32(body, self.value or 0)
        if self.value != int(tail[1], 16):
            raise ValueError("does not match its checksum")
        return body


def checksum_of(line: bytes) -> int | None:
    """Return the checksum that a row carries at its end, or none."""
    tail = _TAIL.fullmatch(line, max(0, len(line) - TAIL_BYTES))
    return int(tail[1], 16) if tail else None


def seal_text(text: str) -> bytes:
    """Return a text behind a line with its digest, which YAML takes for a comment."""
    data = text.encode()
    return _HEAD + hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def check_text(data: bytes) -> None:
    """Raise ValueError where a text is not what was sealed; one without a digest, of an older version, passes."""
    if not data.startswith(_HEAD):
        return
    line, _, text = data.partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != line.removeprefix(_HEAD):
        raise ValueError("it does not match its digest: it was changed after it was written, or is damaged")
