"""Slots are made from what a machine has, read from trees as the kernel lays them out."""

import os
from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError
from roboloop.core.resources import free_memory_bytes, quota_cores
from roboloop.launch.slots import Machine, Slot, describe, discover, make_slots, pinned

HERE = {"PATH": ""}
"""No nvidia-smi."""


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def topology(siblings: dict[int, str], sockets: dict[int, int] | None = None) -> dict[str, object]:
    files: dict[str, object] = {}
    for cpu, text in siblings.items():
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = text
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = (sockets or {}).get(cpu, 0)
    return files


def machine(*cores, quota=float("inf"), gpus=()) -> Machine:
    return Machine(tuple(cores), quota, 8_000_000_000, tuple(gpus))


def cpus(slots: list[Slot]) -> list[tuple[int, ...]]:
    return [slot.cpus for slot in slots]


def test_threads_of_one_core_stay_together(tmp_path):
    root = write(tmp_path, topology({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}))
    found = discover(root, {0, 1, 4, 5}, HERE)
    assert found.cores == ((0, 4), (1, 5))
    assert cpus(make_slots(found, None, None)) == [(0, 4), (1, 5)]


def test_a_cpu_that_is_not_ours_is_in_no_slot(tmp_path):
    # the mask of seed 3's launcher named CPUs that the machine did not have: Invalid argument
    root = write(tmp_path, topology({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}))
    assert discover(root, {1, 2, 3}, HERE).cores == ((1,), (2, 3))


def test_cores_of_one_socket_are_neighbours(tmp_path):
    root = write(tmp_path, topology({0: "0", 1: "1", 2: "2", 3: "3"}, {0: 0, 1: 1, 2: 0, 3: 1}))
    assert cpus(make_slots(discover(root, {0, 1, 2, 3}, HERE), 2, None)) == [(0, 2), (1, 3)]


def test_without_a_topology_every_cpu_is_a_core(tmp_path):
    assert discover(tmp_path, {2, 7}, HERE).cores == ((2,), (7,))


def test_this_machine_has_slots_that_can_be_set():
    slots = make_slots(discover(), None, None)
    assert set().union(*cpus(slots)) <= os.sched_getaffinity(0)
    for slot in slots:
        with pinned(slot.cpus, pytest.fail):
            assert os.sched_getaffinity(0) == set(slot.cpus)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, float("inf")),
        # the group above ours is the tighter one
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "200000 100000",
          "sys/fs/cgroup/a/b/cpu.max": "400000 100000"}, 2.0),
        # version 1
        ({"proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/y", "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": 300000,
          "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": 100000}, 3.0),
        ({"proc/self/cgroup": "4:cpu:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000}, float("inf")),
        ({}, float("inf")),
    ],
)  # fmt: skip
def test_a_quota_is_found_in_both_versions_of_control_groups(tmp_path, files, cores):
    assert quota_cores(write(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"sys/fs/cgroup/memory.max": 1000, "sys/fs/cgroup/memory.current": 400}, 600),
        ({"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": 400}, 2048),
        ({"proc/self/cgroup": "3:memory:/y", "sys/fs/cgroup/memory/y/memory.limit_in_bytes": 900,
          "sys/fs/cgroup/memory/y/memory.usage_in_bytes": 100}, 800),
        ({"proc/self/cgroup": "3:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": 2**63 - 4096,
          "sys/fs/cgroup/memory/memory.usage_in_bytes": 100}, 2048),
    ],
)  # fmt: skip
def test_memory_is_what_the_container_leaves(tmp_path, files, free):
    assert free_memory_bytes(write(tmp_path, {"proc/meminfo": "MemAvailable: 2 kB", **files})) == free


def test_a_quota_makes_fewer_slots_than_cores():
    four = ((0,), (1,), (2,), (3,))
    assert len(make_slots(machine(*four, quota=2.5), None, None)) == 2
    assert len(make_slots(machine(*four, quota=0.5), None, None)) == 1


def test_slots_are_disjoint_and_whole_cores_come_first():
    two_threads = machine((0, 4), (1, 5), (2, 6), (3, 7))
    assert cpus(make_slots(two_threads, 2, None)) == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert cpus(make_slots(two_threads, 3, None)) == [(0, 4, 1, 5), (2, 6), (3, 7)]
    assert cpus(make_slots(two_threads, None, 2)) == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert cpus(make_slots(two_threads, 5, None)) == [(0, 4), (1, 5), (2, 6), (3,), (7,)]
    for number in range(1, 9):
        given = [cpu for slot in make_slots(two_threads, number, None) for cpu in slot.cpus]
        assert sorted(given) == list(range(8))


def test_more_slots_than_cpus_share_them_and_it_is_said():
    small = machine((0,), (1,))
    slots = make_slots(small, 3, None)
    assert cpus(slots) == [(0,), (1,), (0,)]
    assert "slots share CPUs" in describe(small, slots)
    assert "share" not in describe(small, make_slots(small, 2, None))


def test_cores_that_are_not_there_cannot_be_asked_for():
    with pytest.raises(ConfigError, match="2 slots of 2 cores are more than the 3 cores"):
        make_slots(machine((0,), (1,), (2,)), 2, 2)
    with pytest.raises(ConfigError, match="at least 1"):
        make_slots(machine((0,)), 0, None)


def test_a_slot_says_threads_and_gpu(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    variables = make_slots(machine((0, 4), (1, 5), gpus=("0",)), 1, None)[0].variables()
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "2"
    assert variables["CUDA_VISIBLE_DEVICES"] == variables["MUJOCO_EGL_DEVICE_ID"] == "0"
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_VISIBLE_DEVICES" not in make_slots(machine((0,)), 1, None)[0].variables()


def test_runs_on_gpus_have_one_each_and_share_the_cores():
    big = machine(*((cpu,) for cpu in range(8)), gpus=("0", "1"))
    slots = make_slots(big, None, None, on_gpu=True)
    assert [(len(slot.cpus), slot.gpu) for slot in slots] == [(4, "0"), (4, "1")]
    assert [slot.gpu for slot in make_slots(big, 4, None)] == ["0", "1", "0", "1"]


def test_fewer_runs_than_cores_share_them():
    four = machine((0,), (1,), (2,), (3,))
    assert cpus(make_slots(four, None, None, num_runs=2)) == [(0, 1), (2, 3)]
    assert len(make_slots(four, None, None, num_runs=9)) == 4
    assert len(make_slots(four, 3, None, num_runs=2)) == 3


def test_gpus_are_asked_of_the_driver_or_taken_from_the_user(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0\necho 1\n")
    tool.chmod(0o755)
    asked = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert discover(tmp_path, {0}, asked).gpus == ("0", "1")
    assert discover(tmp_path, {0}, {**asked, "CUDA_VISIBLE_DEVICES": "3, 5"}).gpus == ("3", "5")
    assert discover(tmp_path, {0}, {**asked, "CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    assert discover(tmp_path, {0}, HERE).gpus == ()


def test_cpus_that_cannot_be_set_are_a_warning():
    said: list[str] = []
    before = os.sched_getaffinity(0)
    with pinned((4000, 4001), said.append):
        assert os.sched_getaffinity(0) == before
    assert said == ["warning: runs cannot be kept to CPU 4000-4001 (Invalid argument): they run on any"]
