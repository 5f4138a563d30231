"""All that the author of an algorithm imports: see ``docs/extending.md``."""

from roboloop.algos.learner.config import DatasetConfig, LearnerConfig, RolloutConfig
from roboloop.algos.learner.dataset_learner import record_of_dataset
from roboloop.algos.learner.inputs import Input, Rows
from roboloop.algos.learner.learner import Decided, Learner, Loss, Seen, Step, target_of
from roboloop.algos.learner.on_policy import OnPolicy
from roboloop.algos.learner.optimizer import Adam
from roboloop.algos.learner.replay_learner import record
from roboloop.algos.learner.rollout_learner import record_on_policy
from roboloop.nets.modules import BatchNorm, Ensemble, mlp, tanh_gaussian

__all__ = [
    "Adam", "BatchNorm", "DatasetConfig", "Decided", "Ensemble", "Input", "Learner", "LearnerConfig", "Loss",
    "OnPolicy", "RolloutConfig", "Rows", "Seen", "Step", "mlp", "record", "record_of_dataset", "record_on_policy",
    "tanh_gaussian", "target_of",
]  # fmt: skip
