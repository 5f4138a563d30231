"""The tick of a real-time loop: wake at the deadline, look, decide, send; everything else comes after that."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from typing import NamedTuple, cast

import numpy as np

from roboloop.core.errors import ConfigError, RobotFault
from roboloop.core.rng import derive, stream
from roboloop.core.types import Array, Env, EpisodeEnd, Policy, Rollout
from roboloop.envs.env import Outcome, RealTimeEnv
from roboloop.envs.panda.robot import Overrun
from roboloop.sample.acting import Acting
from roboloop.sample.buffers import RolloutShape

WARM_S = 0.001
"""How long before the deadline a sleep ends; measured, it halves the slowest hundredth of obs to act."""


class Tick(NamedTuple):
    """When one action was decided, in seconds; the clock is the robot's."""

    deadline_s: float
    lateness_s: float
    """From the deadline to the look at the robot."""
    forward_s: float
    """What the policy took."""
    obs_to_act_s: float
    """From the look at the robot until the command was sent."""


class PilotStep(NamedTuple):
    """One whole step of one robot, as a rollout of one row and one column."""

    rollout: Rollout
    episode: int
    is_first: bool


def real_time_env(env: Env) -> RealTimeEnv:
    """Return an environment that can be sent to and looked at apart; refuse others."""
    if not hasattr(env, "wait_until"):
        raise ConfigError(f"sample.real_time is for robots: {env.spec.protocol.get('task', 'this env')!r} is none")
    return cast(RealTimeEnv, env)


class Pilot:
    """Leads one robot through its episodes; the step that an action began is whole when the next tick has looked."""

    def __init__(self, env: RealTimeEnv, shape: RolloutShape, seed: int, max_misses: int) -> None:
        self.env = env
        self._shape, self._seed, self._max_misses = shape, seed, max_misses
        self._warm_s = 0.0 if env.is_simulated else WARM_S
        self._acting = Acting(shape.spec, 1, shape.frame_stack, shape.memory_size)
        self.episode = 0
        """Number of the episode that runs, or that comes next."""
        self.is_running = False
        self.steps: deque[PilotStep] = deque()
        """Whole steps that nobody has taken yet."""
        self.ticks: list[Tick] = []
        """When the actions of this episode were decided."""
        self.missed = 0
        """Deadlines of this episode that passed without an action: the robot went on with the last one."""
        self._unsure: list[PilotStep] = []
        self._sent: Array | None = None
        self._version = 0
        self._deadline_s = 0.0
        self._misses_in_a_row = 0

    def make_ready(self) -> None:
        """Bring robot and scene to the beginning of the next episode, by script."""
        self.env.begin(derive(self._seed, "episode", 0, self.episode))

    def begin(self) -> None:
        """Begin the episode that was made ready: its first action is due now."""
        self._acting.begin(0, self.env.first_look())
        self._rng = stream(self._seed, "explore", 0, self.episode)
        self._length, self._return, self._shaped_return, self._success = 0, 0.0, 0.0, math.nan
        self._sent, self._misses_in_a_row, self.missed = None, 0, 0
        self.ticks = []
        self._deadline_s = self.env.now_s()
        self.is_running = True

    def time_left_s(self) -> float:
        """Return how long nobody will miss us."""
        return self._deadline_s - self._warm_s - self.env.now_s() if self.is_running else math.inf

    def tick(self, policy: Policy) -> None:
        """Wait for the deadline and decide; at a fault the robot holds and the episode ends at its last whole step."""
        try:
            self._tick(policy)
        except RobotFault:
            self.give_up()
            raise

    def _tick(self, policy: Policy) -> None:
        env, before, action, version = self.env, self._acting.stack.newest[0].copy(), self._sent, self._version
        self._acting.policy = policy
        if self._warm_s:
            self._warm_up(policy)
        env.wait_until(self._deadline_s)
        looked_s = env.now_s()
        self._count_misses(looked_s)
        out = None if action is None else env.observe()
        if out is not None:
            self._acting.see(0, out.obs, out.reward if out.raw_reward is None else out.raw_reward)
        try:
            if out is not None and (out.terminated or out.truncated):
                self.is_running = False
                env.hold()
            else:
                self._decide(policy, looked_s)
        finally:  # after the command is on its way; and what was seen is kept if there could be none
            if out is not None and action is not None:
                self._keep(before, action, out, version)
        self._deadline_s += env.period_s

    def _warm_up(self, policy: Policy) -> None:
        """Decide once for nothing just before the deadline: after a sleep the processor has forgotten how."""
        self.env.wait_until(self._deadline_s - self._warm_s)
        if self._deadline_s - self.env.now_s() > self._warm_s / 2:
            policy.act(self._acting.stack.stacked, self._acting.memory, False, self._rng)

    def _decide(self, policy: Policy, looked_s: float) -> None:
        begin_s = self.env.now_s()
        decision = self._acting.decide(True, self._rng)
        decided_s = self.env.now_s()
        self._sent, self._version = self.env.send(decision.action[0]), policy.version
        late_s, forward_s = looked_s - self._deadline_s, decided_s - begin_s
        self.ticks.append(Tick(self._deadline_s, late_s, forward_s, self.env.now_s() - looked_s))

    def _count_misses(self, now_s: float) -> None:
        """Skip deadlines that have passed wholly: there is no catching up, and no burst of actions."""
        missed = int((now_s - self._deadline_s) / self.env.period_s)
        self._deadline_s += missed * self.env.period_s
        self.missed += missed
        self._misses_in_a_row = self._misses_in_a_row + missed if missed else 0
        if self._misses_in_a_row > self._max_misses:
            raise Overrun(f"{self._misses_in_a_row} deadlines in a row passed without an action")

    def _keep(self, before: Array, action: Array, out: Outcome, version: int) -> None:
        rollout = self._shape.allocate()
        rollout.obs[0, 0], rollout.obs[1, 0] = before, out.obs
        rollout.action[0, 0] = action
        rollout.reward[0, 0] = out.reward
        rollout.raw_reward[0, 0] = raw_reward = out.reward if out.raw_reward is None else out.raw_reward
        rollout.terminated[0, 0], rollout.truncated[0, 0] = out.terminated, out.truncated
        rollout.version[0] = version
        self._length += 1
        self._return += raw_reward
        self._shaped_return += out.reward
        if out.success is not None:
            self._success = float(np.fmax(self._success, out.success))
        if not self.is_running:
            rollout.episodes.append(
                EpisodeEnd(
                    env=0, episode=self.episode, length=self._length, episode_return=self._return,
                    success=self._success, t=0, last_obs=out.obs.copy(), shaped_return=self._shaped_return,
                )
            )  # fmt: skip
        self._unsure.append(PilotStep(rollout, self.episode, self._length == 1))
        # a step that was seen with something old is handed out when something new has come, or never
        if out.is_fresh or not self.is_running:
            self.steps.extend(self._unsure)
            self._unsure.clear()
        if not self.is_running:
            self.episode += 1

    def take_ticks(self) -> Array:
        """Return the ticks of this episode as rows, once."""
        ticks, self.ticks = self.ticks, []
        return np.array(ticks, np.float64).reshape(len(ticks), len(Tick._fields))

    def give_up(self) -> None:
        """Hold, and end the running episode where it is."""
        self._unsure.clear()
        with contextlib.suppress(RobotFault):
            self.env.hold()
        if self.is_running:
            self.episode += 1
        self.is_running = False
