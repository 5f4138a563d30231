"""The driver process: the simulated rig on the wall clock, a controller at 1 kHz and a watchdog, behind a socket."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from dataclasses import replace
from typing import Any

from roboloop.core.errors import ConfigError
from roboloop.core.stop import StopRequest
from roboloop.core.wire import Channel
from roboloop.envs.panda.admission import posted
from roboloop.envs.panda.config import FaultPlan
from roboloop.envs.panda.guests import Guest, Guests, Notes
from roboloop.envs.panda.link import HOST, Garbled, command_from_data, pack, reading_to_data, shown, whole_number
from roboloop.envs.panda.simulation import PandaSimulation
from roboloop.envs.panda.suite import PandaEnvConfig
from roboloop.envs.panda.tasks import RATE_HZ, TABLE, find

PUBLISH_S = 0.005
"""Time between states that are sent."""
TICK_S = 1 / RATE_HZ
STDERR = 2
LATE_TICKS = 250
"""A simulation that is so far behind the wall clock does not try to catch up."""


def main(channel: Channel) -> None:
    """Serve one client after another until the parent hangs up."""
    job = channel.receive()
    faults = tuple(FaultPlan(**plan) for plan in job["faults"])
    guests = Guests(port=0)
    server = Server(PandaSimulation(TABLE[job["task"]], faults), job["watchdog_s"], job["token"], guests)
    channel.send({"port": guests.port})
    while True:
        server.turn()
        if channel.connection.poll(0):
            channel.receive()  # EOFError: the parent has hung up


def serve(task: str, config: PandaEnvConfig, port: int, stop: StopRequest) -> None:
    """Be a rig that stands by itself: serve whoever can read its token, until asked to stop."""
    cfg = config.panda
    simulation, token = PandaSimulation(TABLE[find(task, cfg).name], cfg.faults), secrets.token_hex(16)
    try:
        guests = Guests(port, Notes(STDERR))
    except OSError as error:
        raise ConfigError(f"--port {port}: {os.strerror(error.errno or 0)}; 0 takes any free one") from None
    try:
        with posted(guests.port, token) as path:
            address = f"{HOST}:{guests.port}"
            print(
                f"rig panda/{task} on {address}, token in {path}; train on it with: roboloop train --env panda/{task} "
                f"--env.panda.driver process --env.panda.address {address} --sample.real-time process "
                "--eval.episodes 0",
                flush=True,
            )
            server = Server(simulation, cfg.watchdog_s, token, guests)
            while not stop:
                server.turn()
    finally:
        guests.close()


class Server:
    """One thread and no waiting: each turn simulates what is due, watches, speaks and hears a little."""

    def __init__(self, simulation: PandaSimulation, watchdog_s: float, token: str, guests: Guests) -> None:
        self._simulation, self._watchdog_s, self._token, self._guests = simulation, watchdog_s, token, guests
        self._hand: Guest | None = None  # who moves the arm, and hears of it
        self._began_s = self._heard_s = time.monotonic()
        self._published_s = 0.0
        self._late_s = 0.0  # of the latest tick since the arm was taken
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
        self._guests.tidy(now_s)
        rest_s = max(0.0, self._began_s + (self._simulation.tick + 1) * TICK_S - time.monotonic())
        for guest in self._guests.ready(rest_s):
            self._hear(guest)

    def _simulate(self, now_s: float) -> None:
        self._late_s = max(self._late_s, now_s - self._began_s - (self._simulation.tick + 1) * TICK_S)
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

    def _hear(self, guest: Guest) -> None:
        try:
            message = guest.inbox.take(guest.socket)
            if message is not None:
                self._obey(guest, message)
        except (EOFError, OSError):
            self._dismiss(guest, "")
        except Garbled as error:
            self._dismiss(guest, str(error))
        except Exception as error:  # whatever a message leads to ends its connection, never the controller
            self._dismiss(guest, f"{type(error).__name__}: {shown(error)}")

    def _dismiss(self, guest: Guest, why: str) -> None:
        """Close a connection; the arm holds if it was in that hand."""
        if guest is self._hand:
            self._hand = None
            if not self._is_holding:
                self._hold()
        self._guests.dismiss(guest, why)

    def _obey(self, guest: Guest, message: Any) -> None:
        if not isinstance(message, dict):
            raise Garbled("a message is a mapping")
        if not guest.is_known:
            token = message.get("token")
            if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self._token.encode()):
                raise Garbled("the token is wrong")
            self._guests.know(guest, self._hand)
            # it is told what is here, before it can disturb whoever is at work
            guest.send(pack({"task": self._simulation.task.name, "pid": os.getpid()}))
            return
        wish = message.get("do")
        if not isinstance(wish, str):
            raise Garbled("a message says what to do")
        if wish == "take":
            self._take(guest)
        elif guest is self._hand:
            self._move(wish, message)
        else:
            raise Garbled("the arm must be taken before it is moved")

    def _take(self, guest: Guest) -> None:
        """Give the arm to a client: one arm, one hand on it, the newest."""
        if self._hand is not None and self._hand is not guest:
            self._dismiss(self._hand, "another client has taken the arm")
        self._hand, self._done, self._late_s = guest, 0, 0.0

    def _move(self, wish: str, message: dict[str, Any]) -> None:
        """Do what the hand wishes, if all of its message is sound: the arm moves for nothing else."""
        simulation, number = self._simulation, whole_number(message, "number")
        if wish == "send":
            command = command_from_data(message.get("command"))
            self._heard_s, self._is_holding = time.monotonic(), False  # first: whatever comes now is watched
            simulation.send(command)
        elif wish == "hold":
            simulation.hold()
        elif wish == "start":
            simulation.start()
        elif wish == "prepare":
            simulation.rearrange(whole_number(message, "seed"))
        else:
            raise Garbled(f"unknown wish {shown(wish)!r}")
        # all others leave the arm where it is: who falls silent after them is not missed
        self._done, self._is_holding = number, wish != "send"

    def _publish(self) -> None:
        if self._hand is None:
            return
        reading = self._simulation.read(lambda tick: self._began_s + tick * TICK_S)
        state = {"reading": reading_to_data(replace(reading, holds=self._holds)), "done": self._done}
        try:
            self._hand.send(pack({**state, "late_s": self._late_s}), is_moving=not self._is_holding)
        except OSError:
            self._dismiss(self._hand, "")
        except Garbled as error:
            self._dismiss(self._hand, str(error))
