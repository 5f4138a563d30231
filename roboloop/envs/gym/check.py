"""What a Gymnasium environment does wrong, seen before our adapter changes anything."""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from roboloop.core.errors import ConfigError
from roboloop.core.fields import MASK
from roboloop.core.raised import CRASHES, where
from roboloop.core.types import Array
from roboloop.envs.env import UNBOUNDED
from roboloop.envs.findings import Findings
from roboloop.envs.gym.world import SUCCESS
from roboloop.envs.spaces import Columns, columns, decoder, legal, observations

BIG_INFO = 100_000
"""Bytes of an info that are worth a warning."""
MOST_NODES = 100_000
"""Entries of an info that are counted."""
_NEW_RESET = "write reset(self, *, seed=None, options=None) and return (observation, info)"
_NEW_STEP = "return (observation, reward, terminated, truncated, info)"


class GymCheck:
    """Plays a Gymnasium environment with random legal actions and notes what it does wrong."""

    def __init__(self, env: gymnasium.Env[Any, Any], found: Findings) -> None:
        self._env, self._found = env, found
        self._rng = np.random.default_rng(0)
        self.num_steps, self.ended, self.busy_s = 0, False, 0.0

    def check_spaces(self) -> None:
        """Note spaces that are missing, broken or of a kind that cannot be used."""
        action, seen = (self._space(name) for name in ("action_space", "observation_space"))
        try:
            self._columns = columns(action)
            observations(seen, self._columns.choices)
        except ConfigError as error:
            raise self._found.give_up("space", str(error)) from None
        self._decode = decoder(action)
        self._seen = seen
        self._bounds(self._columns)
        for name, space in _boxes(seen):
            if bool((space.low > space.high).any()):
                text = f"observation_space{name} has low > high at index {_first(space.low > space.high)}"
                self._found.error("obs bounds", f"{text}: swap them", refuses=False)

    def _space(self, name: str) -> spaces.Space[Any]:
        try:
            space = getattr(self._env, name)
        except AttributeError:
            space = None
        if isinstance(space, spaces.Space):
            return space
        kind = f"{type(space).__module__}.{type(space).__name__}"
        text = f"there is no {name}" if space is None else f"{name} is a {kind}"
        raise self._found.give_up("space", f"{text}: set it to a space of gymnasium.spaces in __init__")

    def _bounds(self, of: Columns) -> None:
        low, high, number = np.asarray(of.low, float), np.asarray(of.high, float), np.asarray(of.choices) == 0
        if not len(low):
            raise self._found.give_up("action bounds", "action_space has no actions: give it at least one")
        limits = np.abs([low, high]).max(0)
        if not bool((limits < UNBOUNDED).all()):
            text = f"action_space is unbounded at index {_first(~(limits < UNBOUNDED))}"
            raise self._found.give_up("action bounds", f"{text}: give finite bounds, such as -1 to 1, and scale inside")
        wrong = number & ~(low < high)
        if wrong.any():
            k = _first(wrong)
            text = f"action_space has low {low[k]:g} and high {high[k]:g} at index {k}"
            raise self._found.give_up("action bounds", f"{text}: low must be below high")

    def check_render(self) -> None:
        """Note an environment that gives no pictures."""
        if getattr(self._env, "render_mode", None) == "rgb_array":
            return
        name = type(self._env.unwrapped).__name__
        text = f"no pictures: add 'rgb_array' to {name}.metadata['render_modes'] and take render_mode in __init__"
        self._found.warn("render", f"{text}; until then --video cannot be used")

    def play(self, steps: int, budget_s: float, horizon: int) -> None:
        """Play episodes until a number of steps or the time is over; the bounds of the actions are tried first."""
        began = time.monotonic()
        while self.num_steps < steps and time.monotonic() - began < budget_s:
            mask = self._reset(seed=self.num_steps)
            for t in range(1, min(horizon, steps - self.num_steps) + 1):
                mask, over = self._step(t, mask)
                self.num_steps += 1
                if over:
                    self.ended = True
                    break
                if time.monotonic() - began > budget_s:
                    break

    def _reset(self, seed: int) -> Any:
        began = time.perf_counter()
        try:
            out = self._env.reset(seed=seed)
        except TypeError as error:
            unknown = re.search(r"reset\(\).* unexpected keyword argument '(\w+)'", str(error))
            if not unknown:
                raise self._found.give_up("crash", f"reset(seed={seed}) raised {where(error)}") from error
            text = f"reset() takes no {unknown[1]}: that is the old Gym API"
            raise self._found.give_up("old reset", f"{text}; {_NEW_RESET}") from None
        except CRASHES as error:
            raise self._found.give_up("crash", f"reset(seed={seed}) raised {where(error)}") from error
        self.busy_s += time.perf_counter() - began
        if isinstance(out, tuple) and len(out) == 2 and not isinstance(out[1], Mapping):
            raise self._found.give_up("info", f"the info of reset() is {_named(out[1])}: return a dict")
        if not (isinstance(out, tuple) and len(out) == 2):
            text = f"reset() returned {_named(out)}, not (observation, info)"
            raise self._found.give_up("old reset", f"{text}: that is the old Gym API; {_NEW_RESET}")
        self._observation(self._seen, out[0], "the observation of reset()")
        return self._mask(*out)

    def _step(self, t: int, mask: Any) -> tuple[Any, bool]:
        """Take step ``t`` of the episode; return the mask of the next one and whether the episode is over."""
        action = self._decode(self._draw(t, mask))
        began = time.perf_counter()
        try:
            out = self._env.step(action)
        except CRASHES as error:
            text = f"step {t} with action {_short(action)} raised {where(error)}"
            raise self._found.give_up("crash", text) from error
        self.busy_s += time.perf_counter() - began
        if not (isinstance(out, tuple) and len(out) == 5):
            api = ": that is the old Gym API" if isinstance(out, tuple) and len(out) == 4 else ""
            raise self._found.give_up("old step", f"step() returned {_named(out)}, not 5 values{api}; {_NEW_STEP}")
        obs, reward, terminated, truncated, info = out
        self._observation(self._seen, obs, f"the observation of step {t}")
        self._reward(reward, t)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if np.ndim(flag):
                raise self._found.give_up("flags", f"{name} is an array in step {t}: return a bool")
            if not isinstance(flag, bool | np.bool_):
                self._found.warn("flags", f"{name} is a {type(flag).__name__}, not a bool: return bool({name})")
        if not isinstance(info, Mapping):
            raise self._found.give_up("info", f"the info of step {t} is {_named(info)}: return a dict")
        self._success(info, t)
        if self.num_steps < 10:
            self._size_of(info)
        return self._mask(obs, info), bool(terminated or truncated)

    def _reward(self, reward: Any, t: int) -> None:
        if np.ndim(reward) or not isinstance(reward, int | float | np.number | np.bool_ | np.ndarray):
            shape = f" of shape {np.shape(reward)}" if np.ndim(reward) else ""
            raise self._found.give_up(
                "reward", f"the reward of step {t} is a {type(reward).__name__}{shape}: return a float"
            )
        if not np.isfinite(reward):
            text = f"the reward of step {t} is {float(reward)}: return a finite number"
            self._found.error("reward", text)

    def _success(self, info: Mapping[str, Any], t: int) -> None:
        """Note a success that is no number; None says that nothing is known."""
        name = next((name for name in SUCCESS if name in info), "")
        value = info.get(name)
        if value is not None and (np.size(value) != 1 or np.asarray(value).dtype.kind not in "biuf"):
            text = f"info[{name!r}] of step {t} is {_short(value)!r}: give a bool or a number"
            raise self._found.give_up("success", text)

    def _mask(self, obs: Any, info: Mapping[str, Any]) -> Any:
        """Return which choices are allowed, where the environment says so."""
        if not any(self._columns.choices):
            return None
        mask = obs.get(MASK) if isinstance(obs, Mapping) else None
        return info.get(MASK) if mask is None else mask

    def _draw(self, t: int, mask: Any) -> Array:
        """Return the columns of an action: the lower bounds, the upper ones, then random; choices are legal ones."""
        low, high, choices = self._columns
        row = np.asarray(low if t == 1 else high if t == 2 else self._rng.uniform(low, high), np.float64)
        allowed = None if mask is None else legal(mask, choices)
        begin = 0
        for k, count in enumerate(choices):
            if count:
                options = np.arange(count) if allowed is None else np.flatnonzero(allowed[begin : begin + count])
                row[k] = row[k] if row[k] in options and t <= 2 else self._rng.choice(options)
                begin += count
        return row.astype(np.float32)

    def _observation(self, space: spaces.Space[Any], obs: Any, name: str) -> None:
        """Note an observation that its space does not have; part by part, so that the part can be named."""
        if isinstance(space, spaces.Dict | spaces.Tuple):
            parts = dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
            try:
                inner = {key: obs[key] for key in parts}
            except KeyError as error:
                text = f"{name} has no {error}, observation_space has {list(parts)}: return all parts"
                raise self._found.give_up("shape", text) from None
            except (LookupError, TypeError):
                raise self._found.give_up(
                    "shape", f"{name} is {_named(obs)}, observation_space has {list(parts)}: return all parts"
                ) from None
            for key, part in parts.items():
                self._observation(part, inner[key], f"{name}[{key!r}]")
        elif isinstance(space, spaces.Box):
            self._array(space, obs, name)
        elif not space.contains(obs):
            raise self._found.give_up("outside", f"{name} is {_short(obs)}, which is not in {space}: mend one of them")

    def _array(self, space: spaces.Box, obs: Any, name: str) -> None:
        array = np.asarray(obs)
        if array.dtype.kind not in "biuf":
            raise self._found.give_up("dtype", f"{name} has dtype {array.dtype}: return an array of {space.dtype}")
        if array.shape != space.shape:
            text = f"{name} has shape {array.shape}, observation_space has {space.shape}: mend one of them"
            raise self._found.give_up("shape", text)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            k = _first(~np.isfinite(array))
            self._found.error("finite", f"{name} is {array.ravel()[k]} at index {k}: return finite numbers")
            return
        if array.dtype != space.dtype:
            text = f"{name} has dtype {array.dtype}, observation_space has {space.dtype}"
            if array.dtype.kind == "f" and np.issubdtype(space.dtype, np.integer):
                self._found.error("dtype", f"{text}, so that fractions would be lost: mend one of them")
            else:
                self._found.warn("dtype", f"{text}: it is converted in each step")
        seen = array.astype(space.dtype) if array.dtype.kind == space.dtype.kind == "f" else array
        outside = (seen < space.low) | (seen > space.high)
        if outside.any():
            k = _first(outside)
            low, high = space.low.ravel()[k], space.high.ravel()[k]
            text = f"{name} is outside observation_space: {array.ravel()[k]:g} at index {k}, bounds {low:g} to {high:g}"
            lossy = np.issubdtype(space.dtype, np.integer)
            self._found.error("outside", f"{text}; widen the space or clip", refuses=bool(lossy))

    def _size_of(self, info: Mapping[str, Any]) -> None:
        """Note an info that takes longer to make than it is worth."""
        sizes = {key: _bytes(value, [MOST_NODES]) for key, value in info.items()}
        total = sum(sizes.values())
        if total < BIG_INFO:
            return
        biggest = max(sizes, key=lambda key: sizes[key])
        began = time.perf_counter()
        copy.copy({k: v.copy() if isinstance(v, np.ndarray | list | dict) else v for k, v in info.items()})
        cost_ms = 1e3 * (time.perf_counter() - began)
        text = f"info has {total / 1e6:.1f} MB per step, most of it in {biggest!r}; copying it takes {cost_ms:.2f} ms"
        self._found.warn("info", f"{text}: only success and action_mask are read, leave the rest out")


def _boxes(space: spaces.Space[Any], path: str = "") -> list[tuple[str, spaces.Box]]:
    """Return the boxes of a nested space, each with its path."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [box for key, part in items for box in _boxes(part, f"{path}[{key!r}]")]
    return [(path, space)] if isinstance(space, spaces.Box) else []


def _first(where_true: Array) -> int:
    return int(np.flatnonzero(where_true)[0])


def _named(value: Any) -> str:
    """Return what a value is, without the value."""
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _short(value: Any) -> str:
    text = " ".join(str(value.tolist() if isinstance(value, np.ndarray) else value).split())
    return text if len(text) <= 60 else f"{text[:60]}..."


def _bytes(value: Any, nodes: list[int]) -> int:
    """Return about how large a value is; ``nodes`` holds how many more entries are looked at."""
    nodes[0] -= 1
    if nodes[0] < 0:
        return 0
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    inner = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else []
    return sys.getsizeof(value) + sum(_bytes(part, nodes) for part in inner)
