"""SAC updates from pictures per second: ours beside a DrQ-v2-style script and SB3's CnnPolicy, block by block.

Every contender does full updates (critics with convolutions, actor, temperature, targets) with the same convolutions,
trunk and hidden layers on ready batches of uint8 frame stacks in host memory. Ours and the script also shift both
pictures of each transition, each in its own way (copied slices; padding and ``grid_sample``, as published); SB3 has no
shifts, but convolutions for actor, critics and targets apart, which is its default.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from pathlib import Path
from typing import Any

from _contender import PEERS, Contender, Run, interleave, median_ratio, medians, print_table, serve

FRAMES, SIZE, ACTION_DIM, NUM_BATCHES = 3, 64, 6, 4
CHANNELS = 32
NETS = {"4-3-3": ((4, 3, 3), (4, 2, 1)), "3-3-3-3": ((3, 3, 3, 3), (2, 2, 2, 1))}
"""Windows and strides: our default, and the published windows with strides for 64x64."""
HIDDEN, FEATURE_DIM, SHIFT_PX = (256, 256), 50, 4
OURS, SCRIPT, SB3 = "roboloop", "drqv2-style", "sb3"
CONTENDERS = (OURS, SCRIPT, SB3)


# ---- contenders: imported inside, since each lives in its own environment ----


def numpy_batches(batch_size: int) -> list[tuple[Any, ...]]:
    """Return (obs, action, reward, next_obs, done) tuples; observations are uint8 ``[N, frames, 3, size, size]``."""
    import numpy as np

    rng = np.random.default_rng(0)

    def pictures() -> Any:
        return rng.integers(0, 256, (batch_size, FRAMES, 3, SIZE, SIZE), dtype=np.uint8)

    return [
        (pictures(), rng.uniform(-1, 1, (batch_size, ACTION_DIM)).astype(np.float32),
         rng.standard_normal(batch_size, dtype=np.float32), pictures(),
         (rng.random(batch_size) < 0.05).astype(np.float32))
        for _ in range(NUM_BATCHES)
    ]  # fmt: skip


def make_ours(batch_size: int, threads: int, net: str) -> Run:
    """Our SAC with one process per thread, and the replay's shifts."""
    import numpy as np

    from roboloop.algos.sac.config import SACConfig
    from roboloop.algos.sac.setup import make_sac
    from roboloop.core.types import Batch, EnvSpec
    from roboloop.data.shifts import shift

    bounds = (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM
    spec = EnvSpec((3, SIZE, SIZE), np.dtype(np.uint8), *bounds, 500)
    kernels, strides = NETS[net]
    cfg = SACConfig(
        hidden=HIDDEN, batch_size=batch_size, processes=threads, conv_channels=(CHANNELS,) * len(kernels),
        conv_kernels=kernels, conv_strides=strides, feature_dim=FEATURE_DIM,
    )  # fmt: skip
    sac = make_sac(cfg, spec, FRAMES, seed=0)
    raw = numpy_batches(batch_size)
    batches = itertools.cycle([Batch(o, a, r, n, (0.99 * (1 - d)).astype("float32")) for o, a, r, n, d in raw])
    rng, obs, next_obs = np.random.default_rng(0), np.empty_like(raw[0][0]), np.empty_like(raw[0][0])
    sac.update(next(batches))
    sac.wait_until_ready()

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            for drawn, shifted in ((batch.obs, obs), (batch.next_obs, next_obs)):
                shift(drawn, rng.integers(-SHIFT_PX, SHIFT_PX + 1, (batch_size, 2)), shifted)
            sac.update(batch._replace(obs=obs, next_obs=next_obs))

    return run


def torch_nets(net: str) -> tuple[Any, Any, Any]:
    """Return functions that make convolutions, a trunk and a head, for those who learn by autograd."""
    from torch import nn

    def convolutions() -> nn.Sequential:
        layers: list[nn.Module] = []
        for i, (kernel, stride) in enumerate(zip(*NETS[net], strict=True)):
            layers += [nn.Conv2d(CHANNELS if i else 3 * FRAMES, CHANNELS, kernel, stride), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten())

    def trunk(features: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(features, FEATURE_DIM), nn.LayerNorm(FEATURE_DIM), nn.Tanh())

    def head(inputs: int, outputs: int) -> nn.Sequential:
        widths = (inputs, *HIDDEN)
        layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    return convolutions, trunk, head


def random_shift() -> Any:
    """Return DrQ-v2's shift: pad by repeating edges, then look up a grid that is off by whole pixels."""
    import torch
    from torch.nn import functional

    def shift(x: Any) -> Any:
        n, size = len(x), SIZE + 2 * SHIFT_PX
        x = functional.pad(x, (SHIFT_PX,) * 4, "replicate")
        line = torch.linspace(-1 + 1 / size, 1 - 1 / size, size)[:SIZE]
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).expand(n, -1, -1, -1)
        offsets = torch.randint(0, 2 * SHIFT_PX + 1, (n, 1, 1, 2)) * (2 / size)
        return functional.grid_sample(x, grid + offsets, align_corners=False)

    return shift


def make_script(batch_size: int, threads: int, net: str) -> Run:
    """A single-file script with DrQ-v2's parts and SAC's losses: eager, autograd, channels last, an Adam per part."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    convolutions, trunk, head = torch_nets(net)
    shift, last = random_shift(), torch.channels_last
    encoder = convolutions().to(memory_format=last)
    features = encoder(torch.zeros(1, 3 * FRAMES, SIZE, SIZE)).shape[1]
    inputs = FEATURE_DIM + ACTION_DIM
    actor = torch.nn.ModuleList([trunk(features), head(FEATURE_DIM, 2 * ACTION_DIM)])
    critic, target = (torch.nn.ModuleList([trunk(features), head(inputs, 1), head(inputs, 1)]) for _ in range(2))
    log_alpha = torch.zeros(1, requires_grad=True)
    adams = [
        torch.optim.Adam(parameters, lr=3e-4)
        for parameters in (encoder.parameters(), critic.parameters(), actor.parameters(), [log_alpha])
    ]

    def act(x: Any) -> tuple[Any, Any]:
        mean, log_std = actor[1](actor[0](x)).chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = normal.rsample()
        action = torch.tanh(u)
        return action, (normal.log_prob(u) - torch.log(1 - action.pow(2) + 1e-6)).sum(1, keepdim=True)

    def values(nets: Any, x: Any, action: Any) -> tuple[Any, Any]:
        x = torch.cat([nets[0](x), action], 1)
        return nets[1](x), nets[2](x)

    def see(pixels: Any) -> Any:
        x = shift(pixels.view(batch_size, -1, SIZE, SIZE).float()) / 255 - 0.5
        return encoder(x.contiguous(memory_format=last))

    def update(obs: Any, action: Any, reward: Any, next_obs: Any, done: Any) -> None:
        alpha, x = log_alpha.exp().item(), see(obs)
        with torch.no_grad():
            x_next = see(next_obs)
            next_action, next_log_prob = act(x_next)
            next_q = torch.min(*values(target, x_next, next_action)) - alpha * next_log_prob
            wanted = reward[:, None] + 0.99 * (1 - done[:, None]) * next_q
        loss = sum(functional.mse_loss(q, wanted) for q in values(critic, x, action))
        for adam in adams[:2]:
            adam.zero_grad(set_to_none=True)
        loss.backward()
        for adam in adams[:2]:
            adam.step()
        x = x.detach()
        fresh, log_prob = act(x)
        actor_loss = (alpha * log_prob - torch.min(*values(critic, x, fresh))).mean()
        alpha_loss = (-log_alpha.exp() * (log_prob.detach() - ACTION_DIM)).mean()
        for adam, one in ((adams[2], actor_loss), (adams[3], alpha_loss)):
            adam.zero_grad(set_to_none=True)
            one.backward()
            adam.step()
        with torch.no_grad():
            for own, slow in zip(critic.parameters(), target.parameters(), strict=True):
                slow.lerp_(own, 0.01)

    batches = itertools.cycle([[torch.from_numpy(leaf) for leaf in b] for b in numpy_batches(batch_size)])

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            update(*batch)

    return run


def make_sb3(batch_size: int, threads: int, net: str) -> Run:
    """Stable-Baselines3: ``SAC.train`` of a CnnPolicy with the same networks, whose replay hands out ready batches."""
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    torch.set_num_threads(threads)
    convolutions, trunk, _ = torch_nets(net)
    space = gymnasium.spaces.Box(0, 255, (3 * FRAMES, SIZE, SIZE), np.uint8)

    class Features(BaseFeaturesExtractor):  # type: ignore[misc]
        def __init__(self, observation_space: Any) -> None:
            super().__init__(observation_space, FEATURE_DIM)
            convs = convolutions()
            self.net = torch.nn.Sequential(convs, trunk(convs(torch.zeros(1, *space.shape)).shape[1]))

        def forward(self, x: Any) -> Any:
            return self.net(x)

    class Pictures(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = space
        action_space = gymnasium.spaces.Box(-1, 1, (ACTION_DIM,), np.float32)

    networks = {"net_arch": list(HIDDEN), "features_extractor_class": Features}
    learner = SAC("CnnPolicy", Pictures(), policy_kwargs=networks, buffer_size=10, device="cpu")
    learner.set_logger(Logger(None, []))
    ready = itertools.cycle([
        ReplayBufferSamples(
            *(torch.from_numpy(leaf) for leaf in (
                o.reshape(batch_size, *space.shape), a, n.reshape(batch_size, *space.shape), d[:, None], r[:, None]
            ))
        )
        for o, a, r, n, d in numpy_batches(batch_size)
    ])  # fmt: skip
    learner.replay_buffer.sample = lambda *_args, **_kw: next(ready)
    return lambda updates: learner.train(updates, batch_size)


MAKERS = {OURS: make_ours, SCRIPT: make_script, SB3: make_sb3}


# ---- the benchmark ----


def measure(case: dict[str, Any], names: list[str], blocks: int, block_s: float) -> dict[str, Any]:
    """Time all contenders of one case in turn."""
    threads = case["threads"]
    contenders = [
        Contender(n, __file__, [n, str(case["batch"]), str(threads), case["net"]], threads, n == SB3) for n in names
    ]
    rates = interleave(contenders, blocks, block_s)
    ratio = {name: median_ratio(rates[OURS], values) for name, values in rates.items()}
    return {**case, "median": medians(rates), "ours_over": ratio, "blocks": rates}


def show(results: list[dict[str, Any]], names: list[str]) -> None:
    """Print one table: updates per second, and in brackets how many times faster ours was in the same round."""
    header = ["threads", "batch", "net", *names]
    rows = [
        [str(r["threads"]), str(r["batch"]), r["net"]]
        + [f"{r['median'][n]:.2f}" + ("" if n == OURS else f" ({r['ours_over'][n]:.2f}x)") for n in names]
        for r in results
    ]
    print_table(header, rows)
    print(f"updates/s from {FRAMES} frames of {SIZE}x{SIZE}, median of blocks; in brackets: ours / theirs, over rounds")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short blocks")
    parser.add_argument("--out", type=Path, help="write all blocks as JSON")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="measure only these beside ours")
    parser.add_argument("--batch", nargs="+", type=int, default=[128])
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-s", type=float, default=3.0)
    parser.add_argument("--net", nargs="+", choices=tuple(NETS), default=list(NETS), help="windows of the convolutions")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        name, batch, threads, net = args.serve
        return serve(lambda: MAKERS[name](int(batch), int(threads), net))
    if args.quick:
        args.blocks, args.block_s = 5, 1.0
    names = [n for n in CONTENDERS if n == OURS or n in (args.only or CONTENDERS)]
    if not PEERS.exists() and SB3 in names:
        print(f"no {PEERS.parents[1].name}: run scripts/setup_peers.sh to measure SB3; going on without it")
        names.remove(SB3)
    results = []
    for threads, batch, net in itertools.product(args.threads, args.batch, args.net):
        case = {"threads": threads, "batch": batch, "net": net}
        results.append(measure(case, names, args.blocks, args.block_s))
        show(results[-1:], names)
    show(results, names)
    if args.out:
        args.out.write_text(json.dumps({"cpus": len(os.sched_getaffinity(0)), "results": results}, indent=1))
    return None


if __name__ == "__main__":
    main()
