"""Evaluation beside training: another process with its own environments, on a snapshot of the weights."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from roboloop.core.blueprint import build_policy
from roboloop.core.child import Child
from roboloop.core.config import override, to_dict
from roboloop.core.errors import WorkerLost
from roboloop.core.types import PortablePolicy
from roboloop.core.wire import Channel
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.run.evaluate import Evaluator, Plan, Summary

_TRIES = 3


class BackgroundEvaluator:
    """One evaluation at a time; asking for its result waits until it is there."""

    def __init__(self, env: EnvConfig, lanes: int, policy: PortablePolicy) -> None:
        self._job = {"env": to_dict(env), "lanes": lanes, "blueprint": policy.blueprint()}
        self._child: Child | None = None
        self._request: dict[str, Any] | None = None

    def begin(self, policy: PortablePolicy, plan: Plan) -> None:
        """Evaluate a copy of the policy as it is now."""
        weights = np.empty(policy.num_weights, np.float32)
        policy.write_weights(weights)
        self._request = {"weights": weights, "version": policy.version, "plan": asdict(plan)}
        self._send()

    def _send(self) -> None:
        if self._child is None:
            self._child = Child("evaluation process", "roboloop.run.background:main")
            self._child.channel.send(self._job)
        self._child.channel.send(self._request)

    def result(self) -> Summary:
        """Wait for the evaluation that was begun; one whose process dies is run again."""
        why = ""
        for _ in range(_TRIES):
            assert self._child is not None, "begin an evaluation first"
            try:
                return Summary(**self._child.channel.receive())
            except (EOFError, OSError):
                why = self._child.how_it_ended()
                self._child.kill()
                self._child = None
                self._send()
        raise WorkerLost(f"the evaluation process {why}")

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.stop()


def main(channel: Channel) -> None:
    """Serve evaluations until the parent hangs up."""
    job = channel.receive()
    env = override(EnvConfig(), job["env"])
    policy = build_policy(job["blueprint"])
    evaluator = Evaluator(lambda lane: registry.make(env, True, lane), env.frame_stack, job["lanes"])
    try:
        while True:
            request = channel.receive()
            policy.read_weights(request["weights"], request["version"])
            channel.send(asdict(evaluator.run(policy, Plan(**request["plan"]))))
    finally:
        evaluator.close()
