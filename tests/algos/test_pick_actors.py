"""Actors that pick: choices by hand, and every kind against its formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import one_hot

from roboloop.algos.pick.actors import ActorKind, PickActor, choice
from roboloop.nets.modules import mlp, tanh_gaussian

OBS, PICK, MOVE, ROWS = 5, 4, 3, 12
KINDS = {
    "joint": ActorKind(PICK),
    "joint-choice": ActorKind(PICK, is_choice=True),
    "joint-choice-soft": ActorKind(PICK, is_choice=True, temperature=3.0),
    "in-turn": ActorKind(PICK, in_turn=True),
    "in-turn-choice": ActorKind(PICK, is_choice=True, in_turn=True, temperature=0.7),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def actor_of(kind: ActorKind) -> PickActor:
    torch.manual_seed(1)
    return PickActor(kind, PICK + MOVE, lambda more, outputs: mlp((OBS + more, 8, 7, outputs), norm="layer"))


def chosen(logits: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the straight-through choice: the hard row forward, the soft one backward."""
    gumbel = -torch.log(-torch.special.log_ndtr(noise))
    soft = ((logits + gumbel) / temperature).softmax(1)
    hard = one_hot((logits + gumbel).argmax(1), logits.shape[1]).float()
    row = hard + soft - soft.detach()
    return 2 * row - 1, (row * logits.log_softmax(1)).sum(1)


def by_formula(actor: PickActor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return what an actor of its kind draws."""
    kind, outputs = actor.kind, actor.pick(obs)
    if kind.is_choice:
        pick, log_pick = chosen(outputs[:, :PICK], noise[:, :PICK], kind.temperature)
    else:
        pick, log_pick = tanh_gaussian(outputs[:, : 2 * PICK], noise[:, :PICK])
    second = outputs[:, -2 * MOVE :] if actor.place is None else actor.place(torch.cat((obs, pick), 1))
    place, log_place = tanh_gaussian(second, noise[:, PICK:])
    return torch.cat((pick, place), 1), log_pick + log_place


@each_kind
def test_actors_equal_their_formulas_in_actions_probabilities_and_gradients(kind: ActorKind) -> None:
    actor, rng = actor_of(kind), torch.Generator().manual_seed(1)
    obs, noise = (torch.randn(ROWS, n, generator=rng) for n in (OBS, PICK + MOVE))
    d_action, d_log_prob = torch.randn(ROWS, PICK + MOVE, generator=rng), torch.rand(ROWS, generator=rng)
    both = [actor(obs, noise), by_formula(actor, obs, noise)]
    for found, wanted in zip(*both, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    losses = [(action * d_action).sum() + (log_prob * d_log_prob).sum() for action, log_prob in both]
    for found, wanted in zip(*(torch.autograd.grad(x, [*actor.parameters()]) for x in losses), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_a_choice_falls_as_often_as_its_probability_and_says_its_logarithm() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5]]).repeat(20_000, 1)
    action, log_prob = choice(logits, torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0)), 1.0)
    found, chances = action.argmax(1), logits[0].softmax(0)
    torch.testing.assert_close(torch.bincount(found) / 20_000, chances, atol=0.01, rtol=0)
    torch.testing.assert_close(log_prob, Categorical(logits=logits).log_prob(found))
    assert set(action.unique().tolist()) == {-1.0, 1.0}
    assert (action.sum(1) == -2.0).all()


def test_the_gradient_of_a_choice_s_entropy_points_towards_even_chances() -> None:
    """With log p alone it would be zero on average; the exact one is known."""
    logits = torch.tensor([[2.0, 0.0, 0.0, 0.0]]).repeat(200_000, 1).requires_grad_()
    _, log_prob = choice(logits, torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0)), 0.5)
    found = torch.autograd.grad(log_prob.sum(), logits)[0].mean(0)
    leaf = logits[0].detach().clone().requires_grad_()
    (exact,) = torch.autograd.grad((leaf.softmax(0) * leaf.log_softmax(0)).sum(), leaf)
    assert found[0] > 0.2 * exact[0] > 0
    assert (found[1:] < 0).all()


@each_kind
def test_the_likeliest_action_has_the_greatest_logit_and_the_squashed_means(kind: ActorKind) -> None:
    actor, obs = actor_of(kind), torch.randn(ROWS, OBS, generator=torch.Generator().manual_seed(3))
    best = actor(obs, None)[0]
    outputs = actor.pick(obs)
    pick = 2 * one_hot(outputs[:, :PICK].argmax(1), PICK) - 1 if kind.is_choice else outputs[:, :PICK].tanh()
    torch.testing.assert_close(best[:, :PICK], pick.float())
    second = outputs[:, -2 * MOVE :] if actor.place is None else actor.place(torch.cat((obs, best[:, :PICK]), 1))
    torch.testing.assert_close(best[:, PICK:], second[:, :MOVE].tanh())


def test_only_an_actor_that_acts_in_turn_has_a_second_network() -> None:
    assert actor_of(KINDS["joint"]).place is None
    assert isinstance(actor_of(KINDS["in-turn"]).place, nn.Module)
