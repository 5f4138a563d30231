"""The discriminator by hand where it is linear, rewards, exact resume, and lives of any length judged alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from roboloop.algos.gail import losses
from roboloop.algos.gail.discriminator import Discriminator, Steps
from roboloop.algos.gail.discriminator_config import DiscriminatorConfig
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.state import equal, join, split
from roboloop.core.types import EnvSpec
from roboloop.nets.discriminator import DiscriminatorNet, SpectralLinear
from roboloop.nets.flat import Layout

SPEC = EnvSpec((3,), np.dtype(np.float32), (-2.0, -1.0), (2.0, 1.0), 100)
GAMMA = 0.9


def lives(*rates: float) -> EpisodeCounts:
    return EpisodeCounts(np.full(len(rates), 1000.0), np.array(rates) * 1000.0)


def make(num_tasks: int = 1, rate: float = 0.0, seed: int = 0, **options) -> Discriminator:
    cfg = DiscriminatorConfig(**{"hidden": (16, 16), "lr": 3e-3, **options})
    return Discriminator(cfg, SPEC, lives(*[rate] * num_tasks), GAMMA, seed)


def steps(rng: np.random.Generator, *lead: int, mean: float = 0.0, rate: float = 0.0) -> Steps:
    obs = rng.normal(mean, 1.0, (*lead, 3)).astype(np.float32)
    action = rng.uniform((-2.0, -1.0), (2.0, 1.0), (*lead, 2)).astype(np.float32)
    return Steps(obs, action, rng.random(lead) < rate)


def batch(rng: np.random.Generator, num_tasks: int = 1, rows: int = 32, held: int = 8) -> tuple[Steps, Steps, Steps]:
    held_out = steps(rng, num_tasks, held, mean=1.0)
    return steps(rng, rows, rate=0.1), steps(rng, num_tasks, rows, mean=1.0, rate=0.05), held_out


# --- maths by hand


def test_the_loss_by_hand() -> None:
    policy, expert = torch.tensor([[0.0, 2.0]]), torch.tensor([[-1.0, 3.0]])
    weight = torch.tensor([[0.25, 0.75]])
    of_policy = 0.25 * math.log(2) + 0.75 * math.log(1 + math.e**2)
    of_expert = 0.5 * math.log(1 + math.e) + 0.5 * math.log(1 + math.e**-3)
    found = losses.logistic_loss(policy, expert, weight, torch.full((1, 2), 0.5))
    assert float(found) == pytest.approx(0.5 * (of_policy + of_expert), rel=1e-6)


def test_each_dimension_is_mixed_by_its_own_lot() -> None:
    policy, expert = torch.tensor([[1.0, 10.0]]), torch.tensor([[[3.0, 20.0]], [[5.0, 0.0]]])
    lot = torch.tensor([[[1.0, 0.0]], [[0.5, 0.25]]])
    assert losses.interpolated(policy, expert, lot).tolist() == [[[1.0, 20.0]], [[3.0, 2.5]]]


def test_the_slopes_of_a_linear_discriminator_are_its_weights_wherever_they_are_taken() -> None:
    """Then loss and penalty have a closed form, also with several tasks."""
    disc = make(num_tasks=2, hidden=(), ends="none", gradient_penalty=3.0)
    rng = np.random.default_rng(0)
    policy, experts, held_out = batch(rng, num_tasks=2)
    weight = np.array(disc.state()["net"]["0.weight"])  # [tasks, inputs]: long rows
    bias = np.array(disc.state()["net"]["0.bias"])
    metrics = disc.update(policy, experts, held_out)
    rows = np.concatenate([policy.obs, experts.obs.reshape(-1, 3)]).astype(np.float64)
    mean, std = rows.mean(0), np.sqrt(rows.var(0) + 1e-8)

    def logits(s: Steps) -> np.ndarray:
        x = np.concatenate([(s.obs - mean) / std, s.action / (2.0, 1.0)], axis=-1)
        return x @ weight.T + bias

    of_policy = np.log1p(np.exp(logits(policy))).mean()
    of_experts = np.mean([np.log1p(np.exp(-logits(experts)[k, :, k])).mean() for k in range(2)])
    assert metrics["disc_loss"] == pytest.approx(0.5 * (of_policy + of_experts), rel=1e-5)
    lengths = np.linalg.norm(weight, axis=1)
    assert metrics["disc_penalty"] == pytest.approx(np.mean((lengths - 1) ** 2), rel=1e-5)


def test_the_gradient_of_the_whole_is_that_of_finite_differences() -> None:
    net = DiscriminatorNet(4, (5,), 2).double()
    rng, shapes = np.random.default_rng(1), {name: p.shape for name, p in net.named_parameters()}
    flat = torch.from_numpy(rng.normal(0, 0.5, sum(p.numel() for p in net.parameters())))
    policy, expert = torch.from_numpy(rng.normal(size=(6, 4))), torch.from_numpy(rng.normal(size=(2, 6, 4)))
    between = losses.interpolated(policy, expert, torch.from_numpy(rng.random((2, 6, 4))))

    def loss(at: torch.Tensor) -> torch.Tensor:
        parts = torch.split(at, [shape.numel() for shape in shapes.values()])
        weights = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        x, even = between.clone().requires_grad_(), torch.full((1, 6), 1 / 6)

        def own(rows: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(net, weights, rows).diagonal(dim1=0, dim2=2).t()

        (slopes,) = torch.autograd.grad(own(x).sum(), x, create_graph=True)
        of_policy, of_expert = torch.func.functional_call(net, weights, policy).t(), own(expert)
        return losses.logistic_loss(of_policy, of_expert, even, even) + 10 * losses.slope_penalty(slopes)

    leaf = flat.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(leaf), leaf)

    def change(step: torch.Tensor) -> float:
        return (loss(flat + step) - loss(flat - step)).item()

    for i in rng.choice(len(flat), 12, replace=False).tolist():
        step = torch.zeros_like(flat)
        step[i] = 1e-6
        assert float(grad[i]) == pytest.approx(change(step) / 2e-6, abs=1e-6)


def test_own_logits_are_the_diagonal_of_all_logits() -> None:
    net = DiscriminatorNet(4, (8, 8), 3)
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    everything = torch.stack([net.logits(rows) for rows in x])
    assert torch.allclose(net.own_logits(x), everything[range(3), range(3)], atol=1e-6)


def test_spectral_norms_keep_every_layer_from_stretching() -> None:
    net = DiscriminatorNet(4, (8,), 2, spectral_norm=True)
    for parameter in net.parameters():
        parameter.data.mul_(7.0)
    for _ in range(200):
        net.follow()
    layers = [layer for layer in net if isinstance(layer, SpectralLinear)]
    assert len(layers) == 2
    for layer in layers:
        assert float(torch.linalg.matrix_norm(layer.scaled.detach(), 2)) == pytest.approx(1.0, rel=1e-4)


def test_the_three_forms_of_reward() -> None:
    logits = torch.tensor([-40.0, -1.0, 0.0, 2.0, 40.0])
    d = torch.sigmoid(logits.double())
    assert torch.equal(losses.reward_of(logits, "logit"), logits)
    for form, formula in (("log_d", torch.log(d)), ("minus_log_one_minus_d", -torch.log(1 - d))):
        found = losses.reward_of(logits, form).double()
        assert torch.isfinite(found).all()
        assert torch.allclose(found[1:4], formula[1:4], atol=1e-6)


def test_accuracy_and_calibration_count_policy_and_expert_alike() -> None:
    policy, expert = torch.full((1, 30), -1.0), torch.tensor([[1.0, -1.0]])
    assert losses.accuracy(policy, expert) == 0.75
    p = 1 / (1 + math.e)
    low = 0.5 * p + 0.25 * (p - 1)  # all policy rows, and one of the two experts
    high = 0.25 * ((1 - p) - 1)
    assert losses.calibration_error(policy, expert) == pytest.approx(abs(low) + abs(high))
    sure = torch.full((1, 4), 20.0)
    assert losses.calibration_error(-sure, sure) == pytest.approx(0.0, abs=1e-6)
    assert losses.calibration_error(sure, sure) == pytest.approx(0.5, abs=1e-6)


def test_the_offset_of_a_life_is_the_logarithm_of_how_much_longer_the_expert_lives() -> None:
    found = losses.alive_offset(
        EpisodeCounts(np.array([100.0, 100.0]), np.array([10.0, 0.0])), EpisodeCounts(*np.array([[40], [2]]))
    )
    assert found == pytest.approx([math.log(10 / 20), math.log(200 / 20)])
    assert losses.alive_offset(lives(0.0), EpisodeCounts(np.array([7.0]), np.array([0.0]))).tolist() == [0.0]


def test_an_end_is_paid_as_the_time_after_it_for_ever() -> None:
    disc = make(rate=0.1)
    rng = np.random.default_rng(0)
    disc.update(*batch(rng))
    some = steps(rng, 5)
    lasting = disc.rewards(some.obs, some.action, np.zeros(5, bool))
    ending = disc.rewards(some.obs, some.action, np.ones(5, bool))
    with torch.no_grad():
        after = float(disc._after())
    assert (ending - lasting)[0] == pytest.approx([after * sum(GAMMA**t for t in range(1, 400))] * 5, rel=1e-4)


# --- what it learns


def test_it_tells_two_distributions_apart_and_knows_how_sure_it_may_be() -> None:
    """The true log-ratio of N(1, 1) and N(0, 1) in three dimensions is sum(x) - 1.5."""
    disc = make(use_action=False, ends="none", gradient_penalty=0.1)
    rng, metrics = np.random.default_rng(0), {}
    for _ in range(600):
        metrics = dict(disc.update(*batch(rng, rows=128)))
    assert metrics["disc_accuracy"] > 0.7
    # few rows look uncalibrated by chance alone
    calibration = [disc.update(*batch(rng, rows=1024, held=1024))["disc_calibration_error"] for _ in range(5)]
    assert np.mean(calibration) < 0.08
    some = steps(rng, 500, mean=0.5)
    truth = some.obs.sum(1) - 1.5
    assert np.corrcoef(disc.rewards(*some)[0], truth)[0, 1] > 0.95


def test_tasks_have_their_own_experts() -> None:
    cfg = DiscriminatorConfig(hidden=(32,), lr=3e-3, use_action=False, gradient_penalty=0.1)
    disc = Discriminator(cfg, SPEC, lives(0.0, 0.0), GAMMA, seed=0)
    rng = np.random.default_rng(0)

    def experts(rows: int) -> Steps:
        both = steps(rng, 2, rows)
        both.obs[0, :, 0] += 3.0
        both.obs[1, :, 0] -= 3.0
        return both

    for _ in range(300):
        disc.update(steps(rng, 64), experts(64), experts(8))
    paid = disc.rewards(
        np.array([[3.0, 0, 0], [-3.0, 0, 0]], np.float32), np.zeros((2, 2), np.float32), np.zeros(2) > 0
    )
    assert paid[0, 0] > 0 > paid[0, 1]
    assert paid[1, 1] > 0 > paid[1, 0]


REWARDS = {
    "positive, ends not paid": {"reward": "minus_log_one_minus_d", "ends": "none"},
    "negative, ends not paid": {"reward": "log_d", "ends": "none"},
    "logit, absorbing": {"reward": "logit", "ends": "absorbing"},
    "positive, absorbing": {"reward": "minus_log_one_minus_d", "ends": "absorbing"},
    "negative, absorbing": {"reward": "log_d", "ends": "absorbing"},
    "logit, alive": {"reward": "logit", "ends": "alive"},
}
SHORTEST, LONGEST = 1.05, 150.0


def life_after_imitating(expert_life: float, first_life: float, options: dict[str, str]) -> float:
    """Return the mean life of one whose only choice is when to die, after following a discriminator for a while.

    All states look alike, so nothing can be told apart but how long lives are. With p the chance to die at each step,
    rewards r and e paid at an end, V = (r + p e) / (1 - gamma (1 - p)); it dies more often where that pays more.
    """
    cfg = DiscriminatorConfig(hidden=(), lr=3e-2, use_action=False, gradient_penalty=0.0, weight_decay=0.0, **options)
    disc = Discriminator(cfg, SPEC, lives(1.0 / expert_life), GAMMA, seed=0)
    rng, rows = np.random.default_rng(0), 32
    alike = Steps(np.ones((rows, 3), np.float32), np.zeros((rows, 2), np.float32), np.zeros(rows, bool))
    experts = Steps(*(column[None] for column in alike))
    log_lives = [math.log(first_life)]
    for _ in range(1000):
        p = math.exp(-log_lives[-1])
        disc.update(alike._replace(ended=rng.random(rows) < p), experts, None)
        lasting, ending = disc.rewards(alike.obs[:2], alike.action[:2], np.array([False, True]))[0].tolist()
        bonus = ending - lasting
        value = (lasting + p * bonus) / (1 - GAMMA * (1 - p))
        better = log_lives[-1] + 0.01 * float(np.clip(GAMMA * value - bonus, -1, 1))
        log_lives.append(min(max(better, math.log(SHORTEST)), math.log(LONGEST)))
    return math.exp(np.mean(log_lives[-500:]))


LIVES = pytest.mark.parametrize(("expert_life", "first_life"), [(3.0, 60.0), (60.0, 3.0)], ids=["dies", "lives"])


@LIVES
def test_biased_rewards_choose_a_length_of_life_whatever_the_expert_does(expert_life, first_life) -> None:
    positive = life_after_imitating(expert_life, first_life, REWARDS["positive, ends not paid"])
    negative = life_after_imitating(expert_life, first_life, REWARDS["negative, ends not paid"])
    assert positive == pytest.approx(LONGEST)
    assert negative == pytest.approx(SHORTEST)


@LIVES
@pytest.mark.parametrize("name", ["logit, absorbing", "logit, alive"])
def test_our_rewards_lead_to_a_life_as_long_as_the_experts(name, expert_life, first_life) -> None:
    found = life_after_imitating(expert_life, first_life, REWARDS[name])
    assert expert_life / 1.5 < found < expert_life * 1.5


@pytest.mark.parametrize(
    ("name", "expert_life", "first_life"), [("positive, absorbing", 3.0, 60.0), ("negative, absorbing", 60.0, 3.0)]
)
def test_a_biased_form_is_cured_by_paying_for_the_time_after_the_end(name, expert_life, first_life) -> None:
    found = life_after_imitating(expert_life, first_life, REWARDS[name])
    assert expert_life / 2 < found < expert_life * 2


# --- resume, and what is refused


@pytest.mark.parametrize(
    "options", [{}, {"spectral_norm": True, "ends": "alive"}, {"ends": "none", "use_action": False}], ids=str
)
def test_a_resumed_discriminator_goes_on_bit_for_bit(options: dict[str, bool]) -> None:
    def learn(disc: Discriminator, rng: np.random.Generator, updates: int) -> list[float]:
        return [value for _ in range(updates) for value in disc.update(*batch(rng, 2)).values()]

    whole, begun, resumed = (make(2, rate=0.05, **options) for _ in range(3))
    expected = learn(whole, np.random.default_rng(3), 20)
    rng = np.random.default_rng(3)
    head = learn(begun, rng, 9)
    tensors, rest = split(begun.state())
    resumed.load(join({name: np.array(value) for name, value in tensors.items()}, rest))
    assert head + learn(resumed, rng, 11) == expected
    assert equal(resumed.state(), whole.state())
    some = steps(np.random.default_rng(0), 6, rate=0.5)
    assert np.array_equal(whole.rewards(*some), resumed.rewards(*some))


def test_what_it_cannot_use_is_refused_in_one_line() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="32 steps of the policy need as many of 1 tasks"):
        make().update(steps(rng, 32), steps(rng, 1, 16), steps(rng, 1, 8))
    with pytest.raises(ConfigError, match="gamma must be below 1"):
        Discriminator(DiscriminatorConfig(), SPEC, lives(0.0), 1.0, 0)
    with pytest.raises(DataError, match="was the network or the environment changed"):
        make(hidden=(8,)).load(make(hidden=(9,)).state())


def test_an_empty_layout_is_nothing() -> None:
    assert Layout({}).size == 0
