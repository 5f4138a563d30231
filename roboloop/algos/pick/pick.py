"""Pick-and-place: soft actor-critic that places what is picked for it, or that does both.

Equations and lines: ``docs/algorithms/pick-and-place.md``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Loss, Seen
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.pick.actors import ActorKind, PickActor
from roboloop.algos.pick.config import PickConfig, PickSACConfig
from roboloop.algos.pick.picks import PickLayout, at
from roboloop.algos.sac.pixels import Narrowed, PixelSAC
from roboloop.algos.sac.sac import SAC
from roboloop.algos.spec import Setup
from roboloop.core.types import Array, EnvSpec, State
from roboloop.nets.modules import tanh_gaussian
from roboloop.nets.observations import Fields


class OffersPicks(SAC):
    """SAC in an environment that offers picks beside what it shows."""

    takes = frozenset({"picks", "pictures"})
    cfg: PickSACConfig

    def build(self) -> None:
        """Tell the candidates apart, and make the modules."""
        self.picks = PickLayout.of(self.spec)
        self.fields = Fields.of(self.spec, self.frame_stack, picks=True)
        self.obs_dim = self.fields.vector_dim
        self.size_up()
        super().build()

    def size_up(self) -> None:
        """Say how many numbers networks see and do, where it is not what the environment has."""

    def shown(self, obs: Rows, pick: Tensor | None = None) -> Seen:
        """Return observations without their candidates, and with a pick behind their numbers if there is one."""
        seen = {name: rows for name, rows in vars(obs).items() if name != "picks"}
        if pick is not None:
            seen["vector"] = torch.cat((obs.vector, pick.repeat(1, self.cfg.copies)), 1)
        return Rows(**seen) if self.fields.pictures else seen["vector"]


class Placing(OffersPicks):
    """The pick is part of what is seen, and the action is what is done with it.

    What will be picked next is drawn evenly from what will be offered, so that values are those of picking at random:
    y = r + gamma E_{p' ~ U(picks of o')} [min Q'(o' + p', d') - alpha log pi(d' | o' + p')].
    """

    def size_up(self) -> None:
        """See the pick too, and say where it goes."""
        self.obs_dim += self.cfg.copies * self.picks.dim
        self.action_dim -= self.picks.dim
        if self.cfg.best or self.cfg.best_exploring:
            self.acting = (*self.acting, "critics")

    def noise(self) -> dict[str, tuple[int, ...]]:
        """Return SAC's, and what the next pick is drawn by."""
        return {**super().noise(), "pick": (1,)}

    def placed(self, batch: Rows, noise: Rows) -> Rows:
        """Return the batch as SAC learns from it."""
        dim, num = self.picks.dim, self.picks.num
        number = (torch.special.ndtr(noise.pick) * num).long().clamp(max=num - 1)
        obs = self.shown(batch.obs, batch.action[:, :dim])
        next_obs = self.shown(batch.next_obs, at(batch.next_obs.picks, number))
        return Rows(**{**vars(batch), "obs": obs, "action": batch.action[:, dim:], "next_obs": next_obs})

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """SAC's, with picks as part of states."""
        return super().critic_loss(self.placed(batch, noise), noise)

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """SAC's, with picks as part of states."""
        return super().actor_loss(self.placed(batch, noise), noise)

    def act(self, obs: Rows, noise: Tensor | None) -> Tensor:
        """Return picks and displacements; the first column of the noise says which of those to choose among."""
        explore = noise is not None and noise.shape[1] > 1
        number, move = (None, None) if noise is None else (noise[:, 0].long(), noise[:, 1:] if explore else None)
        if self.cfg.best_exploring if explore else self.cfg.best:
            values, outputs = self.candidates(obs)
            chosen = values.argmax(1)
            if number is not None:
                chosen = values.sort(stable=True, dim=1, descending=True)[1].gather(1, number.unsqueeze(1)).squeeze(1)
            return torch.cat((at(obs.picks, chosen), tanh_gaussian(at(outputs, chosen), move)[0]), 1)
        assert number is not None, "a pick is drawn"
        pick = at(obs.picks, number)
        return torch.cat((pick, super().act(self.shown(obs, pick), move)), 1)

    def candidates(self, obs: Rows) -> tuple[Tensor, Tensor]:
        """Return the values of all candidates, min_i Q_i(o + p, tanh mean(o + p)), and the actor's outputs of each.

        What is common to an observation's candidates is seen once: its picture, and what trunks make of that.
        """
        rows, num, picks = obs.picks.shape[0], self.picks.num, obs.picks.flatten(0, 1).repeat(1, self.cfg.copies)
        seen = self.see(self.shown(obs)) if isinstance(self, PixelSAC) else self.shown(obs)

        def outputs_of(net: nn.Module, own: Tensor) -> Tensor:
            once, head = (net.narrow(seen), net.head) if isinstance(net, Narrowed) else (seen, net)
            y: Tensor = head(torch.cat((once.unsqueeze(1).expand(-1, num, -1).flatten(0, 1), own), 1))
            return y

        outputs = outputs_of(self.actor, picks)
        # the critics know squashed actions only: at the mean itself they would be asked what they never learned
        move = tanh_gaussian(outputs, None)[0]
        values = outputs_of(self.critics, torch.cat((picks, move), 1)).squeeze(2).amin(0)
        return values.view(rows, num), outputs.view(rows, num, -1)

    def draws(self, rng: np.random.Generator, rows: int) -> Array:
        """Return the number of a candidate, and the noise of its displacement."""
        few = self.few(self.cfg.fraction_exploring) if self.cfg.best_exploring else self.picks.num
        number = rng.integers(few, size=(rows, 1)).astype(np.float32)
        return np.concatenate((number, rng.standard_normal((rows, self.action_dim), dtype=np.float32)), axis=1)

    def calm_draws(self, rng: np.random.Generator, rows: int) -> Array | None:
        """Return the number of a candidate where there are several to choose among."""
        few = self.few(self.cfg.fraction) if self.cfg.best else self.picks.num
        return None if few == 1 else rng.integers(few, size=(rows, 1)).astype(np.float32)

    def few(self, fraction: float) -> int:
        """Return how many candidates are the best."""
        return max(1, round(fraction * self.picks.num))


class PlacingByPixels(Placing, PixelSAC):
    """The same from pictures."""

    cfg: PickSACConfig


class Picking(OffersPicks):
    """All columns are the actor's, and it does not see what it could pick."""

    def make_actor(self) -> nn.Module:
        """Return an actor of the kind that the config asks for."""
        kind = ActorKind(self.picks.dim, self.picks.is_choice, self.cfg.in_turn, self.cfg.choice_temperature)
        return PickActor(kind, self.action_dim, self.net)

    def draw(self, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return picks and displacements, and the logarithm of their probability."""
        drawn: tuple[Tensor, Tensor] = self.actor(obs, noise)
        return drawn

    def alone(self, batch: Rows) -> Rows:
        """Return the batch without candidates."""
        return Rows(**{**vars(batch), "obs": self.shown(batch.obs), "next_obs": self.shown(batch.next_obs)})

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """SAC's, without candidates."""
        return super().critic_loss(self.alone(batch), noise)

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """SAC's, without candidates."""
        return super().actor_loss(self.alone(batch), noise)

    def act(self, obs: Rows, noise: Tensor | None) -> Tensor:
        """Return picks and displacements."""
        return super().act(self.shown(obs), noise)


class PickingByPixels(Picking, PixelSAC):
    """The same from pictures."""

    cfg: PickSACConfig


def learner_of(cfg: PickConfig, spec: EnvSpec) -> tuple[type[OffersPicks], PickSACConfig]:
    """Return the class that learns what a config says, and its own config."""
    sees = bool(Fields.of(spec, 1).pictures)
    if cfg.places_only:
        return (PlacingByPixels if sees else Placing), PickSACConfig.of(cfg, cfg.sac)
    sac = dataclasses.replace(cfg.sac, target_entropy=target_entropy(cfg, spec))
    return (PickingByPixels if sees else Picking), PickSACConfig.of(cfg, sac)


def target_entropy(cfg: PickConfig, spec: EnvSpec) -> float | None:
    """Return the entropy at which an actor that picks is held; a choice has half of what it can have at most."""
    picks = PickLayout.of(spec)
    if cfg.sac.target_entropy is not None or not picks.is_choice:
        return cfg.sac.target_entropy
    return 0.5 * math.log(picks.num) - (spec.action_dim - picks.dim)


def make_pick(cfg: PickConfig, spec: EnvSpec, seed: int, device: str = "cpu") -> ReplayLearner:
    """Return the algorithm of a config."""
    learner, own = learner_of(cfg, spec)
    return ReplayLearner(learner, own, spec, 1, seed, device)


def make(setup: Setup) -> ReplayLearner:
    """Return the algorithm for a run."""
    return make_pick(setup.config, setup.spec, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state; critics are there for one that is to choose by them."""
    learner, own = learner_of(setup.config, setup.spec)
    policy = {**state["policy"], "weights": {**state["modules"], **state["policy"]["weights"]}}
    return LearnerPolicy.from_state(learner(own, setup.spec), {**state, "policy": policy})
