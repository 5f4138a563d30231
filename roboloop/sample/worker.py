"""The worker process: holds groups of environments and a copy of the policy, and collects when it is told to."""

from __future__ import annotations

from typing import Any

from roboloop.core.blueprint import build_policy
from roboloop.core.config import override
from roboloop.core.memory import SharedMemory
from roboloop.core.wire import Channel
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.sample.board import Board
from roboloop.sample.buffers import Shape
from roboloop.sample.group import EnvBroken, EnvGroup, GroupPlan


def main(channel: Channel, memory_fd: int) -> None:
    """Serve orders until the parent hangs up."""
    worker = Worker(channel.receive(), memory_fd)
    channel.send({"ready": True})
    try:
        while True:
            order = channel.receive()
            channel.send(getattr(worker, order.pop("do"))(**order))
    except EnvBroken as error:
        channel.send({"fatal": str(error)})
    finally:
        worker.close()


class Worker:
    """What a worker can be told: every public method takes and returns plain data and arrays."""

    def __init__(self, job: dict[str, Any], memory_fd: int) -> None:
        env_config = override(EnvConfig(), job["env"])
        probe = registry.make(env_config)
        spec = probe.spec
        probe.close()
        shape = Shape(spec, **job["shape"])
        sizes = [policy["num_weights"] for policy in job["policies"]]
        board = Board(shape, job["slots"], sizes, job["workers"], SharedMemory(memory_fd, job["num_bytes"]))
        self._board, self._beats = board, board.beats[job["number"]]
        self._policies = [build_policy(policy["blueprint"]) for policy in job["policies"]]
        self._fetched = [0] * len(self._policies)
        self._groups: dict[int, EnvGroup] = {}
        for data in job["groups"]:
            plan = GroupPlan(**data["plan"])
            group = EnvGroup(lambda e: registry.make(env_config, column=e), plan, shape, job["max_faults"])
            group.beat = self._beat
            if data["skip_to"] is not None:
                group.skip_to(data["skip_to"])
            self._groups[plan.index] = group

    def _beat(self, phase: int, env: int) -> None:
        beats = self._beats
        beats[1] = phase
        beats[2] = env
        beats[0] += 1

    def collect(self, group: int, slot: int, policy: int) -> dict[str, Any]:
        """Fill one group's columns of a slot with the newest weights."""
        mine = self._groups[group]
        self._fetched[policy] = self._board.fetch(policy, self._fetched[policy], self._policies[policy])
        out = mine.collect(self._policies[policy], self._board.part(slot, mine.plan.first_env, mine.plan.num_envs))
        faults = list(mine.faults)
        mine.faults.clear()
        ends = [end._asdict() for end in out.episodes]
        return {"group": group, "slot": slot, "episodes": ends, "cut": out.cut, "faults": faults}

    def state(self, group: int) -> dict[str, Any]:
        """Return a group's state."""
        return {"group": group, "state": self._groups[group].state()}

    def load(self, group: int, state: dict[str, Any]) -> dict[str, Any]:
        """Restore a group."""
        self._groups[group].load(state)
        return {"group": group}

    def close(self) -> None:
        """Close the simulators."""
        for group in self._groups.values():
            group.close()
