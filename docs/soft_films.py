"""Film a policy of rope or cloth: python docs/soft_films.py RUN OUT.gif (random picks left, the run right)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from roboloop.core.types import Array, Policy
from roboloop.envs import registry
from roboloop.run import build
from roboloop.run.evaluate import TEST, Plan
from roboloop.run.rundir import RunDir

EPISODES, SIDE, GAP, FRAME_MS, COLOURS = 3, 128, 4, 250, 48


def main(run_path: str, out: str) -> None:
    """Film held-out episodes, both hands beginning alike."""
    run = RunDir.open(Path(run_path))
    spec = build.spec_of(run.config)
    trained = build.policy_of(run.config, spec, run.pick("last"))
    untrained = registry.scripted_policy(run.config.env, "random")
    frames = []
    for episode in range(EPISODES):
        seed = Plan(EPISODES, 0, TEST).episode_seed(episode)
        before, after = (film(policy, run, seed) for policy in (untrained, trained))
        middle = np.full((SIDE, GAP, 3), 255, np.uint8)
        frames += [np.concatenate((left, middle, right), axis=1) for left, right in zip(before, after, strict=True)]
        frames += frames[-1:] * 4  # how it ended, for a second
    pictures = [Image.fromarray(frame).quantize(COLOURS, dither=Image.Dither.NONE) for frame in frames]
    pictures[0].save(out, save_all=True, append_images=pictures[1:], duration=FRAME_MS, loop=0, optimize=True)
    print(f"{out}: {len(frames)} pictures, {Path(out).stat().st_size / 1e3:.0f} kB")


def film(policy: Policy, run: RunDir, seed: int) -> list[Array]:
    """Return a picture of an episode's beginning and one after each pick."""
    env = registry.make(run.config.env, True, 0)
    rng, memory = np.random.default_rng(0), np.zeros((1, policy.memory_size), np.float32)
    obs, ended = env.reset(seed), False
    frames = [env.render()]
    while not ended:
        action, memory, *_ = policy.act(np.asarray(obs)[None], memory, False, rng)
        obs, _, terminated, truncated, _ = env.step(action[0])
        frames.append(env.render())
        ended = terminated or truncated
    env.close()
    return [np.asarray(Image.fromarray(frame).resize((SIDE, SIDE), Image.Resampling.BOX)) for frame in frames]


if __name__ == "__main__":
    main(*sys.argv[1:])
