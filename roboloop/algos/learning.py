"""All that the author of an algorithm imports: see ``docs/extending.md``."""

from roboloop.algos.learner.adam import Adam
from roboloop.algos.learner.config import LearnerConfig
from roboloop.algos.learner.learner import Learner, Loss, Rows, Step, target_of
from roboloop.algos.learner.replay_learner import record
from roboloop.nets.modules import BatchNorm, Ensemble, mlp, tanh_gaussian

__all__ = [
    "Adam", "BatchNorm", "Ensemble", "Learner", "LearnerConfig", "Loss", "Rows", "Step", "mlp", "record",
    "tanh_gaussian", "target_of",
]  # fmt: skip
