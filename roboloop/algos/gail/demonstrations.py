"""Demonstrations that a config names, as an algorithm draws from them."""

from __future__ import annotations

from pathlib import Path

from roboloop.algos.spec import Setup
from roboloop.core.errors import ConfigError
from roboloop.core.fields import first_difference
from roboloop.core.types import EnvSpec
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBuffer, open_experts
from roboloop.envs import registry


def demonstrations(expert: ExpertConfig, setup: Setup, tasks: tuple[str, ...] = ()) -> ExpertBuffer:
    """Return the demonstrations of some tasks, or of the main one; data of other spaces are refused."""
    datasets = open_experts(Path(expert.directory), tasks or task_names(setup)[:1])
    for dataset in datasets:
        check_spaces(setup.env.id, setup.spec, dataset)
    return ExpertBuffer(datasets, expert, setup.seed)


def task_names(setup: Setup) -> tuple[str, ...]:
    """Return the tasks of an environment, the main one first; one that names none has one."""
    return setup.spec.tasks or (registry.task_name(setup.env.id),)


def check_spaces(env_id: str, spec: EnvSpec, dataset: Dataset) -> None:
    """Refuse data whose observations or actions are not the environment's."""
    recorded = dataset.schema.spec
    if name := first_difference(spec, recorded):
        raise ConfigError(
            f"{env_id} has {name} {getattr(spec, name)}, the dataset {dataset.directory} {getattr(recorded, name)}"
        )
