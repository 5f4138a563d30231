"""Runs, policies, environments and datasets in Python."""

import math
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from torch.utils.data import DataLoader

import roboloop as rl
from roboloop.data.dataset import Dataset
from roboloop.envs import gymnasium_ids, registry
from roboloop.envs.config import EnvConfig
from roboloop.run import build
from tests.cli.test_cli import roboloop
from tests.python.kit import small


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return rl.train(**small(tmp_path_factory.mktemp("use"), record={"keep": "all", "min_free_mb": 0}))


def test_what_is_public_is_there_typed_and_imported_when_it_is_used():
    code = (
        "import sys, roboloop as rl\n"
        "assert not {'torch', 'numpy', 'gymnasium', 'yaml'} & set(sys.modules), 'importing roboloop imports more'\n"
        "assert set(rl.__all__) <= set(dir(rl))\n"
        "missing = [name for name in rl.__all__ if getattr(rl, name, None) is None]\n"
        "print(missing)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        rl.trian  # noqa: B018
    assert (Path(rl.__file__).parent / "py.typed").exists()


def test_metrics_are_columns_with_nan_where_a_row_has_nothing(run):
    metrics = run.metrics()
    assert len({len(column) for column in metrics.values()}) == 1
    assert metrics["step"].dtype == np.int64
    assert metrics["step"][-1] == 300
    evaluated = np.isfinite(metrics["eval/return"])
    assert metrics["step"][evaluated].tolist() == [150, 300]
    assert {"wall_s", "step"} <= set(run.timing())


def test_metrics_make_a_data_frame(run):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(run.metrics())
    assert frame["step"].iloc[-1] == 300
    assert frame["eval/return"].isna().any()


def test_runs_are_listed_and_opened_by_their_path(run):
    root = run.path.parents[2]
    assert [each.path for each in rl.runs(root)] == [run.path]
    opened = rl.Run(root / "default")
    assert (opened.path, opened.status, opened.step) == (run.path, "done", 300)
    assert opened.checkpoints == run.checkpoints
    assert repr(opened) == f"Run({str(run.path)!r}): done, step 300 of 300"
    assert rl.runs(root / "nothing") == []


def test_an_evaluation_has_the_numbers_of_the_shell(run):
    here = rl.evaluate(run, episodes=7, seed=2, name="here")
    done = roboloop("eval", run.path, "--episodes", "7", "--seed", "2", "--name", "there")
    assert done.returncode == 0, done.stderr
    assert f"return {here.episode_return:.1f}" in done.stdout
    rows = [(run.path / "eval" / f"{name}.jsonl").read_text() for name in ("here", "there")]
    assert rows[0] == rows[1]
    assert here.episodes == 7
    assert rl.evaluate(run.path, episodes=7, seed=2, name="here") == here or math.isnan(here.success)


def test_an_evaluation_elsewhere_takes_keys_of_the_environment(run):
    short = rl.evaluate(run, episodes=2, env={"eval_max_episode_steps": 3})
    assert short.length <= 3
    assert rl.evaluate(run, episodes=2, env="tiny/mirror").episodes == 2
    with pytest.raises(rl.ConfigError, match="the policy cannot act there"):
        rl.evaluate(run, episodes=2, env="gym/Pendulum-v1")
    with pytest.raises(rl.ConfigError, match="at least 1"):
        rl.evaluate(run, episodes=0)


def test_a_loaded_policy_acts_as_the_evaluation_does(run):
    policy, env = rl.load(run), rl.make("tiny/point")
    config = run.config
    point = build.policy_of(config, build.spec_of(config), build.RunDir.open(run.path).pick("best"))
    obs, _ = env.reset(seed=4)
    memory = np.zeros((1, 0), np.float32)
    wanted = point.act(obs[None], memory, False, np.random.default_rng(0)).action[0]
    assert np.array_equal(policy.act(obs), wanted)
    policy.reset()
    batch = policy.act(np.stack([obs, -obs, obs]))
    assert batch.shape == (3, *wanted.shape)
    assert np.allclose(batch[2], wanted)
    assert not np.array_equal(policy.act(np.stack([obs] * 3), explore=True)[0], wanted)
    with pytest.raises(rl.ConfigError, match="call reset"):
        policy.act(obs)
    with pytest.raises(rl.ConfigError, match="an observation has shape"):
        rl.load(run).act(np.zeros(17))
    with pytest.raises(rl.DataError, match="step"):
        rl.load(run, "bets")


def test_memory_and_frame_stacks_are_the_policys_own_and_end_with_the_episode(tmp_path):
    recurrent = rl.train(
        env={"id": "tiny/recall", "num_envs": 2}, runs_dir=tmp_path / "runs", quiet=True, trackers=[], steps=128,
        algo={"name": "ppo", "core": "gru", "rollout_steps": 16, "minibatches": 1, "hidden": (16,)},
        **{"eval.episodes": 2},
    )  # fmt: skip
    stacked = rl.train(**small(tmp_path, steps=100, env={"id": "tiny/point", "frame_stack": 3}))
    for run, env_id in ((recurrent, "tiny/recall"), (stacked, "tiny/point")):
        env, policy = rl.make(env_id), rl.load(run, "last")
        first, _ = env.reset(seed=0)
        second = env.step(env.action_space.sample())[0]
        begun = policy.act(first)
        assert env.action_space.contains(begun)
        went_on = policy.act(second)
        policy.reset()
        assert np.array_equal(policy.act(first), begun)
        assert np.array_equal(policy.act(second), went_on)
        # of a batch one row begins anew, the other goes on
        policy.reset()
        policy.act(np.stack([first, first]))
        policy.reset([True, False])
        both = policy.act(np.stack([first, second]))
        assert np.allclose(both[0], begun)
        assert np.allclose(both[1], went_on)


LIGHT = ("tiny/point", "tiny/recall", "tiny/cart", "tiny/pegs", "play/reach", "panda/reach", "metaworld/reach-v3")


@pytest.mark.parametrize("env_id", LIGHT)
def test_our_environments_pass_the_check_of_gymnasium(env_id):
    for package in registry.find_suite(env_id.partition("/")[0]).packages:
        pytest.importorskip(package)
    gymnasium_ids.register()
    env = gymnasium.make(gymnasium_ids.gymnasium_id(env_id), disable_env_checker=True)
    check_env(env.unwrapped, skip_render_check=env_id != "play/reach")
    env.close()


def test_an_environment_has_the_episodes_and_pictures_of_ours():
    env, ours = rl.make("play/reach", render_mode="rgb_array"), registry.make(EnvConfig(id="play/reach"))
    obs, _ = env.reset(seed=5)
    assert np.array_equal(obs, ours.reset(5))
    action = env.action_space.sample()
    assert env.step(action)[1] == ours.step(action)[1]
    assert env.render().dtype == np.uint8
    a, b = env.reset()[0], env.reset()[0]
    env.reset(seed=5)
    assert np.array_equal(env.reset()[0], a)  # what follows from a seed
    assert not np.array_equal(a, b)


def test_options_of_an_environment_are_config_keys():
    env = rl.make("tiny/point", action_repeat=2, max_episode_steps=6)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(3)]
    assert ends[-1] == (False, True)
    slow = rl.make("panda/reach", panda={"hz": 10})
    assert slow.env.period_s == pytest.approx(0.1)
    for options, message in (
        ({"env_id": "panda/reech"}, "did you mean"),
        ({"env_id": "panda/reach", "panda": {"hzz": 1}}, "'env.panda.hzz'; did you mean 'env.panda.hz'"),
        ({"env_id": "tiny/point", "num_envs": 2}, "rl.make makes one environment"),
        ({"env_id": "tiny/point+mirror"}, "is a set of tasks"),
        ({"env_id": "tiny/point", "render_mode": "human"}, "render_mode must be"),
    ):
        with pytest.raises(rl.UserError, match=message):
            rl.make(**options)


@pytest.mark.parametrize("order", ["gymnasium, roboloop", "roboloop, gymnasium"])
def test_every_task_is_registered_whoever_is_imported_first_and_no_simulator_is_imported(order):
    code = (
        f"import {order}, sys\n"
        "from roboloop.envs.gymnasium_ids import ids\n"
        "assert set(ids()) <= set(gymnasium.registry)\n"
        "assert {'roboloop/panda-reach-v0', 'roboloop/metaworld-reach-v3', 'roboloop/soft-seam-3-v0'} <= set(ids())\n"
        "assert not {'torch', 'mujoco', 'metaworld', 'pybullet'} & set(sys.modules)\n"
        "env = gymnasium.make('roboloop/tiny-point-v0', max_episode_steps=5)\n"
        "env.reset(seed=0); print(len(ids()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    assert int(done.stdout) == len(set(gymnasium_ids.ids().values())) > 100


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_loads_with_torchs_loader(run, workers):
    episodes, reader = rl.Dataset(run.path), Dataset.open(run.path / "dataset")
    assert len(episodes) == len(reader) > 2
    loader = DataLoader(episodes, batch_size=None, num_workers=workers)
    for item, row in zip(loader, range(len(reader)), strict=True):
        whole = reader.episode(row)
        assert np.array_equal(item["obs"], whole.obs)
        assert np.array_equal(item["action"], whole.action)
        assert item["return_to_go"][0] == pytest.approx(whole.raw_reward.sum(), rel=1e-5)
    windows = rl.Dataset(run.path, window=4)
    assert len(windows) == reader.num_steps
    batches = list(DataLoader(windows, batch_size=8, shuffle=True, num_workers=workers))
    assert batches[0]["obs"].shape == (8, 4, *reader.schema.spec.obs_shape)
    assert sum(len(batch["mask"]) for batch in batches) == reader.num_steps


def test_a_window_begins_at_its_step_and_is_padded_on_the_left(run):
    windows, first = rl.Dataset(run.path, window=4), Dataset.open(run.path / "dataset").episode(0)
    steps = len(first.reward)
    assert np.array_equal(windows[0]["action"], first.action[:4])
    last = windows[steps - 2]
    assert last["mask"].tolist() == [False, False, True, True]
    assert last["t"].tolist() == [0, 0, steps - 2, steps - 1]
    assert np.array_equal(last["obs"][2:], first.obs[steps - 2 : steps])
    assert not torch.any(last["obs"][:2])
    with pytest.raises(IndexError):
        windows[len(windows)]
    with pytest.raises(rl.ConfigError, match="window must be at least 1"):
        rl.Dataset(run.path, window=0)


def test_policies_and_environments_work_in_a_thread(run):
    found = []

    def play():
        env, policy = rl.make("tiny/point"), rl.load(run)
        obs, _ = env.reset(seed=0)
        found.append(env.step(policy.act(obs))[0])

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    play()
    assert np.array_equal(found[0], found[1])


def test_a_recording_is_that_of_the_shell_and_can_be_learned_from(tmp_path, run):
    here = rl.record("play/reach", expert=True, episodes=2, seed=3, out=tmp_path / "here", quiet=True)
    done = roboloop("record", "play/reach", "--expert", "--episodes", 2, "--seed", 3, "--out", tmp_path / "there")
    assert done.returncode == 0, done.stderr
    ours, shells = rl.Dataset(here), rl.Dataset(tmp_path / "there")
    assert all(torch.equal(ours[k][name], shells[k][name]) for k in range(2) for name in ours[0])
    with pytest.raises(rl.DataError, match="already"):
        rl.record("play/reach", expert=True, episodes=2, seed=3, out=here)
    more = rl.record(run, episodes=2, explore=True, env={"max_episode_steps": 5}, quiet=True)
    assert len(rl.Dataset(more)[0]["reward"]) <= 5
    with pytest.raises(rl.ConfigError, match="--nose"):
        rl.record(run, episodes=2, nose=0.1)
    cloned = rl.train(
        algo="bc", dataset=here, steps=20, eval={"episodes": 2, "every_steps": 20}, runs_dir=tmp_path / "runs",
        trackers=[], quiet=True,
    )  # fmt: skip
    assert cloned.config.env.id == "play/reach"
    assert rl.load(cloned).act(np.zeros(cloned.policy().spec.obs_shape)).shape == (3,)
