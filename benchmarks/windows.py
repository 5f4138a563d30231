"""Windows per second for sequence models: ours, cached and not, beside TorchRL's SliceSampler and plain memcpy.

One recording of Doom pictures (random actions, episodes of at least K steps) is stored twice: as our dataset, and in
TorchRL's LazyMemmapStorage, each observation once, with action, return to go, step and episode. Every contender gives
batches of B windows of K steps. ``memcpy`` copies as many bytes of observations from one array in memory to another.
Contenders stay alive in processes of their own and are timed in turn, blocks of about a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from _contender import PEERS, ROOT, Contender, Run, interleave, median_ratio, medians, serve

WINDOW, BATCH = 30, 64


def record(env_id: str, steps: int, directory: Path) -> None:
    """Write one recording as our dataset and as plain arrays."""
    import numpy as np

    from roboloop.data.episodes import Episode, Facts, Schema
    from roboloop.data.store import StoreWriter
    from roboloop.envs.config import EnvConfig
    from roboloop.envs.registry import make

    env = make(EnvConfig(id=env_id, action_repeat=4))
    rng = np.random.default_rng(0)
    kept: list[Episode] = []
    writer = StoreWriter(directory / "dataset", Schema.of(env_id, env.spec))
    seed = total = 0
    while total < steps:
        obs, action, reward, ended = [np.array(env.reset(seed))], [], [], False
        while not ended:
            action.append(np.floor(rng.uniform(0, np.array(env.spec.action_high) + 1)).astype(np.float32))
            seen, gained, terminated, truncated, _ = env.step(action[-1])
            obs.append(np.array(seen))
            reward.append(gained)
            ended = terminated or truncated
        seed += 1
        if len(reward) < WINDOW:
            continue
        rewards, last = np.array(reward, np.float32), np.arange(len(reward)) == len(reward) - 1
        zeros = np.zeros_like(rewards)
        version = np.zeros(len(reward), np.int64)
        ends = (last & terminated, last & truncated)
        episode = Episode(np.stack(obs), np.stack(action), rewards, rewards, *ends, zeros, zeros, version)
        total_return = float(rewards.sum(dtype=np.float64))
        facts = Facts(0, seed, len(reward), total_return, total_return, float("nan"), 0, 0, total, env_id, 0, 0.0)
        writer.append(episode, facts)
        kept.append(episode)
        total += len(reward)
    writer.close()
    env.close()
    togo = [np.cumsum(e.raw_reward[::-1])[::-1] for e in kept]
    arrays = {
        "obs": np.concatenate([e.obs[:-1] for e in kept]),
        "action": np.concatenate([e.action for e in kept]),
        "return_to_go": np.concatenate(togo),
        "t": np.concatenate([np.arange(len(e.reward)) for e in kept]),
        "episode": np.concatenate([np.full(len(e.reward), i) for i, e in enumerate(kept)]),
    }
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)


def make_ours(directory: Path, cache_bytes: int) -> Run:
    """Our windows, warm where there is a cache."""
    from roboloop.data.dataset import Dataset
    from roboloop.data.windows import WindowSampler

    windows = WindowSampler(Dataset.open(directory / "dataset"), WINDOW, BATCH, seed=0, cache_bytes=cache_bytes)
    for _ in range(300 if cache_bytes else 2):
        windows.sample()

    def run(batches: int) -> None:
        for _ in range(batches):
            windows.sample()

    return run


def make_torchrl(directory: Path, tuned: bool) -> Run:
    """TorchRL's slices over memory-mapped storage; tuned, it keeps the boundaries and looks for no end flag."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, ReplayBuffer, SliceSampler

    names = ("obs", "action", "return_to_go", "t", "episode")
    arrays = {name: torch.from_numpy(np.load(directory / f"{name}.npy")) for name in names}
    size = len(arrays["t"])
    scratch = directory / f"torchrl-{tuned}"
    options: dict[str, Any] = {"cache_values": True, "truncated_key": None} if tuned else {}
    sampler = SliceSampler(slice_len=WINDOW, traj_key="episode", **options)
    storage = LazyMemmapStorage(size, scratch_dir=str(scratch))
    buffer: Any = ReplayBuffer(storage=storage, sampler=sampler, batch_size=BATCH * WINDOW)
    buffer.extend(TensorDict(arrays, batch_size=[size]))
    del arrays
    for _ in range(3):
        assert buffer.sample()["obs"].shape[0] == BATCH * WINDOW

    def run(batches: int) -> None:
        for _ in range(batches):
            buffer.sample()

    return run


def make_memcpy(directory: Path) -> Run:
    """One contiguous copy of a batch's observations."""
    import numpy as np

    obs = np.load(directory / "obs.npy", mmap_mode="r")
    source = np.ascontiguousarray(np.resize(obs[: BATCH * WINDOW], (BATCH * WINDOW, *obs.shape[1:])))
    out = np.zeros_like(source)

    def run(batches: int) -> None:
        for _ in range(batches):
            np.copyto(out, source)

    return run


MAKERS = {
    "roboloop, cached": lambda directory: make_ours(directory, 8 << 30),
    "roboloop, uncached": lambda directory: make_ours(directory, 0),
    "torchrl": lambda directory: make_torchrl(directory, tuned=False),
    "torchrl, tuned": lambda directory: make_torchrl(directory, tuned=True),
    "memcpy": make_memcpy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="doom/health-gathering-supreme")
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="1 also ties every contender to one core")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        name, directory = args.serve
        serve(lambda: MAKERS[name](Path(directory)))
        return
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-") as directory:
        record(args.env, args.steps, Path(directory))
        names = [name for name in MAKERS if not name.startswith("torchrl") or PEERS.exists()]
        contenders = [
            Contender(name, __file__, [name, directory], args.threads, in_peers_venv=name.startswith("torchrl"))
            for name in names
        ]
        rates = interleave(contenders, args.blocks, 1.0)
    print("| | batches/s | windows/s | ours cached / this |\n|---|---|---|---|")
    for name, values in rates.items():
        ratio, median = median_ratio(rates["roboloop, cached"], values), medians(rates)[name]
        print(f"| {name} | {median:.1f} | {median * BATCH:.0f} | {ratio:.2f} |")
    if args.out:
        args.out.write_text(json.dumps(rates, indent=1))


if __name__ == "__main__":
    sys.exit(main())
