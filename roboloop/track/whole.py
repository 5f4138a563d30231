"""Whether a run's logs and evaluations are those of its checkpoints, as far as manifests say."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roboloop.core.errors import DataError
from roboloop.core.files import is_directory, open_regular, read_json
from roboloop.core.sealed import TAIL_BYTES, checksum_of
from roboloop.track.read import WEIGHTS

_MOST_BYTES = 256 << 20
_NAME = re.compile(r"step-\d{12,18}")


def lost_rows(run: Path) -> list[str]:
    """Return a line for each log that is not what it was at the newest checkpoint, or longer."""
    folder, names = run / "checkpoints", list[str]()
    if is_directory(folder):
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if _NAME.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
    body = _manifest(folder / max(names)) if names else {}
    offsets, sums = body.get("log_offsets"), body.get("log_checksums")
    lost = list[str]()
    if not isinstance(offsets, dict):
        return lost
    for name in _LOGS:
        if type(offset := offsets.get(name)) is int and 0 < offset < 1 << 62:
            line = _before(run / name, offset)
            if line[-1:] != b"\n":
                lost.append(f"{run / name} does not reach to where its checkpoint was made: rows are missing")
            elif checksum_of(line[:-1]) != (sums.get(name) if isinstance(sums, dict) else checksum_of(line[:-1])):
                lost.append(f"{run / name} has other rows than those of its checkpoint")
    return lost


_LOGS = ("metrics.jsonl", "timing.jsonl")


def _before(log: Path, offset: int) -> bytes:
    """Return the end of the line before an offset."""
    start = max(0, offset - TAIL_BYTES - 1)
    try:
        with open_regular(log) as file:
            return os.pread(file.fileno(), offset - start, start)
    except (OSError, DataError):
        return b""


def check_weights(run: Path, header: Mapping[str, Any]) -> None:
    """Raise DataError where an evaluation is of other weights than those of this run's checkpoint; it may be gone."""
    step, weights = header.get("checkpoint_step"), header.get(WEIGHTS)
    if type(step) is not int or not isinstance(weights, str) or not is_directory(run / "checkpoints"):
        return  # of an older version
    files = _manifest(run / "checkpoints" / f"step-{step:012d}").get("files")
    if isinstance(files, dict) and weights not in files.values():
        raise DataError(f"an evaluation of step {step} is not of this run's checkpoint")


def _manifest(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself; nothing of one that is gone or damaged."""
    try:
        body = read_json(checkpoint / "manifest.json", _MOST_BYTES)["body"]
    except (DataError, LookupError, TypeError):
        return {}
    return body if isinstance(body, dict) else {}
