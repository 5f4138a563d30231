"""The serial sampler: all groups stepped in this process, one after another. It is the specification of all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roboloop.core.state import counts_from
from roboloop.core.types import Env, Policy, Rollout, State
from roboloop.data.rollouts import columns_of, lost_envs
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import EnvGroup, GroupPlan, MakeGroup
from roboloop.sample.unhurried import NotRealTime


class SerialSampler(NotRealTime):
    """Collects ``[T, B]`` with the environments of all groups side by side."""

    def __init__(
        self,
        make_env: Callable[[int], Env],
        plans: Sequence[GroupPlan],
        shape: RolloutShape,
        max_faults: int = 3,
        make_group: MakeGroup = EnvGroup,
    ) -> None:
        self.spec = shape.spec
        self._shape = shape
        self._groups = [make_group(make_env, plan, shape, max_faults) for plan in plans]
        self._counts = {"env_faults": 0}
        self._cut: list[int] = []  # lost by the sampler that a loaded state came from

    def collect(self, policy: Policy) -> Rollout:
        """Take steps in every environment with a policy that explores."""
        rollout = self._shape.allocate()
        cut, self._cut = self._cut, []
        for group in self._groups:
            begin = group.plan.first_env
            part = group.collect(policy, columns_of(rollout, begin, begin + group.plan.num_envs))
            rollout.episodes.extend(part.episodes)
            cut += part.cut
        return rollout._replace(cut=tuple(cut))

    def faults(self) -> list[str]:
        """Return what went wrong and was mended since this was last asked."""
        said = [fault for group in self._groups for fault in group.faults]
        for group in self._groups:
            group.faults.clear()
        self._counts["env_faults"] += len(said)
        return said

    def stats(self) -> dict[str, float]:
        """Return counters of what went wrong, as metrics."""
        return {f"sample/{name}": float(count) for name, count in self._counts.items() if count}

    def state(self) -> State:
        """Return all groups."""
        counts = {name: count for name, count in self._counts.items() if count}
        return {"groups": [group.state() for group in self._groups], "counts": counts, "cut": list(self._cut)}

    def load(self, state: State) -> None:
        """Continue exactly where ``state`` was taken."""
        for group, saved in zip(self._groups, state["groups"], strict=True):
            group.load(saved)
        self._counts.update(counts_from(state["counts"]))
        self._cut = list(lost_envs(state["cut"], range(self._shape.num_envs)))

    def close(self) -> None:
        """Close the simulators."""
        for group in self._groups:
            group.close()
