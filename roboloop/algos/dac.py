"""Discriminator-actor-critic (arXiv:1809.02925): SAC on rewards that a discriminator gives when a batch is drawn."""

from __future__ import annotations

from roboloop.algos.adversarial_losses import Lives
from roboloop.algos.dac_config import DACConfig
from roboloop.algos.discriminator import Discriminator, Steps
from roboloop.algos.policy import ActorPolicy
from roboloop.algos.sac import SAC
from roboloop.core.types import Batch, BatchSpec, EnvSpec, Metrics, State
from roboloop.data.experts import ExpertBatch, ExpertBuffer


class DAC:
    """The Algorithm: ``update`` takes one step of the discriminator, and one of SAC on what it pays then."""

    def __init__(self, cfg: DACConfig, rl: SAC, discriminator: Discriminator, experts: ExpertBuffer) -> None:
        self.cfg, self._rl, self._discriminator, self._experts = cfg, rl, discriminator, experts
        self.num_updates = 0
        self.progress = 0.0  # nothing here depends on it

    @property
    def needs(self) -> BatchSpec:
        """What SAC needs."""
        return self._rl.needs

    @property
    def policy(self) -> ActorPolicy:
        """The live policy: each update changes it."""
        return self._rl.policy

    @property
    def expert_rows(self) -> int:
        """How many rows of the next batch are an expert's."""
        share = self.cfg.expert_fraction * self.cfg.expert_decay**self.num_updates
        return int(share * self.cfg.batch_size)

    def update(self, batch: Batch) -> Metrics:
        """Learn to tell the policy from the expert, then to be taken for the expert."""
        size = self.cfg.batch_size
        held_out = self._experts.held_out(size)
        metrics = self._discriminator.update(
            Steps(batch.obs, batch.action, batch.discount == 0),
            steps_of(self._experts.sample(size)),
            None if held_out is None else steps_of(held_out),
        )
        if self.expert_rows:
            overwrite(batch, self._experts.sample(self.expert_rows, end_share=0.0), self.cfg.sac.gamma)
        # the env's own reward of the batch is replaced by what the discriminator pays now
        paid = self._discriminator.rewards(batch.obs, batch.action, batch.discount == 0)[0]
        learned = self._rl.update(batch._replace(reward=paid))
        self.num_updates = self._rl.num_updates
        return {**learned, **metrics, "disc_reward": float(paid.mean())}

    def state(self) -> State:
        """Return everything the next update depends on; the policy is where SAC's is."""
        parts = {"discriminator": self._discriminator.state(), "experts": self._experts.state()}
        return {**self._rl.state(), **parts}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._rl.load(state)
        self._discriminator.load(state["discriminator"])
        self._experts.load(state["experts"])
        self.num_updates = self._rl.num_updates

    def close(self) -> None:
        """Stop SAC's helper processes."""
        self._rl.close()


def steps_of(experts: ExpertBatch) -> Steps:
    """Return what a discriminator sees of experts."""
    return Steps(experts.obs, experts.action, experts.terminated)


def overwrite(batch: Batch, experts: ExpertBatch, gamma: float) -> None:
    """Put the experts' transitions of all tasks in the place of a batch's first rows."""
    rows = experts.action.shape[0] * experts.action.shape[1]
    for name in ("obs", "action", "next_obs"):
        column = getattr(batch, name)
        column[:rows] = getattr(experts, name).reshape(column[:rows].shape)
    batch.discount[:rows] = gamma * ~experts.terminated.reshape(-1)


def make_dac(cfg: DACConfig, spec: EnvSpec, experts: ExpertBuffer, seed: int, device: str = "cpu") -> DAC:
    """Return the algorithm of a config, with experts of one task."""
    rl = SAC(cfg.sac, spec, 1, seed, device)
    lives = Lives(experts.num_steps, experts.num_ends)
    return DAC(cfg, rl, Discriminator(cfg.discriminator, spec, lives, cfg.sac.gamma, seed), experts)
