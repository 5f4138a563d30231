"""The verb ``predict``: how true simulators are, by how well they predict what was recorded elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.files import replace_atomic
from roboloop.core.options import Options
from roboloop.core.rng import stream
from roboloop.core.types import Array
from roboloop.data.dataset import Dataset
from roboloop.envs.frozen import load_all
from roboloop.envs.legged.hybrid import view_of_generator
from roboloop.envs.legged.prediction import Errors, Parameters, Recorded, deviation, errors, predict, standstill, starts
from roboloop.envs.legged.world import LeggedWorld
from roboloop.run.recorded import Simulator, add_data_options, chosen, open_simulator, read_episodes
from roboloop.track.terminal import number, table

STEPS = (1, 5, 10, 25)
STANDSTILL = "nothing moves"


class PredictionScore(NamedTuple):
    """One simulator's errors over each number of steps."""

    name: str
    errors: list[Errors]
    parameters: Mapping[str, tuple[float, float]] = {}
    """Mean and deviation of what generators said over the first number of steps, in the simulator's units."""


def prediction(args: list[str]) -> int:
    """Print a table of errors, one row for each simulator and number of steps."""
    options = Options(prog="roboloop predict", allow_abbrev=False)
    add = options.add_argument
    add("envs", nargs="+", metavar="ENV", help="simulators, such as hopper/bullet")
    add_data_options(options)
    held_out = "predict only the share that a run with this --seed holds out"
    add("--held-out", type=float, default=0.0, metavar="SHARE", help=held_out)
    ensemble = "frozen generators that set the parameters of the first ENV together; may be given again for others"
    add("--generators", nargs="+", action="append", default=[], metavar="FILE", help=ensemble)
    add("--steps", type=int, nargs="+", default=STEPS, metavar="K", help="control steps to predict over")
    add("--out", type=Path, metavar="FILE.json", help="write all numbers there too")
    known, flags = options.parse_known_args(args)
    if flags and not flags[0].startswith("--env."):
        options.error(f"unrecognized arguments: {flags[0]}")
    if min(known.steps) < 1:
        raise ConfigError(f"--steps must be at least 1, not {min(known.steps)}")
    data = Dataset.open(known.data)
    taught, held_out_rows = chosen(data, known)
    rows = held_out_rows if known.held_out else taught
    found: list[PredictionScore] = []
    for env_id in known.envs:
        simulator = open_simulator(env_id, flags)
        try:
            episodes = read_episodes(data, rows, simulator)
            if not found:
                found.append(still(simulator, episodes, known.steps))
            ensembles = [(), *known.generators] if env_id == known.envs[0] else [()]
            found += [judge(simulator, episodes, known.steps, paths, known.seed) for paths in ensembles]
        finally:
            simulator.world.close()
    num_steps = sum(len(episode.actions) for episode in episodes)
    print(f"{known.data}: {len(rows)} episodes, {num_steps} steps of {data.schema.env_id}\n")
    print("\n".join(report(found)))
    if known.out:
        content = {"data": str(known.data), "env": data.schema.env_id, "episodes": rows.tolist(), "steps": num_steps,
                   "simulators": [_to_data(one) for one in found]}  # fmt: skip
        replace_atomic(known.out, (json.dumps(content, indent=1) + "\n").encode())
    return 0


def judge(
    simulator: Simulator,
    episodes: Sequence[Recorded],
    steps: Sequence[int],
    generators: Sequence[str] = (),
    seed: int = 0,
) -> PredictionScore:
    """Return the errors of a simulator as it is, or with generators of which each step draws one."""
    world, scale, found = simulator.world, deviation(episodes), []
    said: list[list[Array]] = []
    for k in steps:
        said.append([])
        parameters = drawn(simulator, generators, stream(seed, "predict", k), said[-1]) if generators else None
        moments = starts(world, episodes, k)
        found.append(errors(predict(world, moments, parameters), moments, scale, k))
    name = simulator.env.id + (f" with {generators[0]}" if generators else "")
    name += f" and {len(generators) - 1} more" if len(generators) > 1 else ""
    return PredictionScore(name, found, _summary(world, said[0]) if said[0] else {})


def _summary(world: LeggedWorld, said: Sequence[Array]) -> dict[str, tuple[float, float]]:
    values = []
    world.start(0)
    for t in said:
        world.set_parameters(t)
        values.append(world.parameter_values())
    means, spreads = np.mean(values, 0).tolist(), np.std(values, 0).tolist()
    return dict(zip(world.parameter_names, zip(means, spreads, strict=True), strict=True))


def still(simulator: Simulator, episodes: Sequence[Recorded], steps: Sequence[int]) -> PredictionScore:
    """Return the errors of whoever predicts that nothing changes."""
    scale, found = deviation(episodes), []
    for k in steps:
        moments = starts(simulator.world, episodes, k)
        found.append(errors(standstill(moments), moments, scale, k))
    return PredictionScore(STANDSTILL, found)


def drawn(simulator: Simulator, paths: Sequence[str], rng: np.random.Generator, said: list[Array]) -> Parameters:
    """Return parameters that one of some frozen generators says, as in training; ``said`` gets a copy of each."""
    generators = load_all(list(paths))
    dim, first = simulator.world.task.state_dim, generators[0].layers
    sees, says = simulator.obs_dim + simulator.world.model.num_joints, simulator.world.num_parameters
    if (first.obs_dim, first.action_dim) != (sees, says):
        what = f"sees {first.obs_dim} numbers and says {first.action_dim}"
        raise DataError(f"{paths[0]} {what}: a generator of {simulator.env.id} sees {sees} and says {says}")

    def parameters(obs: Array, action: Array) -> Array:
        generator = generators[rng.integers(len(generators))]
        said.append(generator.act(view_of_generator(obs, action, dim), rng))
        return said[-1]

    return parameters


def report(found: Sequence[PredictionScore]) -> Iterator[str]:
    """Say how large the errors are, and over one step also those of each number of the state."""
    rows = [("simulator", "steps", "predictions", "error", "median", "L1")]
    for one in found:
        rows += [(one.name, str(e.steps), str(e.count), number(e.normalised), number(e.median), number(e.l1))
                 for e in one.errors]  # fmt: skip
    yield table(rows)
    yield "error: root mean square in deviations of the data; median: of single predictions; L1: sum over the state\n"
    first = [one.errors[0] for one in found]
    yield f"root mean square error of each number of the state over {first[0].steps} steps"
    numbers = [[number(float(e.rmse[i])) for e in first] for i in range(len(first[0].rmse))]
    yield table([["", *(one.name for one in found)], *([str(i), *row] for i, row in enumerate(numbers))])
    for one in found:
        if one.parameters:
            yield f"\nparameters of {one.name}"
            lines = [[name, number(mean), number(spread)] for name, (mean, spread) in one.parameters.items()]
            yield table([["", "mean", "deviation"], *lines])


def _to_data(one: PredictionScore) -> dict[str, Any]:
    def plain(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    return {
        "simulator": one.name,
        "parameters": {name: list(values) for name, values in one.parameters.items()},
        "errors": [
            {"steps": e.steps, "predictions": e.count, "rmse": [plain(x) for x in e.rmse.tolist()],
             "normalised": plain(e.normalised), "median": plain(e.median), "l1": plain(e.l1)}
            for e in one.errors
        ],
    }  # fmt: skip
