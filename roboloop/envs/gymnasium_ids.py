"""Our tasks under Gymnasium's ids, such as ``roboloop/panda-reach-v0``; registering them imports no simulator.

``import roboloop`` registers them: at once, or when Gymnasium is imported.
"""

from __future__ import annotations

import re

from roboloop.envs.registry import SUITES, find_suite

NAMESPACE = "roboloop"
_MAKE = "roboloop.api.envs:make_registered"
_VERSION = re.compile(r"-v\d+$")


def gymnasium_id(env_id: str) -> str:
    """Return the id that a task has with Gymnasium; one that names its version keeps it."""
    plain = env_id.replace("/", "-")
    return f"{NAMESPACE}/{plain if _VERSION.search(plain) else f'{plain}-v0'}"


def ids() -> dict[str, str]:
    """Return our id of each task by that of Gymnasium; what is a set of tasks, or Gymnasium's already, has none."""
    ours = [suite for suite in map(find_suite, SUITES) if not suite.is_gymnasiums]
    found = [f"{suite.name}/{task}" for suite in ours for task in suite.ids if task not in suite.sets]
    return {gymnasium_id(env_id): env_id for env_id in found}


def register() -> None:
    """Register all of them; those that are registered stay as they are."""
    from gymnasium.envs.registration import register as register_one
    from gymnasium.envs.registration import registry

    for name, env_id in ids().items():
        if name not in registry:
            register_one(name, entry_point=_MAKE, kwargs={"env_id": env_id}, order_enforce=False)
