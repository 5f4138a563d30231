"""Mirrors of the metric log for other people's viewers: TensorBoard and Weights & Biases."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from roboloop.core.errors import DataError, MissingExtra
from roboloop.core.files import (
    DISK_FAULTS,
    append_durable,
    open_new,
    own_directory,
    read_bytes,
    remove,
    replace_atomic,
)
from roboloop.track.metrics import finite

_LONGEST_ID = 128
_SUFFIX = ".roboloop"  # names the event files that are ours to delete
_numbers = itertools.count()


class Sink(Protocol):
    """Where metrics go besides the log."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Mirror one row; what is no finite number is left out."""
        ...

    def rebuild(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Mirror the log anew after a resume, so that no step is there twice."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row, without its step."""
    return {
        name: float(value)
        for name, value in finite(metrics).items()
        if name != "step" and isinstance(value, int | float)
    }


class TensorBoardSink:
    """Event files for TensorBoard, written with its own protos (torch's writer would pull in torch).

    Rows are written at once: TensorBoard's own writer has a thread, which on a full disk ends in a traceback.
    A mirror can be done without: a disk that fails ends it with one line, and the next resume makes it anew.
    """

    def __init__(self, directory: Path, tell: Callable[[str], None] = lambda line: None) -> None:
        self.directory, self._tell = directory, tell
        self._fd: int | None = None  # opened by the first row, so that a run without rows leaves no file
        self._size = 0
        self._is_over = False

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Mirror one row."""
        if not self._is_over:
            with self._dispensable():
                self._add(step, metrics, time.time())

    def rebuild(self, rows: Iterable[Mapping[str, Any]], unix_s: Mapping[int, float] | None = None) -> None:
        """Replace our event files by the rows of the log; ``unix_s`` gives steps their time, for relative time axes."""
        from tensorboard.compat.proto import event_pb2

        self.close()
        with self._dispensable():
            for old in own_directory(self.directory).glob(f"events.out.tfevents.*{_SUFFIX}"):
                remove(old)
            # a TensorBoard that has read the deleted files drops their points when it meets a session start
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._put(event_pb2.Event(wall_time=time.time(), step=0, session_log=start))
            for row in rows:
                step = int(row["step"])
                self._add(step, row, (unix_s or {}).get(step, time.time()))

    def close(self) -> None:
        """Close; a later write opens a new file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd, self._size = None, 0

    @contextlib.contextmanager
    def _dispensable(self) -> Iterator[None]:
        """End the mirror, not the training, where the disk fails."""
        try:
            yield
        except OSError as error:
            self._is_over = True
            why = DISK_FAULTS.get(error.errno or 0, error.strerror)
            self._tell(f"no more TensorBoard events in {self.directory}: {why}; training goes on")

    def _put(self, event: Any) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        if self._fd is None:
            own_directory(self.directory)
            name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
            self._fd = open_new(self.directory / f"{name}{_SUFFIX}")
            version = event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")
            RecordWriter(record).write(version.SerializeToString())
        RecordWriter(record).write(event.SerializeToString())
        self._size = append_durable(self._fd, self._size, record.getvalue(), sync=False)

    def _add(self, step: int, metrics: Mapping[str, Any], unix_s: float) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in scalars(metrics).items()]
        if values:
            self._put(event_pb2.Event(wall_time=unix_s, step=step, summary=summary_pb2.Summary(value=values)))


class WandbSink:
    """A Weights & Biases run inside the run directory; offline until told otherwise (``wandb sync`` uploads it)."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any], offline: bool = True) -> None:
        if offline:  # crash reports would go over the network even in offline mode
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra("Weights & Biases is not installed: pip install roboloop[wandb]") from error
        self.run_dir = run_dir
        folder = own_directory(run_dir / "wandb")
        if os.path.lexists(folder / "settings"):
            raise DataError(f"{folder / 'settings'} could send the run elsewhere: delete it, or use --no-wandb")
        experiment, task, seed = run_dir.resolve().parts[-3:]
        self._run = wandb.init(
            project="roboloop",
            dir=run_dir,
            id=_wandb_id(run_dir),
            name=f"{experiment}/{task}/{seed}",
            group=f"{experiment}/{task}",
            config=dict(config),
            mode="offline" if offline else "online",
            resume=None if offline else "allow",
            reinit="create_new",
            # our progress line owns the terminal; versions and git are in meta.json
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Mirror one row."""
        self._run.log(scalars(metrics), step=step)

    def rebuild(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the log into this W&B run, in place of the offline runs before the resume."""
        current = Path(self._run.dir).resolve().parent
        for old in (self.run_dir / "wandb").resolve().glob(f"offline-run-*-{self._run.id}"):
            if old != current:
                remove(old)
        first = self._run.step  # zero, or online where the server's copy ends: what it has cannot be replaced
        for row in rows:
            if row["step"] >= first:
                self.write(int(row["step"]), row)

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


def _wandb_id(run_dir: Path) -> str:
    """Return the id of this run directory's W&B run, the same after a resume."""
    path = run_dir / "wandb" / "id.txt"
    if os.path.lexists(path):
        known = read_bytes(path, _LONGEST_ID).strip()
        if not known.isalnum():
            raise DataError(f"{path} is not an id of a W&B run")
        return known.decode()
    new = uuid.uuid4().hex
    replace_atomic(path, new.encode())
    return new
