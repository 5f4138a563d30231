"""What makes the groups of an environment."""

from __future__ import annotations

from functools import partial

from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.sample.group import EnvGroup, MakeGroup


def group_maker(cfg: EnvConfig) -> MakeGroup:
    """Return what makes groups: of single environments, or of one simulator each where the suite has such."""
    if (make_world := registry.vector_maker(cfg)) is None:
        return EnvGroup
    from roboloop.sample.vector import VectorGroup

    return partial(VectorGroup, make_world)
