"""Datasets in Python: record by acting, with a run's policy, a scripted expert or at random."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from roboloop.api.envs import Known
from roboloop.api.keys import flags_of, nested
from roboloop.api.request import PathLike
from roboloop.api.run import Run, silent
from roboloop.run.posthoc import show


def record(source: Run | PathLike, *, episodes: int, quiet: bool = False, **options: Any) -> Path:
    """Record episodes and return the dataset's folder.

    ``source`` is a run, or with ``expert=True`` or ``random=True`` the id of an environment. Other options are those of
    ``roboloop record``; ``env`` is an id, or keys such as ``{"goal_mode": "fixed"}``. The same call goes on with a
    recording that was interrupted.
    """
    from roboloop.run.record import recorded

    known = source._known if isinstance(source, Run) else Known()
    env = options.pop("env", None)
    keys = nested(env) if isinstance(env, dict) else {"id": env} if env else {}
    words = [os.fspath(source), "--episodes", str(episodes)]
    for name, value in options.items():
        if value is not None and value is not False:
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [f"{flag}={value}"]
    if env_id := keys.pop("id", None):
        words += ["--env", env_id]
    with known.plus(words).used():
        done = recorded([*words, *flags_of(keys, "env.")], silent if quiet else show)
    if done.is_stopped:
        raise KeyboardInterrupt("stopped: the same call goes on")
    return done.directories[0]
