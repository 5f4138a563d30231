"""Guided play: what teachers make of a batch, and that tasks are learned from experts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.algos.gail.discriminator_config import DiscriminatorConfig
from roboloop.algos.guided.config import (
    DACConfig,
    ExampleSettings,
    GuidedSettings,
    IntentionSettings,
    LfGPConfig,
    RCEConfig,
    SQILConfig,
    VPACEConfig,
)
from roboloop.algos.guided.guided import GuidedPlay, make_guided
from roboloop.algos.guided.schedulers import FixedSchedule, LearnedSchedule, QTable
from roboloop.algos.guided.teachers import DiscriminatorReward, EnvReward, ExampleReward, for_each_task, overwrite
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.policy import UniformPolicy
from roboloop.algos.sac.config import SACConfig
from roboloop.core.errors import ConfigError
from roboloop.core.types import Batch, EpisodeEnd, Rollout
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBatch, ExpertBuffer
from roboloop.data.replay import Replay
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import auxiliary_tasks, make
from roboloop.run.build import evaluator
from roboloop.run.config import Experiment
from roboloop.run.evaluate import TEST, Evaluator, Plan
from roboloop.run.record import record
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import plans
from roboloop.sample.serial import SerialSampler
from tests.algos.learners import noise, saved_learner

REACH = EnvConfig(id="play/reach", max_episode_steps=40, eval_max_episode_steps=40)
SPEC = make(REACH).spec
TASKS = ("reach", "grasp")
NUM_ENVS = 4
RATES: dict[str, Any] = {"actor_lr": 2e-3, "critic_lr": 2e-3, "alpha_lr": 2e-3, "initial_alpha": 0.1, "gamma": 0.95}
SHARED: dict[str, Any] = {"processes": 1, "shards": 1, **RATES}


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("demos")
    for task in TASKS:
        flags = ["--expert", "--task", task, "--episodes", "20", "--noise", "0.05", "--env.max-episode-steps", "40"]
        assert record(["play/reach", *flags, "--out", str(out / task)]) == 0
    return out


def experts(demos: Path, cfg: GuidedSettings, tasks: tuple[str, ...]) -> ExpertBuffer:
    return ExpertBuffer([Dataset.open(demos / task) for task in tasks], cfg.expert, seed=0)


def dac(demos: Path, **options: Any) -> GuidedPlay:
    sac = SACConfig(hidden=(64, 64), batch_size=64, **SHARED)
    disc = DiscriminatorConfig(hidden=(32, 32), lr=1e-3)
    cfg = DACConfig(sac=sac, discriminator=disc, expert=ExpertConfig(str(demos), end_share=0.5), **options)
    cfg.check()
    return make_guided(cfg, SPEC, TASKS[:1], experts(demos, cfg, TASKS[:1]), seed=0)


def lfgp(demos: Path, **options: Any) -> GuidedPlay:
    sac = MTSACConfig(hidden=(64,), head_hidden=(64,), batch_size=48, **SHARED)
    disc = DiscriminatorConfig(hidden=(32, 32), lr=1e-3)
    expert = ExpertConfig(str(demos), end_share=0.5)
    cfg = LfGPConfig(**{"sac": sac, "discriminator": disc, "expert": expert, "tasks": TASKS, **options})
    cfg.check()
    return make_guided(cfg, SPEC, cfg.tasks_of(SPEC.tasks), experts(demos, cfg, TASKS), seed=0)


def example_learner(demos: Path, kind: type[ExampleSettings], **options: Any) -> GuidedPlay:
    sac = MTSACConfig(hidden=(64,), head_hidden=(32,), batch_size=32, reward_scale=0.1, **{**SHARED, "shards": 2})
    cfg = kind(**{"sac": sac, "expert": ExpertConfig(str(demos)), "tasks": TASKS, **options})
    cfg.check()
    tasks = cfg.tasks_of(SPEC.tasks)
    return make_guided(cfg, SPEC, tasks, experts(demos, cfg, tasks), seed=0)


def random_batch(rng: np.random.Generator, size: int, reward: float = 0.0) -> Batch:
    obs, next_obs = rng.normal(size=(2, size, *SPEC.obs_shape)).astype(np.float32)
    action = rng.uniform(-1, 1, (size, SPEC.action_dim)).astype(np.float32)
    return Batch(obs, action, np.full(size, reward, np.float32), next_obs, np.full(size, 0.95, np.float32))


def test_experts_take_the_place_of_the_first_rows_in_turns_of_all_tasks() -> None:
    batch = Batch(
        *(np.zeros(shape, np.float32) for shape in ((5, 2), (5, 1), (5,), (5, 2))), np.full(5, 0.9, np.float32)
    )
    of_tasks = np.array([[1.0, 2.0], [11.0, 12.0]])[:, :, None]
    ended = np.array([[False, True], [False, False]])
    experts = ExpertBatch(np.repeat(of_tasks, 2, 2), of_tasks, np.repeat(of_tasks, 2, 2) + 0.5, ended)
    overwrite(batch, experts, rows=3, gamma=0.9)  # of the main task two, of the other one
    assert batch.obs[:, 0].tolist() == [1, 11, 2, 0, 0]
    assert batch.action[:, 0].tolist() == [1, 11, 2, 0, 0]
    assert batch.next_obs[:, 1].tolist() == [1.5, 11.5, 2.5, 0, 0]
    assert batch.discount.tolist() == pytest.approx([0.9, 0.9, 0.0, 0.9, 0.9])


def test_the_share_of_experts_decays_with_the_updates(demos: Path) -> None:
    algo = dac(demos, expert_fraction=0.5, expert_decay=0.9)
    judge = algo._teacher
    assert isinstance(judge, DiscriminatorReward)
    assert judge.expert_rows == 32
    for _ in range(3):
        algo.update(random_batch(np.random.default_rng(0), 64))
    assert judge.expert_rows == int(64 * 0.5 * 0.9**3)
    algo.close()


@pytest.mark.parametrize("make_one", [dac, lfgp], ids=["dac", "lfgp"])
def test_the_environments_own_reward_is_never_looked_at(demos: Path, make_one: Any) -> None:
    states = []
    for reward in (0.0, 1e9):
        algo = make_one(demos)
        rng = np.random.default_rng(0)
        for _ in range(3):
            algo.update(random_batch(rng, algo.needs.size, reward))
        states.append({name: value.tolist() for name, value in algo.state()["policy"]["weights"].items()})
        algo.close()
    assert states[0] == states[1]


def test_step_sizes_that_fall_are_zero_when_training_ends(demos: Path) -> None:
    sac = MTSACConfig(hidden=(64,), head_hidden=(64,), batch_size=48, **SHARED, lr_schedule="linear")
    algo = lfgp(demos, sac=sac)
    before = algo.state()["policy"]["weights"]
    algo.progress = 1.0
    algo.update(random_batch(np.random.default_rng(0), algo.needs.size))
    after = algo.state()["policy"]["weights"]
    assert all(np.array_equal(value, after[name]) for name, value in before.items())
    algo.close()


def test_every_task_learns_from_each_transition_with_its_own_reward() -> None:
    batch = random_batch(np.random.default_rng(0), 3)
    paid = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    relabel = for_each_task(batch, paid)
    assert relabel.obs.shape == (2, 3, *SPEC.obs_shape)
    for k in range(2):
        assert np.array_equal(relabel.next_obs[k], batch.next_obs)
        assert np.array_equal(relabel.reward[k], paid[k])


def test_rows_lie_task_by_task_and_end_with_the_task(demos: Path) -> None:
    algo = lfgp(demos)
    batch = random_batch(np.random.default_rng(0), 48)
    rows = algo._rows(for_each_task(batch, np.zeros((2, 48), np.float32)))
    assert rows.obs.shape == (96, SPEC.obs_shape[0] + 2)
    assert np.array_equal(rows.obs[:48, :-2], batch.obs)
    assert np.array_equal(rows.next_obs[48:, :-2], batch.next_obs)
    assert rows.obs[:, -2:].tolist() == [[1.0, 0.0]] * 48 + [[0.0, 1.0]] * 48
    algo.close()


def test_all_that_is_said_of_an_update_is_said_of_each_task(demos: Path) -> None:
    algo = lfgp(demos)
    metrics = algo.update(random_batch(np.random.default_rng(0), 48))
    for task in TASKS:
        for name in ("alpha", "entropy", "disc_accuracy", "reward"):
            assert np.isfinite(metrics[f"{name}/{task}"])
    assert metrics["disc_accuracy"] == pytest.approx(np.mean([metrics[f"disc_accuracy/{task}"] for task in TASKS]))
    assert metrics["reward"] == pytest.approx(np.mean([metrics[f"reward/{task}"] for task in TASKS]), abs=1e-6)
    algo.close()


def test_formulas_pay_what_the_environment_would_in_the_order_of_the_tasks() -> None:
    auxiliary = auxiliary_tasks(REACH)
    teacher = EnvReward(auxiliary.names, auxiliary.task_rewards, 4)
    batch = random_batch(np.random.default_rng(0), 4)
    relabel, metrics = teacher.relabel(batch)
    assert np.array_equal(relabel.reward, auxiliary.task_rewards(batch.obs, batch.action, batch.next_obs).T)
    assert metrics["reward/reach"] == pytest.approx(relabel.reward[0].mean())


def test_a_lesson_of_examples_has_them_first_in_every_shard(demos: Path) -> None:
    algo = example_learner(demos, VPACEConfig, example_noise=0.0, example_fraction=0.25)
    teacher = algo._teacher
    assert isinstance(teacher, ExampleReward)
    assert algo.needs.size == 24
    batch = random_batch(np.random.default_rng(0), 24, reward=7.0)
    relabel, _ = teacher.relabel(batch)
    is_example = np.tile([True] * 4 + [False] * 12, 2)
    assert np.array_equal(relabel.reward, np.tile(np.where(is_example, 1.0, -1.0), (2, 1)))
    assert (relabel.discount == np.float32(0.95)).all()
    for k, task in enumerate(TASKS):
        assert np.array_equal(relabel.obs[k][~is_example], batch.obs)
        assert np.array_equal(relabel.next_obs[k][~is_example], batch.next_obs)
        assert np.array_equal(relabel.action[k][~is_example], batch.action)
        examples = relabel.next_obs[k][is_example]
        assert np.array_equal(examples, relabel.obs[k][is_example])  # without noise an example is its own successor
        done = auxiliary_tasks(REACH).task_successes(examples, examples, examples)
        assert done[:, auxiliary_tasks(REACH).names.index(task)].mean() > 0.7
    algo.close()


def test_noise_on_examples_is_in_units_of_how_much_they_vary_and_drawn_anew_for_successors(demos: Path) -> None:
    algo = example_learner(demos, VPACEConfig, example_noise=0.1, example_fraction=0.5)
    teacher = algo._teacher
    assert isinstance(teacher, ExampleReward)
    ends = np.stack([episode.obs[-1] for episode in map(Dataset.open(demos / "reach").episode, range(20))])
    lessons = [teacher.relabel(random_batch(np.random.default_rng(0), 16))[0] for _ in range(300)]
    apart = np.concatenate([relabel.obs[0][relabel.reward[0] > 0] - relabel.next_obs[0][relabel.reward[0] > 0]
                            for relabel in lessons])  # fmt: skip
    taught = teacher._experts._taught[0].last.next_obs
    assert set(map(tuple, taught.tolist())) <= set(map(tuple, ends.tolist()))
    np.testing.assert_allclose(apart.std(0), 0.1 * np.sqrt(2) * taught.std(0), rtol=0.1, atol=1e-6)
    algo.close()


def test_the_cap_of_values_is_the_median_of_the_examples_own_of_late(demos: Path) -> None:
    algo = example_learner(demos, VPACEConfig, penalty_window=3)
    teacher = algo._teacher
    assert isinstance(teacher, ExampleReward)
    assert list(teacher.value_caps) == pytest.approx([0.1 / 0.05] * 2)  # success for ever
    for value in (9.0, 1.0, 5.0, 2.0):
        teacher.on_episode_end({"example_value/reach": value, "example_value/grasp": -value})
    assert list(teacher.value_caps) == [2.0, -2.0]
    algo.close()
    plain = example_learner(demos, SQILConfig)
    assert list(plain._teacher.value_caps) == []
    plain.close()


def test_the_value_of_examples_is_what_the_first_critic_says_of_them(demos: Path) -> None:
    algo = example_learner(demos, SQILConfig, example_noise=0.0)
    rl = algo._rl
    learner = saved_learner(rl)
    relabel, _ = algo._teacher.relabel(random_batch(np.random.default_rng(0), 16))
    rows = algo._rows(relabel)
    metrics = rl.update(rows)
    obs = torch.from_numpy(rows.obs.reshape(2, 2, 16, -1)[:, :, :8]).transpose(0, 1)  # [shard, task, example]
    now = noise(rl, "now").view(2, 2, 16, -1)[:, :, :8]
    with torch.no_grad():
        values = []
        for shard_obs, shard_noise in zip(obs, now, strict=True):
            flat = shard_obs.reshape(16, -1)
            action = learner.draw(flat, shard_noise.reshape(16, -1))[0]
            values.append(learner.critics[0](torch.cat((flat, action), 1)).view(2, 8).mean(1))
    for task, name in enumerate(TASKS):
        wanted = sum(value[task].item() for value in values) / 2
        assert metrics[f"example_value/{name}"] == pytest.approx(wanted, abs=1e-5)
    algo.close()


def test_a_scheduler_that_learns_is_told_what_was_chosen_and_what_it_brought_the_main_task() -> None:
    auxiliary = auxiliary_tasks(REACH)
    cfg = LfGPConfig(
        sac=MTSACConfig(hidden=(8,), head_hidden=(8,), batch_size=8, **SHARED),
        rewards="env", tasks=TASKS, schedule=LearnedSchedule(period=15, keep=0.0, gamma=1.0),
    )  # fmt: skip
    cfg.check()
    algo = make_guided(cfg, SPEC, TASKS, lambda *steps: auxiliary.task_rewards(*steps)[:, [0, 2]], seed=0)
    shape = RolloutShape(SPEC, steps=1, num_envs=1, memory_size=algo.policy.memory_size)
    sampler = SerialSampler(lambda _: make(REACH), plans(1, 1, seed=0), shape)
    store = Replay(200, SPEC, 1, algo.needs, seed=0)
    returns, rewards, told = [], list[float](), list[Any]()
    for _ in range(80):
        rollout = sampler.collect(algo.policy)
        store.add(rollout)
        told += algo.on_episode_end(rollout, store.newest)
        rewards.append(float(rollout.raw_reward[0, 0]))
        if rollout.episodes:
            returns.append(rewards)
            rewards = []
    scheduler = algo.policy.scheduler
    assert isinstance(scheduler, QTable)
    table = algo.state()["scheduler"]["table"]
    assert algo.state()["scheduler"]["episodes"] == 2
    assert max(scheduler.values([])) == pytest.approx(sum(returns[-1]), rel=1e-5)
    assert {len(history.split(",")) if history else 0 for history in table} == {0, 1, 2}  # 40 steps are three choices
    assert [set(shares) for shares in told] == [{f"choice/{task}" for task in TASKS}] * 2
    assert [sum(shares.values()) for shares in told] == pytest.approx([1.0, 1.0])
    algo.close()


def test_an_episode_that_a_fault_cut_short_teaches_no_scheduler() -> None:
    auxiliary = auxiliary_tasks(REACH)
    sac = MTSACConfig(hidden=(8,), head_hidden=(8,), batch_size=8, **SHARED)
    cfg = LfGPConfig(sac=sac, rewards="env", schedule=LearnedSchedule(period=15))
    algo = make_guided(cfg, SPEC, SPEC.tasks, auxiliary.task_rewards, seed=0)
    rollout: Rollout = RolloutShape(SPEC, steps=1, num_envs=1, memory_size=algo.policy.memory_size).allocate()
    rollout.memory[0, 0] = 7  # steps so far
    rollout.episodes.append(EpisodeEnd(0, 0, 8, 0.0, 0.0, 0, rollout.obs[0, 0], lost=True))
    algo.on_episode_end(rollout, lambda env, steps: pytest.fail("nobody needs its steps"))
    assert algo.state()["scheduler"]["episodes"] == 0
    algo.close()


def trained(algo: GuidedPlay, iterations: int, tasks: tuple[str, ...]) -> dict[str, float]:
    """Return the success of each task's own policy after so many steps of four environments."""
    shape = RolloutShape(SPEC, steps=1, num_envs=NUM_ENVS, memory_size=algo.policy.memory_size)
    sampler = SerialSampler(lambda _: make(REACH), plans(NUM_ENVS, 1, seed=0), shape)
    store = Replay(50_000, sampler.spec, NUM_ENVS, algo.needs, seed=0)
    for _ in range(250):
        store.add(sampler.collect(UniformPolicy(sampler.spec)))
    for _ in range(iterations):
        store.add(sampler.collect(algo.policy))
        algo.update(store.sample())
    found = {}
    for task in tasks:
        tester = evaluator(Experiment(env=REACH), 20, task)
        policy: Any = algo.policy.with_schedule([(task, 0)]) if hasattr(algo.policy, "with_schedule") else algo.policy
        found[task] = tester.run(policy, Plan(20, 0, TEST)).success
        tester.close()
    algo.close()
    return found


def test_it_learns_to_reach_from_an_expert_alone(demos: Path) -> None:
    algo = dac(demos)
    before = Evaluator(lambda _: make(REACH), 1, lanes=10).run(algo.policy, Plan(20, 0, TEST))
    assert before.success <= 0.3
    assert trained(algo, 3000, ("reach",))["reach"] >= 0.8


def test_two_tasks_are_learned_at_once_from_an_expert_of_each(demos: Path) -> None:
    found = trained(lfgp(demos), 2000, TASKS)
    assert found["reach"] >= 0.7
    assert found["grasp"] >= 0.5


def test_two_tasks_are_learned_at_once_from_examples_of_success_alone(demos: Path) -> None:
    found = trained(example_learner(demos, VPACEConfig), 1500, TASKS)
    assert found["reach"] >= 0.7


EXPERT = ExpertConfig("x")
MT = MTSACConfig(batch_size=64, reward_scale=0.1)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (DACConfig(), r"'algo.expert.directory' is needed"),
        (DACConfig(sac=SACConfig(n_step=3), expert=EXPERT), "dac pays single steps .*n_step at 1, not 3"),
        (LfGPConfig(sac=MTSACConfig(gamma=1.0), expert=EXPERT), "lfgp needs algo.sac.gamma between 0 and 1"),
        (DACConfig(expert=EXPERT, expert_fraction=1.5), "expert_fraction must lie in"),
        (DACConfig(expert=EXPERT, discriminator=DiscriminatorConfig(lr=0.0)), "lr must be above 0"),
        (LfGPConfig(), r"'algo.expert.directory' is needed"),
        (LfGPConfig(expert=EXPERT, rewards="env"), "algo.rewards 'env' has no expert"),
        (LfGPConfig(expert=EXPERT, schedule=FixedSchedule(period=0)), "schedule.period must be at least 1"),
        (VPACEConfig(), r"'algo.expert.directory' is needed"),
        (VPACEConfig(sac=MT, expert=EXPERT, schedule=LearnedSchedule()), "'learned' needs rewards, and vpace has none"),
        (VPACEConfig(sac=MT, expert=EXPERT, example_fraction=1.0), "makes 64 of 64 rows: some of both"),
        (VPACEConfig(sac=MT, expert=EXPERT, example_fraction=0.42), "makes 27 of 64 rows: .* a multiple of 2 shards"),
        (SQILConfig(sac=MTSACConfig(normalize_reward=True), expert=EXPERT), "without normalize_reward"),
        (RCEConfig(expert=EXPERT, penalty=1.0), "rce learns probabilities"),
        (VPACEConfig(sac=MT, expert=EXPERT, penalty_window=0), "penalty_window must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(cfg: GuidedSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cfg.check()


def test_some_of_the_tasks_can_be_learned_but_the_main_one_always_is() -> None:
    names = ("place", "reach", "grasp")
    assert IntentionSettings().tasks_of(names) == names
    assert IntentionSettings(tasks=("grasp", "place")).tasks_of(names) == ("place", "grasp")
    assert DACConfig().tasks_of(names) == ("place",)
    with pytest.raises(ConfigError, match="the main task, 'place', must be among reach"):
        IntentionSettings(tasks=("reach",)).tasks_of(names)
    with pytest.raises(ConfigError, match=r"algo.tasks: unknown task 'reech'; did you mean 'reach'"):
        IntentionSettings(tasks=("place", "reech")).tasks_of(names)
