"""Workers as actors of a Ray cluster, on whatever machine has room: weights go out with a version, rollouts come back.

A weight object is put once per version; Ray brings it to each machine once, whatever number of workers that has. A
rollout is copied into its slot as it arrives, so that all behind it is the same as with processes of this machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roboloop.core.cluster import connect, machines, room_for, telling_line
from roboloop.core.errors import ConfigError, Diverged, UserError
from roboloop.core.types import PortablePolicy
from roboloop.core.version import __version__
from roboloop.core.vouched import for_children, of_parent
from roboloop.data.rollouts import COLUMNS
from roboloop.sample.board import SharedBoard
from roboloop.sample.config import SampleConfig
from roboloop.sample.group import IDLE, EnvBroken
from roboloop.sample.links import Beat, WorkerHandle
from roboloop.sample.worker import Worker

WATCH = "watch"
"""The actor's second thread, which answers while the first one is in a simulator."""
_ASK_S = 2.0
_STOP_S = 5.0
_DOUBT_S = 60.0
"""How long an actor that cannot be reached is waited for: Ray needs some ten seconds to hold a machine for lost."""
_PROBE_EVERY_S = 0.5


class RemoteWorker:
    """The actor. Orders come one after another, on one thread, since simulators may be bound to it."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._versions: list[int | None] = []
        self._count, self._phase, self._env, self._moved_s = 0, IDLE, 0, time.monotonic()

    def begin(self, job: dict[str, Any], modules: dict[str, str]) -> dict[str, Any]:
        """Make the environments; ``modules`` are those that the user typed."""
        import ray

        of_parent(modules)
        address: Any = ray.util.get_node_ip_address  # which has no types
        where = {"ip": address(), "node": ray.get_runtime_context().get_node_id()}
        if job["roboloop"] != __version__:
            return {"fatal": f"a worker on {where['ip']} has roboloop {__version__}, the learner {job['roboloop']}"}
        try:
            self._worker = Worker(job, self._beat)
        except UserError as error:
            return {"fatal": f"a worker on {where['ip']} cannot start: {error}"}
        self._versions = [None] * len(self._worker.policies)
        if "torch" in sys.modules:
            import torch

            torch.set_num_threads(1)  # as all our workers; Ray has other ideas where OMP_NUM_THREADS is set
        return {"ready": True, "pid": os.getpid(), **where}

    def _beat(self, phase: int, env: int) -> None:
        self._phase, self._env, self._moved_s = phase, env, time.monotonic()
        self._count += 1

    def do(self, order: dict[str, Any], weights: dict[str, Any] | None = None) -> dict[str, Any]:
        """Follow one order."""
        assert self._worker is not None
        name = order.pop("do")
        try:
            if name == "collect":
                assert weights is not None
                return self._collect(**order, weights=weights)
            answer: dict[str, Any] = getattr(self._worker, name)(**order)
            return answer
        except (EnvBroken, Diverged) as error:
            return {"fatal": str(error), "diverged": isinstance(error, Diverged)}

    def _collect(self, group: int, slot: int, policy: int, weights: dict[str, Any]) -> dict[str, Any]:
        worker = self._worker
        assert worker is not None
        if weights["version"] != self._versions[policy]:
            worker.policies[policy].read_weights(weights["flat"], weights["version"])
            self._versions[policy] = weights["version"]
        plan = worker.groups[group].plan
        out = replace(worker.shape, num_envs=plan.num_envs).allocate()
        answer = worker.fill(group, policy, out)
        columns = {name: getattr(out, name) for name in COLUMNS}
        return {**answer, "slot": slot, "first_env": plan.first_env, "columns": columns}

    def beat(self) -> tuple[int, int, int, float]:
        """Return the last sign of life."""
        return self._count, self._phase, self._env, time.monotonic() - self._moved_s

    def stacks(self) -> str:
        """Return the Python stack of every thread."""
        frames = sys._current_frames().values()
        return "\n".join("".join(traceback.format_stack(frame)) for frame in frames)

    def close(self) -> None:
        """Close the simulators."""
        if self._worker is not None:
            self._worker.close()


class RayLink:
    """One actor as the learner sees it."""

    def __init__(self, place: RayPlace, number: int, job: dict[str, Any]) -> None:
        self._place, self._number = place, number
        self._where: dict[str, Any] = {}
        self._beat = Beat(0, IDLE, 0)
        self._end = ""
        self._farewell: Any = None
        self._doubted_s: float | None = None
        self._probe_s = 0.0
        self._actor = place.actor()
        self._open: deque[Any] = deque([self._actor.begin.remote({**job, "roboloop": __version__}, for_children())])

    @property
    def name(self) -> str:
        """Its number, process and machine."""
        at = f"pid {self._where['pid']} on {self._where['ip']}" if self._where else "not yet placed"
        return f"worker {self._number} ({at})"

    @property
    def waits_for(self) -> Any:
        """The answer that comes next; none if nothing was asked, or an actor in doubt is to be asked again later."""
        if self._doubted_s is not None and not self._open and time.monotonic() >= self._probe_s:
            with self._place.tolerant():
                self._open.append(self._actor.beat.options(concurrency_group=WATCH).remote())
        return self._open[0] if self._open else None

    @property
    def pid(self) -> int | None:
        """Its process, wherever that is."""
        return self._where.get("pid")

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, an order to collect with the newest weights."""
        weights = [self._place.weights[message["policy"]]] if message["do"] == "collect" else []
        with self._place.tolerant():
            self._open.append(self._actor.do.remote(message, *weights))

    def receive(self) -> dict[str, Any]:
        """Return the next answer, its rollout put into the slot; nothing where the actor's end is only suspected."""
        try:
            answer = self._place.ray.get(self._open.popleft(), timeout=_DOUBT_S)
        except self._place.ray.exceptions.RayError as error:
            self._end = _cause(error)
            return self._doubt(error)
        if self._doubted_s is not None:  # reached again, but what it was asked is lost, and may have been done
            raise EOFError
        message: dict[str, Any] = answer
        if "ready" in message:
            self._where = {key: message.pop(key) for key in ("pid", "ip", "node")}
        columns = message.pop("columns", None)
        if columns is not None:
            first_env = message.pop("first_env")
            part = self._place.board.part(message["slot"], first_env, len(columns["version"]))
            for name in COLUMNS:
                getattr(part, name)[...] = columns[name]
        return message

    def _doubt(self, error: Exception) -> dict[str, Any]:
        """Wait until Ray knows whether an actor is dead, and with its machine: what is lost together counts once."""
        now_s = time.monotonic()
        since_s = now_s if self._doubted_s is None else self._doubted_s
        is_unsure = isinstance(error, self._place.ray.exceptions.ActorUnavailableError)
        if not self._where or not is_unsure or now_s - since_s > _DOUBT_S:
            raise EOFError
        self._doubted_s, self._probe_s = since_s, now_s + _PROBE_EVERY_S
        self._open.clear()
        return {"doubt": True}

    def beat(self, fresh: bool) -> Beat:
        """Return its last known sign of life, or ask for a new one."""
        if fresh and self._where:
            self._beat = Beat(*(self._ask("beat") or self._beat))
        return self._beat

    def _ask(self, method: str) -> Any:
        """Return the answer of the actor's second thread; none if it has none in time."""
        ray = self._place.ray
        with contextlib.suppress(ray.exceptions.RayError):
            return ray.get(getattr(self._actor, method).options(concurrency_group=WATCH).remote(), timeout=_ASK_S)
        return None

    def how_it_ended(self) -> str:
        """Return what Ray knows of its end."""
        node = self.lost_node()
        return f"was lost with its machine, node {node[:8]}" if node else self._end or "is gone"

    def where_it_hangs(self) -> str:
        """Return its Python stacks; of one without a machine, why."""
        if not self._where:
            return f"the cluster has {self._place.free_cpus():g} CPUs free, a worker needs {self._place.worker_cpus:g}"
        return self._ask("stacks") or "it does not even answer"

    def lost_node(self) -> str | None:
        """Return its machine if that has died."""
        mine = self._where.get("node")
        dead = [node["NodeID"] for node in self._place.ray.nodes() if not node["Alive"]]
        return mine if mine in dead else None

    def rss_mb(self) -> float:
        """Return nothing: memory is looked after by the machine that has it."""
        return 0.0

    def hang_up(self) -> None:
        """Let it close its simulators."""
        with self._place.tolerant():
            self._farewell = self._actor.close.remote() if self._where else None

    def stop(self) -> None:
        """Wait for it to close its simulators, and end it."""
        with self._place.tolerant():
            if self._farewell is not None:
                self._place.ray.wait([self._farewell], timeout=_STOP_S)
        self.kill()

    def kill(self) -> None:
        """End it now."""
        with self._place.tolerant():
            self._place.ray.kill(self._actor)


class RayPlace:
    """A Ray cluster."""

    def __init__(self, cfg: SampleConfig, board: SharedBoard) -> None:
        self.board, self.worker_cpus = board, cfg.worker_cpus
        self.ray, self._is_ours = connect(cfg.address, cfg.workers * cfg.worker_cpus)
        self._every_s = cfg.publish_every_s if cfg.free_running else 0.0
        self._published: dict[int, tuple[int, float]] = {}
        self.weights: dict[int, Any] = {}
        """The newest weights of each policy, as Ray knows them."""
        nodes = machines(self.ray)
        if cfg.worker_cpus and room_for(nodes, {"CPU": cfg.worker_cpus}) < cfg.workers:
            has = " + ".join(f"{node['CPU']:g}" for node in nodes if "CPU" in node) or "no"
            self.close()
            raise ConfigError(
                f"sample.workers {cfg.workers} with sample.worker_cpus {cfg.worker_cpus:g} are more than the "
                f"{has} CPUs of the Ray cluster's machines"
            )
        self._actor_class = self.ray.remote(concurrency_groups={WATCH: 1})(RemoteWorker)

    def actor(self) -> Any:
        """Return a new actor, on a machine that has room, or will have."""
        return self._actor_class.options(
            num_cpus=self.worker_cpus, scheduling_strategy="SPREAD", max_restarts=0
        ).remote()

    def start(self, number: int, job: dict[str, Any]) -> RayLink:
        """Start a worker."""
        return RayLink(self, number, job)

    def wait(self, links: Sequence[WorkerHandle], timeout_s: float) -> list[WorkerHandle]:
        """Return those whose next answer is here, or will never be."""
        by_answer = {}
        for link in links:
            assert isinstance(link, RayLink)
            if link.waits_for is not None:
                by_answer[link.waits_for] = link
        if not by_answer:
            time.sleep(timeout_s)
            return []
        answers = list(by_answer)
        ready, _ = self.ray.wait(answers, num_returns=1, timeout=timeout_s)
        if ready and len(answers) > 1:
            ready, _ = self.ray.wait(answers, num_returns=len(answers), timeout=0)
        return [by_answer[answer] for answer in ready]

    def publish(self, policy: int, source: PortablePolicy) -> None:
        """Put the weights into the cluster; orders from now on carry them."""
        version, when_s = self._published.get(policy, (None, -math.inf))
        now_s = time.monotonic()
        if version == source.version or now_s - when_s < self._every_s:
            return
        flat = np.empty(source.num_weights, np.float32)
        source.write_weights(flat)
        self.weights[policy] = self.ray.put({"version": source.version, "flat": flat})
        self._published[policy] = source.version, now_s

    def free_cpus(self) -> float:
        """Return what nobody uses."""
        return float(self.ray.available_resources().get("CPU", 0.0))

    def tolerant(self) -> contextlib.AbstractContextManager[None]:
        """Forgive that an actor, or all of Ray, has gone already."""
        return contextlib.suppress(self.ray.exceptions.RayError, self.ray.exceptions.RaySystemError, RuntimeError)

    def close(self) -> None:
        """Leave the cluster if we joined it; one of our own ends with that."""
        self.weights.clear()
        if self._is_ours:
            self.ray.shutdown()


def _cause(error: Exception) -> str:
    """Return what Ray says of a lost worker, the telling line first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "\n".join([f"ended: {telling_line(error)}", *lines])
