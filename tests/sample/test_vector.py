"""Vector environments: the same episodes as one by one, true last observations, exact resume, one-line refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from roboloop import cli
from roboloop.algos.learner.on_policy import FACTS
from roboloop.algos.policy import UniformPolicy
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.ppo import make_ppo
from roboloop.core.types import Batch, BatchSpec, EpisodeEnd
from roboloop.core.vouched import vouched
from roboloop.data.dataset import Dataset
from roboloop.data.replay import Replay
from roboloop.data.rollouts import is_step
from roboloop.envs import EnvConfig, make, registry
from roboloop.envs.check import check_env
from roboloop.envs.gymvec.batch import BatchReader, BatchWriter
from roboloop.envs.spaces import columns, decoder
from roboloop.run.build import build
from roboloop.run.rundir import RunDir
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import EnvBroken, EnvGroup, plans
from roboloop.sample.groups import group_maker
from roboloop.sample.serial import SerialSampler
from tests.run.helpers import make_runner, remains, resume, train
from tests.run.test_resume import assert_same
from tests.sample.vectors import Brittle, Watched, length_of

POINTS = "gymvec/outside.vec:Points-v0"
OURS = "gymvec/tests.sample.vectors"
COUNTERS = [f"{OURS}:Counter-{mode}-v0" for mode in ("disabled", "same", "next")]


def sampler(env_id: str, num_envs: int, steps: int, groups: int = 1, singly: bool = False, faults: int = 3, **shape):
    cfg = EnvConfig(id=env_id, num_envs=num_envs)
    env = make(cfg)
    rollouts = RolloutShape(env.spec, steps, num_envs, **shape)
    env.close()
    make_group = EnvGroup if singly else group_maker(cfg)
    return SerialSampler(lambda e: make(cfg), plans(num_envs, groups, 3), rollouts, faults, make_group)


@pytest.mark.parametrize(("groups", "frames"), [(1, 1), (2, 1), (1, 3)])
def test_a_vector_env_gives_the_episodes_that_its_columns_give_one_by_one(groups: int, frames: int) -> None:
    stack = {"frame_stack": frames, "stacked": frames > 1}
    together, apart = (sampler(POINTS, 6, 35, groups, singly, **stack) for singly in (False, True))
    policy = UniformPolicy(together.spec)
    for _ in range(4):
        a, b = together.collect(policy), apart.collect(policy)
        for name in ("obs", "action", "terminated", "truncated"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
        np.testing.assert_allclose(a.reward, b.reward, rtol=1e-6)
        assert len(a.episodes) == len(b.episodes)
        in_order = [sorted(rollout.episodes, key=lambda end: (end.t, end.env)) for rollout in (a, b)]
        for one, other in zip(*in_order, strict=True):
            assert (one.env, one.episode, one.length, one.t, one.success) == (
                other.env, other.episode, other.length, other.t, other.success,
            )  # fmt: skip
            assert np.array_equal(one.last_obs, other.last_obs)


@pytest.mark.parametrize("env_id", COUNTERS)
def test_every_way_to_reset_gives_true_last_observations_and_right_ends(env_id: str) -> None:
    source, number = sampler(env_id, 3, 7), [0, 0, 0]
    policy, ends, rows = UniformPolicy(source.spec), list[EpisodeEnd](), 0
    for _ in range(12):
        rollout = source.collect(policy)
        steps = is_step(rollout)
        rows += int(steps.sum())
        for end in rollout.episodes:
            if not end.length:
                assert env_id == COUNTERS[2]
                assert end.lost
                assert end.episode == number[end.env] - 1
                continue
            episode, age = end.last_obs
            assert end.episode == number[end.env]
            assert end.length == age == length_of(int(episode))
            assert end.episode_return == sum(range(1, end.length + 1))
            assert end.success == 1.0
            assert not end.lost
            is_even = int(episode) % 2 == 0
            assert rollout.terminated[end.t, end.env] == is_even
            assert rollout.truncated[end.t, end.env] == (not is_even)
            assert rollout.obs[end.t, end.env].tolist() == [episode, age - 1]
            number[end.env] += 1
            ends.append(end)
        following = steps[:-1] & steps[1:] & ~(rollout.terminated | rollout.truncated)[:-1]
        assert (rollout.obs[1:-1, :, 1] - rollout.obs[:-2, :, 1])[following].tolist() == [1] * int(following.sum())
    assert len(ends) > 30
    if env_id == COUNTERS[2]:
        assert 84 * 3 - len(ends) <= rows < 84 * 3
    else:
        assert rows == 84 * 3


@pytest.mark.parametrize("env_id", COUNTERS)
@pytest.mark.parametrize("steps", [1, 5])
def test_a_replay_of_it_holds_steps_alone(env_id: str, steps: int) -> None:
    source = sampler(env_id, 3, steps)
    replay = Replay(150, source.spec, 3, BatchSpec(64, 1, 0.9, 1), seed=0)  # it wraps
    for _ in range(400 // steps):
        replay.add(source.collect(UniformPolicy(source.spec)))
    for _ in range(20):
        batch: Batch = replay.sample()
        assert (batch.next_obs[:, 0] == batch.obs[:, 0]).all()  # never across episodes
        assert (batch.next_obs[:, 1] == batch.obs[:, 1] + 1).all()
        assert (batch.reward == batch.next_obs[:, 1]).all()
        lengths = np.array([length_of(int(e)) for e in batch.obs[:, 0]])
        is_terminal = (batch.next_obs[:, 1] == lengths) & (batch.obs[:, 0] % 2 == 0)
        assert np.array_equal(batch.discount == 0, is_terminal)


def test_the_last_observation_of_a_truncated_episode_is_judged_by_the_acting_policy() -> None:
    together, apart = (sampler(POINTS, 40, 60, singly=singly) for singly in (False, True))
    policy = make_ppo(PPOConfig(rollout_steps=60, processes=1), together.spec, 1, 40, seed=0).policy
    a, b = together.collect(policy), apart.collect(policy)
    last = [{end.env: end.last_value for end in rollout.episodes} for rollout in (a, b)]
    assert len(last[0]) == 40
    assert last[0] == pytest.approx(last[1], rel=1e-3, abs=1e-5)
    np.testing.assert_allclose(a.value, b.value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("env_id", "own"), [(POINTS, 50), (f"{OURS}:Unclocked-v0", 1000)])
def test_the_length_of_episodes_is_the_registered_one_or_the_flags(env_id: str, own: int) -> None:
    assert make(EnvConfig(id=env_id)).spec.max_episode_steps == own
    cfg = EnvConfig(id=env_id, num_envs=3, max_episode_steps=7)
    make_world = registry.vector_maker(cfg)
    assert make_world is not None
    world = make_world(3)
    world.reset([1, 2, 3])
    cut = [world.step(np.zeros((3, 2))).truncated.tolist() for _ in range(7)]
    assert cut == [[False] * 3] * 6 + [[True] * 3]
    world.close()


def test_our_clock_goes_on_where_a_state_was_taken() -> None:
    make_world = registry.vector_maker(EnvConfig(id=f"{OURS}:Unclocked-v0", max_episode_steps=7))
    assert make_world is not None
    first, second = make_world(3), make_world(3)
    first.reset([1, 2, 3])
    for _ in range(4):
        first.step(np.ones((3, 2)))
    second.reset([4, 5, 6])
    second.set_state(first.get_state())
    for cut in (False, False, True):
        a, b = first.step(np.ones((3, 2))), second.step(np.ones((3, 2)))
        assert np.array_equal(a.obs, b.obs)
        assert a.truncated.tolist() == b.truncated.tolist() == [cut] * 3


def test_where_all_columns_end_at_once_no_row_is_lost_to_resets() -> None:
    source = sampler(COUNTERS[2], 1, 60)
    rollout = source.collect(UniformPolicy(source.spec))
    assert is_step(rollout).all()
    assert len(rollout.episodes) > 8


def test_ppo_learns_nothing_from_rows_that_only_reset() -> None:
    source = sampler(COUNTERS[2], 4, 8)
    cfg = PPOConfig(rollout_steps=8, hidden=(8,), minibatches=2, epochs=1, processes=1, normalize_returns=True)
    algo = make_ppo(cfg, source.spec, 1, 4, seed=0)
    for _ in range(4):
        rollout = source.collect(algo.policy)
        steps = is_step(rollout)
        metrics = algo.update(rollout)
        weights = algo.trainer.arrays["inputs/facts"][..., FACTS.index("is_learned")]
        assert np.array_equal(weights, steps.astype(np.float32))
        assert all(np.isfinite(value) for value in metrics.values())
    assert not steps.all()


def test_a_column_alone_keeps_the_contract_of_every_environment() -> None:
    check_env(lambda: make(EnvConfig(id=POINTS)), steps=20, pictures=False)


SAC: dict[str, Any] = {"hidden": [16, 16], "batch_size": 16, "processes": 1}
PPO_: dict[str, Any] = {
    "name": "ppo", "rollout_steps": 12, "hidden": [16], "minibatches": 2, "epochs": 1, "processes": 1,
}  # fmt: skip


def changes(algo: dict[str, Any], env_id: str = POINTS, **more: Any) -> dict[str, Any]:
    env = {"id": env_id, "num_envs": 4, "max_episode_steps": None, "eval_max_episode_steps": None}
    return {
        "steps": 480, "warmup_steps": 40, "env": env, "algo": algo, "update": {"per_step": 0.25},
        "sample": {"groups": 2}, "replay": {"capacity": 400}, "eval": {"every_steps": 240, "episodes": 2},
        "checkpoint": {"every_steps": 96}, **more,
    }  # fmt: skip


@pytest.mark.parametrize("algo", [SAC, PPO_], ids=["sac", "ppo"])
def test_a_crash_leaves_no_trace_and_workers_change_no_bit(tiny, algo: dict[str, Any]) -> None:
    whole = train(tiny(experiment="whole", **changes(algo)))
    path = train(tiny(experiment="broken", **changes(algo)), crash_after=77 if algo is SAC else 6)
    resume(path)
    assert_same(whole, path)
    apart = train(tiny(experiment="apart", **changes(algo, sample={"groups": 2, "workers": 2})))
    assert remains(whole)["metrics"] == remains(apart)["metrics"]


@pytest.mark.parametrize("env_id", [f"{OURS}:Forgetful-v0", COUNTERS[2]])
def test_what_cannot_save_its_state_goes_on_with_new_episodes_and_says_so(tiny, env_id: str) -> None:
    config = tiny(**changes(SAC, env_id, checkpoint={"every_steps": 60, "every_s": 0}))
    vouched.add([env_id])
    path = train(config, crash_after=100)
    run = RunDir.open(path, write=True)
    runner = make_runner(run)
    try:
        assert "cannot save its state: a resumed run goes on with new episodes" in build(config).plan
        runner.resume(print)
        rollout = runner.sampler.collect(runner.algo.policy)
        running = [int(length) for group in runner.sampler._groups for length in group._length]
        assert rollout.cut == (0, 1, 2, 3) if "Forgetful" in env_id else len(rollout.cut) > 0
        assert running == [1] * 4
    finally:
        runner.close()
        run.close()
    resume(path)
    assert json.loads((path / "status.json").read_text())["state"] == "done"


def test_recorded_episodes_are_whole_however_the_environment_resets(tiny) -> None:
    for env_id in COUNTERS:
        record = {"keep": "all", "budget_mb": 20, "every": 2}
        path = train(tiny(experiment=env_id[-7:], **changes(SAC, env_id, record=record)))
        data = Dataset.open(path / "dataset")
        assert len(data) > 20
        for env in range(4):  # every other one
            assert set(np.diff(np.sort(data.table["episode"][data.table["env"] == env])).tolist()) == {2}
        for row in range(len(data)):
            obs = data.episode(row).obs
            assert len(obs) == length_of(int(obs[0, 0])) + 1
            assert np.array_equal(obs[:, 1], np.arange(len(obs)))
        data.close()


def collect_often(source: SerialSampler, policy: UniformPolicy) -> None:
    for _ in range(9):
        source.collect(policy)


def test_a_simulator_that_raises_is_replaced_and_its_episodes_are_lost() -> None:
    Brittle.left[0] = 1
    source = sampler(f"{OURS}:Brittle-v0", 3, 8)
    policy = UniformPolicy(source.spec)
    source.collect(policy)
    rollout = source.collect(policy)
    (fault,) = source.faults()
    assert "envs 0 to 2 broke: the simulator fell over" in fault
    assert [(end.env, end.t, end.length, end.lost) for end in rollout.episodes] == [(e, 0, 9, True) for e in range(3)]
    assert rollout.truncated[0].all()
    assert not rollout.truncated[1:].any()
    Brittle.left[0] = 9
    with pytest.raises(EnvBroken, match="4 faults are more than"):
        collect_often(source, policy)
    Brittle.left[0] = 0


def test_pictures_beside_numbers_are_stepped_together_and_alone_and_numbers_must_be_finite(tiny) -> None:
    env_id = f"{OURS}:Watched-v0"
    check_env(lambda: make(EnvConfig(id=env_id)), steps=20, pictures=False)
    Watched.bad[0] = 1
    source = sampler(env_id, 3, 16)
    rollout = source.collect(UniformPolicy(source.spec))
    (fault,) = source.faults()
    assert "envs 0 to 2 broke: returned observations that are not finite" in fault
    assert np.isfinite(rollout.obs["vector"]).all()
    train(tiny(**changes(PPO_, env_id, steps=96, eval={"episodes": 2})))


def steps_of(env_id: str, **keys: Any) -> Any:
    """Return the rewards of a few steps."""
    cfg = registry.config(env_id, **keys)
    make_world = registry.vector_maker(cfg)
    assert make_world is not None
    world = make_world(2)
    world.reset([1, 2])
    rewards = [world.step(np.ones((2, 2))).reward for _ in range(3)]
    world.close()
    return np.array(rewards)


def test_a_class_arguments_and_vector_wrappers_make_a_vector_env() -> None:
    by_id, by_class = (f"{OURS}:{name}" for name in ("Staggered-v0", "Staggered"))
    plain = steps_of(by_id)
    assert np.array_equal(plain, steps_of(by_class))
    heavy = {"kwargs": {"lightness": 0.5}}
    assert not np.array_equal(plain, steps_of(by_class, **heavy))
    assert np.array_equal(steps_of(by_id, **heavy), steps_of(by_class, **heavy))
    assert np.array_equal(plain / 2, steps_of(by_id, wrappers=[f"{OURS.removeprefix('gymvec/')}:Halved"]))


def test_columns_that_begin_at_ages_of_their_own_pass_the_check(capsys) -> None:
    assert cli.main(["envs", "check", f"{OURS}:Staggered-v0", "--env.kwargs.lightness", "2"]) == 0
    assert "error" not in capsys.readouterr().out


NESTED = {
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "picture": spaces.Box(0, 255, (6, 5, 3), np.uint8),
    "grey": spaces.Box(0, 255, (6, 5), np.uint8),
    "cameras": spaces.Dict({
        "wrist": spaces.Box(0, 255, (6, 5, 3), np.uint8), "far": spaces.Box(0, 255, (3, 8, 9), np.uint8),
        "pose": spaces.Box(-1, 1, (2,)), "grip": spaces.Box(0, 1, (1,), np.float64),
    }),
    "vectors": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Box(-1, 1, (1,))}),
    "choices": spaces.Dict({"kind": spaces.Discrete(3), "pose": spaces.Box(-1, 1, (2,))}),
    "masked": spaces.Dict({"action_mask": spaces.Box(0, 1, (3,), np.int8), "pose": spaces.Box(-1, 1, (2,))}),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_batches_are_read_as_their_rows_are(name: str) -> None:
    space = NESTED[name]
    space.seed(0)
    rows = [space.sample() for _ in range(4)]
    batch = concatenate(space, rows, create_empty_array(space, 4))
    read = BatchReader(space, 4, (3,) if name == "masked" else ())
    found = read(batch)
    assert found.dtype == read.one.dtype
    assert np.array_equal(found, np.stack([read.one.read(row, {}) for row in rows]).astype(read.one.dtype))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-2, 3, (2, 2), np.float32),
        spaces.Box(-1, 1, (2,), np.float64),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([3, 2]),
        spaces.Dict({"go": spaces.Discrete(3), "turn": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)))}),
    ],
    ids=str,
)
def test_batches_of_actions_are_those_of_their_rows(space: Any) -> None:
    found = columns(space)
    rows = np.random.default_rng(0).uniform(found.low - 0.4, found.high + 0.4, (5, len(found.low))).astype(np.float32)
    batch = BatchWriter(space)(rows)
    whole = batch_space(space, 5)
    assert whole.contains(batch)
    low, high = found.low.astype(np.float32), found.high.astype(np.float32)
    valid = np.clip(rows, low, high)
    valid = np.where(np.asarray(found.choices) > 0, np.rint(valid), valid)
    decode = decoder(space)
    for one, row in zip(iterate(whole, batch), valid, strict=True):
        assert spaces.flatten(space, one).tolist() == spaces.flatten(space, decode(row)).tolist()


def test_tensors_are_given_to_who_gives_tensors() -> None:
    import torch

    write, read = BatchWriter(spaces.Box(-1, 1, (2,))), BatchReader(spaces.Box(-1, 1, (2,)), 3, ())
    assert isinstance(write(np.zeros((3, 2))), np.ndarray)
    write.like = torch.zeros(3, 2)
    given = write(np.full((3, 2), 0.5))
    assert isinstance(given, torch.Tensor)
    assert read(given.requires_grad_()).tolist() == [[0.5, 0.5]] * 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", POINTS, "--sample.inference", "central"], "leave sample.inference at workers"),
        (["--env", POINTS, "--env.action-repeat", "2"], "leave env.action_repeat at 1"),
        (["--env", POINTS, "--env.num-envs", "4", "--sample.workers", "2"], "more than sample.groups 1"),
        (["--env", f"{POINTS}+Pendulum-v1"], "cannot be a set of tasks"),
        (["--env", "gymvec/Pendulum-v1"], "registers no vector_entry_point: take gym/Pendulum-v1"),
        (["--env", "gymvec/outside.vec:Pionts-v0"], "did you mean 'Points-v0'"),
        (["--env", "gymvec/no_such_module:Points-v0"], "No module named 'no_such_module'"),
        (["--env", f"{OURS}:SaysNothing-v0"], "does not say how it resets"),
        (["--env", f"{OURS}:WithoutFinals-v0"], "gives no info['final_obs']"),
        (["--env", f"{OURS}:FourValues-v0"], "step() returned 4 values, not (observations, rewards, terminated,"),
        (["--env", f"{OURS}:Wordy-v0"], "info['success'] of step() is 'yes': give one bool or number for each"),
        (["--env", f"{OURS}:Pionts"], "did you mean 'Points'"),
        (["--env", "gymvec/tests.python.own_env:Steer"], "is no vector environment: take gym/tests.python.own_env:"),
        (["--env", "gym/outside.vec:Points-v0"], "steps many environments at once: take gymvec/outside.vec:Points-v0"),
        (["--env", "gym/outside.vec:Points"], "steps many environments at once: take gymvec/outside.vec:Points"),
        (["--env", POINTS, "--env.kwargs.mass", "2"], "got an unexpected keyword argument 'mass'"),
        (["--env", POINTS, "--env.kwargs.num-envs", "2"], "env.kwargs.num_envs is set by roboloop: leave it out"),
        (["--env", POINTS, "--env.wrappers", "builtins:dict"], "env.wrappers 'builtins:dict' raised"),
        (["--env", POINTS, "--env.reward", "a:b"], "env.reward is for environments that are stepped one by one"),
        (["--env", f"{OURS}:Unlimited-v0"], "say its limit with --env.max-episode-steps"),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path: Path, capsys, flags: list[str], message: str) -> None:
    assert cli.main(["train", *flags, "--runs-dir", str(tmp_path), "--warmup-steps", "10"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().count("\n") == 0


def test_a_saved_run_does_not_import_a_module_that_nobody_vouches_for(tiny, capsys) -> None:
    path = train(tiny(**changes(SAC, f"{OURS}:Forgetful-v0")))
    assert cli.main(["eval", str(path), "--episodes", "1"]) == 2
    assert "neither of roboloop nor of an installed plug-in" in capsys.readouterr().err
    assert cli.main(["eval", str(path), "--episodes", "1", "--trust"]) == 0


def test_gymnasiums_own_vector_env_trains_and_is_filmed(tiny, capsys) -> None:
    pytest.importorskip("pygame")
    path = train(tiny(**changes({**PPO_, "minibatches": 1}, "gymvec/CartPole-v1")))
    assert cli.main(["eval", str(path), "--episodes", "1", "--video"]) == 0
    (film,) = (path / "videos").iterdir()
    assert film.stat().st_size > 0


def test_names_of_ids_are_listed() -> None:
    from roboloop.envs.registry import known_ids

    assert "gymvec/CartPole-v1" in known_ids()
    assert gymnasium.spec("CartPole-v1").vector_entry_point is not None
