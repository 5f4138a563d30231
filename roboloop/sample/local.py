"""Workers as processes of this machine: a pipe for messages, shared memory for everything large."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from roboloop.core.child import Child
from roboloop.core.types import Array, PortablePolicy
from roboloop.sample.board import SharedBoard
from roboloop.sample.links import Beat, WorkerHandle


class LocalLink:
    """A worker process; it writes rollouts straight into their slots."""

    def __init__(self, number: int, job: dict[str, Any], memory_fd: int, beats: Array) -> None:
        self.child = Child(f"worker {number}", "roboloop.sample.worker:main", [memory_fd])
        self._beats = beats
        self._beats[:] = 0
        self.send(job)

    @property
    def name(self) -> str:
        """Its number and process."""
        return f"{self.child.name} (pid {self.child.pid})"

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        with contextlib.suppress(OSError):  # it is dead: the pipe's end is noticed when we listen
            self.child.channel.send(message)

    def receive(self) -> dict[str, Any]:
        """Return the next answer."""
        message: dict[str, Any] = self.child.channel.receive()
        return message

    def beat(self, fresh: bool) -> Beat:
        """Return its last sign of life."""
        return Beat(*(int(word) for word in self._beats[:3]))

    def how_it_ended(self) -> str:
        """Return the signal or exit code, and what it left in its log."""
        return self.child.how_it_ended()

    def where_it_hangs(self) -> str:
        """Return its Python stack."""
        return self.child.where_it_hangs()

    def lost_node(self) -> str | None:
        """Return nothing: this machine lives."""
        return None

    def rss_mb(self) -> float:
        """Return the memory it holds."""
        return self.child.rss_mb()

    def hang_up(self) -> None:
        """Close the pipe."""
        self.child.channel.close()

    def stop(self) -> None:
        """Wait for it to end; kill it if it does not."""
        self.child.stop()

    def kill(self) -> None:
        """End it now."""
        self.child.kill()


class LocalPlace:
    """The machine of the learner."""

    def __init__(self, board: SharedBoard) -> None:
        self._board = board

    def start(self, number: int, job: dict[str, Any]) -> LocalLink:
        """Start a process that shares the board."""
        memory = self._board.memory
        return LocalLink(number, {**job, "num_bytes": memory.num_bytes}, memory.fd, self._board.beats[number])

    def wait(self, links: Sequence[WorkerHandle], timeout_s: float) -> list[WorkerHandle]:
        """Return those whose pipe has something, or has ended."""
        by_pipe: dict[Any, WorkerHandle] = {}
        for link in links:
            assert isinstance(link, LocalLink)
            by_pipe[link.child.channel.connection] = link
        return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout=timeout_s)]

    def publish(self, policy: int, source: PortablePolicy) -> None:
        """Write the weights where all workers see them."""
        if not self._board.is_published(policy, source.version):
            self._board.publish(policy, source)

    def close(self) -> None:
        """Hold nothing."""
