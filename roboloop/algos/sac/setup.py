"""From a config to SAC: from vectors or from pictures."""

from __future__ import annotations

from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.sac.config import SACSettings
from roboloop.algos.sac.sac import SAC
from roboloop.algos.spec import Setup
from roboloop.core.types import EnvSpec, State
from roboloop.nets.observations import Fields


def learner_of(spec: EnvSpec, frame_stack: int) -> type[SAC]:
    """Return the class that learns from such observations."""
    if not Fields.of(spec, frame_stack).pictures:
        return SAC
    from roboloop.algos.sac.pixels import PixelSAC

    return PixelSAC


def make_sac(cfg: SACSettings, spec: EnvSpec, frame_stack: int, seed: int, device: str = "cpu") -> ReplayLearner:
    """Return SAC, from vectors or from pictures."""
    return ReplayLearner(learner_of(spec, frame_stack), cfg, spec, frame_stack, seed, device)


def make(setup: Setup) -> ReplayLearner:
    """Return SAC for a run."""
    return make_sac(setup.config, setup.spec, setup.frame_stack, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state."""
    learner = learner_of(setup.spec, setup.frame_stack)(setup.config, setup.spec, setup.frame_stack)
    return LearnerPolicy.from_state(learner, state)
