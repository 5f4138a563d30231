"""Decision Transformer and behaviour cloning as algorithms: exact resume, processes, padding, policies that travel."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.algos.imitation.cloning import Cloning, behaviour_cloning
from roboloop.algos.imitation.config import BCConfig, DTConfig
from roboloop.algos.imitation.transformer import DecisionTransformer, TransformerPolicy, decision_transformer
from roboloop.algos.learner.data_scale import DataScale, return_scale_of
from roboloop.algos.learner.dataset_learner import DatasetLearner
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.core import state as states
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.types import Array, EnvSpec, PortablePolicy, RewardAware, State, WindowBatch
from roboloop.nets.targets import TargetHead
from tests.algos.test_policy import assert_same, rebuilt
from tests.algos.test_sac import SPEC, assert_same_bits
from tests.algos.test_shards import needs_two_cores, wait_until
from tests.algos.toys import Anything, Look, World

CONVS = {"conv_channels": (4, 6), "conv_kernels": (4, 3), "conv_strides": (2, 1), "conv_features": 12}
SMALL_DT = DTConfig(**CONVS, context=5, width=16, layers=2, batch_size=8, warmup_updates=3, lr=1e-2, processes=1)
SMALL_BC = BCConfig(**CONVS, context=5, hidden=(16,), batch_size=8, lr=1e-2, processes=1)
CONFIGS: list[DTConfig | BCConfig] = [SMALL_DT, dataclasses.replace(SMALL_DT, heads=2, shards=4, dropout=0.0), SMALL_BC]
SPECS = [SPEC, Anything.spec, Look.spec]


def scale_for(spec: EnvSpec) -> DataScale:
    """Return some scales of a spec's vectors."""
    dim = 5 if spec is SPEC else {3: 3, 1: 2}[spec.action_dim]
    return DataScale(np.linspace(-1, 1, dim), np.linspace(0.5, 2, dim), 10.0)


def make(cfg: DTConfig | BCConfig, spec: EnvSpec = SPEC, seed: int = 0) -> DatasetLearner:
    """Return the algorithm that a config asks for."""
    if isinstance(cfg, BCConfig):
        return behaviour_cloning(cfg, spec, scale_for(spec), seed)
    return decision_transformer(cfg, spec, scale_for(spec), 7.0, seed)


def random_obs(spec: EnvSpec, lead: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return observations of any spec, with every choice possible that may be taken."""
    if spec.obs_dtype.names is None:
        return rng.normal(size=(*lead, *spec.obs_shape)).astype(spec.obs_dtype)
    obs = np.zeros(lead, spec.obs_dtype)
    for name in spec.obs_dtype.names:
        shape = obs[name].shape
        drawn = {"image": rng.integers(0, 256, shape), "vector": rng.normal(size=shape)}
        obs[name] = drawn.get(name, 1)
    return obs


def batches(spec: EnvSpec = SPEC, size: int = 8, steps: int = 5, seed: int = 0) -> Iterator[WindowBatch]:
    """Yield random windows for ever, each of one to all steps."""
    rng = np.random.default_rng(seed)
    choices = spec.action_choices or (0,) * spec.action_dim
    while True:
        lead = (size, steps)
        bounds = zip(choices, spec.action_low, spec.action_high, strict=True)
        columns = [rng.integers(0, n, lead) if n else rng.uniform(low - 0.1, high, lead) for n, low, high in bounds]
        first, length = rng.integers(0, 20, (size, 1)), rng.integers(1, steps + 1, (size, 1))
        yield WindowBatch(
            random_obs(spec, lead, rng), np.stack(columns, axis=-1).astype(np.float32),
            rng.normal(5.0, 3.0, lead).astype(np.float32), (first + np.arange(steps)).astype(np.int32),
            np.arange(steps) >= steps - length,
        )  # fmt: skip


@pytest.mark.parametrize("cfg", CONFIGS)
@pytest.mark.parametrize("spec", SPECS)
def test_state_and_load_continue_bit_for_bit(cfg: DTConfig | BCConfig, spec: EnvSpec) -> None:
    first, second, source = make(cfg, spec), make(cfg, spec, seed=1), batches(spec)
    for _ in range(4):
        first.update(next(source))
    tensors, tree = states.split(first.state())  # as it would lie on disk
    second.load(states.join(tensors, tree))
    for _ in range(3):
        batch = next(source)
        metrics = first.update(batch)
        assert metrics == second.update(batch)
    assert np.isfinite(list(metrics.values())).all()
    assert_same_bits(first.state(), second.state())
    assert first.num_updates == first.policy.version == 7


def test_equal_seeds_give_equal_training_and_others_do_not() -> None:
    a, b, c = (make(SMALL_DT, seed=s) for s in (1, 1, 2))
    batch = next(batches())
    assert a.update(batch) == b.update(batch) != c.update(batch)


def test_state_is_a_copy_that_later_updates_leave_alone() -> None:
    algo = make(SMALL_DT)
    before = algo.state()
    kept = copy.deepcopy(before)
    algo.update(next(batches()))
    assert_same_bits(before, kept)


@needs_two_cores
@pytest.mark.parametrize(("cfg", "spec"), [(SMALL_DT, Anything.spec), (SMALL_BC, SPEC)])
def test_two_processes_give_the_bits_of_one(cfg: DTConfig | BCConfig, spec: EnvSpec) -> None:
    two, one, source = make(dataclasses.replace(cfg, processes=2), spec), make(cfg, spec), batches(spec)
    two.update(next(source))
    wait_until(two.trainer.pool._all_ready, "helper start")
    one.load(two.state())
    for _ in range(3):
        batch = next(source)
        assert one.update(batch) == two.update(batch)
    assert_same_bits(one.state(), two.state())
    two.close()


@pytest.mark.parametrize("cfg", [dataclasses.replace(SMALL_DT, dropout=0.0), SMALL_BC])
@pytest.mark.parametrize("spec", SPECS)
def test_shards_add_up_to_the_whole_gradient(cfg: DTConfig | BCConfig, spec: EnvSpec) -> None:
    whole, parts = (make(dataclasses.replace(cfg, shards=n), spec) for n in (1, 4))
    batch = next(batches(spec))
    a, b = whole.update(batch), parts.update(batch)
    for name, value in a.items():
        assert b[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for name, moment in whole.trainer.memory.items():
        if name.endswith("/m"):
            torch.testing.assert_close(parts.trainer.memory[name], moment, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("cfg", [SMALL_DT, SMALL_BC])
@pytest.mark.parametrize("spec", SPECS)
def test_what_lies_in_the_padding_changes_nothing(cfg: DTConfig | BCConfig, spec: EnvSpec) -> None:
    clean, dirty = make(cfg, spec), make(cfg, spec)
    for batch in (next(batches(spec, seed=s)) for s in range(3)):
        padded, nan = ~batch.mask, np.float32(np.nan)
        obs = batch.obs.copy()
        for field in (obs,) if obs.dtype.names is None else (obs[name] for name in obs.dtype.names):
            field[padded] = 77 if field.dtype == np.uint8 else nan
        junk = batch._replace(
            obs=obs, action=np.where(padded[..., None], 99.0, batch.action).astype(np.float32),
            return_to_go=np.where(padded, nan, batch.return_to_go), t=np.where(padded, -5, batch.t).astype(np.int32),
        )  # fmt: skip
        assert clean.update(batch) == dirty.update(junk)
    assert_same_bits(clean.state(), dirty.state())


def test_only_valid_steps_count_for_the_loss() -> None:
    """Two windows, one of them mostly padding: the loss is the mean over the valid steps of both."""
    cfg = dataclasses.replace(SMALL_BC, batch_size=2, shards=1)
    algo, batch = make(cfg), next(batches(size=2))
    batch = batch._replace(mask=np.array([[False] * 4 + [True], [True] * 5]))
    memory = np.zeros((6, 0), np.float32)
    said = algo.policy.act(batch.obs[batch.mask], memory, False, np.random.default_rng(0)).action
    taken = np.clip(batch.action[batch.mask], SPEC.action_low, SPEC.action_high)
    half = (np.array(SPEC.action_high) - np.array(SPEC.action_low)) / 2
    assert algo.update(batch)["loss"] == pytest.approx(float((((said - taken) / half) ** 2).mean()), rel=1e-5)


def test_cross_entropy_and_squared_error_by_hand() -> None:
    head = TargetHead((2, 0, 3))
    outputs = torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0, 0.5], [9.0, 9.0, 9.0, 9.0, 9.0, 9.0]])
    action, weight = torch.tensor([[1.0, 0.25, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([1.0, 0.0])
    logits, raw = outputs[0, :5].unsqueeze(0), outputs[0, 5]
    wanted = -logits[:, :2].log_softmax(1)[0, 1] - logits[:, 2:].log_softmax(1)[0, 0] + (raw.tanh() - 0.25) ** 2
    loss, said = head.loss(outputs, action, weight, None)
    assert tuple(said) == ("cross_entropy", "accuracy", "squared_error")
    torch.testing.assert_close(loss, wanted)
    assert said["accuracy"] == 1.0
    assert head.encode(action)[0].tolist() == [0.0, 1.0, 1.0, 0.0, 0.0, 0.25]
    assert head.choose(outputs, None, None)[0].tolist() == pytest.approx([1.0, np.tanh(0.5), 0.0])


def test_choices_are_drawn_with_their_probabilities_and_only_if_possible() -> None:
    head, outputs = TargetHead((3,)), torch.tensor([[0.0, np.log(3.0), 50.0]], dtype=torch.float32).expand(4000, -1)
    mask = torch.tensor([[True, True, False]]).expand(4000, -1)
    noise = torch.from_numpy(head.draws(np.random.default_rng(0), len(outputs)))
    drawn = head.choose(outputs, mask, noise).flatten()
    assert drawn.mean().item() == pytest.approx(0.75, abs=0.03)
    assert head.choose(outputs, mask, None).unique().tolist() == [1.0]


def loaded(cfg: DTConfig | BCConfig, spec: EnvSpec, state: State) -> PortablePolicy:
    """Return the policy of a saved state."""
    if isinstance(cfg, BCConfig):
        return LearnerPolicy.from_state(Cloning(cfg, spec), state)
    return TransformerPolicy.from_state(DecisionTransformer(cfg, spec), state)


@pytest.mark.parametrize("cfg", CONFIGS)
@pytest.mark.parametrize("world", [Anything, Look])
def test_a_policy_travels(cfg: DTConfig | BCConfig, world: type[World]) -> None:
    algo, source, spec = make(cfg, world.spec), batches(world.spec), world.spec
    policy: PortablePolicy = algo.policy
    for _ in range(2):
        algo.update(next(source))
    others = [rebuilt(policy), algo.policy.snapshot(), loaded(cfg, spec, algo.state())]
    rng = np.random.default_rng(0)
    for rows in (4, 1):
        memories = [np.zeros((rows, policy.memory_size), np.float32) for _ in range(1 + len(others))]
        for step in range(8):
            obs, explore = random_obs(spec, (rows,), rng), step % 2 == 0
            reward = rng.normal(size=rows).astype(np.float32)
            said = [p.act(obs, m, explore, np.random.default_rng(step))
                    for p, m in zip((policy, *others), memories, strict=True)]  # fmt: skip
            for other in said[1:]:
                assert_same(said[0], other)
            memories = [decision.memory for decision in said]
            if isinstance(policy, RewardAware):
                memories = [policy.observe_reward(memory, reward) for memory in memories]
            assert (said[0].action >= spec.action_low).all()
            assert (said[0].action <= spec.action_high).all()


def test_not_exploring_draws_nothing_and_what_was_said_stays() -> None:
    policy, rng = make(SMALL_DT, Anything.spec).policy, np.random.default_rng(0)
    obs, memory = random_obs(Anything.spec, (3,), rng), np.zeros((3, policy.memory_size), np.float32)
    before = rng.bit_generator.state
    said = policy.act(obs, memory, False, rng)
    assert rng.bit_generator.state == before
    assert not memory.any()
    kept = copy.deepcopy(said)
    policy.act(obs, said.memory, True, rng)
    policy.observe_reward(said.memory, np.ones(3, np.float32))
    assert_same(said, kept)


def test_the_cached_policy_says_what_learning_predicts_for_the_whole_window() -> None:
    """Acting and learning agree on scales, units, order of tokens and time: the loss of its own actions is zero."""
    cfg = dataclasses.replace(SMALL_DT, batch_size=4, shards=1, dropout=0.0)
    algo, source = make(cfg), batches(size=4)
    for _ in range(20):
        algo.update(next(source))
    obs, rng = next(source).obs, np.random.default_rng(0)
    memory, reward = np.zeros((4, algo.policy.memory_size), np.float32), rng.normal(size=(4, 5)).astype(np.float32)
    actions = []
    for t in range(5):
        said = algo.policy.act(obs[:, t], memory, False, rng)
        actions.append(said.action)
        memory = algo.policy.observe_reward(said.memory, reward[:, t])
    gathered = np.cumsum(reward, axis=1) - reward
    t = np.broadcast_to(np.arange(5, dtype=np.int32), (4, 5))
    own = WindowBatch(obs, np.stack(actions, axis=1), 7.0 - gathered, t, np.ones((4, 5), bool))
    assert algo.update(own)["loss"] < 1e-10


def test_a_target_is_part_of_the_policy_and_changes_only_the_copy() -> None:
    policy = make(SMALL_DT).policy
    other = policy.with_target(70.0)
    assert (policy.target, other.target) == (7.0, 70.0)
    rebuilt_other = rebuilt(other)
    obs, memory = np.ones((2, 5), np.float32), np.zeros((2, policy.memory_size), np.float32)
    said = [p.act(obs, memory, False, np.random.default_rng(0)).action for p in (policy, other, rebuilt_other)]
    assert not np.array_equal(said[0], said[1])
    assert np.array_equal(said[1], said[2])


def test_reward_lowers_the_return_to_go() -> None:
    """A target of 7 of which 3 are gathered looks as a target of 4 does."""
    policy = make(dataclasses.replace(SMALL_DT, context=1)).policy
    obs, rng = np.ones((1, 5), np.float32), np.random.default_rng(0)
    memory = policy.observe_reward(np.zeros((1, policy.memory_size), np.float32), np.array([3.0], np.float32))
    fresh = np.zeros_like(memory)
    wanted = policy.with_target(4.0).act(obs, fresh, False, rng).action
    assert np.array_equal(policy.act(obs, memory, False, rng).action, wanted)


def test_saved_scales_win_over_those_of_a_dataset_that_has_grown() -> None:
    first, source = make(SMALL_DT), batches()
    first.update(next(source))
    again = decision_transformer(SMALL_DT, SPEC, DataScale(np.zeros(5), np.ones(5), 99.0), 1.0, seed=0)
    again.load(first.state())
    batch = next(source)
    assert first.update(batch) == again.update(batch)
    assert again.policy.target == 7.0


def test_the_step_size_warms_up_and_then_stays() -> None:
    algo, source = make(SMALL_DT), batches()
    assert [algo.update(next(source))["lr"] for _ in range(5)] == pytest.approx([1e-2 / 3, 2e-2 / 3, *[1e-2] * 3])


def test_weights_decay_apart_from_their_gradients() -> None:
    plain, decayed = (make(dataclasses.replace(SMALL_BC, weight_decay=w)) for w in (0.0, 0.5))
    start = plain.state()["policy"]["weights"]["net.layers.0.weight"]
    batch = next(batches())
    plain.update(batch), decayed.update(batch)
    a, b = (algo.state()["policy"]["weights"]["net.layers.0.weight"] for algo in (plain, decayed))
    torch.testing.assert_close(b, a - 1e-2 * 0.5 * start, atol=1e-6, rtol=0)


def test_the_gradient_is_cut_to_its_longest_length() -> None:
    long, short = (make(dataclasses.replace(SMALL_DT, max_grad_norm=n)) for n in (1e9, 0.01))
    batch = next(batches())
    assert long.update(batch)["grad_norm"] == short.update(batch)["grad_norm"] > 0.01
    assert short.trainer.memory["net/m"].norm().item() == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_steps_beyond_the_last_timestep_look_like_it() -> None:
    cfg = dataclasses.replace(SMALL_DT, max_timestep=10)
    a, b = make(cfg), make(cfg)
    batch = next(batches())
    late = batch._replace(t=batch.t + 1000)
    assert a.update(late) == b.update(late._replace(t=np.full_like(batch.t, 9)))


def test_the_scale_of_returns_is_their_99th_percentile_whatever_its_sign() -> None:
    assert return_scale_of(np.arange(101.0)) == 99.0
    assert return_scale_of(-np.arange(101.0)) == 1.0
    assert return_scale_of(np.zeros(5)) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 9}, "batch_size 9 does not split into 2 equal shards"),
        ({"heads": 3}, "width 16 does not split into 3 equal heads"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"context": 0}, "context must be at least 1"),
        ({"conv_strides": (2,)}, "equally long"),
        ({"lr": 0.0}, "lr must be above 0"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(dataclasses.replace(SMALL_DT, **change))


def test_data_that_does_not_fit_is_refused_in_one_line() -> None:
    algo, batch = make(SMALL_DT), next(batches())
    with pytest.raises(ConfigError, match=r"dt was built for \(8, 5\) windows and steps, not \(4, 5\)"):
        algo.update(WindowBatch(*(leaf[:4] for leaf in batch)))
    with pytest.raises(DataError, match="no step that is not padding"):
        algo.update(batch._replace(mask=np.zeros((8, 5), bool)))
    with pytest.raises(DataError, match="scales of 3 numbers do not fit observations of 5"):
        decision_transformer(SMALL_DT, SPEC, DataScale(np.zeros(3), np.ones(3), 1.0), 0.0, 0)
    with pytest.raises(DataError, match="scale of returns must be above 0"):
        decision_transformer(SMALL_DT, SPEC, DataScale(np.zeros(5), np.ones(5), 0.0), 0.0, 0)
    discrete, batch = make(SMALL_DT, Look.spec), next(batches(Look.spec))
    with pytest.raises(DataError, match="action column 0 has 2 choices, but the data says 2"):
        discrete.update(batch._replace(action=batch.action + 1.0))
    with pytest.raises(DataError, match=r"saved policy/net.transformer.time has shape"):
        algo.load(make(dataclasses.replace(SMALL_DT, width=8)).state())
