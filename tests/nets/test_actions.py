"""The head for choices and continuous actions: by hand, against torch.distributions and against autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from roboloop.nets.actions import LOG_STD_MAX, LOG_STD_MIN, ActionHead

MIXES = [(4,), (0, 0), (3, 2), (3, 0, 2, 0), (0, 5, 5)]


def make(
    choices: tuple[int, ...], rows: int = 30, masked: bool = True
) -> tuple[ActionHead, Tensor, Tensor, Tensor | None]:
    """Return a head, parameters, actions that it can take, and a mask that leaves some of every choice."""
    head, rng = ActionHead(choices), torch.Generator().manual_seed(0)
    params = torch.randn(rows, head.num_params, dtype=torch.float64, generator=rng)
    mask = torch.rand(rows, head.num_logits, generator=rng) < 0.6
    begin = 0
    for n in filter(None, choices):
        mask[:, begin] = True
        begin += n
    mask_or_none = mask if masked and head.num_logits else None
    noise = torch.from_numpy(head.noise(np.random.default_rng(0), rows)).double()
    return head, params, head.sample(params, noise, mask_or_none), mask_or_none


def by_torch(choices: tuple[int, ...], params: Tensor, mask: Tensor | None) -> list[Categorical | Normal]:
    """Return one torch distribution per action column."""
    num_logits, num_box = sum(choices), choices.count(0)
    logits = params[:, :num_logits] if mask is None else params[:, :num_logits].masked_fill(~mask, -math.inf)
    mean, log_std = params[:, num_logits:].split(num_box, dim=1) if num_box else (params, params)
    found: list[Categorical | Normal] = []
    begin = box = 0
    for n in choices:
        if n:
            found.append(Categorical(logits=logits[:, begin : begin + n]))
            begin += n
        else:
            found.append(Normal(mean[:, box], log_std[:, box].clamp(LOG_STD_MIN, LOG_STD_MAX).exp()))
            box += 1
    return found


@pytest.mark.parametrize("choices", MIXES)
@pytest.mark.parametrize("masked", [False, True])
def test_log_prob_and_entropy_equal_torch_distributions(choices: tuple[int, ...], masked: bool) -> None:
    head, params, action, mask = make(choices, masked=masked)
    density, parts = head.density(params, action, mask), by_torch(choices, params, mask)
    log_prob = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(density.log_prob, log_prob)
    torch.testing.assert_close(head.log_prob(params, action, mask), density.log_prob)
    # torch's entropy of a masked choice is nan * 0: sum p log p by hand
    entropy = sum(
        -(p.probs * p.probs.clamp_min(1e-300).log()).sum(1) if isinstance(p, Categorical) else p.entropy()
        for p in parts
    )
    torch.testing.assert_close(density.entropy, entropy)


def test_divergence_from_uniform_by_hand() -> None:
    head = ActionHead((2,))
    params = torch.tensor([[math.log(0.8), math.log(0.2)]])
    there, back = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5), 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(2.5)
    density = head.density(params, torch.zeros(1, 1), None)
    assert density.uniform_kl.item() == pytest.approx((there + back) / 2, rel=1e-5)
    even = head.density(torch.zeros(1, 2), torch.zeros(1, 1), None)
    assert even.uniform_kl.item() == pytest.approx(0.0, abs=1e-6)


def test_uniform_is_uniform_over_what_is_possible() -> None:
    head, mask = ActionHead((3,)), torch.tensor([[True, False, True]])
    density = head.density(torch.tensor([[1.0, 50.0, 1.0]]), torch.zeros(1, 1), mask)
    assert density.uniform_kl.item() == pytest.approx(0.0, abs=1e-6)
    assert density.entropy.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("choices", MIXES)
def test_nothing_pulls_at_what_is_masked_or_clamped(choices: tuple[int, ...]) -> None:
    head, params, action, mask = make(choices)
    num_box = choices.count(0)
    if num_box:
        params[10:, -num_box:] *= 0.1
        params[:5, -num_box:], params[5:10, -num_box:] = LOG_STD_MAX + 1, LOG_STD_MIN - 1
    d = torch.randn(3, 30, dtype=torch.float64)
    leaf = params.requires_grad_()
    density = head.density(leaf, action, mask)
    torch.autograd.backward((d[0] * density.log_prob + d[1] * density.entropy + d[2] * density.uniform_kl).sum())
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    if num_box:
        assert (leaf.grad[:10, -num_box:] == 0).all()
        assert (leaf.grad[10:, -num_box:] != 0).all()
    if mask is not None:
        assert (leaf.grad[:, : head.num_logits][~mask] == 0).all()


def test_samples_have_the_frequencies_that_log_prob_says() -> None:
    head, rows = ActionHead((3, 0)), 40_000
    params = torch.tensor([[0.0, 1.0, -1.0, 0.5, math.log(0.2)]]).expand(rows, -1)
    action = head.sample(params, torch.from_numpy(head.noise(np.random.default_rng(0), rows)), None)
    found = torch.bincount(action[:, 0].long(), minlength=3) / rows
    torch.testing.assert_close(found, params[0, :3].softmax(0), atol=0.01, rtol=0)
    assert action[:, 1].mean().item() == pytest.approx(0.5, abs=0.01)
    assert action[:, 1].std().item() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("pick", [ActionHead.sample, lambda head, params, _, mask: head.mode(params, mask)])
def test_what_is_masked_is_never_drawn_however_likely_it_would_be(pick: Callable[..., Tensor]) -> None:
    head, rows = ActionHead((3, 2)), 5000
    params = torch.tensor([[60.0, 0.0, 0.0, -60.0, 60.0]]).expand(rows, -1)
    mask = torch.tensor([[False, True, True, True, False]]).expand(rows, -1)
    noise = torch.from_numpy(head.noise(np.random.default_rng(0), rows))
    noise[:10] = 0.0
    action = pick(head, params, noise, mask)
    assert action[:, 0].min() >= 1
    assert (action[:, 1] == 0).all()


def test_continuous_actions_are_not_clipped() -> None:
    head = ActionHead((0,))
    action = head.sample(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0]]), None)
    assert action.item() == 5.0
    wanted = -0.5 * 2.0**2 - 0.5 * math.log(2 * math.pi)
    assert head.log_prob(torch.tensor([[3.0, 0.0]]), action, None).item() == pytest.approx(wanted)
