"""Connections to the page: so many at once, and none that waits or stands still for long."""

from __future__ import annotations

import asyncio
import math
import resource
import socket
import sys
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

WAIT_S = 10.0
"""A connection may take so long until its next request is whole."""
STUCK_S = 30.0
"""An answer may stand still for so long; a browser that pauses a film asks for the rest of it again."""
MOST = 256
_SPARE = 96
"""Files that the page may have open beside its connections."""
_AT_ONCE = 16
"""Connections that are taken in one turn, before any of them can be dropped."""
_QUEUE = 256
_WARN_S = 60.0


def most_connections() -> int:
    """Return how many connections there may be: half of the files that are left to open at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(8, min(MOST, (soft - _SPARE) // 2))


class Connection(H11Protocol):
    """One connection, with the times since when it waits or stands still."""

    most = MOST
    waits_s = math.inf
    """When it began to wait for a request."""
    stuck_s = math.inf
    """When its other end stopped reading."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; one too many takes the place of who has waited longest."""
        super().connection_made(transport)
        self.waits_s = self.loop.time()
        if len(self.connections) > self.most:
            others = [each for each in self.connections if isinstance(each, Connection)]
            min(others, key=lambda each: (min(each.idle_s, each.stuck_s), -each.waits_s)).drop()

    @property
    def idle_s(self) -> float:
        """When it began to wait; infinite while it is answered."""
        return self.waits_s if self.cycle is None or self.cycle.response_complete else math.inf

    def is_late(self) -> bool:
        """Say whether it has waited or stood still too long."""
        now_s = self.loop.time()
        return now_s - self.idle_s > WAIT_S or now_s - self.stuck_s > STUCK_S

    def drop(self) -> None:
        """End it at once."""
        self.connections.discard(self)  # it counts no more, though it takes two turns until it is gone
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.waits_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Note that the other end does not read."""
        self.stuck_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that it reads again."""
        self.stuck_s = math.inf
        super().resume_writing()


class PageServer(uvicorn.Server):
    """A server that drops who is late, and says in one line when the system has no more files to open."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._warned_s = -math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        asyncio.get_running_loop().set_exception_handler(self._tell)
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_QUEUE)  # who comes waits in the system's queue, where it takes no file of ours

    async def on_tick(self, counter: int) -> bool:
        """Drop who is late, once a second."""
        if counter % 10 == 0:
            for each in list(self.server_state.connections):
                if isinstance(each, Connection) and each.is_late():
                    each.drop()
        return await super().on_tick(counter)

    def _tell(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), OSError):
            loop.default_exception_handler(context)
        elif loop.time() - self._warned_s > _WARN_S:
            self._warned_s = loop.time()
            print(f"roboloop dash: {context['exception']}; goes on", file=sys.stderr, flush=True)


def make_server(app: Any) -> PageServer:
    """Return a server of the page."""
    kind = type("Connection", (Connection,), {"most": most_connections()})
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, timeout_graceful_shutdown=2, http=kind,
        ws="none", backlog=_AT_ONCE,
    )  # fmt: skip
    return PageServer(config)
