"""Atari: grey, small, whole games."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.envs import EnvConfig, make
from roboloop.envs.check import check_env
from roboloop.envs.gym.suite import GymEnvConfig

pytest.importorskip("ale_py")
pytest.importorskip("cv2")
CFG = EnvConfig(id="gym/ALE/Breakout-v5", action_repeat=4)


def test_a_game_passes_the_contract() -> None:
    cfg = EnvConfig(id="gym/ALE/Pong-v5", action_repeat=4, max_episode_steps=60)
    check_env(lambda: make(cfg), steps=12)


def test_pictures_are_small_and_grey_unless_asked_otherwise() -> None:
    spec = make(CFG).spec
    assert (spec.obs_shape, spec.obs_dtype, spec.action_choices) == ((1, 84, 84), np.uint8, (4,))
    assert (spec.protocol["horizon"], spec.max_episode_steps) == (108_000, 27_000)
    colour = make(GymEnvConfig(id="gym/ALE/Breakout-v5", image_size=(40, 60), grayscale=False))
    assert colour.spec.obs_shape == (3, 40, 60)
    assert colour.reset(0).any()


@pytest.mark.parametrize("game", ["Qbert", "Tetris", "Amidar"])
def test_games_that_remember_are_started_anew(game: str) -> None:
    def play(seed: int, steps: int) -> list[bytes]:
        seen = [env.reset(seed)] + [env.step(np.array([step % 5]))[0] for step in range(steps)]
        return [obs.tobytes() for obs in seen]

    env = make(EnvConfig(id=f"gym/ALE/{game}-v5", action_repeat=4))
    first = play(1, 40)
    play(2, 90)
    assert play(1, 40) == first


def test_an_unknown_game_is_named_with_its_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ALE/Pong-v5'"):
        make(EnvConfig(id="gym/ALE/Pnog-v5"))


def test_a_lost_life_does_not_end_the_episode_and_the_end_of_the_game_does() -> None:
    env, rng = make(CFG), np.random.default_rng(0)
    env.reset(1)
    lives = []
    for _ in range(2000):
        _, _, terminated, truncated, _ = env.step(rng.integers(0, 4, 1))
        lives.append(env.world._ale.lives())  # type: ignore[attr-defined]
        if terminated or truncated:
            break
    assert (terminated, truncated) == (True, False)
    assert sorted(set(lives)) == [0, 1, 2, 3, 4, 5]
