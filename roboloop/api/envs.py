"""Environments in Python: ours as Gymnasium's, and anybody's class or function in place of an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from roboloop.api.keys import Keys, applied, nested
from roboloop.core.errors import ConfigError
from roboloop.core.vouched import vouched
from roboloop.envs import gymnasium_ids, registry
from roboloop.run.config import Experiment

if TYPE_CHECKING:
    from roboloop.envs.as_gymnasium import GymnasiumEnv

MAIN = "gym/__main__:"
"""Beginning of the id of an environment that only this process can make."""


def make(env_id: str, render_mode: str | None = None, **options: Any) -> GymnasiumEnv:
    """Make an environment as a ``gymnasium.Env``; options are its config keys, such as ``action_repeat=2``."""
    with vouched.during([env_id]):
        return _made(env_id, render_mode, options)


def make_registered(env_id: str, render_mode: str | None = None, **options: Any) -> GymnasiumEnv:
    """Make one of our tasks for ``gymnasium.make``, which may have its arguments from a file: none is vouched for."""
    if env_id not in gymnasium_ids.ids().values():
        raise ConfigError(f"{env_id!r} is none of the tasks that roboloop registers: leave env_id out")
    return _made(env_id, render_mode, options)


def _made(env_id: str, render_mode: str | None, options: Keys) -> GymnasiumEnv:
    from roboloop.envs.as_gymnasium import GymnasiumEnv

    keys = nested(options)
    for name in ("num_envs", "frame_stack"):
        if name in keys:
            raise ConfigError(f"rl.make makes one environment with single observations: {name} is Gymnasium's to add")
    if render_mode not in (None, "rgb_array"):
        raise ConfigError(f"render_mode must be 'rgb_array' or None, not {render_mode!r}")
    cfg = applied(Experiment(), {"env": {"id": env_id, **keys}}).env
    if registry.task_set(env_id):
        raise ConfigError(f"{env_id} is a set of tasks: make one of them, such as {_first_of(env_id)}")
    return GymnasiumEnv(registry.make(cfg), render_mode)


def _first_of(env_id: str) -> str:
    return f"{registry.split(env_id)[0]}/{registry.task_set(env_id)[0]}"


class Known(NamedTuple):
    """What a call was given, and a run's handle remembers: words vouched for, and environments of this process."""

    words: frozenset[str] = frozenset()
    makers: Mapping[str, Callable[..., Any]] = {}
    trust: bool = False

    @contextmanager
    def used(self) -> Iterator[None]:
        """Vouch for the words and know the environments while this is entered."""
        with vouched.during(self.words, self.trust):
            if not self.makers:
                yield
                return
            from roboloop.envs.gym.source import given

            with given(self.makers):
                yield

    def plus(
        self,
        words: Iterable[str] = (),
        makers: Mapping[str, Callable[..., Any]] | None = None,
        trust: bool = False,
    ) -> Known:
        """Return this and more."""
        return Known(self.words | set(words), {**self.makers, **(makers or {})}, self.trust or trust)


def env_section(env: Any, saved_id: str = "") -> tuple[Keys, dict[str, Callable[..., Any]]]:
    """Return the keys that ``env=`` stands for, and the environments among them that only this process can make.

    ``saved_id`` is that of a run to go on with: what is given now makes its environment, if it has its name or none.
    """
    if isinstance(env, Mapping):
        rest = {key: value for key, value in env.items() if key != "id"}
        keys, makers = env_section(env["id"], saved_id) if "id" in env else ({}, {})
        return {**keys, **rest}, makers
    if isinstance(env, str):
        return {"id": env}, {}
    if not callable(env):
        what = f"an id, a class or a function that makes an environment, not a {type(env).__name__}"
        raise ConfigError(f"env must be {what}: roboloop makes as many as it needs")
    from roboloop.envs.gym.source import importable, name_of

    saved, name = saved_id.removeprefix(MAIN), getattr(env, "__name__", "")
    if saved != saved_id and (name == saved or not name.isidentifier()):  # a lambda has no name of its own
        return {}, {saved: env}
    if path := importable(env):
        return {"id": f"gym/{path}"}, {}
    return {"id": f"{MAIN}{name_of(env)}"}, {name_of(env): env}


def check_processes(config: Experiment) -> None:
    """Refuse other processes for an environment that they cannot make."""
    if not config.env.id.startswith(MAIN):
        return
    sample = config.sample
    wanted = {
        "sample.workers": sample.workers > 0, "sample.inference": sample.inference != "workers",
        "sample.real_time": sample.real_time == "process", "eval.background": config.eval.background,
    }  # fmt: skip
    if key := next((key for key, value in wanted.items() if value), None):
        name = config.env.id.removeprefix(MAIN)
        why = "is defined in this script or notebook, where no other process finds it"
        raise ConfigError(f"env {name} {why}: put it into a module, or leave {key} at its default")
