"""SAC updates per second: ours beside SB3, a CleanRL-style script, sbx and the matrix products alone, block by block.

Every contender does full updates (critics, actor, temperature, targets) at the same widths on ready batches in host
memory: drawing from a replay buffer is excluded for all, moving the batch into the learner is included for all.
Contenders live in processes of their own that stay alive and are timed in turn, so all see the same machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from pathlib import Path
from typing import Any

from _contender import PEERS, Contender, Run, interleave, median_ratio, medians, print_table, serve

OBS_DIM, ACTION_DIM, NUM_BATCHES, SBX_LOOP = 39, 4, 8, 20
OURS, LIMIT = "roboloop", "gemm-only"
IN_PEERS_VENV = {"sb3", "sbx", "sbx-loop"}
CONTENDERS = (OURS, "sb3", "cleanrl-style", "sbx", "sbx-loop", LIMIT)
WIDTHS = {"256x256": (256, 256), "400x400x400": (400, 400, 400)}


# ---- contenders: imported inside, since each lives in its own environment ----


def numpy_batches(batch_size: int) -> list[tuple[Any, ...]]:
    """Return (obs, action, reward, next_obs, done) tuples of float32 arrays."""
    import numpy as np

    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    return [
        (normal(batch_size, OBS_DIM), np.tanh(normal(batch_size, ACTION_DIM)), normal(batch_size),
         normal(batch_size, OBS_DIM), (rng.random(batch_size) < 0.05).astype(np.float32))
        for _ in range(NUM_BATCHES)
    ]  # fmt: skip


def make_ours(hidden: tuple[int, ...], batch_size: int, threads: int) -> Run:
    """Our SAC with one process per thread."""
    import numpy as np

    from roboloop.algos.sac.config import SACConfig
    from roboloop.algos.sac.setup import make_sac
    from roboloop.core.types import Batch, EnvSpec

    spec = EnvSpec((OBS_DIM,), np.dtype(np.float32), (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM, 500)
    sac = make_sac(SACConfig(hidden=hidden, batch_size=batch_size, processes=threads), spec, frame_stack=1, seed=0)
    raw = numpy_batches(batch_size)
    batches = itertools.cycle([Batch(o, a, r, n, (0.99 * (1 - d)).astype("float32")) for o, a, r, n, d in raw])
    sac.update(next(batches))
    sac.wait_until_ready()

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            sac.update(batch)

    return run


def sb3_like(sac_class: Any, hidden: tuple[int, ...], batch_size: int) -> Any:
    """Return an SB3-style learner whose replay buffer hands out ready batches."""
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    class Box(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = gymnasium.spaces.Box(-10, 10, (OBS_DIM,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (ACTION_DIM,), np.float32)

    learner = sac_class("MlpPolicy", Box(), policy_kwargs={"net_arch": list(hidden)}, buffer_size=10, device="cpu")
    learner.set_logger(Logger(None, []))
    ready = itertools.cycle([
        ReplayBufferSamples(*(torch.from_numpy(leaf) for leaf in (o, a, n, d[:, None], r[:, None])))
        for o, a, r, n, d in numpy_batches(batch_size)
    ])  # fmt: skip
    learner.replay_buffer.sample = lambda *_args, **_kw: next(ready)
    return learner


def make_sb3(hidden: tuple[int, ...], batch_size: int, threads: int) -> Run:
    """Stable-Baselines3: ``SAC.train``."""
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(threads)
    learner = sb3_like(SAC, hidden, batch_size)
    return lambda updates: learner.train(updates, batch_size)


def make_sbx(hidden: tuple[int, ...], batch_size: int, threads: int, steps_per_call: int = 1) -> Run:
    """SB3 on JAX: ``SAC.train`` with one update per call (as when training after every step), or a compiled loop."""
    from sbx import SAC

    learner = sb3_like(SAC, hidden, batch_size * steps_per_call)

    def run(updates: int) -> None:
        for _ in range(updates // steps_per_call):
            learner.train(steps_per_call, batch_size)  # reads a loss at its end, so the work is done

    return run


def make_sbx_loop(hidden: tuple[int, ...], batch_size: int, threads: int) -> Run:
    """SB3 on JAX at its best: many updates in one compiled call, which a run with that ratio could use."""
    return make_sbx(hidden, batch_size, threads, steps_per_call=SBX_LOOP)


def make_cleanrl(hidden: tuple[int, ...], batch_size: int, threads: int) -> Run:
    """The usual single-file script: plain modules, an Adam per net, two actor steps every second update."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(threads)

    def mlp(inputs: int, outputs: int) -> nn.Sequential:
        widths = (inputs, *hidden)
        layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    actor = mlp(OBS_DIM, 2 * ACTION_DIM)
    q1, q2, t1, t2 = (mlp(OBS_DIM + ACTION_DIM, 1) for _ in range(4))
    log_alpha = torch.zeros(1, requires_grad=True)
    q_adam = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=1e-3)
    actor_adam, alpha_adam = torch.optim.Adam(actor.parameters(), lr=3e-4), torch.optim.Adam([log_alpha], lr=1e-3)
    alpha = 1.0

    def act(obs: Any) -> tuple[Any, Any]:
        mean, log_std = actor(obs).chunk(2, dim=-1)
        log_std = -5 + 0.5 * 7 * (torch.tanh(log_std) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        u = normal.rsample()
        action = torch.tanh(u)
        return action, (normal.log_prob(u) - torch.log(1 - action.pow(2) + 1e-6)).sum(1, keepdim=True)

    def update(step: int, obs: Any, action: Any, reward: Any, next_obs: Any, done: Any) -> None:
        nonlocal alpha
        with torch.no_grad():
            next_action, next_log_prob = act(next_obs)
            x = torch.cat([next_obs, next_action], 1)
            target = reward + (1 - done) * 0.99 * (torch.min(t1(x), t2(x)) - alpha * next_log_prob).view(-1)
        x = torch.cat([obs, action], 1)
        loss = functional.mse_loss(q1(x).view(-1), target) + functional.mse_loss(q2(x).view(-1), target)
        q_adam.zero_grad()
        loss.backward()
        q_adam.step()
        for _ in range(2 if step % 2 == 0 else 0):
            fresh, log_prob = act(obs)
            x = torch.cat([obs, fresh], 1)
            actor_loss = (alpha * log_prob - torch.min(q1(x), q2(x))).mean()
            actor_adam.zero_grad()
            actor_loss.backward()
            actor_adam.step()
            with torch.no_grad():
                _, log_prob = act(obs)
            alpha_loss = (-log_alpha.exp() * (log_prob - ACTION_DIM)).mean()
            alpha_adam.zero_grad()
            alpha_loss.backward()
            alpha_adam.step()
            alpha = log_alpha.exp().item()
        for net, target_net in ((q1, t1), (q2, t2)):
            for param, target_param in zip(net.parameters(), target_net.parameters(), strict=True):
                target_param.data.copy_(0.005 * param.data + 0.995 * target_param.data)

    batches = itertools.cycle([[torch.from_numpy(leaf) for leaf in b] for b in numpy_batches(batch_size)])
    steps = itertools.count()

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            update(next(steps), *batch)

    return run


def make_gemm(hidden: tuple[int, ...], batch_size: int, threads: int) -> Run:
    """Only the matrix products of one update, on intra-op threads: what the usual frameworks could reach at best."""
    import torch

    torch.set_num_threads(threads)
    n = batch_size
    actor = list(itertools.pairwise((OBS_DIM, *hidden, 2 * ACTION_DIM)))
    critic = list(itertools.pairwise((OBS_DIM + ACTION_DIM, *hidden, 1)))

    def products(layers: list[tuple[int, int]], times: int, kind: str) -> list[tuple[Any, Any, Any]]:
        made = []
        for i, o in layers * times:
            x, w, dy = torch.randn(n, i), torch.randn(i, o), torch.randn(n, o)
            out = {"y": (x, w), "dw": (x.t(), dy), "dx": (dy, w.t())}[kind]
            made.append((*out, torch.empty(out[0].shape[0], out[1].shape[1])))
        return made

    work = [
        *products(actor, 2, "y"), *products(critic, 6, "y"),  # both states; targets, batch actions, fresh actions
        *products(critic, 2, "dw"), *products(critic[1:], 2, "dx"),  # critic step
        *products(critic, 2, "dx"), *products(actor, 1, "dw"), *products(actor[1:], 1, "dx"),  # actor step
    ]  # fmt: skip

    def run(updates: int) -> None:
        for _ in range(updates):
            for a, b, out in work:
                torch.mm(a, b, out=out)

    return run


MAKERS = {
    OURS: make_ours, "sb3": make_sb3, "cleanrl-style": make_cleanrl, "sbx": make_sbx, "sbx-loop": make_sbx_loop,
    LIMIT: make_gemm,
}  # fmt: skip


def warmed_up(name: str, hidden: tuple[int, ...], batch_size: int, threads: int) -> Run:
    """Build a contender and let it compile."""
    run = MAKERS[name](hidden, batch_size, threads)
    run(2 * SBX_LOOP if name == "sbx-loop" else 3)
    return run


# ---- the benchmark ----


def measure(case: dict[str, Any], names: list[str], blocks: int, block_s: float) -> dict[str, Any]:
    """Time all contenders of one case in turn."""
    threads = case["threads"]
    work = [",".join(map(str, WIDTHS[case["hidden"]])), str(case["batch"]), str(threads)]
    contenders = [
        Contender(n, __file__, [n, *work], threads, n in IN_PEERS_VENV, SBX_LOOP if n == "sbx-loop" else 1)
        for n in names
    ]
    rates = interleave(contenders, blocks, block_s)
    ratio = {name: median_ratio(rates[OURS], values) for name, values in rates.items()}
    return {**case, "median": medians(rates), "ours_over": ratio, "blocks": rates}


def show(results: list[dict[str, Any]], names: list[str]) -> None:
    """Print one table: updates per second, and in brackets how many times faster ours was in the same round."""
    header = ["threads", "hidden", "batch", *names]
    rows = [
        [str(r["threads"]), r["hidden"], str(r["batch"])]
        + [f"{r['median'][n]:.1f}" + ("" if n == OURS else f" ({r['ours_over'][n]:.2f}x)") for n in names]
        for r in results
    ]
    print_table(header, rows)
    print("updates/s, median of blocks; in brackets: ours / theirs, median over rounds")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short blocks, only 256x256 with batch 256")
    parser.add_argument("--out", type=Path, help="write all blocks as JSON")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="measure only these beside ours")
    parser.add_argument("--hidden", nargs="+", choices=list(WIDTHS), default=list(WIDTHS))
    parser.add_argument("--batch", nargs="+", type=int, default=[256, 1280])
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-s", type=float, default=1.5)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        name, hidden, batch, threads = args.serve
        widths = tuple(int(width) for width in hidden.split(","))
        return serve(lambda: warmed_up(name, widths, int(batch), int(threads)))
    if args.quick:
        args.hidden, args.batch, args.blocks, args.block_s = ["256x256"], [256], 5, 0.5
    names = [n for n in CONTENDERS if n == OURS or n in (args.only or CONTENDERS)]
    if not PEERS.exists() and IN_PEERS_VENV & set(names):
        print(f"no {PEERS.parents[1].name}: run scripts/setup_peers.sh to measure SB3 and sbx; going on without them")
        names = [n for n in names if n not in IN_PEERS_VENV]
    results = []
    for threads, hidden, batch in itertools.product(args.threads, args.hidden, args.batch):
        case = {"threads": threads, "hidden": hidden, "batch": batch}
        results.append(measure(case, names, args.blocks, args.block_s))
        show(results[-1:], names)
    show(results, names)
    if args.out:
        args.out.write_text(json.dumps({"cpus": len(os.sched_getaffinity(0)), "results": results}, indent=1))
    return None


if __name__ == "__main__":
    main()
