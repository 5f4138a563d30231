"""A worker: holds groups of environments and a copy of the policy, and collects when it is told to.

``main`` is that of a process on the learner's machine; ``on_ray`` has the one of a cluster around the same ``Worker``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roboloop.core.blueprint import build_policy
from roboloop.core.errors import Diverged
from roboloop.core.memory import SharedMemory
from roboloop.core.types import Rollout
from roboloop.core.wire import Channel
from roboloop.envs import registry
from roboloop.sample.board import SharedBoard
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import EnvBroken, EnvGroup, GroupPlan
from roboloop.sample.groups import group_maker


def main(channel: Channel, memory_fd: int) -> None:
    """Serve orders until the parent hangs up."""
    worker = BoardWorker(channel.receive(), memory_fd)
    channel.send({"ready": True})
    try:
        while True:
            order = channel.receive()
            channel.send(getattr(worker, order.pop("do"))(**order))
    except (EnvBroken, Diverged) as error:
        channel.send({"fatal": str(error), "diverged": isinstance(error, Diverged)})
    finally:
        worker.close()


class Worker:
    """What a worker can be told, but for where its rollouts go: all answers are plain data and arrays."""

    def __init__(self, job: dict[str, Any], beat: Callable[[int, int], None]) -> None:
        env_config = registry.config_of(job["env"])
        probe = registry.make(env_config)
        spec = probe.spec
        probe.close()
        self.shape = RolloutShape(spec, **job["shape"])
        self.policies = [build_policy(policy["blueprint"]) for policy in job["policies"]]
        self.groups: dict[int, EnvGroup] = {}
        make_group = group_maker(env_config)
        for data in job["groups"]:
            plan = GroupPlan(**data["plan"])
            group = make_group(lambda e: registry.make(env_config, column=e), plan, self.shape, job["max_faults"])
            group.beat = beat
            if data["skip_to"] is not None:
                group.skip_to(data["skip_to"])
            self.groups[plan.index] = group

    def fill(self, group: int, policy: int, out: Rollout) -> dict[str, Any]:
        """Collect one group's rollout into arrays; return what goes with them."""
        mine = self.groups[group]
        filled = mine.collect(self.policies[policy], out)
        faults = list(mine.faults)
        mine.faults.clear()
        ends = [end._asdict() for end in filled.episodes]
        return {"group": group, "episodes": ends, "cut": filled.cut, "faults": faults}

    def state(self, group: int) -> dict[str, Any]:
        """Return a group's state."""
        return {"group": group, "state": self.groups[group].state()}

    def load(self, group: int, state: dict[str, Any]) -> dict[str, Any]:
        """Restore a group."""
        self.groups[group].load(state)
        return {"group": group}

    def close(self) -> None:
        """Close the simulators."""
        for group in self.groups.values():
            group.close()


class BoardWorker(Worker):
    """A worker whose rollouts, weights and heartbeats are in memory that it shares with the learner."""

    def __init__(self, job: dict[str, Any], memory_fd: int) -> None:
        super().__init__(job, self._beat)
        sizes = [policy["num_weights"] for policy in job["policies"]]
        memory = SharedMemory(memory_fd, job["num_bytes"])
        self._board = SharedBoard(self.shape, job["slots"], sizes, job["workers"], memory)
        self._beats = self._board.beats[job["number"]]
        self._fetched = [0] * len(self.policies)

    def _beat(self, phase: int, env: int) -> None:
        beats = self._beats
        beats[1] = phase
        beats[2] = env
        beats[0] += 1

    def collect(self, group: int, slot: int, policy: int) -> dict[str, Any]:
        """Fill one group's columns of a slot with the newest weights."""
        self._fetched[policy] = self._board.fetch(policy, self._fetched[policy], self.policies[policy])
        plan = self.groups[group].plan
        return {**self.fill(group, policy, self._board.part(slot, plan.first_env, plan.num_envs)), "slot": slot}
