"""All that the author of an algorithm imports: see ``docs/extending.md``."""

from roboloop.algos.learner.adam import Adam
from roboloop.algos.learner.config import DatasetConfig, LearnerConfig
from roboloop.algos.learner.dataset_learner import record as record_of_dataset
from roboloop.algos.learner.inputs import Input, Rows
from roboloop.algos.learner.learner import Decided, Learner, Loss, Seen, Step, target_of
from roboloop.algos.learner.replay_learner import record
from roboloop.nets.modules import BatchNorm, Ensemble, mlp, tanh_gaussian

__all__ = [
    "Adam", "BatchNorm", "DatasetConfig", "Decided", "Ensemble", "Input", "Learner", "LearnerConfig", "Loss", "Rows",
    "Seen", "Step", "mlp", "record", "record_of_dataset", "tanh_gaussian", "target_of",
]  # fmt: skip
