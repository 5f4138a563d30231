"""Atari games by Gymnasium's ids, seen as the field sees them: small grey pictures, sticky actions, whole games."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import gymnasium
import numpy as np

from roboloop.core.errors import ConfigError, MissingExtra, nearest
from roboloop.core.types import Array
from roboloop.envs.env import EpisodeEnv, Outcome, Task
from roboloop.envs.gym.suite import GymEnvConfig
from roboloop.envs.replay import ReplayWorld

try:
    import ale_py
    import cv2
    from ale_py import roms
except ModuleNotFoundError as error:
    raise MissingExtra(f"Atari games need {error.name}: pip install 'roboloop[atari]'") from error

HORIZON = 108_000
"""Half an hour at 60 frames a second (Machado et al. 2018)."""
IMAGE_SIZE = (84, 84)
MAX_NOOPS = 30
"""Idle frames at most before an episode begins."""


class AtariWorld(ReplayWorld):
    """One game, frame by frame; it ends where the game ends, not where a life is lost."""

    def __init__(self, options: Mapping[str, Any], image_size: tuple[int, int], grayscale: bool) -> None:
        super().__init__(1)
        self._size = image_size
        self._ale = ale = ale_py.ALEInterface()
        ale.setLoggerMode(ale_py.LoggerMode.Error)
        ale.setInt("random_seed", 0)
        ale.setFloat("repeat_action_probability", 0.0)
        rom = roms.get_rom_path(options["game"])
        if rom is None:
            raise ConfigError(f"ale-py has no ROM of {options['game']!r}")
        ale.loadROM(rom)
        ale.reset_game()
        # a seeded reset of the emulator reads its ROM again, a tenth of a second: chance is ours instead
        self._boot = ale.cloneState(include_rng=True)
        self._stickiness = float(options["repeat_action_probability"])
        self._rng = np.random.default_rng(0)
        self._joystick = ale.getLegalActionSet() if options["full_action_space"] else ale.getMinimalActionSet()
        self._held = self._joystick[0]
        self._screen = ale.getScreenGrayscale if grayscale else ale.getScreenRGB

    @property
    def num_actions(self) -> int:
        """Positions of the joystick that the game knows."""
        return len(self._joystick)

    def _picture(self, *frames: Array) -> Array:
        """Return the brightest of the frames, shrunk: sprites that flicker are in every other one only."""
        bright = np.maximum(*frames) if len(frames) > 1 else frames[0]
        shrunk = cv2.resize(bright, self._size[::-1], interpolation=cv2.INTER_AREA)
        return shrunk[None] if shrunk.ndim == 2 else np.moveaxis(shrunk, -1, 0)

    def _frame(self, choice: int) -> float:
        """Play one frame; with the game's stickiness the joystick stays where it was (Machado et al. 2018)."""
        if self._rng.random() >= self._stickiness:
            self._held = self._joystick[choice]
        return float(self._ale.act(self._held))

    def start(self, seed: int) -> Array:
        """Start the game and let the seed's number of frames pass."""
        self._ale.reset_game()  # some games keep what the saved state does not hold
        self._ale.restoreState(self._boot)
        self._rng, self._held = np.random.default_rng(seed), self._joystick[0]
        for _ in range(int(self._rng.integers(1, MAX_NOOPS + 1))):
            self._ale.act(self._joystick[0])
        return self._picture(self._screen())

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold a joystick position for some frames; the last two make the picture."""
        choice, reward, ticks, frames = int(action[0]), 0.0, 0, []
        while ticks < repeat and not self._ale.game_over():
            reward += self._frame(choice)
            ticks += 1
            if ticks >= repeat - 1 or self._ale.game_over():
                frames.append(self._screen())
        return Outcome(self._picture(*frames), reward, bool(self._ale.game_over()), False, None, ticks=ticks)

    def render(self) -> Array:
        """Return the screen in colour."""
        return np.asarray(self._ale.getScreenRGB(), np.uint8)

    def close(self) -> None:
        """Do nothing: the emulator is memory only."""


def make(task: str, cfg: GymEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``gym/ALE/<game>``; ``env.action_repeat`` is the frame skip, customarily 4."""
    gymnasium.register_envs(ale_py)
    if task not in gymnasium.registry:
        raise ConfigError(f"unknown Gymnasium env {task!r}{nearest(task, gymnasium.registry)}")
    cv2.setNumThreads(1)  # the sampler runs many of these side by side
    if cfg.wrappers:
        raise ConfigError("env.wrappers are for Gymnasium environments; our Atari games are none inside")
    own = gymnasium.spec(task).kwargs
    if unknown := [key for key in cfg.kwargs if key not in own]:
        raise ConfigError(f"env.kwargs of gym/{task} has no {unknown[0]!r}{nearest(unknown[0], own)}")
    options = {**own, **cfg.kwargs}
    size, grey = cfg.image_size or IMAGE_SIZE, cfg.grayscale is not False
    world = AtariWorld(options, size, grey)
    return EpisodeEnv(
        world,
        Task(
            obs_shape=(1 if grey else 3, *size),
            obs_dtype=np.dtype(np.uint8),
            action_low=np.zeros(1),
            action_high=np.array([world.num_actions - 1]),
            horizon=cfg.horizon(HORIZON, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={
                "suite": f"ale-py {metadata.version('ale-py')}",
                "task": task,
                "observation": f"{'grey' if grey else 'rgb'} {size[0]}x{size[1]}",
                "sticky": float(options["repeat_action_probability"]),
            },
            action_choices=(world.num_actions,),
        ),
    )
