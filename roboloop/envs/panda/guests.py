"""Who is connected to a rig: few at a time, strangers not for long, and nobody takes more than a share of a turn."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Iterator

from roboloop.envs.panda.link import HOST, LONGEST, Garbled, Inbox, pack

STRANGER_S = 1.0
"""Who has not shown the token by then is sent away."""
STRANGERS, KNOWN = 16, 8
"""Connections without and with the token; of more, the oldest goes, but never the one that has the arm."""
LONGEST_TOKEN = 256
"""Bytes of the message with the token."""
DEAF_S = 2.0
"""Who moves the arm and reads nothing for so long, with all buffers full, is sent away; who holds may be learning."""
BUFFER = 1 << 16
BACKLOG, ACCEPTS, EVENTS = 1024, 8, 8
"""Connections that may wait at the door, and how many are let in and heard in one turn: the arm comes in between."""
PAUSE_S = 0.2
"""Nobody is taken in for so long when descriptors run out."""
NOTE_S = 1.0
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Guest:
    """One connection: what has come in, and what could not go out yet. Known ones have shown the token."""

    def __init__(self, line: socket.socket, now_s: float) -> None:
        line.setblocking(False)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.socket, self.inbox = line, Inbox(LONGEST_TOKEN)
        self.came_s = self._took_s = now_s
        self.is_known = False
        self._unsent = b""

    def send(self, data: bytes, is_moving: bool = False) -> None:
        """Send a state; one that finds the last still on its way is left out, since only the newest matters."""
        now_s = time.monotonic()
        if not (self._unsent and is_moving):
            self._took_s = now_s
        self._unsent = self._unsent or data
        try:
            sent = self.socket.send(self._unsent)
        except BlockingIOError:
            if now_s - self._took_s > DEAF_S:
                raise Garbled(f"it moves the arm and has read nothing for {DEAF_S:g} s") from None
            return
        self._took_s, self._unsent = now_s, self._unsent[sent:]


class Guests:
    """The listener and all connections; nothing here waits but ``ready``."""

    def __init__(self, port: int, notes: Notes | None = None) -> None:
        self._listener = socket.create_server((HOST, port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._notes = notes
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._closed_until_s = 0.0  # not 0: descriptors ran out, nobody is taken in until then
        self._all: dict[int, Guest] = {}  # by descriptor, the oldest first

    def ready(self, patience_s: float) -> Iterator[Guest]:
        """Wait for news, return those who have some in fair turns, and take in who knocks."""
        # epoll knows any number of descriptors but waits for whole milliseconds; select on it alone does not
        if not select.select([self._poll], [], [], patience_s)[0]:
            return
        knocked = False
        for descriptor, _ in self._poll.poll(0, EVENTS):
            if descriptor == self._listener.fileno():
                knocked = True
            elif descriptor in self._all:  # not sent away by one that was heard before
                yield self._all[descriptor]
        if knocked:  # last: a token that has come counts before its bearer is crowded out
            self._take_in()

    def _take_in(self) -> None:
        for _ in range(ACCEPTS):
            try:
                line = self._listener.accept()[0]
            except OSError as error:
                if error.errno in _SCARCE:
                    self._pause(str(error.strerror))
                return
            now_s = time.monotonic()
            try:
                guest = Guest(line, now_s)
                self._poll.register(line, select.EPOLLIN)
            except OSError:  # it is gone already
                line.close()
                continue
            self._all[line.fileno()] = guest
            self._crowd_out(False, STRANGERS, None)

    def _pause(self, why: str) -> None:
        self._poll.unregister(self._listener)
        self._closed_until_s = time.monotonic() + PAUSE_S
        self._note(f"nobody is let in for {PAUSE_S:g} s: {why}")

    def know(self, guest: Guest, hand: Guest | None) -> None:
        """Take a guest for known: it has shown the token."""
        guest.is_known, guest.inbox = True, Inbox(LONGEST)
        self._crowd_out(True, KNOWN, hand)

    def _crowd_out(self, is_known: bool, most: int, hand: Guest | None) -> None:
        alike = [guest for guest in self._all.values() if guest.is_known is is_known]
        idle = [guest for guest in alike if guest is not hand]
        for guest in idle[: max(0, len(alike) - most)]:
            self.dismiss(guest, "more connections than there is room for")

    def tidy(self, now_s: float) -> None:
        """Send strangers away whose time is over, and open the door again."""
        if self._closed_until_s and now_s >= self._closed_until_s:
            self._closed_until_s = 0.0
            self._poll.register(self._listener, select.EPOLLIN)
        late = [g for g in self._all.values() if not g.is_known and now_s - g.came_s > STRANGER_S]
        for guest in late:
            self.dismiss(guest, f"no token within {STRANGER_S:g} s")

    def dismiss(self, guest: Guest, why: str = "") -> None:
        """Close a connection; a known one is told why, strangers are told nothing."""
        if self._all.pop(guest.socket.fileno(), None) is None:
            return
        if why:
            self._note(why)
            if guest.is_known:
                with contextlib.suppress(OSError, Garbled):
                    guest.send(pack({"refused": why}))
        with contextlib.suppress(OSError):  # what is left unread would make the close a reset, and lose those words
            guest.socket.recv(BUFFER)
        guest.socket.close()  # epoll forgets it with that

    def _note(self, why: str) -> None:
        if self._notes is not None:
            self._notes.say(why)

    def close(self) -> None:
        """Let go of all; the listener goes first, so that they find nobody there."""
        for each in (self._listener, *(guest.socket for guest in self._all.values())):
            each.close()
        self._poll.close()


class Notes:
    """Says why connections were closed: one line a second at most, and never waits for a terminal or a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._count, self._said_s = 0, -NOTE_S

    def say(self, why: str) -> None:
        """Count, and say the last reason if nothing was said for a while."""
        self._count += 1
        now_s = time.monotonic()
        if now_s - self._said_s < NOTE_S:
            return
        line = f"roboloop: rig: {self._count} refused, the last: {why}\n".encode()
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        with contextlib.suppress(OSError):
            if poll.poll(0):
                os.write(self._descriptor, line)
        self._count, self._said_s = 0, now_s
