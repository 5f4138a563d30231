"""Samplers whose environments live in worker processes: in lock step, or running free of the learner."""

from __future__ import annotations

from collections import deque

from roboloop.core.types import PortablePolicy, Rollout, State
from roboloop.data.rollouts import rollout_from_state, rollout_to_state
from roboloop.sample.crew import CollectRequest, WorkerPool, WorkerShare
from roboloop.sample.unhurried import NotRealTime


class LockStepSampler(NotRealTime):
    """All groups collect at once and the learner waits for them: the same bits as the serial sampler."""

    def __init__(self, crew: WorkerPool) -> None:
        self._crew = crew

    def collect(self, policy: PortablePolicy) -> Rollout:
        """Take steps in every environment; the arrays are overwritten by the next call."""
        crew = self._crew
        for worker in crew.heavy():
            crew.replace_heavy(worker)
        number = crew.use(policy)
        for plan in crew.plans:
            crew.order(CollectRequest(plan.index, 0, number))
        parts = sorted(crew.next() for _ in crew.plans)
        episodes = [end for part in parts for end in part.episodes]
        cut = tuple(env for part in parts for env in part.cut)
        return crew.board.whole(0)._replace(episodes=episodes, cut=cut)

    def faults(self) -> list[str]:
        """Return what went wrong and was mended since this was last asked."""
        return take_faults(self._crew)

    def stats(self) -> dict[str, float]:
        """Return counters of what went wrong, as metrics."""
        return stats_of(self._crew)

    def state(self) -> State:
        """Return all groups."""
        return self._crew.state()

    def load(self, state: State) -> None:
        """Continue exactly where ``state`` was taken."""
        self._crew.load(state)

    def close(self) -> None:
        """End the workers."""
        self._crew.close()


class FreeSampler(NotRealTime):
    """Groups collect while the learner learns, at most ``queue`` rollouts ahead: data waits, nothing is dropped."""

    def __init__(self, crew: WorkerPool) -> None:
        self._crew = crew
        self._ready: deque[WorkerShare] = deque()
        self._restored: deque[Rollout] = deque()
        self._free = {plan.index: deque(range(crew.cfg.queue)) for plan in crew.plans}
        self._given: WorkerShare | None = None
        self._lag = (0, 0, 0)  # rollouts, sum and maximum of the versions that they lag behind

    def collect(self, policy: PortablePolicy) -> Rollout:
        """Return the next rollout of any group; its arrays are valid until the next call."""
        if self._given is not None:  # it has been used: its slot is free again
            self._free[self._given.group].append(self._given.slot)
            self._given = None
        number = self._crew.use(policy)
        self._order(number)
        if self._restored:
            return self._restored.popleft()
        part = self._given = self._ready.popleft() if self._ready else self._crew.next()
        rollout = self._crew.rollout(part)
        lag = policy.version - int(rollout.version[0])
        count, total, worst = self._lag
        self._lag = (count + 1, total + lag, max(worst, lag))
        return rollout

    def _order(self, policy: int) -> None:
        swollen = {group: worker for worker in self._crew.heavy() for group in worker.groups}
        for worker in {id(w): w for w in swollen.values()}.values():
            if not worker.orders:  # its open orders have been collected, so it can move
                self._crew.replace_heavy(worker)
                swollen = {g: w for g, w in swollen.items() if w is not worker}
        for group, slots in self._free.items():
            while slots and group not in swollen:
                self._crew.order(CollectRequest(group, slots.popleft(), policy))

    def faults(self) -> list[str]:
        """Return what went wrong and was mended since this was last asked."""
        return take_faults(self._crew)

    def stats(self) -> dict[str, float]:
        """Return how far the acting policies lag, and counters of what went wrong."""
        count, total, worst = self._lag
        self._lag = (0, 0, 0)
        lag = {"sample/lag_mean": total / count, "sample/lag_max": float(worst)} if count else {}
        return {**lag, **stats_of(self._crew)}

    def state(self) -> State:
        """Let every group finish what it was told, then return the groups and what nobody has used yet."""
        while any(self._crew.busy(plan.index) for plan in self._crew.plans):
            self._ready.append(self._crew.next())
        waiting = [*self._restored, *(self._crew.rollout(part) for part in self._ready)]
        return {**self._crew.state(), "waiting": [rollout_to_state(rollout) for rollout in waiting]}

    def load(self, state: State) -> None:
        """Go on from ``state``: no transition is lost, none comes twice."""
        self._crew.load(state)
        self._restored.extend(rollout_from_state(saved) for saved in state["waiting"])

    def close(self) -> None:
        """End the workers."""
        self._crew.close()


def take_faults(crew: WorkerPool) -> list[str]:
    """Return and forget what the crew has to say."""
    said, crew.faults = crew.faults, []
    return said


def stats_of(crew: WorkerPool) -> dict[str, float]:
    """Return a crew's counters as metrics, those that are not zero."""
    return {f"sample/{name}": float(count) for name, count in crew.counts.items() if count}
