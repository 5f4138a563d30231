"""The serial sampler: one or several environments stepped in this process. It is the specification of all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roboloop.core.rng import derive, get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, Env, EpisodeEnd, Policy, Rollout, State
from roboloop.sample.stack import FrameStack


class SerialSampler:
    """Steps B environments in lock step, resets each at its own episode's end with its own derived seed."""

    def __init__(self, envs: Sequence[Env], seed: int, frame_stack: int = 1) -> None:
        self.spec = envs[0].spec
        self._envs = envs
        self._seed = seed
        self._rng = stream(seed, "explore")
        self._stack = FrameStack(self.spec, len(envs), frame_stack)
        self._episode = np.zeros(len(envs), np.int64)
        self._length = np.zeros(len(envs), np.int64)
        self._return = np.zeros(len(envs))
        self._success = np.full(len(envs), np.nan)
        self._started = False

    def _reset(self, env: int) -> None:
        self._stack.reset(env, self._envs[env].reset(derive(self._seed, "episode", env, int(self._episode[env]))))
        self._length[env] = 0
        self._return[env] = 0.0
        self._success[env] = np.nan

    def collect(self, policy: Policy, steps: int = 1) -> Rollout:
        """Take steps in every environment with a policy that explores."""
        if not self._started:  # a restored sampler is in the middle of its episodes
            for env in range(len(self._envs)):
                self._reset(env)
            self._started = True
        rollout = self._allocate(steps)
        for t in range(steps):
            rollout.obs[t] = self._stack.newest
            rollout.action[t] = policy.act(self._stack.stacked, explore=True, rng=self._rng)
            for env in range(len(self._envs)):
                self._step(env, t, rollout)
        return rollout

    def _step(self, env: int, t: int, rollout: Rollout) -> None:
        obs, reward, terminated, truncated, info = self._envs[env].step(rollout.action[t, env])
        rollout.reward[t, env] = reward
        rollout.next_obs[t, env] = obs
        rollout.terminated[t, env] = terminated
        rollout.truncated[t, env] = truncated
        self._stack.push(env, obs)
        self._length[env] += 1
        self._return[env] += reward
        self._success[env] = np.fmax(self._success[env], info.get("success", np.nan))
        if terminated or truncated:
            rollout.episodes.append(self._episode_end(env))
            self._episode[env] += 1
            self._reset(env)

    def _episode_end(self, env: int) -> EpisodeEnd:
        return EpisodeEnd(
            env,
            int(self._episode[env]),
            int(self._length[env]),
            float(self._return[env]),
            float(self._success[env]),
        )

    def _allocate(self, steps: int) -> Rollout:
        lead, spec = (steps, len(self._envs)), self.spec
        obs = np.empty((*lead, *spec.obs_shape), dtype=spec.obs_dtype)
        action = np.empty((*lead, spec.action_dim), dtype=np.float32)
        flag: Array = np.zeros(lead, dtype=bool)
        return Rollout(obs, action, np.empty(lead, np.float32), np.empty_like(obs), flag, flag.copy(), [])

    def state(self) -> State:
        """Return running episodes, simulator states and the exploration stream."""
        return {
            "envs": [env.get_state() for env in self._envs] if self._started else [],
            "stack": self._stack.state(),
            "rng": get_rng_state(self._rng),
            "episode": self._episode.copy(),
            "length": self._length.copy(),
            "return": self._return.copy(),
            "success": self._success.copy(),
            "started": self._started,
        }

    def load(self, state: State) -> None:
        """Continue exactly where ``state`` was taken."""
        self._started = bool(state["started"])
        for env, env_state in zip(self._envs, state["envs"], strict=False):
            env.set_state(env_state)
        self._stack.load(state["stack"])
        set_rng_state(self._rng, state["rng"])
        self._episode[:] = state["episode"]
        self._length[:] = state["length"]
        self._return[:] = state["return"]
        self._success[:] = state["success"]

    def close(self) -> None:
        """Close the simulators."""
        for env in self._envs:
            env.close()
