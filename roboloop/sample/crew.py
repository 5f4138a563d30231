"""The workers of a sampler and their supervision: whoever dies, hangs or swells is named, replaced and counted."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.child import START_S
from roboloop.core.config import to_dict
from roboloop.core.errors import Diverged, WorkerLost
from roboloop.core.parts import split_evenly
from roboloop.core.state import counts_from
from roboloop.core.types import EpisodeEnd, PortablePolicy, Rollout, State
from roboloop.data.rollouts import lost_envs
from roboloop.envs.config import EnvConfig
from roboloop.sample.board import SharedBoard
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.config import SampleConfig
from roboloop.sample.group import PHASES, EnvBroken, GroupPlan
from roboloop.sample.links import Backend, WorkerHandle
from roboloop.sample.local import LocalLink, LocalPlace

LOOK_S = 0.5
"""How often waiting is interrupted to look after the workers."""


class CollectRequest(NamedTuple):
    """A rollout that a group has been told to collect."""

    group: int
    slot: int
    policy: int


class WorkerShare(NamedTuple):
    """A rollout that a group has collected; its arrays lie in the slot."""

    group: int
    slot: int
    episodes: list[EpisodeEnd]
    cut: tuple[int, ...]


@dataclass
class WorkerSlot:
    """One worker as its supervisor sees it."""

    number: int
    groups: list[int]
    link: WorkerHandle
    orders: deque[CollectRequest] = field(default_factory=deque)
    ready: bool = False
    beats: int = -1
    moved_s: float = field(default_factory=time.monotonic)


class WorkerPool:
    """Sends orders and receives what was collected; a lost worker's orders are given to its successor."""

    def __init__(
        self,
        env: EnvConfig,
        plans: Sequence[GroupPlan],
        shape: RolloutShape,
        cfg: SampleConfig,
        slots: int,
        policies: Sequence[PortablePolicy],
        settle: Callable[[SharedBoard], Backend] = LocalPlace,
    ) -> None:
        self.cfg, self.plans = cfg, list(plans)
        self._env, self._shape, self._slots, self._policies = env, shape, slots, policies
        self.board = SharedBoard(shape, slots, [p.num_weights for p in policies], cfg.workers)
        self._place = settle(self.board)
        self._heard: deque[WorkerHandle] = deque()
        self._looked_s = time.monotonic()
        self._lost_nodes: set[str] = set()
        self._episodes = np.zeros(sum(plan.num_envs for plan in plans), np.int64)
        self._cut: dict[int, tuple[int, ...]] = {}
        self.faults: list[str] = []
        self.counts = {"restarts": 0, "env_faults": 0, "renewed": 0}
        self._workers: list[WorkerSlot] = []
        for number, groups in enumerate(map(list, split_evenly(len(self.plans), cfg.workers))):
            self._workers.append(WorkerSlot(number, groups, self._start(number, groups, lost=False)))
        # a sampler that is dropped without close() takes its processes with it
        self._finalizer = weakref.finalize(self, _stop_all, self._workers, self._place)

    def _start(self, number: int, groups: list[int], lost: bool) -> WorkerHandle:
        about = [{"blueprint": p.blueprint(), "num_weights": p.num_weights} for p in self._policies]
        skips = [self._next_episodes(g) if lost else None for g in groups]
        job = {
            "number": number, "workers": self.cfg.workers, "env": to_dict(self._env), "shape": self._shape.to_data(),
            "slots": self._slots, "policies": about, "max_faults": self.cfg.restarts,
            "groups": [{"plan": asdict(self.plans[g]), "skip_to": s} for g, s in zip(groups, skips, strict=True)],
        }  # fmt: skip
        return self._place.start(number, job)

    def _next_episodes(self, group: int) -> Any:
        plan = self.plans[group]
        return self._episodes[plan.first_env : plan.first_env + plan.num_envs] + 1

    def use(self, policy: PortablePolicy) -> int:
        """Make a policy's present weights the newest; return its number for orders."""
        number = next(i for i, known in enumerate(self._policies) if known is policy)
        self._place.publish(number, policy)
        return number

    def order(self, order: CollectRequest) -> None:
        """Tell a group to collect."""
        worker = self._worker_of(order.group)
        worker.orders.append(order)
        if worker.ready:
            self._send(worker, {"do": "collect", **order._asdict()})

    def _worker_of(self, group: int) -> WorkerSlot:
        return next(worker for worker in self._workers if group in worker.groups)

    def _send(self, worker: WorkerSlot, message: dict[str, Any]) -> None:
        if len(worker.orders) == 1:
            worker.moved_s = time.monotonic()
        worker.link.send(message)

    def busy(self, group: int) -> int:
        """Return how many orders of a group are not yet fulfilled."""
        return sum(order.group == group for order in self._worker_of(group).orders)

    def next(self) -> WorkerShare:
        """Wait for the next rollout of any group."""
        while True:
            message = self._listen([worker for worker in self._workers if worker.orders])
            if "slot" in message:
                return self._part(message)

    def _part(self, message: dict[str, Any]) -> WorkerShare:
        worker, group = self._worker_of(message["group"]), message["group"]
        worker.orders.popleft()
        episodes = [EpisodeEnd(**end) for end in message["episodes"]]
        for end in episodes:
            self._episodes[end.env] = end.episode + 1
        self.faults += message["faults"]
        self.counts["env_faults"] += len(message["faults"])
        cut = {*message["cut"], *self._cut.pop(group, ())}
        return WorkerShare(group, message["slot"], episodes, tuple(sorted(cut)))

    def rollout(self, part: WorkerShare) -> Rollout:
        """Return a collected rollout; its arrays are overwritten when the slot is ordered again."""
        plan = self.plans[part.group]
        views = self.board.part(part.slot, plan.first_env, plan.num_envs)
        return views._replace(episodes=part.episodes, cut=part.cut)

    def _listen(self, workers: list[WorkerSlot]) -> dict[str, Any]:
        """Return the next message of any of these workers; mend what is broken meanwhile."""
        while True:
            if time.monotonic() - self._looked_s > LOOK_S:
                self._looked_s = time.monotonic()
                for worker in workers:
                    self._look_after(worker)
            by_link = {id(worker.link): worker for worker in workers}
            if not self._heard:  # all that is there at once: asking a thousand workers costs more than one message
                self._heard += self._place.wait([worker.link for worker in workers], LOOK_S)
            while self._heard:
                speaker = by_link.get(id(self._heard.popleft()))
                message = self._message(speaker) if speaker else None
                if message is not None:
                    return message

    def _message(self, worker: WorkerSlot) -> dict[str, Any] | None:
        """Return what a worker says; none where it is news of itself, or was heard already."""
        if not self._place.wait([worker.link], 0.0):
            return None
        try:
            message = worker.link.receive()
        except (EOFError, OSError):
            self._replace(worker, worker.link.how_it_ended())
            return None
        worker.moved_s = time.monotonic()
        if "fatal" in message:
            raise (Diverged if message.get("diverged") else EnvBroken)(message["fatal"])
        if "ready" in message:
            self._begin(worker)
        return None if "ready" in message or "doubt" in message else message

    def _begin(self, worker: WorkerSlot) -> None:
        worker.ready = True
        for order in worker.orders:
            self._send(worker, {"do": "collect", **order._asdict()})
        worker.moved_s = time.monotonic()

    def _look_after(self, worker: WorkerSlot) -> None:
        self._feel(worker, fresh=False)
        allowed_s = self.cfg.hang_s if worker.ready else max(START_S, self.cfg.hang_s)
        if time.monotonic() - worker.moved_s < allowed_s or self._place.wait([worker.link], 0.0):
            return
        _, phase, env = self._feel(worker, fresh=True)
        silent_s = time.monotonic() - worker.moved_s
        if silent_s > allowed_s:
            first_env = self.plans[worker.groups[0]].first_env
            where = f"{PHASES[phase]} of env {first_env + env}" if worker.ready else "while starting"
            stack = worker.link.where_it_hangs()
            self._replace(worker, f"hung {where} for {silent_s:.1f} s\n{stack}")

    def _feel(self, worker: WorkerSlot, fresh: bool) -> tuple[int, int, int]:
        """Take a worker's pulse."""
        number, phase, env, silent_s = worker.link.beat(fresh)
        if number != worker.beats:
            worker.beats, worker.moved_s = number, time.monotonic() - silent_s
        return number, phase, env

    def _replace(self, worker: WorkerSlot, why: str) -> None:
        """Start a successor for a lost worker, with other random streams; its running episodes are lost."""
        rss_mb, name, node = worker.link.rss_mb(), worker.link.name, worker.link.lost_node()
        worker.link.kill()
        if node is None or node not in self._lost_nodes:  # all workers of a lost machine are one loss
            self.counts["restarts"] += 1
        self._lost_nodes |= {node} if node else set()
        memory = f", {rss_mb:.0f} MB" if rss_mb else ""
        self.faults.append(f"{name} {why.splitlines()[0]}{memory}; restarted ({self.counts['restarts']})")
        if self.counts["restarts"] > self.cfg.restarts:
            raise WorkerLost(
                f"{name} {why}\n{self.counts['restarts']} lost workers are more than sample.restarts allows"
            )
        for group in worker.groups:
            plan = replace(self.plans[group], restart=self.plans[group].restart + 1)
            self.plans[group] = plan
            self._cut[group] = tuple(range(plan.first_env, plan.first_env + plan.num_envs))
        self._renew(worker, self._start(worker.number, worker.groups, lost=True))

    def _renew(self, worker: WorkerSlot, link: WorkerHandle) -> None:
        worker.link, worker.ready, worker.beats, worker.moved_s = link, False, -1, time.monotonic()

    def state(self) -> State:
        """Return every group; no order may be open."""
        groups = [self._ask(plan.index, {"do": "state", "group": plan.index})["state"] for plan in self.plans]
        counts = {name: count for name, count in self.counts.items() if count}
        # asked for last: a worker that is lost meanwhile adds to it
        return {"groups": groups, "counts": counts, "cut": sorted(env for envs in self._cut.values() for env in envs)}

    def load(self, state: State) -> None:
        """Restore every group."""
        for plan, saved in zip(self.plans, state["groups"], strict=True):
            self._ask(plan.index, {"do": "load", "group": plan.index, "state": saved})
            envs = range(plan.first_env, plan.first_env + plan.num_envs)
            self._episodes[envs.start : envs.stop] = saved["episode"]
            self._cut[plan.index] = lost_envs(state["cut"], envs)
        self.counts.update(counts_from(state["counts"]))

    def _ask(self, group: int, message: dict[str, Any]) -> dict[str, Any]:
        worker = self._worker_of(group)
        while True:
            while not worker.ready:
                self._await_ready(worker)
            restart = self.plans[group].restart
            self._send(worker, message)
            answer = self._listen_for(worker, restart, group)
            if answer is not None:
                return answer

    def _await_ready(self, worker: WorkerSlot) -> None:
        if self._place.wait([worker.link], LOOK_S):
            self._message(worker)
        self._look_after(worker)

    def _listen_for(self, worker: WorkerSlot, restart: int, group: int) -> dict[str, Any] | None:
        """Return the answer to a question, or None when the worker was lost while it thought."""
        while self.plans[group].restart == restart:
            if self._place.wait([worker.link], LOOK_S) and (message := self._message(worker)) is not None:
                return message
            self._look_after(worker)
        return None

    def heavy(self) -> list[WorkerSlot]:
        """Return the workers that hold more memory than they may."""
        limit = self.cfg.worker_memory_mb
        return [w for w in self._workers if limit and w.ready and w.link.rss_mb() > limit]

    def replace_heavy(self, worker: WorkerSlot) -> None:
        """Move the groups of a swollen worker, which must have no orders, to a fresh process without any loss."""
        states = {g: self._ask(g, {"do": "state", "group": g})["state"] for g in worker.groups}
        said = f"{worker.link.name} held {worker.link.rss_mb():.0f} MB"
        worker.link.stop()
        self.counts["renewed"] += 1
        self.faults.append(f"{said}, more than sample.worker_memory_mb: moved to a fresh process")
        self._renew(worker, self._start(worker.number, worker.groups, lost=False))
        for group, state in states.items():
            self._ask(group, {"do": "load", "group": group, "state": state})

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers of this machine."""
        return [worker.link.child.pid for worker in self._workers if isinstance(worker.link, LocalLink)]

    def close(self) -> None:
        """End all workers."""
        self._finalizer()


def _stop_all(workers: list[WorkerSlot], place: Backend) -> None:
    for worker in workers:  # all at once, then wait for each
        worker.link.hang_up()
    for worker in workers:
        worker.link.stop()
    place.close()
