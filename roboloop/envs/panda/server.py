"""The driver process: the simulated rig on the wall clock, a controller at 1 kHz and a watchdog, behind a socket."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import time
from dataclasses import replace
from typing import Any

from roboloop.core.errors import ConfigError
from roboloop.core.stop import StopRequest
from roboloop.core.wire import Channel
from roboloop.envs.panda.admission import posted
from roboloop.envs.panda.config import FaultPlan, PandaConfig
from roboloop.envs.panda.link import HOST, Garbled, Unpacker, command_from_data, pack, reading_to_data
from roboloop.envs.panda.simulation import PandaSimulation
from roboloop.envs.panda.tasks import RATE_HZ, TABLE, find

PUBLISH_S = 0.005
"""Time between states that are sent."""
TICK_S = 1 / RATE_HZ
LATE_TICKS = 250
"""A simulation that is so far behind the wall clock does not try to catch up."""


def main(channel: Channel) -> None:
    """Serve one client after another until the parent hangs up."""
    job = channel.receive()
    faults = tuple(FaultPlan(**plan) for plan in job["faults"])
    server = Server(PandaSimulation(TABLE[job["task"]], faults), job["watchdog_s"], job["token"])
    channel.send({"port": server.port})
    while True:
        server.turn()
        if channel.connection.poll(0):
            channel.receive()  # EOFError: the parent has hung up


def serve(task: str, cfg: PandaConfig, port: int, stop: StopRequest) -> None:
    """Be a rig that stands by itself: serve whoever can read its token, until asked to stop."""
    simulation, token = PandaSimulation(TABLE[find(task, cfg).name], cfg.faults), secrets.token_hex(16)
    try:
        server = Server(simulation, cfg.watchdog_s, token, port)
    except OSError as error:
        raise ConfigError(f"--port {port}: {os.strerror(error.errno or 0)}; 0 takes any free one") from None
    try:
        with posted(server.port, token) as path:
            address = f"{HOST}:{server.port}"
            print(
                f"rig panda/{task} on {address}, token in {path}; train on it with: roboloop train --env panda/{task} "
                f"--env.panda.driver process --env.panda.address {address} --sample.real-time process "
                "--eval.episodes 0",
                flush=True,
            )
            while not stop:
                server.turn()
    finally:
        server.close()


class Client:
    """One connection: what has come in, and what could not go out yet. Known ones have the token."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.unpacker = connection, Unpacker()
        self.is_known = False
        self.unsent = b""

    def send(self, data: bytes) -> None:
        """Send a state; one that finds the last still on its way is left out, since only the newest matters."""
        self.unsent = self.unsent or data
        with contextlib.suppress(BlockingIOError):
            self.unsent = self.unsent[self.socket.send(self.unsent) :]


class Server:
    """One thread and no waiting: each turn simulates what is due, hears, watches and speaks."""

    def __init__(self, simulation: PandaSimulation, watchdog_s: float, token: str, port: int = 0) -> None:
        self._simulation, self._watchdog_s, self._token = simulation, watchdog_s, token
        self._listener = socket.create_server((HOST, port))
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._clients: list[Client] = []
        self._hand: Client | None = None  # who moves the arm, and hears of it
        self._began_s = self._heard_s = time.monotonic()
        self._published_s = 0.0
        self._done = 0
        self._holds = 0
        self._is_holding = True

    def turn(self) -> None:
        """Do all that is due, and wait for the next tick or message."""
        now_s = time.monotonic()
        self._simulate(now_s)
        if not self._is_holding and now_s - self._heard_s > self._watchdog_s:
            self._hold()
        if now_s - self._published_s >= PUBLISH_S:
            self._published_s = now_s
            self._publish()
        rest_s = max(0.0, self._began_s + (self._simulation.tick + 1) * TICK_S - time.monotonic())
        sockets = [self._listener, *(client.socket for client in self._clients)]
        ready = select.select(sockets, [], [], rest_s)[0]  # not poll: that waits for whole milliseconds
        if self._listener in ready:
            self._clients.append(Client(self._listener.accept()[0]))
        for client in [c for c in self._clients if c.socket in ready]:
            if client in self._clients:  # not sent away by one that was heard before
                self._hear(client)

    def _simulate(self, now_s: float) -> None:
        due = int((now_s - self._began_s) / TICK_S) - self._simulation.tick
        if due > LATE_TICKS:
            self._began_s += (due - 1) * TICK_S
            due = 1
        if due > 0:
            self._simulation.advance(due)

    def _hold(self) -> None:
        self._simulation.hold()
        self._holds += 1
        self._is_holding = True

    def _hear(self, client: Client) -> None:
        try:
            data = client.socket.recv(1 << 16)
            messages = client.unpacker.feed(data)
            for message in messages:
                self._obey(client, message)
            if data:
                return
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            pass  # cut, or not our language
        self._drop(client)

    def _drop(self, client: Client) -> None:
        client.socket.close()
        self._clients.remove(client)
        if client is self._hand:
            self._hand = None
            if not self._is_holding:
                self._hold()

    def _obey(self, client: Client, message: Any) -> None:
        if not isinstance(message, dict):
            raise Garbled("a message is a mapping")
        if not client.is_known:
            if not hmac.compare_digest(str(message.get("token")), self._token):
                raise Garbled("the token is wrong")
            client.is_known = True  # and told what is here, before it can disturb whoever is at work
            client.send(pack({"task": self._simulation.task.name, "pid": os.getpid()}))
            return
        wish = message.get("do")
        if wish == "take":
            self._take(client)
        elif client is self._hand:
            self._move(wish, message)
        else:
            raise Garbled("the arm must be taken before it is moved")

    def _take(self, client: Client) -> None:
        """Give the arm to a client: one arm, one hand on it, the newest."""
        if self._hand is not None and self._hand is not client:
            self._drop(self._hand)
        self._hand, self._done = client, 0

    def _move(self, wish: Any, message: dict[str, Any]) -> None:
        simulation = self._simulation
        if wish == "send":
            simulation.send(command_from_data(message["command"]))
        elif wish == "hold":
            simulation.hold()
        elif wish == "start":
            simulation.start()
        elif wish == "prepare":
            simulation.rearrange(int(message["seed"]))
        else:
            raise Garbled(f"unknown wish {wish!r}")
        # all others leave the arm where it is: who falls silent after them is not missed
        self._done, self._heard_s, self._is_holding = int(message["number"]), time.monotonic(), wish != "send"

    def _publish(self) -> None:
        if self._hand is None:
            return
        reading = self._simulation.read(lambda tick: self._began_s + tick * TICK_S)
        data = pack({"reading": reading_to_data(replace(reading, holds=self._holds)), "done": self._done})
        try:
            self._hand.send(data)
        except OSError:
            self._drop(self._hand)

    def close(self) -> None:
        """Let go of all clients; the listener goes first, so that they find nobody there."""
        for each in (self._listener, *(client.socket for client in self._clients)):
            each.close()
