"""Experts of auxiliary tasks are recorded like any other, and what only leads up to a task is known as such."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBuffer, leading_steps, open_experts
from roboloop.data.verify import faults
from roboloop.envs import EnvConfig, auxiliary_tasks
from roboloop.run.record import record
from tests.run.test_record import content

FLAGS = ["--expert", "--episodes", "4", "--noise", "0.1", "--env.max-episode-steps", "60"]


def recorded(out: Path, *flags: str) -> Dataset:
    assert record(["play/place", *FLAGS, "--out", str(out), *flags]) == 0
    data = Dataset.open(out)
    assert not list(faults(data))
    return data


def test_the_expert_of_a_task_is_recorded_and_success_is_the_tasks_own(tmp_path: Path) -> None:
    data = recorded(tmp_path / "grasp", "--task", "grasp", "--success-only", "--envs", "2")
    assert set(data.table["task"]) == {"grasp"}
    assert (data.table["success"] == 1).all()
    assert (data.table["episode_return"] == 0).all()  # the env's own reward is that of its main task
    episode, tasks = data.episode(0), auxiliary_tasks(EnvConfig(id="play/place"))
    found = tasks.task_successes(episode.obs[:-1], episode.action, episode.obs[1:])
    assert found[-1].tolist() == [False, True, True, False, False]
    assert leading_steps(data.schema) == 0


def test_a_forced_schedule_leads_up_to_a_task_and_readers_know_where_it_begins(tmp_path: Path) -> None:
    data = recorded(tmp_path / "release", "--schedule", "grasp:30,release", "--success-only")
    tasks = auxiliary_tasks(EnvConfig(id="play/place"))
    for row in range(4):
        episode = data.episode(row)
        found = tasks.task_successes(episode.obs[:-1], episode.action, episode.obs[1:])
        grasp, release = (tasks.names.index(name) for name in ("grasp", "release"))
        assert found[29, grasp]
        assert not found[30:, grasp].any()
        assert found[-1, release]
    assert data.schema.source["recording"]["schedule"] == [["grasp", 30], ["release", 0]]
    assert leading_steps(data.schema) == 30
    assert ExpertBuffer([data], ExpertConfig("x", held_out=0.0), 0).num_steps.tolist() == [4 * 30]


def test_equal_commands_give_equal_bytes_and_another_schedule_is_another_recording(tmp_path: Path) -> None:
    for name in "ab":
        recorded(tmp_path / name, "--schedule", "reach:7,grasp", "--envs", "2")
    recorded(tmp_path / "c", "--schedule", "reach:7,grasp", "--envs", "2", "--workers", "2")
    assert content(tmp_path / "a") == content(tmp_path / "b") == content(tmp_path / "c")
    with pytest.raises(Exception, match="another recording"):
        recorded(tmp_path / "a", "--schedule", "reach:8,grasp", "--envs", "2")


def test_datasets_of_tasks_lie_side_by_side_unless_told_otherwise(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for task in ("reach", "move"):
        assert record(["play/place", *FLAGS, "--task", task]) == 0
    found = open_experts(Path("datasets/expert/place-tasks"), ("reach", "move"))
    assert [len(data) for data in found] == [4, 4]
    assert json.loads(Path("datasets/expert/place-tasks/move/schema.json").read_text())["spec"]["tasks"][0] == "place"
    examples = ExpertBuffer(found, ExpertConfig("x"), 0).examples(5)
    tasks = auxiliary_tasks(EnvConfig(id="play/place"))
    for column, name in enumerate(("reach", "move")):
        done = tasks.task_successes(examples[column], np.zeros((5, 3)), examples[column])
        assert done[:, tasks.names.index(name)].all()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--expert", "--task", "graps"], "play/place: unknown task 'graps'; did you mean 'grasp'"),
        (["--expert", "--schedule", "grasp,release"], "--schedule: how many steps of 'grasp'"),
        (["--expert", "--schedule", "grasp:0,release"], "--schedule: how many steps of 'grasp'"),
        (["--expert", "--schedule", "grasp:9,release:9"], "the last task, 'release', goes on until the episode ends"),
        (["--random", "--task", "grasp"], "--task and --schedule are for --expert"),
        (["--expert", "--task", "grasp", "--schedule", "grasp"], "choose one of them"),
    ],
)
def test_what_cannot_be_recorded_is_one_line(tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        record(["play/place", "--episodes", "1", "--out", str(tmp_path / "a"), *flags])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "a").exists()


def test_a_suite_without_tasks_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="metaworld/reach-v3 declares no auxiliary tasks"):
        record(["metaworld/reach-v3", "--expert", "--task", "grasp", "--episodes", "1", "--out", str(tmp_path / "a")])
