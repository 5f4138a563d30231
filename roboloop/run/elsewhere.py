"""A run's policy in another environment than it was trained in: where, and whether it can act there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from roboloop.core.errors import ConfigError
from roboloop.core.fields import first_difference
from roboloop.core.flags import parse_flags
from roboloop.envs import registry
from roboloop.run import build
from roboloop.run.config import Experiment

_MAX_NAME = 100


def with_env(cfg: Experiment, env_id: str | None, flags: Sequence[str]) -> Experiment:
    """Return a run's config with another environment, or with other settings (``--env.KEY VALUE``) of its own."""
    check_flags(flags)
    if env_id is None and not flags:
        return cfg
    there = parse_flags(cfg, ["--env.id", env_id or cfg.env.id, *flags])
    there.env.check()
    if there.env.frame_stack != cfg.env.frame_stack:
        raise ConfigError(f"the policy sees {cfg.env.frame_stack} observations at once: leave env.frame_stack at that")
    known, spec = build.spec_of(cfg), build.spec_of(there)
    name = first_difference(known, spec)
    if name:
        what = f"{there.env.id} has {name} {getattr(spec, name)}, {cfg.env.id} {getattr(known, name)}"
        raise ConfigError(f"{what}: the policy cannot act there")
    return there


def check_flags(flags: Sequence[str]) -> None:
    """Refuse what is no setting of an environment."""
    for flag in flags:
        if flag.startswith("--") and not flag.startswith("--env."):
            raise ConfigError(f"unknown option {flag}")
    if flags and not flags[0].startswith("--"):
        raise ConfigError(f"unknown option {flags[0]}")


def name_of(env_id: str, flags: Sequence[str]) -> str:
    """Return a short path-safe name of an environment with such settings."""
    parts = [*([registry.task_name(env_id)] if env_id else []), *(flag.removeprefix("--env.") for flag in flags)]
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts))[:_MAX_NAME]
