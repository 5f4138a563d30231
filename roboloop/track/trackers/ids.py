"""The name by which a viewer knows the run of a directory, kept in that directory."""

from __future__ import annotations

import os
from pathlib import Path

from roboloop.core.errors import DataError
from roboloop.core.files import read_bytes

_LONGEST_ID = 128


def saved_id(path: Path) -> str:
    """Return the id in a file of a run directory; empty where there is none yet."""
    if not os.path.lexists(path):
        return ""
    known = read_bytes(path, _LONGEST_ID).strip()
    if not known.isalnum():  # it becomes part of paths and queries
        raise DataError(f"{path} is not an id of a run")
    return known.decode()
