"""Updates per second of the same losses: autograd's kernels run again, plain autograd, and another commit's.

All do whole updates on ready batches, with the same shards and optimiser. Contenders live in processes of their own and
are timed in turn. ``--before CHECKOUT`` adds the code of another working tree, such as that of commit 4d51bb3, the last
whose backward passes were written by hand.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _contender import Contender, Run, interleave, median_ratio, medians, print_table, serve

REPLAYED, AUTOGRAD, BEFORE = "replayed", "autograd", "before"
FORMER = {
    "roboloop.algos.sac.setup": "roboloop.algos.sac.sac",
    "roboloop.algos.mtsac.mtsac:make_mtsac": "roboloop.algos.mtsac.mtsac:MultiTaskSAC",
    "roboloop.algos.ppo.ppo:make_ppo": "roboloop.algos.ppo.ppo:PPO",
    "roboloop.algos.imitation.transformer": "roboloop.algos.imitation.imitation",
    "roboloop.algos.learner.data_scale": "roboloop.algos.imitation.policy",
}
"""What was called otherwise at that commit: a module, or something in one."""
OBS_DIM, ACTION_DIM, TASKS, CONTEXT = 39, 4, 10, 20


class Work(NamedTuple):
    """An algorithm at the size that its headline was measured at."""

    make: Callable[[dict[str, Any]], Any]
    """From what all rows share to the algorithm and its batches."""


def find(module: str, name: str) -> Any:
    """Return something by its name now, or by that of before."""
    import importlib

    for path in (f"{module}:{name}", FORMER.get(f"{module}:{name}", f"{FORMER.get(module, module)}:{name}")):
        where, _, what = path.partition(":")
        try:
            return getattr(importlib.import_module(where), what)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"no {module}:{name}, now or before")


def floats(*shape: int) -> Any:
    """Return numbers to learn from."""
    import numpy as np

    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def spec_of(shape: tuple[int, ...], dtype: str = "float32", actions: int = ACTION_DIM, **more: Any) -> Any:
    """Return an environment."""
    import numpy as np

    from roboloop.core.types import EnvSpec

    return EnvSpec(shape, np.dtype(dtype), (-1.0,) * actions, (1.0,) * actions, 500, **more)


def transitions(rows: int, obs: Any, actions: int = ACTION_DIM) -> Any:
    """Return a batch of a replay; ``obs`` makes observations."""
    import numpy as np

    from roboloop.core.types import Batch

    return Batch(obs(), np.tanh(floats(rows, actions)), floats(rows), obs(), np.full(rows, 0.99, np.float32))


def sac(hidden: tuple[int, ...], rows: int, **keys: Any) -> Work:
    """Return SAC from vectors."""

    def make(shared: dict[str, Any]) -> Any:
        from roboloop.algos.sac.config import SACConfig

        cfg = SACConfig(batch_size=rows, hidden=hidden, **keys, **shared)
        algo = find("roboloop.algos.sac.setup", "make_sac")(cfg, spec_of((OBS_DIM,)), 1, seed=0)
        return algo, [transitions(rows, lambda: floats(rows, OBS_DIM))]

    return Work(make)


def pixels(rows: int) -> Work:
    """Return SAC from pictures of 84x84, three frames of three channels."""

    def make(shared: dict[str, Any]) -> Any:
        import numpy as np

        from roboloop.algos.sac.config import SACConfig

        def pictures() -> Any:
            return np.random.default_rng(0).integers(0, 256, (rows, 3, 3, 84, 84), dtype=np.uint8)

        cfg = SACConfig(batch_size=rows, **shared)
        algo = find("roboloop.algos.sac.setup", "make_sac")(cfg, spec_of((3, 84, 84), "uint8"), 3, seed=0)
        return algo, [transitions(rows, pictures)]

    return Work(make)


def tasks(net: str, rows: int) -> Work:
    """Return SAC for ten tasks."""

    def make(shared: dict[str, Any]) -> Any:
        import numpy as np

        from roboloop.algos.mtsac.config import MTSACConfig

        names = tuple(f"task{k}" for k in range(TASKS))
        spec = spec_of((OBS_DIM + TASKS,), tasks=names, one_task_each=True)
        task = np.eye(TASKS, dtype=np.float32).repeat(rows // TASKS, 0)
        cfg = MTSACConfig(batch_size=rows, net=net, **without(shared, MTSACConfig))  # type: ignore[arg-type]
        algo = find("roboloop.algos.mtsac.mtsac", "make_mtsac")(cfg, spec, 1, seed=0)
        return algo, [transitions(rows, lambda: np.concatenate((floats(rows, OBS_DIM), task), 1))]

    return Work(make)


def ppo(spec: Callable[[], Any], envs: int, **keys: Any) -> Work:
    """Return PPO: a unit is a whole rollout's update."""

    def make(shared: dict[str, Any]) -> Any:
        import numpy as np

        from roboloop.algos.ppo.config import PPOConfig
        from roboloop.core.types import Rollout

        about, cfg = spec(), PPOConfig(**keys, **without(shared, PPOConfig))
        algo = find("roboloop.algos.ppo.ppo", "make_ppo")(cfg, about, 1, envs, seed=0)
        steps, rng = cfg.rollout_steps, np.random.default_rng(0)
        shape = (steps + 1, envs, *about.obs_shape)
        is_bytes = about.obs_dtype == np.uint8
        obs = rng.integers(0, 256, shape, dtype=np.uint8) if is_bytes else floats(*shape)
        if about.action_choices:
            action = rng.integers(0, about.action_choices[0], (steps, envs, 1)).astype(np.float32)
            log_prob = np.full((steps, envs), -np.log(about.action_choices[0]), np.float32)
        else:
            action = floats(steps, envs, about.action_dim)
            log_prob = (-0.5 * action**2 - 0.919).sum(-1).astype(np.float32)
        never, reward = np.zeros((steps, envs), bool), floats(steps, envs)
        value, memory = np.zeros((steps + 1, envs), np.float32), np.zeros((envs, algo.policy.memory_size), np.float32)
        version = np.full(envs, 10**6)
        rollout = Rollout(obs, action, reward, reward, never, never, log_prob, value, memory, version, [])
        return algo, [rollout]

    return Work(make)


def decision_transformer(windows: int) -> Work:
    """Return the Decision Transformer of the paper's gym size."""

    def make(shared: dict[str, Any]) -> Any:
        import numpy as np

        from roboloop.algos.imitation.config import DTConfig
        from roboloop.core.types import WindowBatch

        scale = find("roboloop.algos.learner.data_scale", "DataScale")(np.zeros(17), np.ones(17), 1000.0)
        cfg = DTConfig(batch_size=windows, context=CONTEXT, **without(shared, DTConfig))
        make_dt = find("roboloop.algos.imitation.transformer", "decision_transformer")
        algo = make_dt(cfg, spec_of((17,), actions=6), scale, 3000.0, 0)
        lead = (windows, CONTEXT)
        t = np.broadcast_to(np.arange(CONTEXT, dtype=np.int32), lead).copy()
        batch = WindowBatch(floats(*lead, 17), np.tanh(floats(*lead, 6)), floats(*lead), t, np.ones(lead, bool))
        return algo, [batch]

    return Work(make)


def without(shared: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return the keys that a config knows: at the commit before, not all could run kernels again."""
    known = {field.name for field in dataclasses.fields(config)}
    return {name: value for name, value in shared.items() if name in known}


WORK: dict[str, Work] = {
    "SAC 256x256": sac((256, 256), 256),
    "SAC 256x256, layer norm": sac((256, 256), 256, layer_norm=True),
    "SAC 400x400x400": sac((400, 400, 400), 1280),
    "SAC residual 256x256": sac((256, 256), 256, net="residual"),
    "SAC from pixels": pixels(128),
    "ten tasks, heads": tasks("heads", 1280),
    "ten tasks, soft modules": tasks("soft", 1280),
    "PPO 64x64": ppo(lambda: spec_of((17,), actions=6), 8, rollout_steps=128, epochs=10, minibatches=4),
    "PPO Doom, GRU": ppo(
        lambda: spec_of((3, 72, 128), "uint8", 1, action_choices=(5,)), 32, rollout_steps=32, epochs=1, minibatches=1,
        core="gru", normalize_obs=True,
    ),
    "Decision Transformer": decision_transformer(64),
}  # fmt: skip


def make(name: str, work: str, processes: int) -> Run:
    """Return updates of one contender."""
    shared: dict[str, Any] = {"processes": processes}
    if name != BEFORE:
        shared["replay_kernels"] = name == REPLAYED
    algo, ready = WORK[work].make(shared)
    batches = itertools.cycle(ready)
    algo.update(next(batches))
    algo.wait_until_ready()

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            algo.update(batch)

    run(4 if "Doom" in work else 40)  # replayed kernels are compared with autograd's at the 2nd, 4th, 8th, ... update
    return run


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short blocks, only the first row")
    parser.add_argument("--only", nargs="+", choices=WORK, default=[*WORK], metavar="ROW", help="these rows only")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another working tree to compare with")
    parser.add_argument("--out", type=Path, help="write all blocks as JSON")
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--block-s", type=float, default=1.0)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        name, work, threads = args.serve
        return serve(lambda: make(name, work, int(threads)))
    blocks, block_s = (5, 0.3) if args.quick else (args.blocks, args.block_s)
    names = [REPLAYED, AUTOGRAD, *[BEFORE] * (args.before is not None)]
    results = []
    for threads, work in itertools.product(args.threads, [*WORK][:1] if args.quick else args.only):
        made = [
            Contender(n, __file__, [n, work, str(threads)], threads, False, root=args.before if n == BEFORE else None)
            for n in names
        ]
        rates = interleave(made, blocks, block_s)
        ratio = {name: median_ratio(rates[REPLAYED], values) for name, values in rates.items()}
        results.append({"threads": threads, "work": work, "median": medians(rates), "ratio": ratio, "blocks": rates})
        row = [str(threads), work, *(f"{results[-1]['median'][n]:.1f}" for n in names)]
        print_table(["threads", "work", *names, *(f"over {name}" for name in names[1:])],
                    [row + [f"{ratio[n]:.2f}x" for n in names[1:]]])  # fmt: skip
    print("updates/s, of PPO rollouts/s; medians of blocks, and of the ratios of each round")
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))
    return None


if __name__ == "__main__":
    main()
