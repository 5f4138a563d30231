"""All that the author of an algorithm imports: see ``docs/extending.md``."""

from roboloop.algos.learner.adam import Adam
from roboloop.algos.learner.config import LearnerConfig
from roboloop.algos.learner.inputs import Input, Rows
from roboloop.algos.learner.learner import Decided, Learner, Loss, Seen, Step, target_of
from roboloop.algos.learner.replay_learner import record
from roboloop.nets.modules import BatchNorm, Ensemble, mlp, tanh_gaussian

__all__ = [
    "Adam", "BatchNorm", "Decided", "Ensemble", "Input", "Learner", "LearnerConfig", "Loss", "Rows", "Seen", "Step",
    "mlp", "record", "tanh_gaussian", "target_of",
]  # fmt: skip
