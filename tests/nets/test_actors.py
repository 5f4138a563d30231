"""Actors that pick: choices by hand, and every gradient against autograd of the same formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.functional import layer_norm, one_hot, softplus

from roboloop.nets.actors import PLAIN, ActorKind, ActorSpec, Choice, Drawn
from roboloop.nets.flat import Layout, Views, under
from roboloop.nets.layers import Scratch, as_in_out
from roboloop.nets.mlp import MLPSpec

OBS, PICK, MOVE, ROWS = 5, 4, 3, 12
KINDS = {
    "plain": PLAIN,
    "joint-choice": ActorKind(PICK, is_choice=True),
    "joint-choice-soft": ActorKind(PICK, is_choice=True, temperature=3.0),
    "in-turn": ActorKind(PICK, in_turn=True),
    "in-turn-choice": ActorKind(PICK, is_choice=True, in_turn=True, temperature=0.7),
}


def spec_of(kind: ActorKind, with_norm: bool) -> ActorSpec:
    """Return an actor of small networks."""
    action_dim = PICK + MOVE
    net = MLPSpec((OBS, 8, 7, kind.head(action_dim).outputs), with_norm)
    place = MLPSpec((OBS + PICK, 8, 2 * MOVE), with_norm) if kind.in_turn else None
    return ActorSpec(kind, action_dim, net, place)


def by_autograd(weights: Views, x: Tensor) -> Tensor:
    """Return an MLP's outputs by plain formulas."""
    count = sum(name.startswith("linear") for name in weights) // 2
    for i in range(count):
        x = x @ as_in_out(weights[f"linear{i}.weight"], weights[f"linear{i}.bias"]) + weights[f"linear{i}.bias"]
        if i < count - 1:
            if f"norm{i}.gain" in weights:
                x = layer_norm(x, x.shape[1:], weights[f"norm{i}.gain"], weights[f"norm{i}.bias"])
            x = x.relu()
    return x


def gaussian(outputs: Tensor, noise: Tensor) -> Drawn:
    mean, log_std = outputs.chunk(2, dim=1)
    u = mean + log_std.clamp(-20, 2).exp() * noise
    density = -0.5 * noise.square() - log_std.clamp(-20, 2) - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - u - softplus(-2 * u))
    return Drawn(u.tanh(), (density - squash).sum(1))


def choice(logits: Tensor, noise: Tensor, temperature: float) -> Drawn:
    """Return the straight-through choice: the hard row forward, the soft one backward."""
    gumbel = -torch.log(-torch.special.log_ndtr(noise))
    soft = ((logits + gumbel) / temperature).softmax(1)
    hard = one_hot((logits + gumbel).argmax(1), logits.shape[1]).float()
    row = hard + soft - soft.detach()
    return Drawn(2 * row - 1, (row * logits.log_softmax(1)).sum(1))


def drawn_by_autograd(kind: ActorKind, weights: Views, obs: Tensor, noise: Tensor) -> Drawn:
    """Return what an actor of a kind draws, with a graph behind it."""
    if kind.is_plain:
        return gaussian(by_autograd(weights, obs), noise)
    outputs = by_autograd(under("pick", weights) if kind.in_turn else weights, obs)
    if kind.is_choice:
        pick = choice(outputs[:, :PICK], noise[:, :PICK], kind.temperature)
    else:
        pick = gaussian(outputs, noise[:, :PICK])
    if kind.in_turn:
        place_outputs = by_autograd(under("place", weights), torch.cat((obs, pick.action), 1))
    else:
        place_outputs = outputs[:, PICK:]
    place = gaussian(place_outputs, noise[:, PICK:])
    return Drawn(torch.cat((pick.action, place.action), 1), pick.log_prob + place.log_prob)


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("learned", [ROWS, ROWS // 2])
def test_actors_equal_autograd_in_actions_probabilities_and_gradients(
    kind: ActorKind, with_norm: bool, learned: int
) -> None:
    spec, rng = spec_of(kind, with_norm), torch.Generator().manual_seed(1)
    layout = Layout(spec.shapes())
    flat, grad = torch.randn(layout.size, generator=rng) * 0.5, torch.zeros(layout.size)
    weights, grads = layout.views(flat), layout.views(grad)
    obs, noise = (torch.randn(ROWS, n, generator=rng) for n in (OBS, PICK + MOVE))
    d_action, d_log_prob = torch.randn(learned, PICK + MOVE, generator=rng), torch.rand(learned, generator=rng)
    actor = spec.build(weights, grads, ROWS, Scratch())
    drawn = actor.draw(obs, noise)
    leaves = {name: view.clone().requires_grad_() for name, view in weights.items()}
    wanted = drawn_by_autograd(kind, leaves, obs, noise)
    torch.testing.assert_close(drawn.action, wanted.action, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(drawn.log_prob, wanted.log_prob, atol=1e-4, rtol=1e-4)
    loss = (wanted.action[:learned] * d_action).sum() + (wanted.log_prob[:learned] * d_log_prob).sum()
    loss.backward()
    actor.backward(d_action, d_log_prob)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(
            grads[name], leaf.grad, atol=2e-4, rtol=1e-3, msg=lambda said, n=name: f"{n}: {said}"
        )


def test_one_number_for_all_rows_is_that_number_in_each() -> None:
    for kind in KINDS.values():
        spec, rng = spec_of(kind, False), torch.Generator().manual_seed(1)
        layout, found = Layout(spec.shapes()), []
        flat = torch.randn(layout.size, generator=rng)
        obs, noise = (torch.randn(ROWS, n, generator=rng) for n in (OBS, PICK + MOVE))
        for d_log_prob in (0.25, torch.full((ROWS,), 0.25)):
            grad = torch.zeros(layout.size)
            actor = spec.build(layout.views(flat), layout.views(grad), ROWS, Scratch())
            actor.draw(obs, noise)
            actor.backward(torch.ones(ROWS, PICK + MOVE), d_log_prob)
            found.append(grad)
        torch.testing.assert_close(*found)


def test_a_choice_falls_as_often_as_its_probability_and_says_its_logarithm() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5]]).repeat(20_000, 1)
    drawn = Choice(4, 1.0).draw(logits, torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0)))
    chosen, chances = drawn.action.argmax(1), logits[0].softmax(0)
    torch.testing.assert_close(torch.bincount(chosen) / 20_000, chances, atol=0.01, rtol=0)
    torch.testing.assert_close(drawn.log_prob, Categorical(logits=logits).log_prob(chosen))
    assert set(drawn.action.unique().tolist()) == {-1.0, 1.0}
    assert (drawn.action.sum(1) == -2.0).all()


def test_the_gradient_of_a_choice_s_entropy_points_towards_even_chances() -> None:
    """With log p alone it would be zero on average; the exact one is known."""
    logits = torch.tensor([[2.0, 0.0, 0.0, 0.0]]).repeat(200_000, 1)
    head = Choice(4, 0.5)
    head.draw(logits, torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0)))
    found = head.vjp(torch.zeros_like(logits), 1.0).mean(0)
    leaf = logits[0].clone().requires_grad_()
    (leaf.softmax(0) * leaf.log_softmax(0)).sum().backward()
    assert leaf.grad is not None
    assert found[0] > 0.2 * leaf.grad[0] > 0
    assert (found[1:] < 0).all()


def test_the_likeliest_action_has_the_greatest_logit_and_the_squashed_means() -> None:
    for kind in KINDS.values():
        spec, rng = spec_of(kind, False), torch.Generator().manual_seed(3)
        layout = Layout(spec.shapes())
        weights = layout.views(torch.randn(layout.size, generator=rng))
        obs = torch.randn(ROWS, OBS, generator=rng)
        actor = spec.build(weights, None, ROWS, Scratch())
        best = actor.likeliest(obs).clone()
        outputs = by_autograd(under("pick", weights) if kind.in_turn else weights, obs)
        pick = 2 * one_hot(outputs[:, :PICK].argmax(1), PICK) - 1 if kind.is_choice else outputs[:, :PICK].tanh()
        torch.testing.assert_close(best[:, :PICK], pick.float(), atol=1e-5, rtol=1e-4)
        if kind.in_turn:
            means = by_autograd(under("place", weights), torch.cat((obs, best[:, :PICK]), 1))[:, :MOVE]
        else:
            means = outputs[:, PICK : PICK + MOVE]
        torch.testing.assert_close(best[:, PICK:], means.tanh(), atol=1e-4, rtol=1e-4)
