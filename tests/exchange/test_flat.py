"""D4RL's flat arrays, as HDF5 and npz: both ways, and what is wrong with a file in one line."""

import numpy as np
import pytest

from roboloop.cli import main
from roboloop.data.dataset import Dataset
from tests.data.kit import KINDS, fill
from tests.exchange.kit import MIXED, assert_equal, fill_choices, there_and_back

h5py = pytest.importorskip("h5py")
FORMATS = {"d4rl-hdf5": "file.hdf5", "npz": "file.npz"}
POINT = "gym/Pendulum-v1"
"""Three numbers seen, one given."""


def store(path, arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values


def foreign(ends=(4, 9), timeouts=(6,), steps=12, with_next=True):
    """Return arrays as D4RL has them: float64 rows, flags of numbers; the observation of step t begins with t."""
    time = np.arange(steps)
    obs = np.stack([time, time / 10, -time], 1).astype(np.float64)
    after = obs + np.array([1, 0.1, -1])
    terminals, cut = (np.isin(time, which).astype(np.float32) for which in (ends, timeouts))
    arrays = {
        "observations": obs, "next_observations": after, "actions": np.sin(time)[:, None], "rewards": time * 1.0,
        "terminals": terminals, "timeouts": cut, "infos/action_log_probs": -time * 1.0,
    }  # fmt: skip
    return arrays if with_next else {name: a for name, a in arrays.items() if name != "next_observations"}


def bring_in(path, out, name, env=POINT):
    return main(["dataset", "import", str(path), str(out), "--format", name, *(["--env", env] if env else [])])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_dataset_comes_back_bit_for_bit(tmp_path, name, kind):
    fill(tmp_path / "a", range(7), kind=kind)
    there_and_back(tmp_path / "a", name, tmp_path / FORMATS[name], tmp_path / "b")
    assert_equal(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("actions", MIXED)
@pytest.mark.parametrize("name", FORMATS)
def test_choices_come_back_bit_for_bit(tmp_path, name, actions):
    fill_choices(tmp_path / "a", actions, range(5))
    there_and_back(tmp_path / "a", name, tmp_path / FORMATS[name], tmp_path / "b")
    assert_equal(tmp_path / "a", tmp_path / "b")


def test_others_find_the_arrays_where_d4rl_has_them(tmp_path):
    fill(tmp_path / "a", range(5))
    assert main(["dataset", "export", str(tmp_path / "a"), str(tmp_path / "f"), "--format", "d4rl-hdf5"]) == 0
    data = Dataset.open(tmp_path / "a")
    episodes = [data.episode(row) for row in range(5)]
    with h5py.File(tmp_path / "f") as file:
        for name, column in (("actions", "action"), ("rewards", "raw_reward"), ("terminals", "terminated")):
            np.testing.assert_array_equal(file[name], np.concatenate([getattr(e, column) for e in episodes]))
        np.testing.assert_array_equal(file["timeouts"], np.concatenate([e.truncated for e in episodes]))
        np.testing.assert_array_equal(file["observations"], np.concatenate([e.obs[:-1] for e in episodes]))
        np.testing.assert_array_equal(file["next_observations"], np.concatenate([e.obs[1:] for e in episodes]))


def test_a_choice_is_an_integer_to_others(tmp_path):
    fill_choices(tmp_path / "a", "one choice", range(3))
    assert main(["dataset", "export", str(tmp_path / "a"), str(tmp_path / "f.npz"), "--format", "npz"]) == 0
    with np.load(tmp_path / "f.npz") as file:
        assert (file["actions"].dtype, file["actions"].ndim) == (np.int64, 1)


@pytest.mark.parametrize("name", FORMATS)
def test_a_foreign_file_is_split_at_its_ends_and_keeps_the_true_last_observation(tmp_path, name, capsys):
    store(tmp_path / FORMATS[name], foreign())
    assert bring_in(tmp_path / FORMATS[name], tmp_path / "out", name) == 0
    assert "2 steps behind the last end of an episode" in capsys.readouterr().out
    data = Dataset.open(tmp_path / "out")
    assert data.table["length"].tolist() == [5, 2, 3]
    assert data.table["episode_return"].tolist() == [10.0, 11.0, 24.0]
    assert data.table["step"].tolist() == [5, 7, 10]
    assert [data.episode(row).obs[:, 0].tolist() for row in range(3)] == [[0, 1, 2, 3, 4, 5], [5, 6, 7], [7, 8, 9, 10]]
    assert [bool(data.episode(row).terminated[-1]) for row in range(3)] == [True, False, True]
    assert data.episode(1).log_prob.tolist() == [-5.0, -6.0]
    assert data.episode(1).reward.tolist() == data.episode(1).raw_reward.tolist()
    assert main(["dataset", "verify", str(tmp_path / "out")]) == 0


def test_without_next_observations_a_truncated_episode_ends_one_step_earlier_and_a_terminated_one_repeats(
    tmp_path, capsys
):
    store(tmp_path / "f.hdf5", foreign(timeouts=(5, 7), with_next=False))
    assert bring_in(tmp_path / "f.hdf5", tmp_path / "out", "d4rl-hdf5") == 0
    said = capsys.readouterr().out
    assert "2 last steps of truncated episodes, whose successor is not known" in said
    assert "2 episodes whose last observation, after a termination, repeats the one before" in said
    data = Dataset.open(tmp_path / "out")
    # 0..4 terminated, 5 alone is nothing without its successor, 6..7 keeps one step, 8..9 terminated
    assert [data.episode(row).obs[:, 0].tolist() for row in range(3)] == [[0, 1, 2, 3, 4, 4], [6, 7], [8, 9, 9]]
    assert data.episode(1).truncated.tolist() == [True]
    assert data.table["episode_return"].tolist() == [10.0, 6.0, 17.0]
    assert "repeats the one before" in str(data.notes)


def without(name):
    return lambda arrays: arrays.pop(name)


def with_nan(arrays):
    arrays["terminals"][3] = np.nan


def shorter(arrays):
    arrays["actions"] = arrays["actions"][:-1]


def wider(arrays):
    arrays["observations"] = arrays["next_observations"] = np.zeros((12, 4))


def endless(arrays):
    arrays["terminals"][:] = arrays["timeouts"][:] = 0


def shuffled(arrays):
    arrays["next_observations"] = arrays["next_observations"][::-1]


def words(arrays):
    arrays["actions"] = np.full((12, 1), b"left")


def matrix(arrays):
    arrays["rewards"] = np.zeros((12, 2))


def without_a_number(arrays):
    arrays["rewards"][2] = np.nan


FAULTS = {
    "no rewards": (without("rewards"), "no array 'rewards'"),
    "no timeouts": (without("timeouts"), "no array 'timeouts'"),
    "NaN in terminals": (with_nan, "'terminals' that are neither true nor false"),
    "ragged": (shorter, "11 rows of 'actions', but 12 of 'rewards'"),
    "another environment": (wider, "observations of shape [4], not [3] as gym/Pendulum-v1"),
    "no end": (endless, "no whole episode"),
    "shuffled": (shuffled, "are its steps shuffled?"),
    "words": (words, "cannot be read: actions"),
    "two rewards a step": (matrix, "rewards of shape [2]"),
    "NaN in rewards": (without_a_number, "a reward that is not finite"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_wrong_with_a_file_is_one_line_and_leaves_nothing(tmp_path, name, fault, capsys):
    arrays = foreign()
    FAULTS[fault][0](arrays)
    store(tmp_path / FORMATS[name], arrays)
    assert bring_in(tmp_path / FORMATS[name], tmp_path / "out", name) == 2
    said = capsys.readouterr().err
    assert FAULTS[fault][1] in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [FORMATS[name]]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_another_kind_is_named(tmp_path, name, capsys):
    (tmp_path / "f").write_bytes(b"not what it should be")
    for path, env, hint in (("f", POINT, "is not an"), ("none", POINT, "does not exist")):
        assert bring_in(tmp_path / path, tmp_path / "out", name, env) == 2
        said = capsys.readouterr().err
        assert hint in said
        assert said.count("\n") == 1
    store(tmp_path / FORMATS[name], foreign())
    assert bring_in(tmp_path / FORMATS[name], tmp_path / "out", name, env=None) == 2
    assert "give --env ID" in capsys.readouterr().err


def test_pickled_objects_are_not_loaded(tmp_path, capsys):
    np.savez(tmp_path / "f.npz", rewards=np.array([{"a": 1}], dtype=object))
    assert bring_in(tmp_path / "f.npz", tmp_path / "out", "npz") == 2
    assert "plain arrays" in capsys.readouterr().err


def test_damaged_bytes_and_damaged_facts_are_one_line(tmp_path, capsys):
    fill(tmp_path / "a", range(30))
    for damage in ("bytes", "facts"):
        path = tmp_path / damage
        assert main(["dataset", "export", str(tmp_path / "a"), str(path), "--format", "d4rl-hdf5"]) == 0
        with h5py.File(path, "r+") as file:
            if damage == "facts":
                file["metadata/episodes"][4] = b"{}"
            at = file["observations"].id.get_chunk_info(0).byte_offset
        if damage == "bytes":
            content = bytearray(path.read_bytes())
            content[at + 40 : at + 60] = bytes(20)
            path.write_bytes(content)
        assert bring_in(path, tmp_path / "out", "d4rl-hdf5", env=None) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert ("cannot be read: observations" if damage == "bytes" else "episode 4 is not whole") in said
        assert not (tmp_path / "out").exists()
