"""Meta-World v3, seeded as its ``reset(seed)`` should be, with saved states and without its slow bookkeeping.

An episode of seed s is the one of a plain Meta-World task that is seeded with s, reset (which draws the goal), frozen
to that goal as Meta-World's benchmarks freeze theirs, and reset again. Tests compare the two bit for bit.
"""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import Any

import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.policies import ENV_POLICY_MAP

from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.types import Array, Decision, State
from roboloop.envs.env import FLOAT, EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.headless import renderer
from roboloop.envs.metaworld.arm import STATE, Arm
from roboloop.envs.metaworld.fast import SETTLE_SUBSTEPS, SETTLES_BY_PLACEMENT, accelerate
from roboloop.envs.metaworld.lean import Lean
from roboloop.envs.metaworld.mt10 import LEAN
from roboloop.envs.metaworld.suite import MetaWorldEnvConfig

HORIZON = 500
FIXED_GOAL_SEED = 0
RENDER_SIZE = 240
CAMERA = {"azimuth": 135.0, "elevation": -35.0, "distance": 1.4}
"""Over the robot's shoulder; Meta-World's own corner cameras hang upside down."""
LOOK_AT = (0.0, 0.65, 0.15)


def _camera() -> mujoco.MjvCamera:
    """Return an upright view of the table."""
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    camera.lookat[:] = LOOK_AT
    camera.azimuth, camera.elevation, camera.distance = CAMERA["azimuth"], CAMERA["elevation"], CAMERA["distance"]
    return camera


class MetaWorld:
    """One Meta-World task without a clock."""

    def __init__(self, task: str, reward_version: str, goal_mode: str) -> None:
        env = accelerate(ALL_V3_ENVIRONMENTS[task])(reward_function_version=reward_version)
        env._partially_observable = False
        del env.sawyer_observation_space  # cached with the goal hidden
        env._set_task_called = True
        env.seeded_rand_vec = True
        self._env: Any = env
        self._model, self._data = env.model, env.data
        self._task, self._goal_mode = task, goal_mode
        self._low, self._high = env.sawyer_observation_space.low, env.sawyer_observation_space.high
        self._arm = Arm(env)
        self._lean: Lean | None = LEAN[task](env) if task in LEAN and reward_version == "v2" else None
        self._settled = self._settle()
        self._renderer: mujoco.Renderer | None = None
        self._seed: int | None = None
        self._at_reset: dict[str, Any] = {}

    def _settle(self) -> Array:
        """Return the physics one step before the hand has settled at its first position."""
        mujoco.mj_resetData(self._model, self._data)
        self._env.start_settling()
        mujoco.mj_step(self._model, self._data, nstep=SETTLE_SUBSTEPS - 1)
        return self._physics()

    def _physics(self) -> Array:
        state = np.empty(mujoco.mj_stateSize(self._model, STATE))
        mujoco.mj_getState(self._model, self._data, state, STATE)
        return state

    def _reset_model(self) -> Array:
        mujoco.mj_resetData(self._model, self._data)
        obs: Array = self._env.reset_model()
        return obs

    def reset(self, seed: int) -> Array:
        """Draw the seed's goal as Meta-World's reset does, freeze it, and place everything for it."""
        env = self._env
        self._seed = int(seed)
        self._arm.forget()
        env.np_random = np.random.Generator(np.random.PCG64(FIXED_GOAL_SEED if self._goal_mode == "fixed" else seed))
        env.settled, env._freeze_rand_vec = self._settled, False
        if self._lean is not None:
            self._lean.draw()
        else:
            for _ in range(2):  # Meta-World draws twice per reset and keeps the second
                self._reset_model()
        env._freeze_rand_vec = True
        if self._task in SETTLES_BY_PLACEMENT:
            env.settled = None
        obs = self._reset_model()
        env._prev_obs = obs[:18].copy()
        obs[18:36] = env._prev_obs
        self._at_reset = self._flags()
        if self._lean is not None:
            self._lean.begin()
        return obs

    def step(self, action: Array, repeat: int) -> Outcome:
        """Hold an action for some control steps."""
        return self._tick(action) if repeat == 1 else repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        """Move the hand, and ask the task for its reward."""
        self._arm.step(action)
        lean = self._lean
        if lean is not None:
            lean.look()
            reward, solved = lean.judge(action)
            return Outcome(lean.obs, float(reward), False, False, float(solved))
        env = self._env
        obs = env._get_obs()
        np.maximum(obs, self._low, out=obs)
        np.minimum(obs, self._high, out=obs)
        reward, info = env.evaluate_state(obs, action)
        return Outcome(obs, float(reward), False, False, float(info["success"]))

    def _flags(self) -> dict[str, Any]:
        """Return the task's scalar fields; some rewards remember that an object was picked."""
        return {k: v for k, v in vars(self._env).items() if v is None or isinstance(v, (bool, int, float, np.generic))}

    def get_state(self) -> State:
        """Return the seed, which rebuilds the scene, and what has changed since."""
        if self._seed is None:
            return {"seed": None}
        fresh = self._at_reset
        changed = {k: v for k, v in self._flags().items() if k not in fresh or v != fresh[k]}
        flags = {k: np.asarray(v) if isinstance(v, np.generic) else v for k, v in changed.items()}
        latest = self._env._prev_obs if self._lean is None else self._lean.obs[:18]
        return {"seed": self._seed, "physics": self._physics(), "prev_obs": latest.copy(), "flags": flags}

    def set_state(self, state: State) -> None:
        """Build the scene of the seed again, then put its physics and fields where they were."""
        if state["seed"] is None:
            return
        self.reset(int(state["seed"]))
        physics = np.asarray(state["physics"], np.float64)
        mujoco.mj_setState(self._model, self._data, physics, STATE)
        mujoco.mj_forward(self._model, self._data)  # for pictures; it also moves the solver's warm start
        mujoco.mj_setState(self._model, self._data, physics, STATE)
        self._env._prev_obs = np.array(state["prev_obs"], np.float64)
        for name, value in state["flags"].items():
            setattr(self._env, name, value[()] if isinstance(value, np.ndarray) else value)
        if self._lean is not None:
            self._lean.begin()

    def render(self) -> Array:
        """Return a picture of the table, upright."""
        if self._renderer is None:
            self._renderer = renderer(self._model, RENDER_SIZE, RENDER_SIZE)
        self._renderer.update_scene(self._data, camera=_camera())
        return np.array(self._renderer.render())

    def close(self) -> None:
        """Release the picture's context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._env.close()


class MetaWorldEnv(EpisodeEnv):
    """Meta-World with the clock; most actions are valid as they come."""

    def _valid(self, action: Array) -> Array:
        action = np.asarray(action, np.float32)
        if action.shape == (4,):
            x, y, z, grip = action.tolist()
            if -1 <= x <= 1 and -1 <= y <= 1 and -1 <= z <= 1 and -1 <= grip <= 1:
                return action
        return super()._valid(action)


class ScriptedPolicy(WithoutWeights):
    """Meta-World's expert of one task, batched."""

    def __init__(self, task: str) -> None:
        experts: dict[str, Any] = dict(ENV_POLICY_MAP)
        self._task, self._expert = task, experts[task]()
        # it asks for more than the bounds allow at nearly every step, and warns of it
        warnings.filterwarnings("ignore", "Constant.s. may be too high", UserWarning)

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide on the expert's actions ``[B, 4]``; it never explores."""
        actions = [self._expert.get_action(row) for row in np.asarray(obs, np.float64)]
        return Decision(np.clip(np.asarray(actions), -1, 1).astype(np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "task": self._task}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> ScriptedPolicy:
        """Build the same policy anew."""
        return cls(data["task"])


def scripted_policy(task: str) -> ScriptedPolicy:
    """Return the expert of a task such as ``reach-v3``."""
    return ScriptedPolicy(task)


def make(task: str, cfg: MetaWorldEnvConfig, evaluation: bool) -> MetaWorldEnv:
    """Make ``metaworld/<task>``."""
    protocol: dict[str, str | int | float | bool] = {
        "suite": f"metaworld {metadata.version('metaworld')}",
        "task": task,
        "reward_version": cfg.reward_version,
        "goal_mode": cfg.goal_mode,
    }
    bound = np.ones(4, np.float32)
    return MetaWorldEnv(
        MetaWorld(task, cfg.reward_version, cfg.goal_mode),
        Task((39,), FLOAT, -bound, bound, cfg.horizon(HORIZON, evaluation), cfg.action_repeat, protocol),
    )
