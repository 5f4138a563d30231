"""Checkpoints are never replaced: a new directory is written, made durable, then renamed into place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from roboloop.core.config import flatten
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.errors import Diverged as Diverged
from roboloop.core.files import (
    is_directory,
    make_directory,
    open_regular,
    read_bytes,
    read_json,
    remove,
    sync_directory,
    write_durable,
)
from roboloop.core.resources import free_memory_bytes
from roboloop.core.state import join, split
from roboloop.core.types import Array, State
from roboloop.data.journal import Frontier
from roboloop.track.metrics import LogMark

FORMAT = 3
_TENSORS, _MANIFEST = "state.safetensors", "manifest.json"
_NAME = re.compile(r"step-(\d{12,18})")
_MOST_MANIFEST_BYTES = 256 << 20


class Checkpoint(NamedTuple):
    """One frontier of the whole run."""

    path: Path
    step: int
    state: State
    journal: Frontier
    logs: dict[str, LogMark]
    seconds: dict[str, float]
    config: Mapping[str, Any]
    """What the run was then, by config key (``run/config.py: identity``); empty in checkpoints of older versions."""
    weights: str = ""
    """Digest of all its tensors, once it is written."""

    def check_config(self, now: Mapping[str, Any]) -> None:
        """Refuse a run whose config is not the one that this checkpoint was made with."""
        for key, value in now.items():
            if (then := self._then(key, value)) != value:
                made = f"{self.path.name} was made with {then!r}"
                raise ConfigError(f"{self.path.parents[1]}: config.yaml says {key} {value!r}, but {made}")

    def _then(self, key: str, now: Any) -> Any:
        """Return the value of a key then; as it is now where an older version did not know the key."""
        if key in self.config or not self.config or not isinstance(now, Mapping):
            return self.config.get(key, now)
        # older versions wrote each key inside a mapping, and nothing of an empty one
        inner = {name: value for name, value in self.config.items() if name.startswith(f"{key}.")}
        return now if inner == flatten(now, f"{key}.") else inner


def save(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write ``directory/step-N`` so that it exists wholly or not at all."""
    tensors, tree = split(checkpoint.state)
    _refuse_non_finite(tensors)
    final = directory / step_name(checkpoint.step)
    temporary = directory / f".tmp-{final.name}"
    make_directory(directory)
    remove(temporary)
    temporary.mkdir()
    blob = save_tensors(tensors)
    write_durable(temporary / _TENSORS, blob)
    body = {
        "format": FORMAT,
        "step": checkpoint.step,
        "files": {_TENSORS: hashlib.sha256(blob).hexdigest()},
        "journal": list(checkpoint.journal),
        "log_offsets": {name: mark.offset for name, mark in checkpoint.logs.items()},
        "log_checksums": {name: mark.chain for name, mark in checkpoint.logs.items()},
        "seconds": checkpoint.seconds,
        "config": dict(checkpoint.config),
        "tree": tree,
    }
    _write_manifest(temporary, body)
    sync_directory(temporary)
    os.rename(temporary, final)
    sync_directory(directory)
    return final


def copy(source: Checkpoint, directory: Path, config: Mapping[str, Any]) -> None:
    """Write a checkpoint of another run with a config of its own."""
    make_directory(directory)
    temporary = directory / f".tmp-{source.path.name}"
    remove(temporary)
    temporary.mkdir()
    write_durable(temporary / _TENSORS, _read_tensors(source.path))
    body = {**_read_manifest(source.path), "config": dict(config)}
    _write_manifest(temporary, body)
    sync_directory(temporary)
    os.rename(temporary, directory / source.path.name)
    sync_directory(directory)


def read(path: Path) -> Checkpoint:
    """Read one checkpoint and verify every byte of it."""
    with fits(path):
        body = _read_manifest(path)
        if body["format"] != FORMAT:
            raise DataError(f"checkpoint {path} has format {body['format']}, this version reads {FORMAT}")
        blob = _read_tensors(path)
        if hashlib.sha256(blob).hexdigest() != body["files"][_TENSORS]:
            raise DataError(f"checkpoint {path} is damaged: {_TENSORS} does not match its checksum")
        state = join(load_tensors(blob), body["tree"])
        if int(body["step"]) != int(path.name[5:]):
            raise DataError(f"checkpoint {path} is damaged: it is of step {body['step']}")
        frontier = Frontier(*map(int, body["journal"]))
        sums = body.get("log_checksums", {})
        logs = {name: LogMark(int(offset), sums.get(name)) for name, offset in body["log_offsets"].items()}
        seconds = {str(name): float(value) for name, value in body["seconds"].items()}
        config = dict(body.get("config", {}))
        return Checkpoint(path, int(body["step"]), state, frontier, logs, seconds, config, body["files"][_TENSORS])


@contextlib.contextmanager
def fits(path: Path) -> Iterator[None]:
    """Turn whatever the contents of a checkpoint break into one line: they are data, and may come from anywhere."""
    try:
        yield
    except (
        LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, AssertionError, MemoryError,
        SafetensorError,
    ) as error:  # fmt: skip
        what = " ".join(str(error).split())[:_LONGEST_REASON]
        raise DataError(f"checkpoint {path} does not fit: {type(error).__name__} {what}") from error


_LONGEST_REASON = 300


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = read_json(path / _MANIFEST, _MOST_MANIFEST_BYTES)
    body: dict[str, Any] = manifest["body"]
    if _digest(body) != manifest["sha256"]:
        raise DataError(f"checkpoint {path} is damaged: {_MANIFEST} does not match its checksum")
    return body


def _write_manifest(directory: Path, body: dict[str, Any]) -> None:
    manifest = {"sha256": _digest(body), "body": body}
    write_durable(directory / _MANIFEST, json.dumps(manifest).encode())


def _read_tensors(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError), open_regular(path / _TENSORS) as file:
        size, room = os.fstat(file.fileno()).st_size, free_memory_bytes()
        if size > room:
            raise DataError(f"checkpoint {path}: {_TENSORS} has {size:,} bytes, {room:,} bytes of memory are free")
    return read_bytes(path / _TENSORS, most=1 << 62)


def newest_first(directory: Path, tell: Callable[[str], None]) -> Iterator[Checkpoint]:
    """Yield the checkpoints that verify, newest first, and say which ones do not."""
    for step in reversed(steps(directory)):
        try:
            yield read(directory / step_name(step))
        except DataError as error:
            tell(f"{error}; trying the one before")


def at_step(directory: Path, step: int) -> Checkpoint:
    """Read the checkpoint of one step; say which there are if it does not exist."""
    path = directory / step_name(step)
    if not is_directory(path):
        known = ", ".join(str(s) for s in steps(directory)) or "none"
        raise DataError(f"no checkpoint at step {step} in {directory}; there are: {known}")
    return read(path)


def steps(directory: Path) -> list[int]:
    """List the steps that have a checkpoint, oldest first; copies under other names are nobody's."""
    found = directory.iterdir() if is_directory(directory) else ()
    named = [match for path in found if (match := _NAME.fullmatch(path.name)) and is_directory(path)]
    return sorted(int(match[1]) for match in named if step_name(int(match[1])) == match[0])


def prune(directory: Path, keep_last: int, keep: Collection[int]) -> None:
    """Delete all but the newest checkpoints and those to be kept."""
    for step in steps(directory)[:-keep_last]:
        if step not in keep:
            # a checkpoint is renamed before it is deleted, so that no half-deleted one is ever taken for whole
            doomed = directory / f".old-{step_name(step)}"
            remove(doomed)
            os.rename(directory / step_name(step), doomed)
            remove(doomed)


def set_aside_after(directory: Path, step: int) -> None:
    """Move checkpoints that a resume did not use out of the way, and sweep up what a crash left half done."""
    for unused in [each for each in steps(directory) if each > step]:
        number = 0
        while os.path.lexists(aside := directory / f"unused-{number:03d}-{step_name(unused)}"):
            number += 1
        os.rename(directory / step_name(unused), aside)
    for path in [*directory.glob(".tmp-step-*"), *directory.glob(".old-step-*")]:
        remove(path)


def step_name(step: int) -> str:
    """Return the directory name of a step; zero-padded so that names sort by step."""
    return f"step-{step:012d}"


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _refuse_non_finite(tensors: dict[str, Array]) -> None:
    for name, tensor in tensors.items():
        if name.startswith("algo.") and tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise Diverged(f"{name} is not finite: training has diverged; the last good checkpoint is kept")
