"""Whether a run's logs and evaluations are those of its checkpoints, as far as manifests say."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roboloop.core.errors import DataError
from roboloop.core.files import is_directory, is_regular, read_json
from roboloop.track.read import WEIGHTS

_MOST_BYTES = 256 << 20
_NAME = re.compile(r"step-\d{12,18}")


def lost_rows(run: Path) -> list[str]:
    """Return a line for each log that has become shorter than it was at the newest checkpoint."""
    folder, names = run / "checkpoints", list[str]()
    if is_directory(folder):
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if _NAME.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
    offsets = _manifest(folder / max(names)).get("log_offsets") if names else None
    if not isinstance(offsets, dict):
        return []
    lost = []
    for name, offset in offsets.items():
        size = (run / name).lstat().st_size if name in _LOGS and is_regular(run / name) else 0
        if name in _LOGS and isinstance(offset, int) and size < offset:
            lost.append(f"{run / name} has {size} bytes, its checkpoint was made at {offset}: rows are missing")
    return lost


_LOGS = ("metrics.jsonl", "timing.jsonl")


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
