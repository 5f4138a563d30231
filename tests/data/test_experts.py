"""Expert buffers: which transitions are drawn how often, what is held out, and an exact resume on growing datasets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from roboloop.core.errors import ConfigError, DataError
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBuffer, open_experts
from roboloop.data.store import StoreWriter
from roboloop.data.transitions import finals
from tests.data.kit import episode_of, schema_of

LENGTH = 20
SCHEDULE = {"recording": {"schedule": [["grasp", 5], ["release", 0]]}}


def dataset(directory: Path, episodes: range, **schema) -> Dataset:
    """Write episodes whose observations say which one they are of and at which step."""
    with StoreWriter(directory, schema_of(**schema)) as writer:
        for number in episodes:
            episode, facts = episode_of(number, LENGTH)
            episode.obs[:, 0], episode.obs[:, 1] = number, np.arange(LENGTH + 1)
            writer.append(episode, facts)
    return Dataset.open(directory)


@pytest.fixture
def ten(tmp_path: Path) -> Dataset:
    return dataset(tmp_path / "a", range(10))


def config(**changes) -> ExpertConfig:
    return ExpertConfig(directory="somewhere", **changes)


def test_most_of_a_batch_are_last_transitions_and_a_share_of_episodes_is_never_learned_from(ten: Dataset) -> None:
    buffer = ExpertBuffer([ten, ten], config(held_out=0.2), seed=0)
    batch, other = buffer.sample(200), buffer.held_out(200)
    assert batch.obs.shape == (2, 200, 3)
    assert batch.action.shape == (2, 200, 2)
    assert (batch.obs[:, :, 1] == LENGTH - 1).mean() >= 0.95
    assert (batch.next_obs[:, :, 1] == batch.obs[:, :, 1] + 1).all()
    assert set(np.unique(batch.obs[0, :, 0])) | set(np.unique(other.obs[0, :, 0])) == set(range(10))
    assert not set(np.unique(batch.obs[0, :, 0])) & set(np.unique(other.obs[0, :, 0]))
    assert len(np.unique(other.obs[0, :, 0])) == 2
    even = buffer.sample(4000, end_share=0.0)
    assert np.bincount(even.obs[0, :, 1].astype(int), minlength=20) == pytest.approx(200, abs=60)


def test_steps_and_ends_are_those_of_whole_episodes_however_few_are_drawn(ten: Dataset) -> None:
    buffer = ExpertBuffer([ten], config(held_out=0.0, every=7), seed=0)
    assert buffer.num_steps.tolist() == [200]
    assert buffer.num_ends.tolist() == [5]  # each second one of the kit
    assert len(np.unique(buffer.sample(4000, 0.0).obs[0, :, :2], axis=0)) < 40


def test_what_only_led_up_to_a_task_is_not_shown(tmp_path: Path) -> None:
    buffer = ExpertBuffer([dataset(tmp_path / "a", range(4), source=SCHEDULE)], config(held_out=0.25), seed=0)
    assert buffer.sample(500, 0.0).obs[0, :, 1].min() == 5
    assert buffer.num_steps.tolist() == [3 * 15]


def test_examples_are_the_states_after_the_last_transition(ten: Dataset) -> None:
    examples = ExpertBuffer([ten], config(), seed=0).examples(50)
    assert examples.shape == (1, 50, 3)
    assert (examples[0, :, 1] == LENGTH).all()
    assert len(finals(ten).action) == 10


def test_only_the_first_episodes_are_used_where_so_many_are_asked_for(ten: Dataset) -> None:
    buffer = ExpertBuffer([ten], config(episodes=4), seed=0)
    seen = np.unique(buffer.sample(500).obs[0, :, 0]).tolist() + np.unique(buffer.held_out(50).obs[0, :, 0]).tolist()
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_resumed_buffer_draws_on_as_before_although_its_dataset_has_grown(tmp_path: Path) -> None:
    whole = ExpertBuffer([dataset(tmp_path / "a", range(6))], config(), seed=3)
    expected = [whole.sample(32) for _ in range(10)]
    begun = ExpertBuffer([Dataset.open(tmp_path / "a")], config(), seed=3)
    head = [begun.sample(32) for _ in range(4)]
    state = json.loads(json.dumps(begun.state()))
    grown = dataset(tmp_path / "a", range(6, 9))
    resumed = ExpertBuffer([grown], config(), seed=3)
    resumed.load(state)
    for batch, wanted in zip(head + [resumed.sample(32) for _ in range(6)], expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(batch, wanted, strict=True))
    state["episodes"] = [7]
    with pytest.raises(ConfigError, match="had 7 episodes when this run began, of which 6 are left"):
        ExpertBuffer([grown], config(), seed=3).load(state)


def test_too_little_data_is_refused_in_one_line(tmp_path: Path) -> None:
    one = dataset(tmp_path / "one", range(1))
    with pytest.raises(DataError, match="has 1 episodes of which 1 are held out: nothing is left to learn from; exp"):
        ExpertBuffer([one], config(), seed=0)
    assert ExpertBuffer([one], config(held_out=0.0), seed=0).held_out(3) is None
    schedule = {"recording": {"schedule": [["grasp", LENGTH], ["release", 0]]}}
    short = dataset(tmp_path / "short", range(2), source=schedule)
    with pytest.raises(DataError, match=r"an episode of 20 steps in .* has nothing after 20 steps"):
        ExpertBuffer([short], config(), seed=0)


def test_tasks_have_datasets_under_their_names_and_a_single_task_may_be_the_dataset_itself(tmp_path: Path) -> None:
    for name in ("reach", "grasp"):
        dataset(tmp_path / "all" / name, range(2))
    found = open_experts(tmp_path / "all", ("grasp", "reach"))
    assert [data.directory.name for data in found] == ["grasp", "reach"]
    assert open_experts(tmp_path / "all" / "reach", ("place",))[0].directory.name == "reach"
    with pytest.raises(DataError, match=r"has no dataset of place: roboloop record ENV --expert --task place --out"):
        open_experts(tmp_path / "all", ("place", "reach"))


@pytest.mark.parametrize("changes", [{"every": 0}, {"held_out": 1.0}, {"end_share": 1.1}, {"episodes": -1}], ids=str)
def test_impossible_settings_are_refused(changes) -> None:
    with pytest.raises(ConfigError):
        config(**changes).check()
    with pytest.raises(ConfigError, match=r"'algo.expert.directory' is needed"):
        ExpertConfig().check()
