"""Cost of one durable checkpoint after an episode, at growing buffers, beside SB3 and TorchRL saving theirs.

Ours writes nets, targets, optimisers, counters, random states and the 500 new transitions, fsyncs all of it and
renames it into place. SB3's ``save`` + ``save_replay_buffer`` and TorchRL's ``dumps`` write the whole buffer,
without fsync and not atomically. Rounds are interleaved; the first round of each is left out.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _contender import PEERS, ROOT, Contender, Run, serve

SIZES = (10_000, 100_000, 1_000_000)
EPISODE, OBS_DIM, ACTION_DIM = 500, 39, 4


def make_ours(size: int, directory: str) -> Run:
    """A real run on reach-v3's shapes whose buffer holds ``size`` transitions; one unit = one checkpoint."""
    import numpy as np

    from roboloop.core.config import override
    from roboloop.core.types import EpisodeEnd
    from roboloop.run.build import build, spec_of
    from roboloop.run.config import Experiment
    from roboloop.run.rundir import RunDir
    from roboloop.run.runner import Runner
    from roboloop.sample.buffers import RolloutShape
    from roboloop.track.terminal import Progress

    changes = {"runs_dir": directory, "experiment": f"n{size}", "trackers": [], "algo": {"processes": 1}}
    cfg = override(Experiment(), changes)
    run = RunDir.create(cfg, [])
    runner = Runner(run, build(cfg), {}, Progress(1, stream=io.StringIO()))
    rng = np.random.default_rng(0)
    runner.sampler.collect(runner.warmup)
    spec = spec_of(cfg)

    def episode() -> None:
        rollout = RolloutShape(spec, EPISODE, 1).allocate()
        rollout.obs[:] = rng.standard_normal(rollout.obs.shape, dtype=np.float32)
        rollout.action[:] = rng.uniform(-1, 1, rollout.action.shape)
        rollout.reward[:] = rng.random(rollout.reward.shape)
        rollout.truncated[-1] = True
        rollout.episodes.append(EpisodeEnd(0, 0, EPISODE, 0.0, 0.0, EPISODE - 1, rollout.obs[-1, 0]))
        runner.store.add(rollout)
        runner.clock.advance(rollout)

    for _ in range(size // EPISODE):
        episode()
    runner.save()

    def save(times: int) -> float:
        seconds = 0.0
        for _ in range(times):
            episode()
            start_s = time.perf_counter()
            runner.save()
            seconds += time.perf_counter() - start_s
        return seconds

    return save


def make_sb3(size: int, directory: str) -> Run:
    """SB3's two calls."""
    import gymnasium
    import numpy as np
    from stable_baselines3 import SAC

    class Box(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = gymnasium.spaces.Box(-10, 10, (OBS_DIM,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (ACTION_DIM,), np.float32)

    model = SAC("MlpPolicy", Box(), buffer_size=size, device="cpu")
    buffer: Any = model.replay_buffer
    buffer.observations[:] = np.random.default_rng(0).standard_normal(buffer.observations.shape, dtype=np.float32)
    buffer.next_observations[:] = buffer.observations
    buffer.full = True

    def save(times: int) -> None:
        for _ in range(times):
            model.save(f"{directory}/sb3-{size}")
            model.save_replay_buffer(f"{directory}/sb3-{size}-buffer")

    return save


def make_torchrl(size: int, directory: str) -> Run:
    """TorchRL's ``dumps`` of the buffer alone."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyTensorStorage(size), batch_size=256)
    rows = TensorDict(
        {
            "obs": torch.randn(size, OBS_DIM), "next_obs": torch.randn(size, OBS_DIM),
            "action": torch.rand(size, ACTION_DIM), "reward": torch.rand(size),
            "done": torch.zeros(size, dtype=torch.bool),
        },
        batch_size=[size],
    )  # fmt: skip
    buffer.extend(rows)

    def save(times: int) -> None:
        for _ in range(times):
            buffer.dumps(f"{directory}/torchrl-{size}")

    return save


MAKERS = {"roboloop": make_ours, "sb3": make_sb3, "torchrl": make_torchrl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        name, size, directory = args.serve
        serve(lambda: MAKERS[name](int(size), directory))
        return
    names = [n for n in MAKERS if n == "roboloop" or PEERS.exists()]
    results = []
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-") as directory:
        for name in names:
            contenders = {
                size: Contender(name, __file__, [name, str(size), directory], 1, in_peers_venv=name != "roboloop")
                for size in SIZES
            }
            seconds: dict[int, list[float]] = {size: [] for size in SIZES}
            for _ in range(args.rounds + 1):
                for size, contender in contenders.items():
                    seconds[size].append(contender.time(1))
            for contender in contenders.values():
                contender.close()
            results += [
                {"name": name, "size": s, "median_ms": 1e3 * statistics.median(v[1:]), "ms": [1e3 * x for x in v[1:]]}
                for s, v in seconds.items()
            ]
    print("transitions  " + "  ".join(f"{n:>10}" for n in names))
    for size in SIZES:
        cells = [next(r["median_ms"] for r in results if (r["name"], r["size"]) == (n, size)) for n in names]
        print(f"{size:>11}  " + "  ".join(f"{c:>7.1f} ms" for c in cells))
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
