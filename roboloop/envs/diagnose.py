"""Everything that ``envs check`` looks at, and the short form that ``train`` runs first."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import UserError, needs_extra
from roboloop.core.fields import MASK
from roboloop.core.raised import where
from roboloop.core.resolve import resolve
from roboloop.core.shared_state import random_state_kept
from roboloop.core.text import printable
from roboloop.core.types import Array, Env, EnvSpec, State
from roboloop.envs import check, registry
from roboloop.envs.config import EnvConfig
from roboloop.envs.findings import BUDGET_S, Findings, Unusable
from roboloop.envs.headless import usable_backend
from roboloop.envs.patience import TooLong, patience

CONTRACT_STEPS = 60
FEWEST_STEPS = 4
"""Where a step takes long."""
PLAYS = 7
"""About a third of how often an episode is played: what is slower than that is compared over fewer steps."""
SPACES_STEPS = 6
"""Calls by which ``check_spaces`` looks, and which tell how long a step takes."""
SHORT_STEPS = 5
SHORT_HORIZON = 50
"""Decisions of the episodes whose end is checked."""


class EnvFacts(NamedTuple):
    """What was measured of an environment."""

    spec: EnvSpec
    steps_per_s: float

    def __str__(self) -> str:
        spec = self.spec
        names = spec.obs_dtype.names
        seen = ", ".join(names) if names else f"{spec.obs_dtype} {spec.obs_shape}"
        low, high = min(spec.action_low), max(spec.action_high)
        acts = f"{spec.action_dim} in [{low:g}, {high:g}]" if spec.is_continuous else f"choices {spec.action_choices}"
        return (
            f"{self.steps_per_s:,.0f} steps/s in one process, observations {seen}, actions {acts}, "
            f"horizon {spec.max_episode_steps}"
        )


class LegalActions:
    """An ``Env`` with action masks whose illegal choices are replaced by the next legal ones."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._obs: Array = np.zeros(())

    @property
    def spec(self) -> EnvSpec:
        """The environment's own."""
        return self._env.spec

    def reset(self, seed: int) -> Array:
        """Begin an episode and remember its mask."""
        self._obs = self._env.reset(seed)
        return self._obs

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take the nearest legal action."""
        action, begin = np.array(action, np.float32), 0
        for k, count in enumerate(self.spec.action_choices):
            if count:
                options = np.flatnonzero(self._obs[MASK][begin : begin + count])
                wanted = round(float(np.clip(action[k], 0, count - 1)))
                action[k] = min(options, key=lambda option: (option - wanted) % count)
                begin += count
        out = self._env.step(action)
        self._obs = out[0]
        return out

    def render(self) -> Array:
        """Return the environment's own picture."""
        return self._env.render()

    def get_state(self) -> State:
        """Return the environment's state and the last observation."""
        return {"env": self._env.get_state(), "obs": self._obs.copy()}

    def set_state(self, state: State) -> None:
        """Restore both."""
        self._env.set_state(state["env"])
        self._obs = state["obs"]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def examine(cfg: EnvConfig, found: Findings, steps: int) -> EnvFacts | None:
    """Check all tasks of an environment; none where it is too broken to be measured."""
    facts = None
    with _patiently(cfg, found):
        for column, task in enumerate(_tasks(cfg)):
            _look_inside(task, cfg, found, steps, False)
            if any(finding.refuses for finding in found.errors):
                return None
            facts = _contract(cfg, column, found, steps)
        return facts
    return None


def first_look(cfg: EnvConfig, found: Findings) -> None:
    """Take a few steps in an environment of the user's own; no random stream of this process is changed."""
    suite = registry.suite_of(cfg)
    if registry.is_ours(registry.split(cfg.id)[0]) and not suite.is_gymnasiums and not cfg.reward:
        return  # ours are checked by our tests
    with _patiently(cfg, found), random_state_kept():
        for column, task in enumerate(_tasks(cfg)):
            _look_inside(task, cfg, found, SHORT_STEPS, True)
            if not any(finding.refuses for finding in found.errors):
                _short_contract(cfg, column, found)


@contextmanager
def _patiently(cfg: EnvConfig, found: Findings) -> Iterator[None]:
    """End where nothing more can be checked, and where it takes too long."""
    try:
        with patience(f"checking {printable(cfg.id)}"):
            yield
    except TooLong as error:
        found.error("time", str(error))
    except Unusable:
        pass


def _tasks(cfg: EnvConfig) -> tuple[str, ...]:
    return registry.task_set(cfg.id) or (registry.split(cfg.id)[1],)


def _look_inside(task: str, cfg: EnvConfig, found: Findings, steps: int, short: bool) -> None:
    """Check what only the suite's own interface shows."""
    suite = registry.suite_of(cfg)
    if suite.examine is not None:
        with usable_backend(), needs_extra(f"suite {suite.name!r}", suite.packages, suite.name):
            resolve(suite.examine)(task, registry.complete(cfg), found, steps, short)


def _maker(cfg: EnvConfig, column: int) -> Callable[[], Env]:
    def make() -> Env:
        env = registry.make(cfg, column=column)
        names = env.spec.obs_dtype.names
        return LegalActions(env) if names and MASK in names else env

    return make


@contextmanager
def _kept(found: Findings, kind: str, hint: str) -> Iterator[None]:
    """Note a broken contract as an error, with what to change."""
    try:
        yield
    except check.ContractBroken as broken:
        found.error(kind, f"{broken}; {hint}", refuses=False)


_SEED = "draw all random numbers from self.np_random after super().reset(seed=seed)"
_SEED_COST = "a resumed run does not go on as it would have"


def _check_spaces(env: Env, found: Findings) -> None:
    try:
        check.check_spaces(env)
    except check.ContractBroken as broken:
        raise found.give_up("contract", f"{broken}; see Env in roboloop/core/types.py") from None


@contextmanager
def _opened(make: Callable[[], Env], found: Findings) -> Iterator[Env]:
    """Make and close an environment; what its own code raises meanwhile is one line."""
    with found.during("making the environment"):
        env = make()
    try:
        with found.during("the environment"):
            yield env
    finally:
        with found.during("close()"):
            env.close()


def _short_contract(cfg: EnvConfig, column: int, found: Findings) -> None:
    with _opened(_maker(cfg, column), found) as env:
        _check_spaces(env, found)
        with _kept(found, "seeding", f"{_SEED}: {_SEED_COST}"):
            check.check_same_seed(env, env, SHORT_STEPS)


def _contract(cfg: EnvConfig, column: int, found: Findings, steps: int) -> EnvFacts:
    make = _maker(cfg, column)
    with _opened(make, found) as env, _opened(make, found) as other:
        began = time.monotonic()
        _check_spaces(env, found)
        plays = _steps_of_a_play((time.monotonic() - began) / SPACES_STEPS)
        with _kept(found, "seeding", f"{_SEED}: {_SEED_COST}"):
            check.check_same_seed(env, other, plays)
        try:
            check.check_other_seed(env, plays)
        except check.ContractBroken:
            found.warn("other seed", f"two seeds gave the same episode: if anything in it is random, {_SEED}")
        with _kept(found, "owned", "return a copy"):
            check.check_observations_are_owned(env)
        if found.has("seeding"):  # what cannot be repeated cannot be compared
            return EnvFacts(env.spec, _pace(env, found, steps))
        with _kept(found, "clipping", "clip actions to action_low and action_high"):
            check.check_clipping(env)
        with _kept(found, "state", f"get_state() must hold all that an episode depends on: {_SEED_COST}"):
            check.check_state(make, env, plays)
        _picture(env, found)
        facts = EnvFacts(env.spec, _pace(env, found, steps))
    short = min(SHORT_HORIZON, plays) * cfg.action_repeat
    brief = dataclasses.replace(cfg, max_episode_steps=min(short, _horizon(facts.spec)))
    with found.during("the environment"), _kept(found, "end", "truncate at the horizon and refuse further steps"):
        check.check_end(_maker(brief, column), own_clock=registry.suite_of(cfg).is_gymnasiums)
    return facts


def _steps_of_a_play(step_s: float) -> int:
    """Return how many steps of an episode are compared: fewer where they take long, since it is played many times."""
    return int(np.clip(BUDGET_S / PLAYS / max(step_s, 1e-9), FEWEST_STEPS, CONTRACT_STEPS))


def _horizon(spec: EnvSpec) -> int:
    return int(spec.protocol.get("horizon", spec.max_episode_steps))


def _picture(env: Env, found: Findings) -> None:
    """Note what keeps videos from being made; an environment need not have any."""
    try:
        check.check_picture(env)
    except check.ContractBroken as broken:
        found.warn("render", f"{broken}: --video may show nothing useful")
    except UserError as error:
        found.warn("render", f"no pictures, so that --video cannot be used: {error}")
    except Exception as error:
        found.warn("render", f"no pictures, so that --video cannot be used: render() raised {where(error)}")


def _pace(env: Env, found: Findings, steps: int) -> float:
    """Play with random actions and return steps per second, resets included."""
    actions = check.random_actions(env, steps, 1)
    began, done, t = time.perf_counter(), 0, 0
    with found.during("reset"):
        env.reset(0)
    while done < steps and time.perf_counter() - began < BUDGET_S:
        t += 1
        with found.during(f"step {t}"):
            obs, reward, terminated, truncated, _ = env.step(actions[done])
            if not np.isfinite(reward):
                found.error("reward", f"the reward of step {t} is {reward}: return a finite number")
            if not all(bool(np.isfinite(part).all()) for part in check.parts_of(obs)):
                found.error("finite", f"the observation of step {t} is not finite: return finite numbers")
            done += 1
            if terminated or truncated:
                t = 0
                env.reset(done)
    return done / (time.perf_counter() - began)
