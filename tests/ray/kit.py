"""A cluster of several raylets on loopback, each with resources of its own, that can be killed one by one."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from roboloop.core.cluster import LOOPBACK, LOOPBACK_ONLY
from roboloop.core.processes import family
from tests.own import listening

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    LOOPBACK_ONLY: "0",
    "RAY_worker_niceness": "0",  # 15 otherwise: whoever else computes would starve our workers
    "RAY_memory_monitor_refresh_ms": "0",  # what others take of the memory is no reason to kill our workers
}
ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")

LOOPBACKS = ("0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F")
"""As the kernel writes 127.0.0.1, ::1 and ::ffff:127.0.0.1."""
STORE_BYTES = 80_000_000
FAST = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3,
        "prestart_worker_first_driver": False}  # fmt: skip
"""A lost machine is noticed within a second, so that tests need not wait."""


class Cluster:
    """A head without CPUs, where the learner is, and nodes with some."""

    def __init__(self, nodes: int, cpus: int = 2, is_fast: bool = True) -> None:
        from ray.cluster_utils import Cluster as Raylets

        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        head |= {"_system_config": FAST} if is_fast else {}
        self._raylets = Raylets(initialize_head=True, head_node_args={**head, "node_ip_address": LOOPBACK})
        self.address = f"ray://{self._raylets.address}"
        self.nodes = []
        self._cpus = cpus
        for _ in range(nodes):
            self.add()
        self.settle()

    def add(self) -> None:
        """Let one more machine join."""
        self.nodes.append(self._raylets.add_node(
            num_cpus=self._cpus, object_store_memory=STORE_BYTES, node_ip_address=LOOPBACK, wait=False
        ))  # fmt: skip

    def settle(self) -> None:
        """Wait until all machines are there, and only those."""
        self._raylets.wait_for_nodes()

    def kill(self, node_id: str) -> None:
        """Kill the raylet of one node and all that it has started with -9, as if its plug had been pulled."""
        node = next(node for node in self.nodes if node.node_id == node_id)
        self.nodes.remove(node)
        for info in node.all_processes["raylet"]:
            for pid in family(info.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End everything."""
        ray.shutdown()
        self._raylets.shutdown()


def listens_only_on_loopback(pids: set[int]) -> bool:
    """Say whether these processes listen, and none of them can be reached from another machine."""
    addresses = {address for address, _ in listening(pids)}
    return bool(addresses) and addresses <= set(LOOPBACKS)
