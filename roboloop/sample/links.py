"""What a crew needs of its workers, wherever they live: on this machine (``local``) or in a cluster (``on_ray``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from roboloop.core.types import PortablePolicy


class Beat(NamedTuple):
    """The last sign of life of a worker."""

    number: int
    phase: int
    env: int
    silent_s: float = 0.0
    """How long ago it was, as far as that is known."""


class WorkerHandle(Protocol):
    """One worker: messages go there in order, each is answered by one message."""

    @property
    def name(self) -> str:
        """Who it is and where it runs, in words."""
        ...

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; that the worker is gone is noticed where its answer is missed."""
        ...

    def receive(self) -> dict[str, Any]:
        """Return the next answer; rollouts are then in their slots. EOFError or OSError when the worker is gone.

        An answer ``doubt`` says that it may be gone: it speaks up when that is known.
        """
        ...

    def beat(self, fresh: bool) -> Beat:
        """Return its last known sign of life; for a fresh one it may be asked, for a moment."""
        ...

    def how_it_ended(self) -> str:
        """Return what is known of its death."""
        ...

    def where_it_hangs(self) -> str:
        """Return its Python stack, if it can still be asked for."""
        ...

    def lost_node(self) -> str | None:
        """Return the machine that was lost and it with it; none where the machine lives."""
        ...

    def rss_mb(self) -> float:
        """Return the memory it holds, in MB; 0 when it is gone or far away."""
        ...

    def hang_up(self) -> None:
        """Tell it to end, without waiting."""
        ...

    def stop(self) -> None:
        """Wait for it to end; kill it if it does not."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...


class Backend(Protocol):
    """Where workers live."""

    def start(self, number: int, job: dict[str, Any]) -> WorkerHandle:
        """Start a worker; its first answer is that it is ready."""
        ...

    def wait(self, links: Sequence[WorkerHandle], timeout_s: float) -> list[WorkerHandle]:
        """Return those with something to receive, be it their end; waits for the first."""
        ...

    def publish(self, policy: int, source: PortablePolicy) -> None:
        """Make a policy's present weights the newest, unless they are already."""
        ...

    def close(self) -> None:
        """Let go of what the place itself holds, after all workers have ended."""
        ...
