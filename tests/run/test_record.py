"""A dataset by acting alone: whoever acts, exactly what was asked for, and the same bytes for the same command."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from roboloop.core.config import override
from roboloop.core.errors import ConfigError, DataError
from roboloop.data.dataset import Dataset
from roboloop.data.verify import faults
from roboloop.run import record as module
from roboloop.run.record import TooFew, record
from roboloop.run.rundir import RunDir
from tests.run.helpers import train
from tests.run.test_offline import BC, DT, offline, recorded
from tests.run.test_samplers import CARTPOLE, RECURRENT, SAC

QUICK = {"steps": 160, "eval": {"every_steps": 0, "episodes": 1}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that trains each kind of run once."""
    from roboloop.run.config import Experiment
    from tests.conftest import TINY

    root, known = tmp_path_factory.mktemp("runs"), {}

    def tiny(**changes):
        return override(override(Experiment(), {**TINY, **QUICK, "runs_dir": str(root)}), changes)

    def run(kind):
        if kind not in known:
            online = {"sac": SAC, "recurrent": RECURRENT, "ppo": CARTPOLE}
            if kind in online:
                known[kind] = train(tiny(experiment=kind, **online[kind]))
            else:
                source = recorded(tiny, CARTPOLE) if "source" not in known else known["source"]
                known["source"] = source
                known[kind] = train(offline(tiny, source, {"dt": DT, "bc": BC}[kind], kind, steps=10))
        return known[kind]

    return run


def recording(source, out, *flags, episodes=3):
    assert record([str(source), "--episodes", str(episodes), "--out", str(out), *map(str, flags)]) == 0
    data = Dataset.open(Path(out))
    assert not list(faults(data))
    return data


def content(directory):
    """Return all bytes of a dataset but the lock's, which names a process."""
    return {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != "lock"}


@pytest.mark.parametrize("kind", ["sac", "ppo", "recurrent", "dt", "bc"])
def test_every_kind_of_policy_records_whole_episodes_with_its_version(made, tmp_path, kind):
    data = recording(made(kind), tmp_path / "a", "--envs", 2, "--explore")
    run = RunDir.open(made(kind))
    assert len(data) == 3
    assert (data.table["version_first"] == run.pick("best").state["algo"]["num_updates"]).all()
    assert data.table["version_first"][0] > 0
    assert set(data.table["task"]) == {"Pendulum-v1" if kind in ("sac", "recurrent") else "CartPole-v1"}
    says = kind in ("ppo", "recurrent")
    for row in range(3):
        episode = data.episode(row)
        assert (episode.log_prob != 0).any() == (episode.value != 0).any() == says
        assert len(episode.obs) == len(episode.reward) + 1


@pytest.mark.parametrize("kind", ["sac", "recurrent", "dt"])
def test_equal_commands_give_equal_bytes_and_another_seed_gives_others(made, tmp_path, kind):
    flags = ("--explore", "--noise", 0.1, "--envs", 2)
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        recording(made(kind), tmp_path / name, *flags, "--seed", seed)
    a, b, c = (content(tmp_path / name) for name in "abc")
    assert a == b
    assert a[Path("shards/000000.bin")] != c[Path("shards/000000.bin")]


def test_workers_change_nothing(made, tmp_path):
    flags = ("--explore", "--noise", 0.1, "--envs", 2)
    recording(made("dt"), tmp_path / "a", *flags)
    recording(made("dt"), tmp_path / "b", *flags, "--workers", 2)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_recorded_episodes_are_those_that_an_evaluation_of_the_same_seeds_would_see(made, tmp_path):
    """A transformer that is told its rewards, step by step, by hand."""
    from roboloop.core.rng import derive
    from roboloop.envs.registry import make
    from roboloop.run.build import policy_of, spec_of

    data = recording(made("dt"), tmp_path / "a", "--target", 40, episodes=2)
    run = RunDir.open(made("dt"))
    policy = policy_of(run.config, spec_of(run.config), run.pick("best")).with_target(40)
    env = make(run.config.env)
    for row in range(2):
        stored, ended, t = data.episode(row), False, 0
        obs = env.reset(derive(derive(0, "recording", 0), "episode", 0, row))
        memory = np.zeros((1, policy.memory_size), np.float32)
        while not ended:
            assert np.array_equal(stored.obs[t], obs)
            action, memory, *_ = policy.act(obs[None], memory, False, np.random.default_rng(0))
            assert np.array_equal(stored.action[t], action[0])
            obs, reward, terminated, truncated, _ = env.step(action[0])
            memory = policy.observe_reward(memory, np.array([reward], np.float32))
            ended, t = terminated or truncated, t + 1
        assert np.array_equal(stored.obs[t], obs)
        assert t == len(stored.reward)


def test_the_action_with_its_noise_is_the_one_that_is_stored_and_that_moved_the_world(made, tmp_path):
    from roboloop.core.rng import derive
    from roboloop.envs.registry import make

    plain = recording(made("sac"), tmp_path / "a", episodes=1).episode(0)
    noisy = recording(made("sac"), tmp_path / "b", "--noise", 0.5, episodes=1).episode(0)
    assert np.array_equal(plain.obs[0], noisy.obs[0])
    assert not np.array_equal(plain.action, noisy.action)
    env = make(RunDir.open(made("sac")).config.env)
    env.reset(derive(derive(0, "recording", 0), "episode", 0, 0))
    replayed = [env.step(action)[0] for action in noisy.action]
    assert np.array_equal(noisy.obs[1:], replayed)
    assert np.abs(noisy.action).max() <= 2.0  # pendulum's bound


def test_a_stack_of_frames_is_recorded_as_single_ones_and_can_be_cloned(made, tmp_path):
    from roboloop.run.offline import env_of_dataset

    data = recording(made("sac"), tmp_path / "a")
    assert RunDir.open(made("sac")).config.env.frame_stack == 2
    assert data.episode(0).obs.shape == (41, 3)
    assert env_of_dataset(str(tmp_path / "a"))["frame_stack"] == 1


def test_only_successes_are_kept_and_counted(tmp_path):
    out = tmp_path / "a"
    flags = ["tiny/point", "--random", "--out", str(out), "--success-only"]
    assert record([*flags, "--episodes", "5", "--envs", "3"]) == 0
    data = Dataset.open(out)
    assert (data.table["success"] == 1).all()
    numbers = data.table["episode"] * 3 + data.table["env"]
    assert (np.diff(numbers) > 0).all()
    assert numbers[-1] > 4  # some failed
    everything = recording("tiny/point", tmp_path / "b", "--random", "--envs", 3, episodes=int(numbers[-1]) + 1)
    wanted = np.flatnonzero(everything.table["success"] == 1)
    for row, other in enumerate(wanted.tolist()):
        assert data.episode(row).obs.tobytes() == everything.episode(other).obs.tobytes()
    assert len(wanted) == 5


def test_too_few_successes_end_after_the_attempts_that_were_allowed_and_more_attempts_go_on(tmp_path, capsys):
    out = tmp_path / "a"
    flags = ["tiny/recall", "--random", "--out", str(out), "--success-only", "--episodes", "8"]
    with pytest.raises(TooFew, match=r"of 8 episodes after 12 attempts") as caught:
        record([*flags, "--max-attempts", "12"])
    assert caught.value.exit_code not in (0, 1, 2)
    held = Dataset.open(out)
    before = len(held)
    assert 0 < before < 8
    assert f"{before} episodes" in capsys.readouterr().out
    assert record([*flags, "--max-attempts", "400"]) == 0
    data = Dataset.open(out)
    assert len(data) == 8
    assert data.table["segment"].tolist() == [0] * before + [1] * (8 - before)
    assert (np.diff(data.table["step"]) > 0).all()


def test_success_cannot_be_asked_of_an_environment_that_does_not_say_it(tmp_path):
    with pytest.raises(ConfigError, match="CartPole-v1 does not say"):
        record(["gym/CartPole-v1", "--random", "--episodes", "2", "--out", str(tmp_path / "a"), "--success-only"])


class PowerCut(BaseException):
    """Nothing is committed on the way out."""


def test_an_interrupted_recording_goes_on_to_exactly_what_was_asked_for(tmp_path, monkeypatch):
    out = tmp_path / "a"
    flags = ["tiny/point", "--random", "--out", str(out), "--episodes", "20"]
    monkeypatch.setattr(module, "COMMIT_S", 0.0)
    take, left = module._Keeper.take, [3]

    def until_the_power_is_cut(self, rollout):
        take(self, rollout)
        left[0] -= 1
        if left[0] == 0:
            shutil.copytree(out, tmp_path / "left")  # what is on disk at this instant
            raise PowerCut

    monkeypatch.setattr(module._Keeper, "take", until_the_power_is_cut)
    with pytest.raises(PowerCut):
        record(flags)
    monkeypatch.setattr(module._Keeper, "take", take)
    shutil.rmtree(out)
    shutil.move(tmp_path / "left", out)
    first = Dataset.open(out)
    assert 0 < len(first) < 20
    assert not list(faults(first))
    begun = [first.episode(row).obs.tobytes() for row in range(len(first))]
    assert record(flags) == 0
    data = Dataset.open(out)
    episodes = [data.episode(row).obs.tobytes() for row in range(len(data))]
    assert episodes[: len(begun)] == begun
    assert len(episodes) == len(set(episodes)) == 20
    with pytest.raises(DataError, match="holds 20 episodes of this recording already"):
        record(flags)
    assert record([*flags[:-1], "25"]) == 0  # more of the same is the same recording
    assert len(Dataset.open(out)) == 25


def test_another_recording_or_foreign_files_are_left_alone(tmp_path):
    flags = ["tiny/point", "--random", "--episodes", "2", "--out"]
    assert record([*flags, str(tmp_path / "a")]) == 0
    before = content(tmp_path / "a")
    for change in (["--seed", "1"], ["--noise", "0.1"], ["--success-only"], ["--envs", "2"]):
        with pytest.raises(DataError, match="another recording: nothing was changed"):
            record([*flags, str(tmp_path / "a"), *change])
    with pytest.raises(DataError, match="another recording: nothing was changed"):
        record(["tiny/recall", *flags[1:], str(tmp_path / "a")])
    assert content(tmp_path / "a") == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("do not lose")
    with pytest.raises(DataError, match="is not a dataset"):
        record([*flags, str(tmp_path / "b")])
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["thesis.tex"]


def test_several_environments_have_a_dataset_each_and_finished_ones_are_left_alone(tmp_path, capsys):
    flags = ["tiny/point", "tiny/recall", "--random", "--episodes", "3", "--out", str(tmp_path / "all")]
    assert record(flags) == 0
    assert {p.name: len(Dataset.open(p)) for p in (tmp_path / "all").iterdir()} == {"point": 3, "recall": 3}
    shutil.rmtree(tmp_path / "all" / "recall")
    before = content(tmp_path / "all" / "point")
    assert record(flags) == 0
    assert content(tmp_path / "all" / "point") == before
    assert len(Dataset.open(tmp_path / "all" / "recall")) == 3
    with pytest.raises(DataError, match="already"):
        record(flags)


def test_a_run_keeps_its_recordings_beside_its_checkpoints_unless_told_otherwise(made):
    assert record([str(made("ppo")), "--episodes", "2", "--checkpoint", "last"]) == 0
    data = Dataset.open(made("ppo") / "recorded")
    assert len(data) == 2
    assert data.schema.source["run"] == str(made("ppo"))


def test_a_run_is_found_by_the_name_of_its_experiment(made, tmp_path):
    assert record([str(made("bc").parents[1]), "--episodes", "1", "--out", str(tmp_path / "a")]) == 0
    with pytest.raises(ConfigError, match="runs: name one of them"):
        record([str(made("bc").parents[2]), "--episodes", "1", "--out", str(tmp_path / "b")])


def test_a_run_without_a_checkpoint_has_nothing_to_act_with(made, tmp_path):
    shutil.copytree(made("sac"), tmp_path / "run", ignore=shutil.ignore_patterns("step-*"))
    with pytest.raises(DataError, match="has no checkpoint"):
        record([str(tmp_path / "run"), "--episodes", "1"])
    assert not (tmp_path / "run" / "recorded").exists()
    with pytest.raises(DataError, match="no checkpoint at step 7"):
        record([str(made("sac")), "--episodes", "1", "--checkpoint", "7", "--out", str(tmp_path / "a")])


def test_a_target_is_for_decision_transformers(made, tmp_path):
    with pytest.raises(DataError, match="--target is for Decision Transformers"):
        record([str(made("sac")), "--episodes", "1", "--target", "5", "--out", str(tmp_path / "a")])


def test_the_dataset_remembers_how_it_was_recorded(made, tmp_path):
    recording(made("dt"), tmp_path / "a", "--target", 12, "--noise", 0.25, episodes=1)
    source = json.loads((tmp_path / "a" / "schema.json").read_text())["source"]
    assert source["recording"]["by"] == "dt"
    assert source["recording"]["noise"] == 0.25
    assert source["env"]["id"] == "gym/CartPole-v1"
