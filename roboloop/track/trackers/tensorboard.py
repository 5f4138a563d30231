"""Event files for TensorBoard."""

from __future__ import annotations

import io
import itertools
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from roboloop.core.files import append_durable, open_new, own_directory, remove
from roboloop.track.trackers.tracker import TrackedRun

_SUFFIX = ".roboloop"  # names the event files that are ours to delete
_numbers = itertools.count()


class TensorBoard:
    """Writes event files with TensorBoard's own protos: torch's writer would pull in torch.

    Rows are written at once: TensorBoard's own writer has a thread, which on a full disk ends in a traceback.
    """

    def __init__(self) -> None:
        self._fd: int | None = None  # opened by the first row, so that a run without rows leaves no file
        self._size = 0
        self._is_replaced = False

    def open(self, run: TrackedRun) -> None:
        """Delete the event files that we wrote before."""
        self._directory = run.path / "events"
        if not os.path.lexists(self._directory):
            return
        for old in own_directory(self._directory).glob(f"events.out.tfevents.*{_SUFFIX}"):
            remove(old)
            self._is_replaced = True

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Append one event."""
        from tensorboard.compat.proto import event_pb2, summary_pb2

        if self._fd is None:
            self._begin()
        values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        self._put(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _begin(self) -> None:
        from tensorboard.compat.proto import event_pb2

        own_directory(self._directory)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._fd = open_new(self._directory / f"{name}{_SUFFIX}")
        self._put(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if self._is_replaced:
            # a TensorBoard that has read the deleted files drops their points when it meets a session start
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._put(event_pb2.Event(wall_time=time.time(), step=0, session_log=start))

    def _put(self, event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._fd is not None
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self._size = append_durable(self._fd, self._size, record.getvalue(), sync=False)
