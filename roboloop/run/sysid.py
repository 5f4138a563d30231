"""The verb ``sysid``: the constant parameters with which a simulator predicts a target's transitions best.

A search by CMA-ES over the parameters that a hybrid simulator sets anew at every step, here held still. What it finds
is written as a frozen policy that always says the same, so that it stands wherever a generator can.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.config import to_dict
from roboloop.core.errors import ConfigError, DataError, needs_extra
from roboloop.core.files import disk_errors, read_json, replace_atomic, staged
from roboloop.core.options import Options
from roboloop.core.rng import stream
from roboloop.core.stop import StopRequest
from roboloop.core.types import Array
from roboloop.data.dataset import Dataset
from roboloop.envs.frozen import SUFFIX, FrozenPolicy, Layers
from roboloop.envs.legged.prediction import Start, deviation, errors, predict, starts
from roboloop.envs.legged.world import LeggedWorld
from roboloop.run.commands import STOPPED
from roboloop.run.recorded import Simulator, add_data_options, chosen, open_simulator, read_episodes
from roboloop.track.terminal import number, table

FORMAT = 1
EXTRA = "sysid"
FIRST_DEVIATION = 0.3
"""Of the search, where parameters reach from -1 to 1."""
HUBER = 1.0
"""Deviations beyond which an error counts by its size, no longer by its square."""
WORST = 1e6
"""An error beyond this counts as this: a simulator that blew up."""


class Generation(NamedTuple):
    """What was tried together, and what it cost."""

    tried: list[list[float]]
    losses: list[float]


class Found(NamedTuple):
    """The parameters in the end."""

    t: Array
    loss: float


def sysid(args: list[str]) -> int:
    """Search for constant parameters, or go on with a search."""
    options = Options(prog="roboloop sysid", allow_abbrev=False)
    add = options.add_argument
    add("env", help="the simulator whose parameters are sought, such as hopper/bullet")
    add_data_options(options)
    add("--held-out", type=float, default=0.0, metavar="SHARE", help="of the episodes, which are not looked at")
    add("--out", type=Path, required=True, metavar="FILE.safetensors", help="a generator that always says the same")
    add("--transitions", type=int, default=500, metavar="N", help="recorded steps to predict, drawn once")
    add("--generations", type=int, default=80, metavar="G", help="of the search, at most")
    known, flags = options.parse_known_args(args)
    if flags and not flags[0].startswith("--env."):
        options.error(f"unrecognized arguments: {flags[0]}")
    if known.transitions < 1 or known.generations < 1:
        raise ConfigError("--transitions and --generations must be at least 1")
    if known.out.suffix != SUFFIX:
        raise ConfigError(f"--out must end in {SUFFIX}, not {known.out.name!r}")
    if known.out.exists():
        raise DataError(f"{known.out} exists: nothing was changed")
    data = Dataset.open(known.data)
    rows, _ = chosen(data, known)
    simulator = open_simulator(known.env, flags)
    try:
        problem = make_problem(simulator, data, rows, known.transitions, known.seed)
        with StopRequest() as stop, disk_errors(str(known.out), "free space; the same command goes on"):
            return _search(problem, known.out, known.generations, lambda: bool(stop))
    finally:
        simulator.world.close()


class Problem(NamedTuple):
    """What is to be predicted, with what."""

    simulator: Simulator
    moments: Sequence[Start]
    scale: Array
    seed: int

    def loss(self, t: Array) -> float:
        """Return how badly these constant parameters predict."""
        return huber_loss(predict(self.simulator.world, self.moments, lambda obs, action: t), self.moments, self.scale)

    def about(self) -> dict[str, Any]:
        """Return all that a search depends on, as JSON values."""
        parts = [part for moment in self.moments for part in (moment.states, moment.actions, moment.after)]
        crc = 0
        for part in [*parts, self.scale]:
            crc = zlib.crc32(np.ascontiguousarray(part).tobytes(), crc)
        env: dict[str, Any] = json.loads(json.dumps(to_dict(self.simulator.env)))
        return {
            "format": FORMAT, "env": env, "transitions": len(self.moments), "data_crc32": crc, "seed": self.seed,
            "cma": metadata.version("cma"),
        }  # fmt: skip


def make_problem(simulator: Simulator, data: Dataset, rows: Array, transitions: int, seed: int) -> Problem:
    """Draw transitions of some episodes."""
    episodes = read_episodes(data, rows, simulator)
    moments = starts(simulator.world, episodes, 1)
    count = min(transitions, len(moments))
    some = np.sort(stream(seed, "sysid-transitions").choice(len(moments), count, replace=False))
    return Problem(simulator, [moments[i] for i in some.tolist()], deviation(episodes), seed)


def huber_loss(predicted: Array, moments: Sequence[Start], scale: Array) -> float:
    """Return the mean error in deviations: squared where it is small, by its size where noise made it large."""
    gaps = np.abs(predicted - np.stack([moment.after for moment in moments])) / scale
    gaps = np.nan_to_num(gaps, nan=WORST, posinf=WORST).clip(max=WORST)
    return float(np.where(gaps < HUBER, gaps**2 / 2, HUBER * (gaps - HUBER / 2)).mean())


def search(
    loss: Callable[[Array], float],
    num_parameters: int,
    seed: int,
    generations: int,
    past: list[Generation],
    after_each: Callable[[], bool] = lambda: True,
) -> Found | None:
    """Minimise over [-1, 1]^P from 0 on; ``past`` is gone through again without asking, and grows.

    ``after_each`` new generation says whether to go on; a search that was stopped has found nothing yet.
    """
    with needs_extra("sysid", ("cma",), EXTRA):
        import cma
    draws = stream(seed, "sysid")
    options = {
        "bounds": [-1.0, 1.0],
        "randn": lambda *shape: draws.standard_normal(shape),  # and not NumPy's global generator
        "seed": math.nan,
        "verbose": -9,
        "signals_filename": "",  # or else a file in the working directory could change the search
    }
    strategy = cma.CMAEvolutionStrategy(np.zeros(num_parameters), FIRST_DEVIATION, options)
    for generation in range(generations):
        if strategy.stop():
            break
        tried = strategy.ask()
        if generation == len(past):
            past.append(Generation([t.tolist() for t in tried], [loss(t) for t in tried]))
            if not after_each():
                return None
        elif not np.allclose(tried, past[generation].tried, rtol=0, atol=1e-9):
            raise DataError(f"generation {generation} of the search was another one: it cannot go on")
        strategy.tell(tried, past[generation].losses)
    best, mean = (np.asarray(t, float) for t in (strategy.result.xbest, strategy.result.xfavorite))
    # of many that were tried the best is partly luck, but on the same transitions the centre may still be worse
    mean_loss, best_loss = loss(mean), float(strategy.result.fbest)
    return Found(mean, mean_loss) if mean_loss <= best_loss else Found(best, best_loss)


def _search(problem: Problem, out: Path, generations: int, is_stopped: Callable[[], bool]) -> int:
    """Search with a journal beside the result: who is killed goes on and finds the same bits."""
    world, journal, about = problem.simulator.world, out.with_suffix(".search.json"), problem.about()
    past = _read(journal, about) if journal.exists() else []
    if past:
        print(f"goes on after generation {len(past)} of {journal}", flush=True)

    def after_each() -> bool:
        content = {"about": about, "generations": [generation._asdict() for generation in past]}
        replace_atomic(journal, json.dumps(content).encode())
        print(f"generation {len(past)} of {generations}: loss {min(past[-1].losses):.5f}", flush=True)
        return not is_stopped()

    out.parent.mkdir(parents=True, exist_ok=True)
    found = search(problem.loss, world.num_parameters, problem.seed, generations, past, after_each)
    if found is None:
        print("stopped: the same command goes on")
        return STOPPED
    obs_dim = problem.simulator.obs_dim + world.model.num_joints
    with staged(out) as stage:
        stage.write_bytes(constant(found.t, obs_dim, {"sysid": about, "loss": found.loss}).to_bytes())
    print(_report(problem, found))
    print(f"{out}: a generator for tuned/... that always says these")
    return 0


def _read(journal: Path, about: dict[str, Any]) -> list[Generation]:
    content = read_json(journal)
    try:
        before = content["about"]
        past = [Generation(**generation) for generation in content["generations"]]
    except (KeyError, TypeError):
        raise DataError(f"{journal} is no search of ours") from None
    differs = [name for name in about if before.get(name) != about[name]]
    if differs:
        raise DataError(f"{journal} is a search with another {differs[0]}: give another --out, or remove it")
    return past


def constant(t: Array, obs_dim: int, about: dict[str, Any]) -> FrozenPolicy:
    """Return a policy that always says t."""
    t = np.asarray(t, np.float32)
    bound = np.ones(len(t), np.float32)
    surely = np.full(len(t), -np.inf, np.float32)  # the logarithm of no deviation
    whole = np.zeros((2, 0), np.float32)
    return FrozenPolicy(
        Layers((np.zeros((obs_dim, len(t)), np.float32),), (t,), "tanh", -bound, bound, surely, whole), about
    )


def values(world: LeggedWorld, t: Array) -> Array:
    """Return the parameters that t stands for, in the simulator's units."""
    world.start(0)
    world.set_parameters(t)
    return world.parameter_values()


def _report(problem: Problem, found: Found) -> str:
    world, moments = problem.simulator.world, problem.moments
    own, new = (values(world, t) for t in (np.zeros(world.num_parameters), found.t))
    rows = [("parameter", "nominal", "found", "t")]
    rows += [(name, number(float(a)), number(float(b)), f"{t:+.3f}")
             for name, a, b, t in zip(world.parameter_names, own, new, found.t, strict=True)]  # fmt: skip
    before, after = (
        errors(predict(world, moments, p), moments, problem.scale, 1).normalised
        for p in (None, lambda obs, action: found.t)
    )
    return f"{table(rows)}\nerror per step, in deviations: {before:.4f} as it is, {after:.4f} with these"
