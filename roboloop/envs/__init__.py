"""Environments behind one contract; no simulator is imported until an environment is made."""

from __future__ import annotations

from roboloop.core.types import Env
from roboloop.envs.config import EnvConfig
from roboloop.envs.registry import auxiliary_tasks, known_ids, make, scripted_policy, task_name

__all__ = ["Env", "EnvConfig", "auxiliary_tasks", "known_ids", "make", "scripted_policy", "task_name"]
