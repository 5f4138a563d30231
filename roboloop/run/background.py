"""Evaluation beside training: another process with its own environments, on a snapshot of the weights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from roboloop.core.blueprint import build_policy
from roboloop.core.child import START_S, Child, innermost
from roboloop.core.config import to_dict
from roboloop.core.errors import WorkerLost
from roboloop.core.memory import SharedMemory
from roboloop.core.types import PortablePolicy
from roboloop.core.wire import Channel
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.run.evaluate import Evaluator, Plan, Summary

_TRIES = 3
_LOOK_S = 0.25
_WORD_BYTES = 64


class _Desk:
    """Memory shared with the process: the weights to evaluate, and words by which it shows that it lives."""

    def __init__(self, shared: SharedMemory, num_weights: int) -> None:
        self.shared = shared
        self._words = memoryview(shared.map)[:_WORD_BYTES].cast("q")
        self.weights = np.ndarray((num_weights,), np.float32, shared.map, _WORD_BYTES)

    @property
    def beats(self) -> int:
        """How often it has shown that it lives."""
        return self._words[0]

    @property
    def has_started(self) -> bool:
        """Whether its simulators are made."""
        return self._words[1] != 0

    def beat(self) -> None:
        """Show that this process lives: after each reset and step."""
        self._words[0] += 1

    def start(self) -> None:
        """Say that all simulators are made."""
        self._words[1] = 1

    def clear(self) -> None:
        """Make ready for a new process."""
        self._words[1] = 0


class BackgroundEvaluator:
    """One evaluation at a time; asking for its result waits until it is there, or nothing moves for ``hang_s``."""

    def __init__(
        self,
        env: EnvConfig,
        lanes: int,
        policy: PortablePolicy,
        hang_s: float = START_S,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        num_weights = policy.num_weights
        self._job = {"env": to_dict(env), "lanes": lanes, "blueprint": policy.blueprint(), "num_weights": num_weights}
        self._desk = _Desk(SharedMemory.create(_WORD_BYTES + 4 * num_weights), num_weights)
        self._hang_s, self._tell = hang_s, tell
        self._child: Child | None = None
        self._request: dict[str, Any] | None = None
        self._losses = 0

    def begin(self, policy: PortablePolicy, plan: Plan) -> None:
        """Evaluate a copy of the policy as it is now."""
        policy.write_weights(self._desk.weights)
        self._request = {"version": policy.version, "plan": asdict(plan)}
        self._losses = 0
        self._hand_over()

    def _hand_over(self) -> None:
        """Send the request; a process that died meanwhile is replaced."""
        while True:
            child = self._child or self._start()
            try:
                child.channel.send(self._request)
                return
            except OSError:
                self._lose(child, child.how_it_ended())

    def _start(self) -> Child:
        self._desk.clear()
        self._child = Child("evaluation process", "roboloop.run.background:main", [self._desk.shared.fd])
        with contextlib.suppress(OSError):  # it is dead: noticed when it is sent the request
            self._child.channel.send(self._job)
        return self._child

    def _lose(self, child: Child, why: str) -> None:
        """Drop a process; the evaluation is begun again by the next one, with the same result."""
        child.kill()
        self._child = None
        self._losses += 1
        if self._losses == _TRIES:
            raise WorkerLost(f"the evaluation process (pid {child.pid}) {why}\nlost {_TRIES} times in one evaluation")
        self._tell(f"the evaluation process (pid {child.pid}) {why.splitlines()[0]}; a new one evaluates again")

    def result(self) -> Summary:
        """Wait for the evaluation that was begun; one whose process dies or hangs is run again."""
        while True:
            child = self._child
            assert child is not None, "begin an evaluation first"
            why = self._await(child)
            if why is None:
                try:
                    return Summary(**child.channel.receive())
                except (EOFError, OSError):
                    why = child.how_it_ended()
            self._lose(child, why)
            self._hand_over()

    def _await(self, child: Child) -> str | None:
        """Wait until there is something to receive; return how it hangs if that is not so in time."""
        beats, moved_s = self._desk.beats, time.monotonic()
        while not child.channel.connection.poll(_LOOK_S):
            if self._desk.beats != beats:
                beats, moved_s = self._desk.beats, time.monotonic()
            allowed_s = self._hang_s if self._desk.has_started else max(START_S, self._hang_s)
            silent_s = time.monotonic() - moved_s
            if silent_s > allowed_s:
                stack = child.where_it_hangs()
                return f"hung for {silent_s:.1f} s{innermost(stack)}\n{stack}"
        return None

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.stop()


def main(channel: Channel, desk_fd: int) -> None:
    """Serve evaluations until the parent hangs up."""
    job = channel.receive()
    desk = _Desk(SharedMemory(desk_fd, _WORD_BYTES + 4 * job["num_weights"]), job["num_weights"])
    env = registry.config_of(job["env"])
    policy = build_policy(job["blueprint"])
    evaluator = Evaluator(lambda lane: registry.make(env, True, lane), env.frame_stack, job["lanes"], desk.beat)
    try:
        evaluator.make_envs()
        desk.start()
        while True:
            request = channel.receive()
            policy.read_weights(desk.weights, request["version"])
            channel.send(asdict(evaluator.run(policy, Plan(**request["plan"]))))
    finally:
        evaluator.close()
