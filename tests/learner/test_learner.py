"""What an author writes is computed in shards, saved, resumed and sent to samplers with the same bits."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.learner.work import Weights
from roboloop.algos.learning import Adam, Learner, Step
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from tests.algos.test_shards import needs_two_cores
from tests.learner.toys import ROWS, SPEC, Normalised, Toy, ToyConfig, batch_of, learner_of, numbers, same


def updated(algo, first, last):
    for i in range(first, last):
        algo.update(batch_of(i))
    return algo


def test_an_update_is_adams_on_the_mean_gradient_of_all_rows():
    algo = learner_of(normalize_obs=False)
    before = {name: value.clone() for name, value in algo.trainer.views.items()}
    plain = Toy(ToyConfig(), SPEC)
    plain.load_state_dict({name: value.clone() for name, value in before.items()})
    adam = torch.optim.Adam(plain.actor.parameters(), lr=0.1)
    batch = batch_of(0)
    said = algo.update(batch)
    blur = torch.from_numpy(algo.trainer.arrays["noise/blur"].reshape(ROWS, 3).copy())
    unit = torch.from_numpy(batch.action / np.float32([1.0, 2.0]))  # bounds of the second column are -2 and 2
    error = plain.actor(torch.from_numpy(batch.obs) + 0.1 * blur) - unit
    error.square().mean().backward()
    adam.step()
    for name, value in plain.actor.named_parameters():
        moved = algo.trainer.views[f"actor.{name}"]
        torch.testing.assert_close(moved, value.detach(), atol=1e-5, rtol=1e-5)
        slow = before[f"slow.{name}"]
        torch.testing.assert_close(
            algo.trainer.views[f"slow.{name}"], slow + 0.25 * (moved - slow), atol=1e-6, rtol=1e-6
        )
    assert said == pytest.approx({"loss": error.square().mean().item(), "bias": error.mean().item()}, abs=1e-6)


@pytest.mark.parametrize("make", [Toy, Normalised])
@pytest.mark.parametrize("limit", [0.0, 0.01])
def test_replayed_kernels_give_the_bits_of_autograd(make, limit):
    by_autograd = learner_of(make, replay_kernels=False, max_grad_norm=limit)
    assert same(updated(learner_of(make, max_grad_norm=limit), 0, 20), updated(by_autograd, 0, 20))


@needs_two_cores
@pytest.mark.parametrize("make", [Toy, Normalised])
def test_two_processes_give_the_bits_of_one(make):
    two = learner_of(make, processes=2, max_grad_norm=0.01)
    two.wait_until_ready()
    try:
        assert same(updated(learner_of(make, max_grad_norm=0.01), 0, 10), updated(two, 0, 10))
    finally:
        two.close()


@pytest.mark.parametrize("make", [Toy, Normalised])
def test_resumed_is_never_stopped(make):
    whole, first, second = (learner_of(make, normalize_obs=True) for _ in range(3))
    updated(whole, 0, 12)
    state = updated(first, 0, 5).state()
    updated(first, 5, 7)  # what is saved must not change with what goes on
    second.load(state)
    assert same(updated(second, 5, 12), whole)


def test_first_weights_follow_from_the_seed_whatever_other_threads_draw():
    alone, beside = {seed: learner_of(seed=seed) for seed in (0, 1)}, {}

    def make(seed):
        beside[seed] = learner_of(seed=seed)
        learner_of(seed=seed).policy.snapshot()

    for _ in range(20):
        threads = [threading.Thread(target=make, args=(seed,)) for seed in alone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(same(alone[seed], beside[seed]) for seed in alone)


def test_a_gradient_that_is_too_long_is_shortened():
    algo = learner_of(max_grad_norm=1e-3)
    algo.update(batch_of(0))
    m = torch.cat([value.flatten() for name, value in numbers(algo.state()).items() if "/m." in name])
    assert (m / 0.1).norm().item() == pytest.approx(1e-3, rel=1e-3)  # m is a tenth of the first gradient


def test_running_statistics_move_by_the_mean_of_what_the_shards_saw():
    algo = learner_of(Normalised, shards=2)
    batch = batch_of(0)
    algo.update(batch)
    halves = batch.obs[: ROWS // 2], batch.obs[ROWS // 2 :]
    mean = np.mean([half.mean(0) for half in halves], 0)
    var = np.mean([half.var(0) for half in halves], 0)
    running = algo.trainer.views["actor.0.running"]
    np.testing.assert_allclose(running[0], 0.5 * mean, rtol=1e-5)
    np.testing.assert_allclose(running[1], 0.5 + 0.5 * var, rtol=1e-5)


def test_a_step_may_be_taken_at_each_third_update_only():
    class Seldom(Toy):
        def steps(self):
            return (Step("loss", {"actor": Adam(0.1)}, follow={"slow": "actor"}, every=3),)

    algo, moved = learner_of(Seldom, processes=1), []
    for i in range(7):
        before = algo.trainer.memory["actor"].clone()
        said = algo.update(batch_of(i))
        moved.append(not torch.equal(before, algo.trainer.memory["actor"]))
        assert bool(said) == moved[-1]
    assert moved == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("make", [Toy, Normalised])
@pytest.mark.parametrize("explore", [False, True])
def test_a_policy_in_another_process_acts_with_the_same_bits(make, explore):
    algo = updated(learner_of(make, normalize_obs=True), 0, 3)
    copy, flat = build_policy(algo.policy.blueprint()), np.zeros(algo.policy.num_weights, np.float32)
    algo.policy.write_weights(flat)
    copy.read_weights(flat, 3)
    obs, snapshot = batch_of(9).obs, algo.policy.snapshot()
    actions = [p.act(obs, np.zeros((ROWS, 0)), explore, np.random.default_rng(0)).action
               for p in (algo.policy, copy, snapshot)]  # fmt: skip
    assert np.array_equal(actions[0], actions[1])
    assert np.array_equal(actions[0], actions[2])
    assert (np.abs(actions[0]) <= [1.0, 2.0]).all()
    updated(algo, 3, 4)
    again = snapshot.act(obs, np.zeros((ROWS, 0)), explore, np.random.default_rng(0)).action
    assert np.array_equal(again, actions[2])


def toy(**members):
    return type("Wrong", (Toy,), members)


def forgetful(self, batch, noise):
    self.calls = getattr(self, "calls", 0) + 1
    return Toy.loss(self, batch, noise)[0] * self.calls, {}


def drawing(self, batch, noise):
    return (self.actor(batch.obs) - torch.randn(2)).square().mean(), {}


def chatty(self, batch, noise):
    loss = Toy.loss(self, batch, noise)[0]
    return loss, {f"metric{i}": loss for i in range(16)}


def built(module):
    def build(self):
        Toy.build(self)
        self.more = module()

    return build


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (toy(steps=lambda self: (Step("lose", {"actor": Adam(0.1)}),)), "Wrong has no loss 'lose'"),
        (
            toy(steps=lambda self: (Step("loss", {"critic": Adam(0.1)}),)),
            "Wrong.loss names 'critic', which build() did",
        ),
        (toy(steps=lambda self: Toy.steps(self) * 2), "Wrong: both loss and loss move 'actor'"),
        (toy(acting=("actress",)), "Wrong.acting names 'actress', which build() did not make"),
        (toy(build=built(lambda: nn.Linear(2, 2))), "Wrong: no step moves 'more.weight'; take target_of() or"),
        (toy(build=built(lambda: nn.BatchNorm1d(2, affine=False))), "Wrong.more: BatchNorm1d keeps what each shard"),
        (toy(build=built(lambda: nn.Linear(2, 2).double().requires_grad_(False))), "more.weight must be float32, not"),
        (toy(loss=drawing), "Wrong.loss draws random numbers (aten.randn.default): name them in noise() instead"),
        (toy(loss=forgetful), "Wrong.loss is no longer what it was at the first update"),
        (toy(loss=chatty), "Wrong.loss returns 16 metrics; 15 is the most"),
    ],
)
def test_what_a_learner_may_not_do_is_one_line(make, message):
    with pytest.raises(ConfigError) as error:
        updated(learner_of(make), 0, 8)
    assert str(error.value).startswith(message)


def test_choices_and_fields_are_refused():
    choices = SPEC.__class__((3,), SPEC.obs_dtype, (0.0,), (3.0,), 100, action_choices=(4,))
    with pytest.raises(ConfigError, match="Toy needs continuous actions"):
        ReplayLearner(Toy, ToyConfig(), choices, 1, 0)
    fields = SPEC.__class__((), np.dtype([("picture", np.uint8, (3, 4, 4))]), (-1.0,), (1.0,), 100)
    with pytest.raises(ConfigError, match="Flat takes vectors, not pictures"):
        ReplayLearner(Flat, ToyConfig(), fields, 1, 0)


class Flat(Toy):
    def build(self):
        self.actor = nn.Linear(1, 1)
        self.slow = nn.Linear(1, 1).requires_grad_(False)


def test_weights_that_two_modules_share_stay_shared():
    class Shared(Learner):
        def build(self):
            self.actor = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
            self.actor[1].weight = self.actor[0].weight

        act = Toy.act

        def steps(self):
            return (Step("loss", {"actor": Adam(0.1)}),)

        def loss(self, batch, noise):
            return (self.actor(batch.obs) - batch.action).square().mean(), {}

    algo = updated(learner_of(Shared), 0, 3)
    assert "actor.1.weight" not in Weights(Shared(ToyConfig(), SPEC)).views(algo.trainer.memory)
    assert algo.policy.learner.actor[0].weight is algo.policy.learner.actor[1].weight
