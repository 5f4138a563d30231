"""The process that leads a robot: it neither logs nor saves nor learns, and holds when its learner falls silent."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from typing import Any

from roboloop.core.blueprint import build_policy
from roboloop.core.child import outlive_parent
from roboloop.core.errors import RobotFault
from roboloop.core.memory import SharedMemory
from roboloop.core.wire import Channel
from roboloop.envs import registry
from roboloop.sample.bridge import BEAT_NS, GRANTED, MOVED_NS, POLICY, RESTING, STANDS, WANTS, Bridge, Shared
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.pilot import Pilot, real_time_env

LOOK_S = 0.002
"""How often a pilot that may not go on looks whether it may."""
PRIORITY = 10
"""Among real-time processes; any number is before all others."""


class LearnerGone(Exception):
    """The learner's process has ended."""


def main(channel: Channel, board_fd: int, words_fd: int) -> None:
    """Lead the robot until the learner hangs up, or dies."""
    job = channel.receive()
    outlive_parent()  # the robot is brought to rest first
    leader = Leader(job, channel, Shared(SharedMemory(board_fd, job["board"]), SharedMemory(words_fd, job["words"])))
    channel.send({"urgency": make_urgent()})
    try:
        with contextlib.suppress(LearnerGone):
            leader.lead()
    finally:
        leader.close()


def make_urgent() -> str:
    """Let this process run before others as far as it is permitted; return how."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except (OSError, AttributeError):
        return "ordinary"
    return "real-time"


class Leader:
    """Episodes one after another: made ready at once, begun when the learner has taken all there was and grants it."""

    def __init__(self, job: dict[str, Any], channel: Channel, shared: Shared) -> None:
        self._channel, self._parent = channel, os.getppid()
        self._hang_ns = int(job["learner_hang_s"] * 1e9)
        env = real_time_env(registry.make(registry.config_of(job["env"])))
        shape = RolloutShape(env.spec, **job["shape"])
        self._policies = [build_policy(policy["blueprint"]) for policy in job["policies"]]
        self._fetched = [0] * len(self._policies)
        self._bridge = Bridge(shape, job["slots"], [p["num_weights"] for p in job["policies"]], shared)
        self._learner, self._words = self._bridge.learner, self._bridge.pilot
        self._pilot = Pilot(env, shape, job["seed"], job["max_misses"])
        self._pilot.episode = job["episode"]

    def lead(self) -> None:
        """Lead for ever."""
        gc.disable()  # a collection takes longer than a forward pass: it is done between episodes
        while True:
            gc.collect()
            gc.freeze()
            try:
                self._stand_until(self._is_wanted)
                self._pilot.make_ready()
                self._words[WANTS] = self._pilot.episode + 1
                self._stand_until(lambda: self._is_wanted() and self._learner[GRANTED] > self._pilot.episode)
                self._pilot.begin()
                self._fly()
            except RobotFault as fault:
                self._say_fault(f"{type(fault).__name__}: {fault}")

    def _is_wanted(self) -> bool:
        return not self._learner[RESTING] and self._silence_ns() <= self._hang_ns

    def _silence_ns(self) -> int:
        return time.monotonic_ns() - int(self._learner[BEAT_NS])

    def _stand_until(self, may_go: Callable[[], bool]) -> None:
        """Do nothing with the robot until then; what is still to be handed over is."""
        while True:
            self._hand_over()
            self._words[STANDS], self._words[MOVED_NS] = 1, time.monotonic_ns()
            if may_go():
                self._words[STANDS] = 0
                return
            if os.getppid() != self._parent:
                raise LearnerGone
            if self._channel.connection.poll(LOOK_S):
                self._channel.receive()  # EOFError: it has hung up

    def _fly(self) -> None:
        pilot = self._pilot
        self._fetch()
        while pilot.is_running:
            pilot.tick(self._policies[self._learner[POLICY]])
            self._hand_over()
            self._fetch()
            self._words[MOVED_NS] = time.monotonic_ns()
            self._check_learner()
        self._channel.send({"ticks": pilot.take_ticks(), "missed": pilot.missed})

    def _hand_over(self) -> None:
        steps = self._pilot.steps
        while steps and self._bridge.put(steps[0]):
            steps.popleft()

    def _fetch(self) -> None:
        """Take over new weights of whoever acts."""
        policy = int(self._learner[POLICY])
        self._fetched[policy] = self._bridge.board.fetch(policy, self._fetched[policy], self._policies[policy])

    def _check_learner(self) -> None:
        """Hold at once, and end the episode, unless the learner lives, is awake, keeps up and wants more."""
        pilot, why = self._pilot, ""
        if os.getppid() != self._parent:
            pilot.give_up()
            raise LearnerGone
        if self._learner[RESTING]:
            pilot.give_up()
        elif self._silence_ns() > self._hang_ns:
            why = f"the learner has said nothing for {self._silence_ns() / 1e9:.2f} s"
        elif pilot.steps:
            why = f"the learner has {self._bridge.waiting} steps to take and there is room for no more"
        if why and pilot.is_running:
            pilot.give_up()
            self._say_fault(why)

    def _say_fault(self, cause: str) -> None:
        self._channel.send({"fault": f"{cause}; the robot holds, its episode ends at the last whole step"})

    def close(self) -> None:
        """Hold, and let go of the robot."""
        self._pilot.env.close()
