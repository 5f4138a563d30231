"""Decision Transformer updates per second: ours beside Hugging Face transformers', block by block.

Both take full training steps of the paper's gym size (20 steps of context, width 128, 3 layers, 1 head, batch 64) on
ready batches in host memory: forward, loss over valid steps, backward, gradient clipping at 0.25, AdamW. ``--check``
copies their weights into ours and compares loss and length of the gradient on the same batch, without dropout.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from _contender import PEERS, ROOT, Contender, Run, interleave, median_ratio, medians, serve

STATE_DIM, ACTION_DIM, CONTEXT, BATCH, EPISODE, NUM_BATCHES = 17, 6, 20, 64, 1000, 8
RETURN_SCALE = 1000.0
IDLE, FEW = 0.95, 4
"""With ``--when-idle``: which part of the cores must be free, and how many updates a round has."""
OURS, THEIRS = "roboloop", "huggingface"


def numpy_batches(padded: float) -> list[Any]:
    """Return WindowBatches of which a fraction of the windows begins before its episode does."""
    import numpy as np

    from roboloop.core.types import WindowBatch

    rng = np.random.default_rng(0)
    made = []
    for _ in range(NUM_BATCHES):
        length = np.where(rng.random((BATCH, 1)) < padded, rng.integers(1, CONTEXT, (BATCH, 1)), CONTEXT)
        mask = np.arange(CONTEXT) >= CONTEXT - length
        t = rng.integers(0, EPISODE - CONTEXT, (BATCH, 1)) + np.arange(CONTEXT)
        made.append(
            WindowBatch(
                rng.standard_normal((BATCH, CONTEXT, STATE_DIM), dtype=np.float32),
                np.tanh(rng.standard_normal((BATCH, CONTEXT, ACTION_DIM), dtype=np.float32)),
                rng.uniform(0, 3000, (BATCH, CONTEXT)).astype(np.float32), np.where(mask, t, 0).astype(np.int32), mask,
            )
        )  # fmt: skip
    return made


def ours(processes: int, dropout: float) -> Any:
    """Return our algorithm."""
    import numpy as np

    from roboloop.algos.imitation.config import DTConfig
    from roboloop.algos.imitation.transformer import decision_transformer
    from roboloop.algos.learner.data_scale import DataScale
    from roboloop.core.types import EnvSpec

    spec = EnvSpec((STATE_DIM,), np.dtype(np.float32), (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM, EPISODE)
    scale = DataScale(np.zeros(STATE_DIM), np.ones(STATE_DIM), RETURN_SCALE)
    return decision_transformer(DTConfig(processes=processes, dropout=dropout), spec, scale, 3000.0, seed=0)


def make_ours(threads: int, padded: float) -> Run:
    """Our algorithm with one process per thread."""
    algo, batches = ours(threads, 0.1), itertools.cycle(numpy_batches(padded))
    algo.update(next(batches))
    algo.wait_until_ready()

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            algo.update(batch)

    return run


def theirs(dropout: float) -> Any:
    """Return their model, ready to train."""
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    config = DecisionTransformerConfig(
        state_dim=STATE_DIM, act_dim=ACTION_DIM, hidden_size=128, max_ep_len=EPISODE, n_layer=3, n_head=1,
        activation_function="relu", resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    return DecisionTransformerModel(config).train()


def their_loss(model: Any, batch: Any) -> Any:
    """Return their mean squared error over valid steps."""
    import torch

    state, action, to_go, t, mask = (torch.from_numpy(leaf) for leaf in batch)
    said = model(
        states=state, actions=action, rewards=None, returns_to_go=(to_go / RETURN_SCALE).unsqueeze(2),
        timesteps=t.long(), attention_mask=mask.long(), return_dict=False,
    )  # fmt: skip
    return (said[1][mask] - action[mask]).square().mean()


def make_theirs(threads: int, padded: float) -> Run:
    """The loop that their users write."""
    import torch

    torch.set_num_threads(threads)
    model, batches = theirs(0.1), itertools.cycle(numpy_batches(padded))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)

    def run(updates: int) -> None:
        for batch in itertools.islice(batches, updates):
            optimizer.zero_grad()
            their_loss(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()

    run(3)
    return run


def copy_weights(model: Any, weights: dict[str, Any]) -> None:
    """Write their weights into ours, ``{name: tensor}``."""
    parts = model.state_dict()
    # their only position embedding, number 0, is added to all tokens behind the first norm: a part of its bias
    parts["embed_ln.bias"] = parts["embed_ln.bias"] + parts["encoder.wpe.weight"][0]
    width = model.config.hidden_size

    def layer(name: str, source: str) -> None:
        for kind in ("weight", "bias"):
            weight = parts[f"{source}.{kind}"]
            is_turned = source.startswith("encoder.h") and weight.ndim == 2  # theirs lie as [in, out]
            weights[f"net.transformer.{name}.{kind}"].copy_(weight.t() if is_turned else weight)

    weights["net.transformer.time"].copy_(parts["embed_timestep.weight"])
    for i, source in enumerate(("return", "state", "action")):
        layer(f"embed.{i}", f"embed_{source}")
    for name, source in {"head": "predict_action.0", "norm_in": "embed_ln", "norm": "encoder.ln_f"}.items():
        layer(name, source)
    for i in range(model.config.n_layer):
        block = f"encoder.h.{i}"
        for j, own in enumerate(("query", "key", "value")):
            for kind in ("weight", "bias"):
                columns = parts[f"{block}.attn.c_attn.{kind}"][..., j * width : (j + 1) * width]
                parts[f"{block}.{own}.{kind}"] = columns
        sources = {
            "mix": "attn.c_proj",
            "expand": "mlp.c_fc",
            "contract": "mlp.c_proj",
            "norm1": "ln_1",
            "norm2": "ln_2",
        }
        for own, source in {**{name: name for name in ("query", "key", "value")}, **sources}.items():
            layer(f"blocks.{i}.{own}", f"{block}.{source}")


def check() -> dict[str, list[float]]:
    """Return [ours, theirs] for loss and length of the gradient, on one batch, with equal weights."""
    import torch

    torch.manual_seed(0)
    model, batch, algo = theirs(0.0), numpy_batches(0.5)[0], ours(1, 0.0)
    for parameter in model.parameters():  # their first weights are so small that a fault could hide behind them
        parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    state = algo.state()
    copy_weights(model, state["policy"]["weights"])
    algo.load(state)
    loss = their_loss(model, batch)
    loss.backward()
    # their position embedding has a gradient of its own, which ours has not
    grads = [p.grad for name, p in model.named_parameters() if p.grad is not None and "wpe" not in name]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    found = algo.update(batch)
    return {"loss": [found["loss"], loss.item()], "grad_norm": [found["grad_norm"], norm.item()]}


def idle_share(seconds: float) -> float:
    """Return which part of all cores did nothing for so long."""

    def times() -> tuple[int, int]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    (total, idle), _, (total_after, idle_after) = times(), time.sleep(seconds), times()
    return (idle_after - idle) / max(total_after - total, 1)


def interleave_when_idle(contenders: list[Contender], rounds: int, limit_s: float) -> dict[str, list[float]]:
    """Time rounds of a few updates, and keep those before, between and after which nobody else used the machine."""
    kept: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    end_s = time.monotonic() + limit_s
    while len(kept[OURS]) < rounds and time.monotonic() < end_s:
        quiet, found = idle_share(0.4) >= IDLE, dict[str, float]()
        for contender in contenders if quiet else []:
            found[contender.name] = FEW / contender.time(FEW)
            quiet = quiet and idle_share(0.3) >= IDLE
        for name, rate in found.items() if quiet else []:
            kept[name].append(rate)
        time.sleep(0.0 if quiet else 1.0)
    for contender in contenders:
        contender.close()
    if not kept[OURS]:
        raise SystemExit(f"the machine was never idle within {limit_s:.0f} s")
    return kept


def measure(threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Time both in turn."""
    padded = args.padded
    work = [str(threads), str(padded)]
    contenders = [Contender(n, __file__, [n, *work], threads, n == THEIRS) for n in (OURS, THEIRS)]
    if args.when_idle:
        rates = interleave_when_idle(contenders, args.blocks, args.when_idle)
    else:
        rates = interleave(contenders, args.blocks, args.block_s)
    ratio = median_ratio(rates[OURS], rates[THEIRS])
    return {"threads": threads, "padded": padded, "median": medians(rates), "ours_over": ratio, "blocks": rates}


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all blocks as JSON")
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--padded", type=float, default=0.0, help="fraction of windows that are partly padding")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-s", type=float, default=3.0)
    parser.add_argument("--when-idle", type=float, metavar="SECONDS", help="wait so long for rounds on an idle machine")
    parser.add_argument("--check", action="store_true", help="only compare loss and gradient; needs transformers")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        name, threads, padded = args.serve
        return serve(lambda: {OURS: make_ours, THEIRS: make_theirs}[name](int(threads), float(padded)))
    if args.check:
        print(json.dumps(check()))
        return None
    if not PEERS.exists():
        raise SystemExit(f"no {PEERS.parents[1].name}: run scripts/setup_peers.sh to have something to measure against")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run([PEERS, __file__, "--check"], check=True, capture_output=True, text=True, env=environ).stdout
    same = json.loads(said.splitlines()[-1])
    for name, (own, other) in same.items():
        print(f"{name} with equal weights: ours {own:.8f}, theirs {other:.8f}")
    results = [measure(threads, args) for threads in args.threads]
    for r in results:
        rates = ", ".join(f"{name} {rate:.2f}" for name, rate in r["median"].items())
        rounds = len(r["blocks"][OURS])
        print(f"{r['threads']} threads, updates/s: {rates}; ours {r['ours_over']:.2f}x, median over {rounds} rounds")
    if args.out:
        args.out.write_text(json.dumps({"cpus": len(os.sched_getaffinity(0)), "check": same, "results": results}))
    return None


if __name__ == "__main__":
    main()
