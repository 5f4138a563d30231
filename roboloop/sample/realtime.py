"""Samplers of one robot in real time: its pilot in this process, or in one of its own while this one learns."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from roboloop.core.child import START_S, Child, innermost
from roboloop.core.config import to_dict
from roboloop.core.errors import RobotFault, WorkerLost
from roboloop.core.state import counts_from
from roboloop.core.types import Array, Policy, PortablePolicy, Rollout, State
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import RealTimeEnv
from roboloop.sample.bridge import BEAT_NS, GRANTED, MOVED_NS, POLICY, RESTING, STANDS, WANTS, Bridge
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.config import SampleConfig
from roboloop.sample.pilot import Pilot, PilotStep, Tick
from roboloop.track.metrics import delay_counts

SLOTS = 1024
"""Steps that a pilot may be ahead of its learner."""
BEAT_S = 0.02
WAIT_S = 0.001
"""How often a learner that has nothing to do looks for a step."""


class RealTimeSampler:
    """What both kinds have in common: the books of what was handed out, and of what went wrong."""

    def __init__(self, cfg: SampleConfig) -> None:
        self.cfg = cfg
        self._episode = 0  # the next one that nobody has begun
        self._is_open = False  # whether rows of an episode without its end have been handed out
        self._faults: list[str] = []
        self._faults_in_a_row = 0
        self._counts = {"robot_faults": 0, "missed_ticks": 0}
        self._ticks: list[Array] = []

    def _book(self, step: PilotStep) -> Rollout:
        """Enter a step; an episode that has no end is cut before the next one's first step."""
        rollout = step.rollout._replace(cut=(0,) if step.is_first and self._is_open else ())
        self._is_open = not rollout.episodes
        self._episode = step.episode + 1
        if rollout.episodes:
            self._faults_in_a_row = 0
        return rollout

    def _book_fault(self, said: str) -> None:
        self._faults.append(said)
        self._counts["robot_faults"] += 1
        self._faults_in_a_row += 1
        if self._faults_in_a_row > self.cfg.restarts:
            raise WorkerLost(f"{said}\n{self._faults_in_a_row} faults in a row are more than sample.restarts allows")

    def _book_ticks(self, ticks: Array, missed: int) -> None:
        self._ticks.append(ticks)
        self._counts["missed_ticks"] += missed

    def faults(self) -> list[str]:
        """Return what went wrong and was mended since this was last asked."""
        said, self._faults = self._faults, []
        return said

    def stats(self) -> dict[str, float]:
        """Return counters of what went wrong, as metrics."""
        return {f"sample/{name}": float(count) for name, count in self._counts.items() if count}

    def take_ticks(self) -> list[Array]:
        """Return when the actions of each episode since this was last asked were decided: rows of ``Tick``."""
        ticks, self._ticks = self._ticks, []
        return ticks

    def timing(self) -> dict[str, Any]:
        """Return how the episodes since this was last asked kept their time: quantiles, and ticks by their delay."""
        ticks = np.concatenate([np.zeros((0, len(Tick._fields))), *self.take_ticks()])
        told: dict[str, Any] = {}
        for column, field in enumerate(Tick._fields):
            if field != "deadline_s" and len(ticks):
                name, delays_ms = f"sample/{field.removesuffix('_s')}", 1e3 * ticks[:, column]
                quantiles = zip(("p50", "p99", "max"), np.quantile(delays_ms, (0.5, 0.99, 1.0)), strict=True)
                told |= {f"{name}_{label}_ms": float(value) for label, value in quantiles}
                told[f"{name}_ticks"] = delay_counts(delays_ms)
        return told

    def state(self) -> State:
        """Return the books; an episode that runs now is not part of it, and will be cut."""
        counts = {name: count for name, count in self._counts.items() if count}
        return {"episode": self._episode, "is_open": self._is_open, "counts": counts}

    def load(self, state: State) -> None:
        """Go on with the next episode."""
        self._episode, self._is_open = int(state["episode"]), bool(state["is_open"])
        self._counts.update(counts_from(state["counts"]))


class InlineSampler(RealTimeSampler):
    """The pilot in this process: what its caller does between two calls is done in the slack of a tick."""

    def __init__(self, env: RealTimeEnv, shape: RolloutShape, cfg: SampleConfig, seed: int) -> None:
        super().__init__(cfg)
        self._pilot = Pilot(env, shape, seed, cfg.max_misses)

    @property
    def in_tick(self) -> bool:
        """Whether the robot moves and its next deadline is near."""
        return self._pilot.is_running

    def time_left_s(self) -> float:
        """Return how long the robot does not need us; without end between episodes."""
        return self._pilot.time_left_s()

    def collect(self, policy: Policy) -> Rollout:
        """Tick until a step is whole."""
        pilot = self._pilot
        while not pilot.steps:
            try:
                if not pilot.is_running:
                    self._begin()
                pilot.tick(policy)
            except RobotFault as fault:
                said = f"{type(fault).__name__}: {fault}"
                self._book_fault(f"{said}; the robot holds, its episode ends at the last whole step")
            if not pilot.is_running:
                self._book_ticks(pilot.take_ticks(), pilot.missed)
        return self._book(pilot.steps.popleft())

    def _begin(self) -> None:
        self._pilot.episode = max(self._pilot.episode, self._episode)
        self._pilot.make_ready()
        self._pilot.begin()

    def rest(self) -> list[Rollout]:
        """Bring the robot to a stand; a running episode ends, and its last whole steps are returned."""
        if self._pilot.is_running:
            self._pilot.give_up()
            self._book_ticks(self._pilot.take_ticks(), self._pilot.missed)
        steps = [self._book(step) for step in self._pilot.steps]
        self._pilot.steps.clear()
        return steps

    def close(self) -> None:
        """Hold, and let go of the robot."""
        self._pilot.env.close()


class PilotedSampler(RealTimeSampler):
    """The pilot in a process of its own: nothing that is done in this one can make the robot wait."""

    in_tick: ClassVar[bool] = False

    def __init__(
        self, env: EnvConfig, shape: RolloutShape, cfg: SampleConfig, seed: int, policies: Sequence[PortablePolicy]
    ) -> None:
        super().__init__(cfg)
        self._env, self._shape, self._seed, self._policies = env, shape, seed, policies
        self._bridge = Bridge(shape, SLOTS, [p.num_weights for p in policies])
        self._child: Child | None = None
        self._is_closed = threading.Event()
        # a thread of its own, so that a long update or a slow disk is not taken for a hang; a stopped process is
        self._heart = threading.Thread(target=_beat, args=(self._bridge.learner, self._is_closed), daemon=True)
        self._heart.start()
        self._finalizer = weakref.finalize(self, self._is_closed.set)
        self.urgency = ""
        """How the pilot may push others aside, as it said."""

    @property
    def pid(self) -> int:
        """The pilot's process id."""
        assert self._child is not None
        return self._child.pid

    def collect(self, policy: PortablePolicy) -> Rollout:
        """Wait for the next whole step; while there is none, the robot may begin its next episode."""
        learner = self._bridge.learner
        number = next(i for i, known in enumerate(self._policies) if known is policy)
        if not self._bridge.board.is_published(number, policy.version):
            self._bridge.board.publish(number, policy)
        learner[POLICY], learner[RESTING] = number, 0
        if self._child is None:
            self._start()
        while (step := self._bridge.take()) is None:
            learner[GRANTED] = self._bridge.pilot[WANTS]
            self._listen()
        return self._book(step)

    def _start(self) -> None:
        self._bridge.pilot[:] = 0
        self._bridge.pilot[MOVED_NS] = time.monotonic_ns()
        shared = self._bridge.shared
        self._child = Child("pilot", "roboloop.sample.pilot_process:main", [shared.board.fd, shared.words.fd])
        job = {
            "env": to_dict(self._env), "shape": self._shape.to_data(), "seed": self._seed, "slots": SLOTS,
            "policies": [{"blueprint": p.blueprint(), "num_weights": p.num_weights} for p in self._policies],
            "board": shared.board.num_bytes, "words": shared.words.num_bytes, "episode": self._episode,
            "max_misses": self.cfg.max_misses, "learner_hang_s": self.cfg.learner_hang_s,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # it is dead: noticed when we listen
            self._child.channel.send(job)

    def _listen(self) -> None:
        """Hear what the pilot says between episodes; replace one that has died or hangs."""
        assert self._child is not None
        try:
            if not self._child.channel.connection.poll(WAIT_S):
                silent_s = (time.monotonic_ns() - int(self._bridge.pilot[MOVED_NS])) / 1e9
                if silent_s > max(self.cfg.hang_s, START_S):
                    self._replace(f"hung for {silent_s:.0f} s{innermost(self._child.where_it_hangs())}")
                return
            message = self._child.channel.receive()
        except (EOFError, OSError):
            if not self._bridge.waiting:  # all that it has left behind comes first
                first, *more = self._child.how_it_ended().splitlines()
                self._replace(f"{first}: {more[-1]}" if more else first)
        else:
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        if "fault" in message:
            self._book_fault(message["fault"])
        elif "ticks" in message:
            self._book_ticks(message["ticks"], message["missed"])
        else:
            self.urgency = message["urgency"]

    def _replace(self, why: str) -> None:
        assert self._child is not None
        name = f"pilot (pid {self._child.pid})"
        self._child.kill()
        self._episode += 1  # the one that it may have begun
        self._book_fault(f"{name} {why}; the robot's own watchdog holds it, a new pilot takes over")
        self._start()

    def rest(self) -> list[Rollout]:
        """Bring the robot to a stand; a running episode ends, and the steps that were on their way are returned."""
        if self._child is None:
            return []
        self._bridge.learner[RESTING] = 1
        deadline_s = time.monotonic() + self.cfg.hang_s
        while self._child.is_alive() and not self._bridge.pilot[STANDS] and time.monotonic() < deadline_s:
            time.sleep(WAIT_S)
        with contextlib.suppress(EOFError, OSError):  # a pilot that has died is replaced when it is needed
            while self._child.channel.connection.poll(0):
                self._hear(self._child.channel.receive())
        steps = []
        while (step := self._bridge.take()) is not None:
            steps.append(self._book(step))
        return steps

    def close(self) -> None:
        """Let the pilot hold and let go of the robot, and end it."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        self._is_closed.set()


def _beat(words: Array, is_closed: threading.Event) -> None:
    while True:
        words[BEAT_NS] = time.monotonic_ns()
        if is_closed.wait(BEAT_S):
            return
