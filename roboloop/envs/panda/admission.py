"""Who may move a rig that stands by itself: whoever can read the token that it has left in a file of its user's."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from roboloop.core.errors import ConfigError
from roboloop.core.files import open_regular

_LONGEST = 100
"""Bytes of a token's file: it holds 32."""


def token_path(port: int) -> Path:
    """Return where the rig of a port leaves its token.

    Not below XDG_RUNTIME_DIR: that is gone when the user logs out, and a rig outlives its terminal. Homes may be shared
    between machines, ports are not.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "roboloop" / f"rig-{platform.node()}-{port}.token"


def read_token(path: Path) -> str:
    """Return a token; DataError, OSError or ValueError where there is none."""
    with open_regular(path) as file:
        return file.read(_LONGEST).decode()


@contextlib.contextmanager
def posted(port: int, token: str) -> Iterator[Path]:
    """Leave a token where only this user can read it, and take it away in the end."""
    path = token_path(port)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a rig that was killed
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"the rig's token cannot be written to {path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        yield path
    finally:
        path.unlink(missing_ok=True)
