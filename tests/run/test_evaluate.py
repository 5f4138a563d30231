import json

import pytest

from roboloop.algos.policy import UniformPolicy
from roboloop.core.errors import DataError
from roboloop.core.types import Decision
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import SimulatorDied
from roboloop.envs.registry import make
from roboloop.envs.soft.config import SoftConfig
from roboloop.envs.soft.suite import SoftEnvConfig
from roboloop.run.evaluate import TEST, VALIDATION, Evaluator, Plan, summarise
from roboloop.track.read import read_jsonl

CONFIG = EnvConfig(id="gym/Pendulum-v1", eval_max_episode_steps=12)


class Lazy:
    """A deterministic policy."""

    memory_size = 0

    def act(self, obs, memory, explore, rng):
        return Decision(obs[:, :1] * 0.5, memory)


@pytest.fixture
def evaluator():
    made = Evaluator(lambda _: make(CONFIG, evaluation=True), frame_stack=1, lanes=3)
    yield made
    made.close()


def test_equal_plans_give_equal_results(evaluator):
    plan = Plan(episodes=5, seed=0, split=TEST)
    assert evaluator.run(Lazy(), plan) == evaluator.run(Lazy(), plan)


def test_splits_and_training_never_share_an_episode():
    from roboloop.core.rng import derive

    seeds = {split: {Plan(1, 0, split).episode_seed(e) for e in range(50)} for split in (VALIDATION, TEST)}
    training = {derive(s, "episode", env, e) for s in range(3) for env in range(8) for e in range(200)}
    assert not seeds[VALIDATION] & seeds[TEST]
    assert not (seeds[VALIDATION] | seeds[TEST]) & training


@pytest.mark.parametrize("keep", [0, 1, 2, 4, 6])
def test_an_interrupted_evaluation_ends_with_the_same_file(evaluator, tmp_path, keep):
    plan = Plan(episodes=5, seed=0, split=TEST)
    evaluator.run(Lazy(), plan, tmp_path / "whole.jsonl", {"checkpoint_step": 3})
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:keep]) + ("".join(lines[keep:])[:9] if keep < 6 else ""))
    again = evaluator.run(Lazy(), plan, tmp_path / "cut.jsonl", {"checkpoint_step": 3})
    rows = [json.loads(line) for line in (tmp_path / "cut.jsonl").read_text().splitlines()]
    key = lambda row: row.get("episode", -1)  # noqa: E731
    assert sorted(rows, key=key) == sorted(map(json.loads, lines), key=key)
    assert again == evaluator.run(Lazy(), plan)


def test_results_of_another_policy_are_not_mixed_in(evaluator, tmp_path):
    plan = Plan(episodes=2, seed=0, split=TEST)
    evaluator.run(Lazy(), plan, tmp_path / "r.jsonl", {"checkpoint_step": 3})
    with pytest.raises(DataError, match="another evaluation"):
        evaluator.run(Lazy(), plan, tmp_path / "r.jsonl", {"checkpoint_step": 4})


def test_the_protocol_is_written_into_every_result(evaluator, tmp_path):
    evaluator.run(Lazy(), Plan(1, 0, TEST), tmp_path / "r.jsonl")
    header = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[0])
    assert header["protocol"]["horizon"] == 12
    assert header["plan"] == {"episodes": 1, "seed": 0, "split": TEST}


def test_a_summary_by_hand():
    rows = [{"return": r, "success": s, "length": 10} for r, s in [(1.0, 1.0), (3.0, 0.0), (5.0, 1.0), (7.0, 1.0)]]
    summary = summarise(rows)
    assert (summary.success, summary.episode_return, summary.length) == (0.75, 4.0, 10.0)
    assert summary.success_low == pytest.approx(0.3006, abs=1e-3)  # Wilson, 3 of 4
    assert summary.return_low < 4.0 < summary.return_high


class Listening(Lazy):
    """Adds up the rewards it is told of, in its memory."""

    memory_size = 1

    def observe_reward(self, memory, reward):
        self.gathered = memory + reward[:, None]
        return self.gathered


def test_a_policy_that_listens_is_told_every_reward_of_its_own_episode(evaluator, tmp_path):
    policy = Listening()
    evaluator.run(policy, Plan(3, 0, TEST), tmp_path / "r.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()[1:]]
    wanted = [row["return"] for row in sorted(rows, key=lambda row: row["episode"])]
    assert policy.gathered[:, 0].tolist() == pytest.approx(wanted, rel=1e-5)


def test_success_is_unknown_where_the_environment_does_not_say(evaluator):
    summary = evaluator.run(UniformPolicy(make(CONFIG).spec), Plan(2, 0, TEST))
    assert summary.success != summary.success
    assert summary.length == 12


class Fragile:
    """An environment whose simulator may die in the seventh step of an episode, as ``deaths`` say one by one."""

    def __init__(self, env, deaths):
        self._env, self._deaths, self._step = env, deaths, 0
        self.spec, self.close = env.spec, env.close

    def reset(self, seed):
        self._step = 0
        return self._env.reset(seed)

    def step(self, action):
        self._step += 1
        if self._step == 7 and self._deaths and self._deaths.pop(0):
            raise SimulatorDied("the cloth flew apart")
        return self._env.step(action)


def run_fragile(deaths, out):
    """Evaluate three episodes in three lanes; return what was told and the rows in the order of episodes."""
    told, made = [], []

    def make_env(lane):
        made.append(lane)
        return Fragile(make(CONFIG, evaluation=True), deaths)

    fragile = Evaluator(make_env, frame_stack=1, lanes=3)
    fragile.run(Lazy(), Plan(episodes=3, seed=0, split=TEST), out, tell=told.append)
    fragile.close()
    rows = read_jsonl(out)[1:]
    return told, sorted(rows, key=lambda row: row["episode"]), made


def test_an_episode_whose_simulator_dies_is_begun_again_in_a_new_one(tmp_path):
    told, rows, made = run_fragile([True], tmp_path / "died.jsonl")
    assert told == ["the simulator of episode 0 died: the cloth flew apart; begun again"]
    assert made == [0, 1, 2, 0]
    assert rows == run_fragile([], tmp_path / "whole.jsonl")[1]


def test_an_episode_whose_simulator_always_dies_counts_as_it_stood(tmp_path):
    # the three lanes come to their seventh step in turn, then twice more that of episode 1
    told, rows, _ = run_fragile([False, True, False, True, True], tmp_path / "died.jsonl")
    assert told[-1] == "the simulator of episode 1 died: the cloth flew apart; counted as it stood"
    assert [row["length"] for row in rows] == [12, 6, 12]


def test_what_an_environment_counts_is_in_the_row_of_each_episode(tmp_path):
    pytest.importorskip("mujoco")
    soft = SoftEnvConfig(id="soft/rope-straighten", eval_max_episode_steps=4, soft=SoftConfig(pick="chosen"))
    tester = Evaluator(lambda _: make(soft, evaluation=True), frame_stack=1, lanes=1)
    policy = UniformPolicy(make(soft, evaluation=True).spec)
    summary = tester.run(policy, Plan(episodes=2, seed=0, split=TEST), tmp_path / "r.jsonl")
    tester.close()
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()[1:]]
    # a place drawn evenly mostly misses
    assert all(row["missed_picks"] in (3, 4) for row in rows)
    assert sum(100 * row["performance"] for row in rows) == pytest.approx(2 * summary.episode_return)
