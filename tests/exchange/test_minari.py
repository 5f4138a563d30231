"""Minari datasets: what we write Minari opens, what Minari collects we learn from."""

import sys
import types
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from roboloop.cli import main
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import make
from tests.cli.test_cli import roboloop
from tests.data.kit import KINDS, episode_of, fill, schema_of
from tests.exchange.kit import MIXED, assert_equal, fill_choices, there_and_back

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    return tmp_path / "minari"


@pytest.fixture
def collect(monkeypatch, root):
    """Return a function that lets Minari's own collector record an environment."""
    try:
        import jax.tree_util  # noqa: F401
    except ImportError:  # Minari takes one function from it, which is not worth 100 MB here
        fake = types.ModuleType("jax.tree_util")
        fake.tree_map = tree_map
        monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
        monkeypatch.setitem(sys.modules, "jax.tree_util", fake)
        sys.modules["jax"].tree_util = fake

    def record(env, name, episodes, data_format="hdf5"):
        seen = []
        env = minari.DataCollector(env, record_infos=True, data_format=data_format)
        env.action_space.seed(0)
        for episode in range(episodes):
            rows = [env.reset(seed=episode)[0]]
            while True:
                action = env.action_space.sample()
                rows.append((action, *env.step(action)[:4]))
                if rows[-1][3] or rows[-1][4]:
                    break
            seen.append(rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about authors and permalinks
            env.create_dataset(name)
        env.close()
        return seen

    return record


def tree_map(function, tree, *rest):
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(r[key] for r in rest)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *parts) for parts in zip(tree, *rest, strict=True))
    return function(tree, *rest)


def bring_in(path, out, *flags):
    return main(["dataset", "import", str(path), str(out), "--format", "minari", *flags])


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_comes_back_bit_for_bit(tmp_path, kind):
    fill(tmp_path / "a", range(7), kind=kind)
    there_and_back(tmp_path / "a", "minari", tmp_path / "toy-v0", tmp_path / "b")
    assert_equal(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("actions", MIXED)
def test_choices_come_back_bit_for_bit(tmp_path, actions):
    fill_choices(tmp_path / "a", actions, range(5))
    there_and_back(tmp_path / "a", "minari", tmp_path / "toy-v0", tmp_path / "b")
    assert_equal(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("kind", ["numbers", "pictures", "records"])
def test_minari_opens_what_we_write_and_every_array_is_there(tmp_path, root, kind):
    fill(tmp_path / "a", range(9), kind=kind)
    assert main(["dataset", "export", str(tmp_path / "a"), str(root / "toy-v3"), "--format", "minari"]) == 0
    ours, theirs = Dataset.open(tmp_path / "a"), minari.load_dataset("toy-v3")
    assert (theirs.total_episodes, theirs.total_steps) == (9, ours.num_steps)
    assert list(minari.list_local_datasets()) == ["toy-v3"]
    for row, found in enumerate(theirs.iterate_episodes()):
        wanted = ours.episode(row)
        assert len(found) == len(wanted.reward)
        seen = {"": found.observations} if kind != "records" else found.observations
        for name, values in seen.items():
            np.testing.assert_array_equal(values, wanted.obs[name] if name else wanted.obs)
        np.testing.assert_array_equal(found.actions, wanted.action)
        np.testing.assert_array_equal(found.rewards, wanted.raw_reward)
        np.testing.assert_array_equal(found.terminations, wanted.terminated)
        np.testing.assert_array_equal(found.truncations, wanted.truncated)
        np.testing.assert_array_equal(found.infos["log_prob"][1:], wanted.log_prob)
        assert theirs.observation_space.contains(_first(found.observations)) or kind == "numbers"


def _first(tree):
    return {key: value[0] for key, value in tree.items()} if isinstance(tree, dict) else tree[0]


def test_large_pictures_are_not_made_lossy(tmp_path, root):
    obs = np.random.default_rng(0).integers(0, 256, (4, 64, 48, 64), np.uint8)  # what Minari would take for pictures
    spec = schema_of("pictures").spec.__class__(obs.shape[1:], obs.dtype, (-1.0, -1.0), (1.0, 1.0), 100)
    episode, facts = episode_of(2, 3)
    with StoreWriter(tmp_path / "a", schema_of("pictures", spec=spec)) as writer:
        writer.append(episode._replace(obs=obs), facts)
    there_and_back(tmp_path / "a", "minari", root / "toy-v0", tmp_path / "b")
    assert_equal(tmp_path / "a", tmp_path / "b")
    np.testing.assert_array_equal(minari.load_dataset("toy-v0")[0].observations, obs)


def test_the_environment_of_a_gymnasium_task_is_recovered(tmp_path, root):
    spec = make(EnvConfig(id="gym/CartPole-v1")).spec
    with StoreWriter(tmp_path / "a", schema_of(env_id="gym/CartPole-v1", spec=spec)) as writer:
        episode, facts = episode_of(2, 3)
        obs = np.zeros((4, *spec.obs_shape), spec.obs_dtype)
        writer.append(episode._replace(obs=obs, action=np.ones((3, 1), np.float32)), facts)
    assert main(["dataset", "export", str(tmp_path / "a"), str(root / "pole-v0"), "--format", "minari"]) == 0
    dataset = minari.load_dataset("pole-v0")
    env = dataset.recover_environment()
    assert (env.spec.id, env.spec.max_episode_steps) == ("CartPole-v1", 500)
    assert dataset.action_space == env.action_space
    env.close()


@pytest.mark.parametrize("data_format", ["hdf5", "parquet"])
def test_what_minari_collects_is_learned_from(tmp_path, collect, root, data_format):
    seen = collect(gymnasium.make("CartPole-v1"), "cartpole/random-v0", 6, data_format)
    assert bring_in("cartpole/random-v0", tmp_path / "out") == 0  # by its id, as Minari finds it
    assert bring_in(root / "cartpole" / "random-v0", tmp_path / "same") == 0
    assert_equal(tmp_path / "out", tmp_path / "same")
    data = Dataset.open(tmp_path / "out")
    assert data.schema.env_id == "gym/CartPole-v1"
    assert len(data) == 6
    for row, (first, *steps) in enumerate(seen):
        episode = data.episode(row)
        np.testing.assert_array_equal(episode.obs, [first, *(step[1] for step in steps)])
        assert episode.action[:, 0].tolist() == [step[0] for step in steps]
        assert episode.raw_reward.tolist() == [step[2] for step in steps]
        assert episode.terminated.tolist() == [step[3] for step in steps]
        assert episode.truncated.tolist() == [step[4] for step in steps]
    if data_format != "hdf5":
        return
    small = (
        "--steps 10 --log-every-steps 5 --eval.every-steps 0 --eval.episodes 1 --algo.processes 1 --algo.batch-size 8"
    )
    done = roboloop("train", "bc", "--dataset", tmp_path / "out", "--runs-dir", tmp_path / "runs", *small.split())
    assert done.returncode == 0, done.stderr


class Rich(gymnasium.Env):
    """Pictures, numbers, a choice that begins at 1 and a number to give; says when it succeeded."""

    observation_space = spaces.Dict(
        {
            "cam": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "arm": spaces.Box(-9, 9, (2,), np.float64),
            "on": spaces.Discrete(3),
        }
    )
    action_space = spaces.Tuple((spaces.Discrete(4, start=1), spaces.Box(-2, 2, (1,), np.float32)))

    def _obs(self):
        return {"cam": np.full((6, 5, 3), self.t, np.uint8), "arm": np.array([self.t, 0.5]), "on": np.int64(self.t % 3)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {"success": False}

    def step(self, action):
        self.t += 1
        return self._obs(), 1.0, False, self.t == 4, {"success": self.t == 3}


def test_nested_spaces_are_read_as_our_environments_read_them(tmp_path, collect):
    seen = collect(Rich(), "rich-v0", 2)
    assert bring_in("rich-v0", tmp_path / "refused") == 2  # it names no environment
    assert bring_in("rich-v0", tmp_path / "out", "--env", "gym/Rich-v0") == 0
    data = Dataset.open(tmp_path / "out")
    spec, episode = data.schema.spec, data.episode(0)
    assert spec.action_choices == (4, 0)
    assert spec.obs_dtype.names == ("vector", "cam")
    assert episode.obs["cam"].shape == (5, 3, 6, 5)
    assert episode.obs["cam"][:, 2, 1, 1].tolist() == [0, 1, 2, 3, 4]
    assert episode.obs["vector"][3].tolist() == [3, 0.5, 1, 0, 0]  # in the order of the space: arm, then one of three
    assert episode.action[:, 0].tolist() == [step[0][0] - 1 for step in seen[0][1:]]
    np.testing.assert_array_equal(episode.action[:, 1], [step[0][1][0] for step in seen[0][1:]])
    assert data.table["success"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("path", "hint"), [("no-such-v0", "not found locally"), ("no such", "Minari dataset")])
def test_what_is_no_minari_dataset_is_one_line(tmp_path, root, path, hint, capsys):
    assert bring_in(path, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert hint in said
    assert said.count("\n") == 1


def test_a_damaged_file_is_one_line_and_leaves_nothing(tmp_path, root, capsys):
    fill(tmp_path / "a", range(4))
    assert main(["dataset", "export", str(tmp_path / "a"), str(root / "toy-v0"), "--format", "minari"]) == 0
    file = root / "toy-v0" / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:3000])
    assert bring_in("toy-v0", tmp_path / "out") == 2
    (root / "toy-v0" / "data" / "metadata.json").write_text("{")
    assert bring_in("toy-v0", tmp_path / "out") == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "minari"]


def test_the_directory_must_have_a_name_that_minari_takes(tmp_path, capsys):
    fill(tmp_path / "a", range(2))
    assert main(["dataset", "export", str(tmp_path / "a"), str(tmp_path / "toy"), "--format", "minari"]) == 2
    assert "NAME-v0" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
