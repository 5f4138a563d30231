from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from roboloop.core.errors import DataError
from roboloop.track.read import (
    aside,
    boot_id,
    find_runs,
    names_of,
    process_alive,
    read_jsonl,
    read_metrics,
    read_run,
    read_timing,
)


def make_run(path: Path, **changes: Any) -> Path:
    path.mkdir(parents=True)
    status = {
        "state": "running",
        "step": 500,
        "steps": 1000,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "updated_unix_s": time.time(),
        "last_success": 0.5,
        "last_return": None,
    }
    (path / "status.json").write_text(json.dumps(status | changes))
    return path


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_runs_are_found_and_sorted_by_seed_not_by_text(tmp_path: Path) -> None:
    for seed in (10, 9):
        make_run(tmp_path / "sac" / "reach-v3" / str(seed), state="done")
    (tmp_path / "sac" / "plots").mkdir()
    infos = find_runs(tmp_path)
    assert [(i.experiment, i.task, i.seed, i.state) for i in infos] == [
        ("sac", "reach-v3", 9, "done"),
        ("sac", "reach-v3", 10, "done"),
    ]
    assert (infos[0].step, infos[0].steps, infos[0].last_success, infos[0].last_return) == (500, 1000, 0.5, None)


def test_a_run_that_overwrite_moved_aside_is_found_by_its_path_alone(tmp_path: Path) -> None:
    run, old = (make_run(tmp_path / "sac" / "reach-v3" / name) for name in ("0", "0.old-1"))
    for root in (tmp_path, tmp_path / "sac", tmp_path / "sac" / "reach-v3"):
        assert [info.path for info in find_runs(root)] == [run]
    assert [info.path for info in find_runs(old)] == [old]
    assert aside(run) == old.with_name("0.old-2")


@pytest.mark.parametrize("root", ["", "sac", "sac/reach-v3", "sac/reach-v3/0"])
def test_a_run_has_the_same_name_from_whatever_root_it_is_found(tmp_path: Path, root: str) -> None:
    make_run(tmp_path / "sac" / "reach-v3" / "0")
    (info,) = find_runs(tmp_path / root)
    assert (info.experiment, info.task, info.seed) == ("sac", "reach-v3", 0)


def test_an_experiment_may_be_several_folders_deep(tmp_path: Path) -> None:
    deep = make_run(tmp_path / "x" / "sweep" / "lr-3" / "reach-v3" / "0")
    assert names_of(deep) == ("lr-3", "reach-v3", 0)
    (deep / "config.yaml").write_text("experiment: sweep/lr-3\nseed: 0\n")
    assert names_of(deep) == ("sweep/lr-3", "reach-v3", 0)
    (deep / "config.yaml").write_text("experiment: 'elsewhere/lr-3'\n")  # moved since: the path says where it is
    assert names_of(deep) == ("lr-3", "reach-v3", 0)
    (deep / "config.yaml").write_text("experiment: a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t\n")
    assert names_of(deep) == ("lr-3", "reach-v3", 0)


def test_stages_within_stages_are_found_and_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "simgan" / "gap" / "sysid" / "refined" / "hopper" / "0")
    (tmp_path / "runs" / "simgan" / "again").symlink_to(tmp_path / "runs")
    assert len(find_runs(tmp_path / "runs")) == 1


def test_a_missing_root_has_no_runs(tmp_path: Path) -> None:
    assert find_runs(tmp_path / "nothing") == []


def test_a_running_process_is_running_and_a_dead_one_is_lost(tmp_path: Path) -> None:
    assert read_run(make_run(tmp_path / "a" / "b" / "0")).state == "running"
    assert read_run(make_run(tmp_path / "a" / "b" / "1", pid=dead_pid())).state == "lost"
    assert read_run(make_run(tmp_path / "a" / "b" / "2", pid=dead_pid(), state="done")).state == "done"


def test_a_run_of_an_earlier_boot_is_lost_even_if_its_pid_lives_again(tmp_path: Path) -> None:
    assert read_run(make_run(tmp_path / "a" / "b" / "0", boot_id="another")).state == "lost"


def test_a_pid_that_was_given_to_a_younger_process_is_lost(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as younger:
        run = make_run(tmp_path / "a" / "b" / "0", pid=younger.pid, updated_unix_s=time.time() - 1000)
        assert read_run(run).state == "lost"
        assert younger.stdin
        younger.stdin.close()


def test_a_run_of_another_host_is_judged_by_its_last_sign_of_life(tmp_path: Path) -> None:
    elsewhere = {"host": "elsewhere", "boot_id": "another", "pid": 1}
    assert read_run(make_run(tmp_path / "a" / "b" / "0", **elsewhere)).state == "running"
    old = make_run(tmp_path / "a" / "b" / "1", **elsewhere, updated_unix_s=time.time() - 3600)
    assert read_run(old).state == "lost"


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
    assert not process_alive(process.pid)
    process.wait()
    assert process_alive(os.getpid())
    assert not process_alive(0)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"state": "odd", "step": 1, "steps": 2}', '{"state": "done"}'])
def test_a_damaged_status_is_one_line_and_does_not_hide_the_others(tmp_path: Path, text: str) -> None:
    make_run(tmp_path / "a" / "b" / "0")
    bad = make_run(tmp_path / "a" / "b" / "1")
    (bad / "status.json").write_text(text)
    with pytest.raises(DataError) as caught:
        read_run(bad)
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [i.state for i in find_runs(tmp_path)] == ["running", "damaged"]


def test_a_foreign_directory_is_refused_by_name(tmp_path: Path) -> None:
    for reader in (read_run, lambda run: read_metrics(run, ["x"]), lambda run: read_timing(run)):
        with pytest.raises(DataError, match="not a run directory"):
            reader(tmp_path)


@pytest.mark.parametrize("tail", [b'{"step": 2', b'{"step": 2}', b"\0\0\0\n", b""])
def test_a_torn_last_line_is_ignored(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + tail)
    assert read_jsonl(path) == [{"step": 1}]


def test_numbers_beyond_all_floats_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a" / "b" / "0")
    (run / "metrics.jsonl").write_text(f'{{"step": 1, "x": 1{"0" * 400}}}\n{{"step": 2, "x": 3}}\n')
    assert read_metrics(run, ["x"])["x"].value.tolist() == [3]


def test_a_line_that_is_nested_without_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"x": {"[" * 100_000}\n{{"step": 1}}\n')
    with pytest.raises(DataError, match=r"m\.jsonl: line 1"):
        read_jsonl(path)


def test_a_bad_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\nrubbish\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"m\.jsonl: line 2"):
        read_jsonl(path)


def test_metrics_are_sparse_and_null_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a" / "b" / "0")
    (run / "metrics.jsonl").write_text('{"step": 1, "x": 2}\n{"step": 2, "x": null, "y": 1}\n{"step": 3, "x": 4.5}\n')
    (run / "timing.jsonl").write_text('{"step": 1, "wall_s": 0.5}\n')
    series = read_metrics(run, ["x", "never"])
    assert series["x"].step.tolist() == [1, 3]
    assert series["x"].value.tolist() == [2, 4.5]
    assert series["never"].step.size == 0
    assert read_timing(run)["wall_s"].value.tolist() == [0.5]
