"""Checkpoints are never replaced: a new directory is written, made durable, then renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from roboloop.core.errors import DataError, UserError
from roboloop.core.files import read_json, sync_directory, write_durable
from roboloop.core.state import join, split
from roboloop.core.types import Array, State
from roboloop.data.journal import Frontier

FORMAT = 2
_TENSORS, _MANIFEST = "state.safetensors", "manifest.json"


class Diverged(UserError):
    """A weight is not finite: nothing is saved over good state."""

    exit_code = 6


class Checkpoint(NamedTuple):
    """One frontier of the whole run."""

    path: Path
    step: int
    state: State
    journal: Frontier
    log_offsets: dict[str, int]
    seconds: dict[str, float]


def save(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write ``directory/step-N`` so that it exists wholly or not at all."""
    tensors, tree = split(checkpoint.state)
    _refuse_non_finite(tensors)
    final = directory / step_name(checkpoint.step)
    temporary = directory / f".tmp-{final.name}"
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    blob = save_tensors(tensors)
    write_durable(temporary / _TENSORS, blob)
    body = {
        "format": FORMAT,
        "step": checkpoint.step,
        "files": {_TENSORS: hashlib.sha256(blob).hexdigest()},
        "journal": list(checkpoint.journal),
        "log_offsets": checkpoint.log_offsets,
        "seconds": checkpoint.seconds,
        "tree": tree,
    }
    manifest = {"sha256": _digest(body), "body": body}
    write_durable(temporary / _MANIFEST, json.dumps(manifest).encode())
    sync_directory(temporary)
    os.rename(temporary, final)
    sync_directory(directory)
    return final


def read(path: Path) -> Checkpoint:
    """Read one checkpoint and verify every byte of it."""
    manifest = read_json(path / _MANIFEST)
    try:
        body, digest = manifest["body"], manifest["sha256"]
        if _digest(body) != digest:
            raise DataError(f"checkpoint {path} is damaged: {_MANIFEST} does not match its checksum")
        if body["format"] != FORMAT:
            raise DataError(f"checkpoint {path} has format {body['format']}, this version reads {FORMAT}")
        blob = (path / _TENSORS).read_bytes()
        if hashlib.sha256(blob).hexdigest() != body["files"][_TENSORS]:
            raise DataError(f"checkpoint {path} is damaged: {_TENSORS} does not match its checksum")
        state = join(load_tensors(blob), body["tree"])
        frontier = Frontier(*body["journal"])
        return Checkpoint(path, body["step"], state, frontier, body["log_offsets"], body["seconds"])
    except (KeyError, TypeError, OSError, SafetensorError) as error:
        raise DataError(f"checkpoint {path} is damaged: {type(error).__name__} {error}") from None


def newest_first(directory: Path, tell: Callable[[str], None]) -> Iterator[Checkpoint]:
    """Yield the checkpoints that verify, newest first, and say which ones do not."""
    for path in sorted(directory.glob("step-*"), reverse=True):
        try:
            yield read(path)
        except DataError as error:
            tell(f"{error}; trying the one before")


def at_step(directory: Path, step: int) -> Checkpoint:
    """Read the checkpoint of one step; say which there are if it does not exist."""
    path = directory / step_name(step)
    if not path.is_dir():
        known = ", ".join(str(s) for s in steps(directory)) or "none"
        raise DataError(f"no checkpoint at step {step} in {directory}; there are: {known}")
    return read(path)


def steps(directory: Path) -> list[int]:
    """List the steps that have a checkpoint, oldest first."""
    return sorted(int(p.name[5:]) for p in directory.glob("step-*"))


def prune(directory: Path, keep_last: int, keep: Collection[int]) -> None:
    """Delete all but the newest checkpoints and those to be kept."""
    for step in steps(directory)[:-keep_last]:
        if step not in keep:
            # a checkpoint is renamed before it is deleted, so that no half-deleted one is ever taken for whole
            doomed = directory / f".old-{step_name(step)}"
            os.rename(directory / step_name(step), doomed)
            shutil.rmtree(doomed)


def set_aside_after(directory: Path, step: int) -> None:
    """Move checkpoints that a resume did not use out of the way, and sweep up what a crash left half done."""
    for path in [p for p in directory.glob("step-*") if int(p.name[5:]) > step]:
        count = len(list(directory.glob("unused-*")))
        os.rename(path, directory / f"unused-{count:03d}-{path.name}")
    for path in [*directory.glob(".tmp-step-*"), *directory.glob(".old-step-*")]:
        shutil.rmtree(path)


def step_name(step: int) -> str:
    """Return the directory name of a step; zero-padded so that names sort by step."""
    return f"step-{step:012d}"


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _refuse_non_finite(tensors: dict[str, Array]) -> None:
    for name, tensor in tensors.items():
        if name.startswith("algo.") and tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise Diverged(f"{name} is not finite: training has diverged; the last good checkpoint is kept")
