"""Runs in a Ray cluster: each is placed where there is room for it; those of a lost machine go on elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from signal import Signals
from typing import Any

from roboloop.core.cluster import connect, machines, room_for, telling_line
from roboloop.core.errors import ConfigError
from roboloop.launch.engine import BAD_INPUT, BROKEN, KILLED, Errand, Trial
from roboloop.launch.job import EXISTS, Job
from roboloop.launch.slots import Slot

_RESOURCES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
"""What Ray calls what an actor asks for."""
_SEND_S = 5.0
_PLACED_S = 0.2
"""Of each run that waits for room when all are to end."""


class OnRay:
    """Starts runs as actors of a cluster."""

    def __init__(self, address: str, cores_per_run: int, on_gpu: bool, memory_mb: int) -> None:
        """``on_gpu``: whether any run learns on a GPU, so that there must be room for such."""
        self.ray, self._is_ours = connect(address)
        self.cores_per_run = cores_per_run
        self._wanted: tuple[int | None, int | None] = None, None
        self._needs: dict[str, Any] = {"num_cpus": cores_per_run, "num_gpus": int(on_gpu)}
        if memory_mb:
            self._needs["memory"] = memory_mb * 1_000_000
        self._actor_class = self.ray.remote(_RayTrial)

    def slots(self, wanted: int | None, num_runs: int | None) -> list[Slot]:
        """Return as many slots as the cluster has room for runs; where each run is, is for the cluster to say."""
        self._wanted = wanted, num_runs
        needs = {_RESOURCES[key]: need for key, need in self._needs.items() if need}
        nodes = machines(self.ray)
        room = room_for(nodes, needs)
        if room < 1:
            one = ", ".join(f"{need:g} {name}" for name, need in needs.items())
            most = ", ".join(f"{max((has.get(name, 0.0) for has in nodes), default=0.0):g} {name}" for name in needs)
            raise ConfigError(f"the Ray cluster has no room for a run: one needs {one}, a machine has at most {most}")
        return [Slot(index, (), self.cores_per_run) for index in range(min(wanted or room, num_runs or room))]

    def more_slots(self, known: int) -> list[Slot]:
        """Return the slots of machines that have joined since."""
        try:
            return self.slots(*self._wanted)[known:]
        except ConfigError:  # all machines are lost for now
            return []

    def describe(self, slots: list[Slot]) -> str:
        """Return the cluster in one line."""
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        cpus = self.ray.cluster_resources().get("CPU", 0.0)
        runs = f"{len(slots)} runs at a time, {self.cores_per_run} CPUs each"
        return f"Ray, {len(alive)} machines with {cpus:g} CPUs; {runs}"

    def start(self, job: Job, slot: Slot, warn: Callable[[str], None]) -> RayRun:
        """Let the cluster start a run as soon as there is room."""
        needs = self._needs | {"num_gpus": int(job.on_gpu)}
        actor = self._actor_class.options(**needs, max_restarts=0, scheduling_strategy="SPREAD").remote()
        return RayRun(self.ray, actor, actor.start_here.remote(asdict(Errand.of(job)), self.cores_per_run), job)

    def close(self) -> None:
        """Leave the cluster."""
        if self._is_ours:
            self.ray.shutdown()


class RayRun:
    """A run somewhere in the cluster."""

    def __init__(self, ray: Any, actor: Any, answer: Any, job: Job) -> None:
        self._ray, self._actor, self._answer, self._job = ray, actor, answer, job
        self._node: str | None = None
        self.returncode: int | None = None
        self.why, self.machine_lost = "", False

    @property
    def has_begun(self) -> bool:
        """Whether its actor was placed, and answered."""
        return self._node is not None

    def poll(self) -> int | None:
        """Look whether the last question is answered; ask the next one if so."""
        if self.returncode is not None or not self._ray.wait([self._answer], timeout=0)[0]:
            return self.returncode
        try:
            answer = self._ray.get(self._answer, timeout=_SEND_S)
            if isinstance(answer, dict):
                self._hear(answer)
            else:
                self.returncode = answer
        except self._ray.exceptions.GetTimeoutError:
            return None  # it is on its way: looked for again
        except self._ray.exceptions.RayError as error:
            # one that cannot be reached for now is asked again: Ray knows soon whether it is lost, and with its machine
            if self._node is None or not isinstance(error, self._ray.exceptions.ActorUnavailableError):
                self._mourn(error)
        if self.returncode is None:
            self._answer = self._actor.poll_soon.remote()
        else:
            self._ray.kill(self._actor)
        return self.returncode

    def _mourn(self, error: Exception) -> None:
        """Tell the loss of a machine, which the run goes on after, from an end of its own, which counts."""
        raised = isinstance(error, self._ray.exceptions.RayTaskError)  # by our own code, on a machine that is well
        where = "" if raised else f"{self._node} {error}"  # of an actor that never answered, Ray says where it was
        lost = next((node["NodeID"] for node in self._ray.nodes() if not node["Alive"] and node["NodeID"] in where), "")
        self.machine_lost = bool(lost)
        self.why = f"its machine was lost, node {lost[:8]}" if lost else telling_line(error)
        self.returncode = KILLED if lost or self._node else BROKEN

    def _hear(self, answer: dict[str, Any]) -> None:
        self._node = answer.get("node")
        if "error" in answer:
            self.why, self.returncode = answer["error"], BAD_INPUT
        elif answer["pid"] is None:  # somebody works on it still, as a machine that was taken for lost may do
            self.why, self.returncode = "somebody works on it", EXISTS

    def send(self, number: Signals) -> bool:
        """Let the actor send a signal; one that is not placed yet is taken back."""
        if self._node is None:
            self._ray.wait([self._answer], timeout=_PLACED_S)  # it may be about to begin
        if self.poll() is None and self._node is None:
            self._ray.kill(self._actor)
            self.why, self.returncode = "it had not begun", -int(number)
            return True
        with contextlib.suppress(self._ray.exceptions.RayError):
            return bool(self._ray.get(self._actor.send.remote(int(number)), timeout=_SEND_S))
        return False


class _RayTrial(Trial):
    """The actor."""

    def start_here(self, errand: dict[str, Any], num_cores: int) -> dict[str, Any]:
        """Start the run on this machine."""
        import ray

        context = ray.get_runtime_context()
        gpus = [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]
        return {**self.start(errand, num_cores, ",".join(gpus) or None), "node": context.get_node_id()}

    def poll_soon(self) -> int | None:
        """Return the exit code if the run ends within a moment, so that nobody asks too often."""
        import subprocess

        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=0.5)
        return None
