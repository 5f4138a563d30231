"""A group of environments stepped with one policy: every sampler, in whatever process, is made of these."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roboloop.core.errors import DataError, Diverged, WorkerLost
from roboloop.core.parts import split_evenly
from roboloop.core.raised import CRASHES, place_of
from roboloop.core.rng import derive, get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, Decision, Env, EpisodeEnd, Policy, Rollout, State
from roboloop.data.rollouts import lost_envs
from roboloop.envs.env import EnvLost, counted
from roboloop.sample.acting import Acting
from roboloop.sample.buffers import RolloutShape

IDLE, ACT, STEP, RESET = range(4)
PHASES = ("waiting for work", "in the policy", "in env.step", "in env.reset")


@dataclass(frozen=True)
class GroupPlan:
    """Which environments a group holds, and the names of its random streams."""

    index: int
    first_env: int
    num_envs: int
    seed: int
    restart: int = 0
    """How often this group has lost its process: a restarted group draws from other streams."""


class EnvBroken(WorkerLost):
    """An environment raised, or returned what no environment may return, more often than is allowed."""

    @property
    def shown(self) -> str:
        """Its first line, which names type and place of the exception; the traceback is for who catches it."""
        return str(self).partition("\n")[0]


def check_actions(action: Array, action_dim: int) -> None:
    """Refuse actions of a policy that is another environment's, or has diverged: no environment is at fault then."""
    if action.shape[1:] != (action_dim,):
        raise DataError(f"the policy gives actions of shape {action.shape[1:]}, the environment takes {(action_dim,)}")
    if not math.isfinite(action.sum()):
        raise Diverged("an action of the policy is not finite: training has diverged; the last good checkpoint is kept")


def _floats(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return what an observation is indexed by to reach each part of it that may hold NaN: the whole, or fields."""
    if dtype.names is None:
        return (...,) if dtype.kind == "f" else ()
    return tuple(name for name in dtype.names if dtype[name].base.kind == "f")


class EnvGroup:
    """Steps its environments in lock step; each is reset at its own episode's end with its own derived seed."""

    def __init__(self, make_env: Callable[[int], Env], plan: GroupPlan, shape: RolloutShape, max_faults: int) -> None:
        self.plan = plan
        self._make_env = make_env
        self._envs = self._make_envs()
        self._max_faults = max_faults
        self._stacked = shape.stacked
        self._obs_shape = tuple(shape.spec.obs_shape)
        self._floats = _floats(shape.spec.obs_dtype)
        self._rng = stream(plan.seed, "explore", plan.index, *([plan.restart] if plan.restart else []))
        self._acting = Acting(shape.spec, plan.num_envs, shape.frame_stack, shape.memory_size)
        self._episode = np.zeros(plan.num_envs, np.int64)
        self._length = np.zeros(plan.num_envs, np.int64)
        self._return = np.zeros(plan.num_envs)
        self._raw_return = np.zeros(plan.num_envs)
        self._success = np.full(plan.num_envs, np.nan)
        self._started = False
        self._has_values = False
        self._learns_from_any = False
        # environments in processes of their own step at the same time
        self._remote = [i for i, env in enumerate(self._envs) if hasattr(env, "prepare")]
        self.faults: list[str] = []
        """What environments did wrong since this was last emptied; each entry is one replaced environment."""
        self._num_faults = 0
        self._cut: list[int] = []
        self._lost: list[int] = []  # environments whose episodes were lost since the last rollout
        self.beat: Callable[[int, int], None] = lambda phase, env: None
        """Called before everything that may hang, with the phase and the environment."""

    def _make_envs(self) -> list[Env]:
        return [self._make_env(self.plan.first_env + env) for env in range(self.plan.num_envs)]

    def skip_to(self, episode: Array) -> None:
        """Number the coming episodes from here on: those before are lost with an earlier process."""
        self._episode[:] = episode

    def _reset(self, env: int) -> None:
        self.beat(RESET, env)
        seed = derive(self.plan.seed, "episode", self.plan.first_env + env, int(self._episode[env]))
        obs = self._envs[env].reset(seed)
        self._check(obs, 0.0)
        self._acting.begin(env, obs)
        self._length[env] = 0
        self._return[env] = self._raw_return[env] = 0.0
        self._success[env] = np.nan

    def _check(self, obs: Array, reward: float) -> None:
        if np.shape(obs) != self._obs_shape:
            raise ValueError(f"returned an observation of shape {np.shape(obs)}, its spec says {self._obs_shape}")
        if not np.isfinite(reward):
            raise ValueError(f"returned the reward {reward}")
        if not self._is_finite(obs):
            raise ValueError("returned an observation that is not finite")

    def _is_finite(self, obs: Array) -> bool:
        parts = (obs[part] for part in self._floats)
        return all(bool(np.isfinite(part.sum()) or np.isfinite(part).all()) for part in parts)

    @property
    def _seen(self) -> Array:
        """Observations as they are kept."""
        return self._acting.stack.stacked if self._stacked else self._acting.stack.newest

    def collect(self, policy: Policy, out: Rollout) -> Rollout:
        """Fill a rollout with steps of a policy that explores; return it with the episodes that ended."""
        out.episodes.clear()
        self._cut, self._lost = self._lost, []
        if not self._started:  # a restored group is in the middle of its episodes
            self._begin(out)
            self._started = True
        out.memory[:] = self._acting.memory
        out.version[:] = policy.version
        self._acting.policy = policy
        for t in range(len(out.reward)):
            self.beat(ACT, 0)
            decision = self._acting.decide(True, self._rng)
            out.obs[t] = self._seen
            self._write(decision, out, t, slice(None))
            self._has_values = decision.value is not None
            # where a robot's limits changed an action, the one really sent is the one to learn from; but one that
            # learns from its own probabilities must see its own
            self._learns_from_any = decision.log_prob is None
            self._step_all(t, policy, out)
        out.obs[-1] = self._seen
        out.value[-1] = self._values(policy, slice(None))
        self.beat(IDLE, 0)
        return out._replace(cut=tuple(self._cut), first_env=self.plan.first_env)

    def _begin(self, out: Rollout) -> None:
        """Begin the first episodes."""
        for env in range(len(self._envs)):
            self._reset_safely(env, -1, out)

    def _step_all(self, t: int, policy: Policy, out: Rollout) -> None:
        """Take the step of row t, for which actions have been decided, in all environments."""
        for env in self._remote:
            self._envs[env].prepare(out.action[t, env])  # type: ignore[attr-defined]
        for env in range(len(self._envs)):
            self._step(env, t, policy, out)

    def _write(self, decision: Decision, out: Rollout, t: int, envs: slice) -> None:
        check_actions(decision.action, out.action.shape[-1])
        out.action[t, envs] = decision.action
        out.log_prob[t, envs] = 0.0 if decision.log_prob is None else decision.log_prob
        out.value[t, envs] = 0.0 if decision.value is None else decision.value

    def _step(self, env: int, t: int, policy: Policy, out: Rollout) -> None:
        self.beat(STEP, env)
        try:
            obs, reward, terminated, truncated, info = self._envs[env].step(out.action[t, env])
            self._check(obs, reward)
        except CRASHES as error:
            self._replace(env, t, error, policy, out)
            return
        if self._learns_from_any:
            out.action[t, env] = info.get("sent_action", out.action[t, env])
        raw_reward = info.get("raw_reward", reward)
        out.reward[t, env] = reward
        out.raw_reward[t, env] = raw_reward
        out.terminated[t, env] = terminated
        out.truncated[t, env] = truncated
        self._acting.see(env, obs, raw_reward)
        self._length[env] += 1
        self._return[env] += reward
        self._raw_return[env] += raw_reward
        self._success[env] = np.fmax(self._success[env], info.get("success", np.nan))
        if terminated or truncated:
            # before the observation is overwritten by the next episode's first
            last_value = self._values(policy, slice(env, env + 1)) if truncated and not terminated else 0.0
            end = self._episode_end(env, t, float(last_value))
            out.episodes.append(end._replace(counted=counted(info) or None))
            self._episode[env] += 1
            self._reset_safely(env, t, out)

    def _values(self, policy: Policy, envs: slice) -> Array | float:
        """Return the values of the present observations where the policy has any; nothing random is drawn."""
        if not self._has_values:
            return 0.0
        value = policy.act(self._acting.stack.stacked[envs], self._acting.memory[envs], False, self._rng).value
        assert value is not None
        return value if envs.start is None else float(value[0])

    def _episode_end(self, env: int, t: int, last_value: float, lost: bool = False) -> EpisodeEnd:
        return EpisodeEnd(
            env=self.plan.first_env + env,
            episode=int(self._episode[env]),
            length=int(self._length[env]),
            episode_return=float(self._raw_return[env]),
            success=float(self._success[env]),
            t=t,
            last_obs=self._seen[env].copy(),
            last_value=last_value,
            shaped_return=float(self._return[env]),
            lost=lost,
        )

    def _reset_safely(self, env: int, t: int, out: Rollout) -> None:
        """Begin the next episode; an environment that breaks in it is replaced until one works."""
        try:
            self._reset(env)
        except CRASHES as error:
            self._renew(env, t, error, out)

    def _replace(self, env: int, t: int, error: BaseException, policy: Policy, out: Rollout) -> None:
        """Close the broken episode where it was last seen whole, and take this step again in a new environment."""
        if self._length[env] > 0:  # an episode that had no step yet leaves nothing to close
            if t > 0:
                out.truncated[t - 1, env] = True
                out.episodes.append(self._episode_end(env, t - 1, float(out.value[t, env]), lost=True))
            else:
                self._cut.append(self.plan.first_env + env)
        self._episode[env] += 1
        self._renew(env, t, error, out)
        if t == 0:
            out.memory[env] = 0.0
        row = slice(env, env + 1)
        out.obs[t, env] = self._seen[env]
        self._write(self._acting.decide(True, self._rng, row), out, t, row)
        self._step(env, t, policy, out)

    def _renew(self, env: int, t: int, error: BaseException, out: Rollout) -> None:
        self._swap(env, error, out.action[t, env].tolist() if t >= 0 else None)
        self._reset_safely(env, t, out)

    def _swap(self, env: int, error: BaseException, action: list[float] | None = None) -> None:
        """Put a new environment in the place of a broken one, unless too many have broken."""
        self._note_fault(
            f"env {self.plan.first_env + env} broke: {error} ({place_of(error)}, last action {action})", error
        )
        with contextlib.suppress(Exception):
            self._envs[env].close()
        self._envs[env] = self._make_env(self.plan.first_env + env)

    def _note_fault(self, what: str, error: BaseException) -> None:
        """Remember a fault, unless there have been too many."""
        self._num_faults += 1
        if self._num_faults > self._max_faults:
            trace = "".join(traceback.format_exception(error)).strip()
            raise EnvBroken(f"{what}; {self._num_faults} faults are more than sample.restarts allows\n{trace}")
        self.faults.append(what)

    def state(self) -> State:
        """Return running episodes, simulator states and the exploration stream."""
        return {
            "envs": self._env_states() if self._started else [],
            "stack": self._acting.stack.state(),
            "memory": self._acting.memory.copy(),
            "rng": get_rng_state(self._rng),
            "episode": self._episode.copy(),
            "length": self._length.copy(),
            "return": self._return.copy(),
            "raw_return": self._raw_return.copy(),
            "success": self._success.copy(),
            "started": self._started,
            "lost": list(self._lost),
        }

    def _env_states(self) -> list[State]:
        return [self._env_state(env) for env in range(len(self._envs))]

    def _env_state(self, env: int) -> State:
        """Return the state of an environment; one whose process is gone begins its next episode in a new one."""
        while True:
            try:
                return self._envs[env].get_state()
            except EnvLost as error:
                self._swap(env, error)
                if self._length[env] > 0:
                    self._lost.append(self.plan.first_env + env)
                    self._length[env] = 0
                self._episode[env] += 1
                with contextlib.suppress(EnvLost):  # the next attempt notices it
                    self._reset(env)

    def load(self, state: State) -> None:
        """Continue exactly where ``state`` was taken."""
        if state["memory"].shape != self._acting.memory.shape:
            had, has = (memory.shape[1] for memory in (state["memory"], self._acting.memory))
            raise DataError(f"the running episodes have a policy's memory of {had} numbers, the policy now has {has}")
        self._started = bool(state["started"])
        envs = range(self.plan.first_env, self.plan.first_env + self.plan.num_envs)
        self._lost = list(lost_envs(state.get("lost", []), envs))
        self._acting.stack.load(state["stack"])
        set_rng_state(self._rng, state["rng"])
        self._acting.memory[:] = state["memory"]
        for name in ("episode", "length", "return", "raw_return", "success"):
            getattr(self, f"_{name}")[:] = state[name]
        self._load_envs(state["envs"])

    def _load_envs(self, states: list[State]) -> None:
        for env, state in enumerate(states[: len(self._envs)]):
            self._set_env_state(env, state)

    def _set_env_state(self, env: int, state: State) -> None:
        while True:
            try:
                self._envs[env].set_state(state)
            except EnvLost as error:  # a new one goes on in the same state
                self._swap(env, error)
            else:
                return

    def close(self) -> None:
        """Close the simulators."""
        for env in self._envs:
            with contextlib.suppress(Exception):  # a broken simulator may not even close
                env.close()


MakeGroup = Callable[[Callable[[int], Env], GroupPlan, RolloutShape, int], EnvGroup]
"""From what makes an environment, the group's plan, the rollout's shape and the faults that are allowed."""


def plans(num_envs: int, groups: int, seed: int) -> list[GroupPlan]:
    """Return how the environments fall into groups; the first ones have one more where they do not split evenly."""
    return [GroupPlan(g, envs.start, len(envs), seed) for g, envs in enumerate(split_evenly(num_envs, groups))]
