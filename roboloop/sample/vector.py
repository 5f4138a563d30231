"""A group whose environments are one simulator: one call steps them all, and all bookkeeping is over whole arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.raised import CRASHES, place_of
from roboloop.core.rng import derive
from roboloop.core.types import Array, Env, Policy, Rollout, State
from roboloop.envs.vector import VectorWorld
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import RESET, STEP, EnvGroup, GroupPlan

VALUE_ROWS = 32
"""Last observations whose values are asked for at once: policies keep a network for few numbers of rows."""


class VectorGroup(EnvGroup):
    """Steps B environments by one call of their simulator."""

    def __init__(
        self,
        make_world: Callable[[int], VectorWorld],
        make_env: Callable[[int], Env],
        plan: GroupPlan,
        shape: RolloutShape,
        max_faults: int,
    ) -> None:
        self._make_world = partial(make_world, plan.num_envs)
        self._world = self._make_world()
        super().__init__(make_env, plan, shape, max_faults)

    def _make_envs(self) -> list[Env]:
        return []

    def _seeds(self, envs: Array) -> list[int]:
        """Return the seed of the coming episode of each of these environments, as that of one alone would be."""
        first, seed = self.plan.first_env, self.plan.seed
        return [derive(seed, "episode", first + env, int(self._episode[env])) for env in envs.tolist()]

    def _clear(self, envs: Array) -> None:
        """Forget all of the episodes that ended, but not what is seen."""
        self._acting.memory[envs] = 0.0
        self._length[envs] = 0
        self._return[envs] = self._raw_return[envs] = 0.0
        self._success[envs] = np.nan

    def _begin(self, out: Rollout) -> None:
        """Begin an episode everywhere; a simulator that breaks in it is replaced until one works."""
        every = np.arange(self.plan.num_envs)
        while True:
            self.beat(RESET, 0)
            try:
                obs = self._world.reset(self._seeds(every))
                self._check_all(obs, np.zeros(len(every)))
            except CRASHES as error:
                self._renew_world(error)
                continue
            self._acting.stack.reset_some(every, obs)
            self._clear(every)
            return

    def _check_all(self, obs: Array, reward: Array) -> None:
        wanted = (self.plan.num_envs, *self._obs_shape)
        if obs.shape != wanted:
            raise ValueError(f"returned observations of shape {obs.shape}, its spec says {wanted}")
        if not np.isfinite(reward).all():
            raise ValueError(f"returned the reward {reward[~np.isfinite(reward)][0]}")
        if not self._is_finite(obs):
            raise ValueError("returned observations that are not finite")

    def _step_all(self, t: int, policy: Policy, out: Rollout) -> None:
        self.beat(STEP, 0)
        try:
            result = self._world.step(out.action[t])
            self._check_all(result.obs, result.reward)
        except ConfigError:
            raise  # another simulator of the same kind would not do either
        except CRASHES as error:
            self._replace_all(t, error, policy, out)
            return
        waited = np.flatnonzero(result.is_reset)
        out.reward[t] = out.raw_reward[t] = result.reward
        out.terminated[t] = result.terminated
        out.truncated[t] = result.truncated | result.is_reset
        self._acting.see_all(result.obs, out.raw_reward[t])
        self._length += ~result.is_reset
        self._return += result.reward
        self._raw_return += result.reward
        self._success = np.fmax(self._success, result.success)
        if waited.size:
            self._note_resets(waited, t, result.obs, out)
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            self._end_episodes(ended, t, policy, out)

    def _note_resets(self, envs: Array, t: int, obs: Array, out: Rollout) -> None:
        """Note that row t is no step of these environments: what they show is the first observation of an episode."""
        self._acting.stack.reset_some(envs, obs[envs])
        self._clear(envs)
        for env in envs.tolist():
            end = self._episode_end(env, t, 0.0, lost=True)
            out.episodes.append(end._replace(episode=end.episode - 1))

    def _end_episodes(self, envs: Array, t: int, policy: Policy, out: Rollout) -> None:
        """Close episodes at their true last observations, and begin those that follow."""
        last_value = np.zeros(self.plan.num_envs)
        cut_off = envs[~out.terminated[t, envs]]
        if self._has_values and cut_off.size:
            last_value[cut_off] = self._values_of(policy, cut_off)
        out.episodes.extend(self._episode_end(env, t, float(last_value[env])) for env in envs.tolist())
        self._episode[envs] += 1
        self._clear(envs)
        self.beat(RESET, 0)
        try:
            begun = self._world.begin(envs, partial(self._seeds, envs))
            if begun is not None:
                self._check_all(begun, np.zeros(len(begun)))
                self._acting.stack.reset_some(envs, begun[envs])
        except CRASHES as error:
            self._lose_all(t, out, np.broadcast_to(self._values(policy, slice(None)), len(self._length)))
            self._renew_world(error)
            self._begin(out)

    def _values_of(self, policy: Policy, envs: Array) -> Array:
        """Return the values of what some environments show now; nothing random is drawn."""
        found = []
        for begin in range(0, len(envs), VALUE_ROWS):
            some = envs[begin : begin + VALUE_ROWS]
            rows = np.concatenate((some, np.repeat(some[:1], VALUE_ROWS - len(some))))
            value = policy.act(self._acting.stack.stacked[rows], self._acting.memory[rows], False, self._rng).value
            assert value is not None
            found.append(value[: len(some)])
        return np.concatenate(found)

    def _lose_all(self, t: int, out: Rollout, value: Array) -> None:
        """Close all running episodes at row t, behind which their simulator is gone; -1 is before the first."""
        for env in np.flatnonzero(self._length > 0).tolist():
            if t >= 0:
                out.truncated[t, env] = True
                out.episodes.append(self._episode_end(env, t, float(value[env]), lost=True))
            else:
                self._cut.append(self.plan.first_env + env)
        self._episode += 1

    def _replace_all(self, t: int, error: BaseException, policy: Policy, out: Rollout) -> None:
        """Close the broken episodes where they were last seen whole, and take this step again in a new simulator."""
        self._lose_all(t - 1, out, out.value[t])
        self._renew_world(error)
        self._begin(out)
        if t == 0:
            out.memory[:] = 0.0
        out.obs[t] = self._seen
        self._write(self._acting.decide(True, self._rng), out, t, slice(None))
        self._step_all(t, policy, out)

    def _renew_world(self, error: BaseException) -> None:
        first = self.plan.first_env
        self._note_fault(f"envs {first} to {first + self.plan.num_envs - 1} broke: {error} ({place_of(error)})", error)
        with contextlib.suppress(Exception):
            self._world.close()
        self._world = self._make_world()

    def _env_states(self) -> list[State]:
        """Return the simulator's state, if it can save any."""
        return [self._world.get_state()] if self._world.can_save else []

    def _load_envs(self, states: list[State]) -> None:
        """Restore the simulator; where nothing was saved, running episodes are lost and others begin."""
        if states and self._world.can_save:
            self._world.set_state(states[0])
        elif self._started:
            self._lost += [self.plan.first_env + env for env in np.flatnonzero(self._length > 0).tolist()]
            self._episode += 1
            self._started = False

    def close(self) -> None:
        """Close the simulator."""
        with contextlib.suppress(Exception):
            self._world.close()
