"""An environment in a process of its own, for policies that want all observations at once, as on a GPU."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

import numpy as np

from roboloop.core.child import START_S, Child
from roboloop.core.config import to_dict
from roboloop.core.raised import CRASHES
from roboloop.core.types import Array, EnvSpec, State
from roboloop.core.wire import Channel
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EnvLost


class RemoteEnv:
    """An ``Env`` whose simulator runs elsewhere; ``prepare`` lets many of them step at the same time."""

    def __init__(self, cfg: EnvConfig, spec: EnvSpec, hang_s: float, column: int = 0) -> None:
        self.spec = spec
        self._hang_s = hang_s
        self._is_stepping = self._has_answered = False
        self._child = Child("environment process", "roboloop.sample.remote:main")
        self._send({"env": to_dict(cfg), "column": column})

    def prepare(self, action: Array) -> None:
        """Begin a step; ``step`` then only takes its result."""
        self._is_stepping = True
        self._send({"do": "step", "action": np.asarray(action)})

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        if not self._is_stepping:
            self.prepare(action)
        self._is_stepping = False
        obs, reward, terminated, truncated, info = self._receive()
        return obs, reward, terminated, truncated, info

    def reset(self, seed: int) -> Array:
        """Begin an episode."""
        obs: Array = self._ask({"do": "reset", "seed": seed})
        return obs

    def render(self) -> Array:
        """Return a picture."""
        picture: Array = self._ask({"do": "render"})
        return picture

    def get_state(self) -> State:
        """Return what a new instance needs to go on."""
        state: State = self._ask({"do": "get_state"})
        return state

    def set_state(self, state: State) -> None:
        """Continue from a state."""
        self._ask({"do": "set_state", "state": state})

    def _ask(self, message: dict[str, Any]) -> Any:
        self._send(message)
        return self._receive()

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it is dead: said where its answer is missed
            self._child.channel.send(message)

    def _receive(self) -> Any:
        name = f"{self._child.name} (pid {self._child.pid})"
        patience_s = self._hang_s if self._has_answered else max(START_S, self._hang_s)
        if not self._child.channel.connection.poll(patience_s):
            stack = self._child.where_it_hangs()
            self._child.kill()
            raise EnvLost(f"{name} hung for {patience_s:g} s\n{stack}")
        try:
            answer = self._child.channel.receive()
        except (EOFError, OSError):
            raise EnvLost(f"{name} {self._child.how_it_ended()}") from None
        self._has_answered = True
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self._child.stop()


def main(channel: Channel) -> None:
    """Serve one environment until the parent hangs up."""
    job = channel.receive()
    env = registry.make(registry.config_of(job["env"]), column=job["column"])
    try:
        while True:
            order = channel.receive()
            try:
                result = getattr(env, order.pop("do"))(**order)
            except CRASHES as error:
                channel.send({"error": f"{error}\n{traceback.format_exc()}"})
                continue
            channel.send({"result": result})
    finally:
        env.close()
