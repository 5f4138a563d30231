"""ViZDoom: first-person tasks seen as pictures, with real seeds, real truncation and no process left behind."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import vizdoom

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.types import Array
from roboloop.envs.doom import launcher
from roboloop.envs.doom.scenarios import SCENARIOS, Option, Scenario
from roboloop.envs.doom.suite import DoomEnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, SimulatorDied, Task
from roboloop.envs.replay import ReplayWorld

IMAGE_SIZE = (72, 128)
SHARED_MEMORY = Path("/dev/shm")
DIED = (
    vizdoom.ViZDoomErrorException,
    vizdoom.ViZDoomIsNotRunningException,
    vizdoom.ViZDoomUnexpectedExitException,
    vizdoom.SharedMemoryException,
    vizdoom.MessageQueueException,
)


def _configured(scenario: Scenario, buttons: Sequence[str], grayscale: bool) -> vizdoom.DoomGame:
    """Return a game that has not been started."""
    game = vizdoom.DoomGame()
    game.load_config(os.path.join(vizdoom.scenarios_path, f"{scenario.config}.cfg"))
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.GRAY8 if grayscale else vizdoom.ScreenFormat.RGB24)
    game.set_render_hud(False)
    game.set_render_decals(False)
    game.set_render_particles(False)
    game.set_render_weapon(scenario.render_weapon)
    # how far the weapon has swung outlives an episode in the engine, so that a seed would not fix its pictures
    game.add_game_args("+movebob 0")
    game.set_available_buttons([getattr(vizdoom.Button, name) for name in buttons])
    game.set_available_game_variables([])
    game.set_episode_timeout(0)  # the clock is ours: the game's own would look like the end of the world
    if scenario.living_reward is not None:
        game.set_living_reward(scenario.living_reward)
    if scenario.death_penalty is not None:
        game.set_death_penalty(scenario.death_penalty)
    return game


def _start(game: vizdoom.DoomGame) -> None:
    """Start the engine so that it dies with us and leaves no file behind, however we end."""
    with tempfile.TemporaryDirectory(prefix="roboloop-doom-") as scratch:
        # the engine makes a directory where it runs and writes its settings when it closes
        script = Path(scratch, "vizdoom")
        command = [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), vizdoom.exe_path]
        script.write_text(f'#!/bin/sh\ncd {shlex.quote(scratch)} && exec {shlex.join(command)} "$@"\n')
        script.chmod(0o700)
        for program in (script, vizdoom.exe_path):
            if not os.access(program, os.X_OK):  # ViZDoom crashes the interpreter if its engine does not come up
                raise SimulatorDied(f"ViZDoom did not start: {program} cannot be run (set TMPDIR if it is there)")
        game.set_vizdoom_path(str(script))
        game.set_doom_config_path(os.devnull)
        game.init()
    # both sides have mapped their shared memory by now: without names the kernel frees it with its last user
    for name in SHARED_MEMORY.glob(f"ViZDoom*{game.get_instance_id()}"):
        name.unlink(missing_ok=True)


class DoomWorld(ReplayWorld):
    """One scenario in an engine process of its own."""

    def __init__(self, task: str, scenario: Scenario, image_size: tuple[int, int], grayscale: bool) -> None:
        super().__init__(len(scenario.columns))
        self._task, self._scenario = task, scenario
        buttons = sorted({name for column in scenario.columns for option in column for name in option})
        self._tables = [self._table(column, buttons) for column in scenario.columns]
        variables = {part.variable for part in (*scenario.shaping, *scenario.measures)}
        self._variables = {name: getattr(vizdoom.GameVariable, name) for name in variables}
        self._scales = np.array([measure.scale for measure in scenario.measures], np.float32)
        self._most = np.array([measure.most for measure in scenario.measures], np.float32)
        self._shrunk = np.zeros(image_size if grayscale else (*image_size, 3), np.uint8)
        self._chw = self._shrunk[None] if grayscale else self._shrunk.transpose(2, 0, 1)
        self.obs_dtype: np.dtype[Any] = np.dtype(np.uint8)
        if scenario.measures:
            shape = (len(scenario.measures),)
            self.obs_dtype = np.dtype([("vector", np.float32, shape), ("image", np.uint8, self._chw.shape)])
        self._record: Array = np.zeros((), self.obs_dtype)
        self._screen = np.zeros((120, 160, 3), np.uint8)
        self._values: dict[str, float] = {}
        self._game = _configured(scenario, buttons, grayscale)
        try:
            _start(self._game)
        except (*DIED, vizdoom.FileDoesNotExistException) as error:
            raise SimulatorDied(f"ViZDoom did not start: {' '.join(str(error).split())}") from error

    @staticmethod
    def _table(column: Sequence[Option], buttons: Sequence[str]) -> Array:
        """Return a column's choices as rows of button values."""
        return np.array([[option.get(name, 0.0) for name in buttons] for option in column])

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Of a picture with channels first; a record has none."""
        return () if self.obs_dtype.names else self._chw.shape

    def _look(self) -> Array:
        """Return what is seen now; once the game has ended, what was seen last: there is no later picture."""
        state = self._game.get_state()
        if state is not None:
            self._screen = state.screen_buffer  # a copy of its own
            height, width = self._shrunk.shape[:2]
            # as Sample Factory does; it leaves the game's palette as it is, which makes recordings a third as large
            cv2.resize(self._screen, (width, height), dst=self._shrunk, interpolation=cv2.INTER_NEAREST)
            read = self._game.get_game_variable
            self._values = {name: read(variable) for name, variable in self._variables.items()}
        if not self.obs_dtype.names:
            return self._chw
        values = np.array([self._values[measure.variable] for measure in self._scenario.measures], np.float32)
        self._record["vector"] = np.clip(values * self._scales, 0, self._most)
        self._record["image"] = self._chw
        return self._record

    def _lost(self, error: Exception) -> SimulatorDied:
        return SimulatorDied(f"the ViZDoom process of 'doom/{self._task}' died: {' '.join(str(error).split())}")

    def start(self, seed: int) -> Array:
        """Start the episode of this seed."""
        try:
            self._game.set_seed(seed % 2**32)
            self._game.new_episode()
            return self._look()
        except DIED as error:
            raise self._lost(error) from error

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold the buttons for some tics; only the last one is rendered."""
        game, scenario, before = self._game, self._scenario, self._values
        buttons = sum(table[int(choice)] for table, choice in zip(self._tables, action, strict=True)).tolist()
        try:
            begun = game.get_episode_time()
            raw_reward = float(game.make_action(buttons, repeat))
            ended = game.is_episode_finished()
            ticks = game.get_episode_time() - begun if ended else repeat
            success = float(ended and not game.is_player_dead()) if scenario.has_goal else None
            obs = self._look()
        except DIED as error:
            raise self._lost(error) from error
        shaped = 0.0 if ended else sum(shape(before, self._values) for shape in scenario.shaping)
        differs = bool(scenario.shaping) or scenario.scale != 1.0
        reward = raw_reward * scenario.scale + shaped
        return Outcome(obs, reward, ended, False, success, raw_reward if differs else None, max(ticks, 1))

    def render(self) -> Array:
        """Return the screen as the engine drew it; once the game has ended, its last one."""
        screen = self._screen if self._screen.ndim == 3 else self._screen[..., None].repeat(3, axis=2)
        return screen.copy()

    def close(self) -> None:
        """End the engine process."""
        self._game.close()


def make(task: str, cfg: DoomEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``doom/<task>``; ``env.action_repeat`` is the frame skip, customarily 4."""
    if task not in SCENARIOS:
        raise ConfigError(f"unknown Doom task {task!r}{nearest(task, SCENARIOS)} (known: {', '.join(SCENARIOS)})")
    cv2.setNumThreads(1)  # the sampler runs many of these side by side
    scenario, size, grayscale = SCENARIOS[task], cfg.image_size or IMAGE_SIZE, bool(cfg.grayscale)
    world = DoomWorld(task, scenario, size, grayscale)
    choices = tuple(len(column) for column in scenario.columns)
    protocol: dict[str, Any] = {
        "suite": f"vizdoom {vizdoom.__version__}",
        "task": task,
        "observation": f"{'grey' if grayscale else 'rgb'} {size[0]}x{size[1]}",
    }
    return EpisodeEnv(
        world,
        Task(
            obs_shape=world.obs_shape,
            obs_dtype=world.obs_dtype,
            action_low=np.zeros(len(choices)),
            action_high=np.array(choices) - 1,
            horizon=cfg.horizon(scenario.horizon, evaluation),
            action_repeat=cfg.action_repeat,
            protocol=protocol,
            action_choices=choices,
        ),
    )
