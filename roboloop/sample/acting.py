"""A policy at work in B environments: what it saw last, what it remembers, and what its last actions brought.

Whoever steps environments does it in the same three calls: ``decide``, the environment's ``step``, ``see``. Replay
rebuilds the same frame stacks by index.
"""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array, Decision, EnvSpec, Policy, RewardAware, State

ALL = slice(None)


class FrameStack:
    """The last k observations of B environments; an episode's first one fills the whole stack."""

    def __init__(self, spec: EnvSpec, num_envs: int, frames: int) -> None:
        self._frames = np.zeros((num_envs, frames, *spec.obs_shape), dtype=spec.obs_dtype)

    def reset(self, env: int, obs: Array) -> None:
        """Begin an episode."""
        self._frames[env] = obs

    def push(self, env: int, obs: Array) -> None:
        """Add the newest observation."""
        self._frames[env, :-1] = self._frames[env, 1:]
        self._frames[env, -1] = obs

    def reset_some(self, envs: Array, obs: Array) -> None:
        """Begin an episode in some environments, given by their numbers, with an observation of each."""
        self._frames[envs] = obs[:, None]

    def push_all(self, obs: Array) -> None:
        """Add the newest observation of every environment."""
        self._frames[:, :-1] = self._frames[:, 1:]
        self._frames[:, -1] = obs

    @property
    def newest(self) -> Array:
        """The observations without history, ``[B, *obs]``."""
        newest: Array = self._frames[:, -1]
        return newest

    @property
    def stacked(self) -> Array:
        """What the policy sees: ``[B, k, *obs]``, or ``[B, *obs]`` when k is 1."""
        return self._frames if self._frames.shape[1] > 1 else self.newest

    def state(self) -> State:
        """Return the stacks."""
        return {"frames": self._frames.copy()}

    def load(self, state: State) -> None:
        """Restore the stacks."""
        self._frames[:] = state["frames"]


class Acting:
    """Frame stacks and memories of a policy, one row for each environment."""

    def __init__(self, spec: EnvSpec, num_envs: int, frame_stack: int, policy: Policy | int) -> None:
        size = policy if isinstance(policy, int) else policy.memory_size
        self.stack = FrameStack(spec, num_envs, frame_stack)
        self.memory: Array = np.zeros((num_envs, size), np.float32)
        if not isinstance(policy, int):
            self.policy = policy

    @property
    def policy(self) -> Policy:
        """Who decides; several policies may take turns if their memories have the same size."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        self._told = policy if isinstance(policy, RewardAware) else None

    def begin(self, env: int, obs: Array) -> None:
        """Begin an episode: the first observation is all that is known."""
        self.stack.reset(env, obs)
        self.memory[env] = 0.0

    def decide(self, explore: bool, rng: np.random.Generator, envs: slice = ALL) -> Decision:
        """Return what the policy decides for some environments, and remember what it wants to remember."""
        decision = self._policy.act(self.stack.stacked[envs], self.memory[envs], explore, rng)
        self.memory[envs] = decision.memory
        return decision

    def see(self, env: int, obs: Array, raw_reward: float) -> None:
        """Take in what the last action led to."""
        self.stack.push(env, obs)
        if self._told is not None:
            row = slice(env, env + 1)
            self.memory[row] = self._told.observe_reward(self.memory[row], np.array([raw_reward], np.float32))

    def see_all(self, obs: Array, raw_reward: Array) -> None:
        """Take in what the last actions led to in all environments."""
        self.stack.push_all(obs)
        self.observe_reward(raw_reward)

    def observe_reward(self, raw_reward: Array) -> None:
        """Tell a policy that must know it what its last actions brought."""
        if self._told is not None:
            self.memory[:] = self._told.observe_reward(self.memory, raw_reward)
