"""The verb ``simgan``: a policy of a simulator and a little data of a target become a policy for the target.

Every stage is a command that can be given alone. The verb says each before it runs it, leaves alone what is finished
and goes on with what was stopped, so that the same command is also how to resume.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.files import read_json
from roboloop.core.options import Options
from roboloop.data.dataset import Dataset
from roboloop.data.index import SCHEMA
from roboloop.envs.legged.suite import ENGINES, ROBOTS, TASKS, VARIANTS
from roboloop.envs.registry import task_name
from roboloop.run import checkpoint, recipes
from roboloop.run.commands import evaluate, train
from roboloop.run.export import export
from roboloop.run.predict import prediction
from roboloop.run.record import record
from roboloop.run.rundir import RunDir
from roboloop.run.sysid import sysid
from roboloop.track.report.blocks import Table
from roboloop.track.report.document import sections
from roboloop.track.summary import Prediction, RunSummary, read_summary
from roboloop.track.summary_file import save
from roboloop.track.terminal import table

EXPLORE_STD = 0.27
"""Of the behaviour policy where its data teach a simulator: the reference's exp(-1.3)."""
PUSH_N = 80.0
HELD_OUT = 0.1
"""Share of the target's episodes that no method learns from."""
LAST = "last"
"""Checkpoint that counts everywhere: none is chosen by how it did somewhere."""
_VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": train, "record": record, "export": export, "sysid": sysid, "predict": prediction, "eval": evaluate,
}  # fmt: skip


class Stopped(Exception):
    """A stage was stopped by a signal; its command goes on with it."""

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass(frozen=True)
class Budget:
    """Steps of each stage, none = the recipe's own; episodes of the target; generators of an ensemble."""

    behaviour_steps: int | None
    dynamics_steps: int | None
    refine_steps: int | None
    target_episodes: int
    generators: int
    sysid_generations: int
    eval_episodes: int


@dataclass(frozen=True)
class Gap:
    """A robot, the engine it is simulated in, the world it is meant for, and one seed."""

    robot: str
    source: str
    target: str
    seed: int
    runs_dir: str
    budget: Budget

    @property
    def source_env(self) -> str:
        """Where the policy learns to behave."""
        return f"{self.robot}/{self.source}"

    @property
    def target_env(self) -> str:
        """Where it is meant to work: a variant in the same engine, or another engine."""
        is_variant = self.target in VARIANTS
        return f"{self.robot}/{self.source}-{self.target}" if is_variant else f"{self.robot}/{self.target}"

    @property
    def name(self) -> str:
        """Short name, of directories too."""
        return f"{self.robot}-{self.source}-to-{self.target}"

    def run(self, experiment: str, task: str) -> Path:
        """Return the directory of a run of this seed."""
        return Path(self.runs_dir) / "simgan" / experiment / task / str(self.seed)

    @property
    def behaviour(self) -> Path:
        """The policy of the source, which all targets share."""
        return self.run(f"{self.robot}-{self.source}", self.source)

    @property
    def data(self) -> Path:
        """What that policy did in the target."""
        return self.run(self.name, "target")

    @property
    def hybrid_task(self) -> str:
        """Task of the suites hybrid and tuned."""
        return f"{self.robot}-{self.source}"


class Pipeline:
    """The stages of one gap, each by its command."""

    def __init__(self, gap: Gap) -> None:
        self.gap = gap

    def do(self, verb: str, *args: object) -> None:
        """Say a command, and run it."""
        words = [str(arg) for arg in args]
        print(f"$ roboloop {verb} {shlex.join(words)}", flush=True)
        if code := _VERBS[verb](words):
            raise Stopped(code)

    def train(self, recipe: str, experiment: str, *args: object, steps: int | None = None) -> None:
        """Train a recipe of this seed, go on with it, or leave it alone where it is finished."""
        gap = self.gap
        common = ["--resume", "--seed", gap.seed, "--runs-dir", gap.runs_dir, "--experiment", f"simgan/{experiment}"]
        self.do("train", recipe, *common, *([] if steps is None else ["--steps", steps]), *args)

    def behaviour(self) -> Path:
        """Learn to behave in the source."""
        gap = self.gap
        self.train(gap.robot, f"{gap.robot}-{gap.source}", "--env", gap.source_env, steps=gap.budget.behaviour_steps)
        return gap.behaviour

    def record(self, env: str, out: Path) -> Path:
        """Record what the behaviour policy does in an environment, unless it is done."""
        episodes = self.gap.budget.target_episodes
        if not (out / SCHEMA).exists() or len(Dataset.open(out)) < episodes:
            behaviour = self.behaviour()
            self.do("record", behaviour, "--env", env, "--checkpoint", LAST, "--explore", "--std", EXPLORE_STD,
                    "--episodes", episodes, "--out", out, "--seed", self.gap.seed)  # fmt: skip
        return out

    def target(self) -> Path:
        """Record what the behaviour policy does in the target: all that is known of it."""
        return self.record(self.gap.target_env, self.gap.data)

    def dynamics(self, experiment: str, data: Path) -> Path:
        """Learn parameters of the simulator under which its transitions pass for those of the data."""
        gap = self.gap
        frozen = gap.behaviour / "frozen.safetensors"
        if not frozen.exists():
            self.do("export", gap.behaviour, "--checkpoint", LAST, "--frozen", frozen, "--std", EXPLORE_STD)
        self.train(
            f"{gap.robot}-dynamics", f"{experiment}/dynamics", "--env", f"hybrid/{gap.hybrid_task}",
            "--env.hybrid.behaviour", frozen, "--algo.target.directory", data, "--algo.target.held-out", HELD_OUT,
            steps=gap.budget.dynamics_steps,
        )  # fmt: skip
        return gap.run(f"{experiment}/dynamics", gap.hybrid_task)

    def generators(self, run: Path) -> list[Path]:
        """Freeze late checkpoints of a run as an ensemble."""
        steps = checkpoint.steps(RunDir.open(run).checkpoints)
        late = [step for step in steps if step > max(steps) // 2][-self.gap.budget.generators :]
        files = [run / "generators" / f"step-{step}.safetensors" for step in late]
        for step, file in zip(late, files, strict=True):
            if not file.exists():
                file.parent.mkdir(exist_ok=True)
                self.do("export", run, "--frozen", file, "--checkpoint", step)
        return files

    def constant(self, data: Path) -> Path:
        """Search for constant parameters with which the simulator predicts the data best, unless it is done."""
        gap = self.gap
        found = gap.run(gap.name, "sysid") / "constant.safetensors"
        if not found.exists():
            found.parent.mkdir(parents=True, exist_ok=True)
            self.do("sysid", gap.source_env, "--data", data, "--out", found, "--held-out", HELD_OUT,
                    "--generations", gap.budget.sysid_generations, "--seed", gap.seed)  # fmt: skip
        return found

    def predicted(self, methods: Sequence[str]) -> tuple[Prediction, ...]:
        """Return how true the source is, what the methods made of it, and the target itself, on held-out data."""
        gap, data = self.gap, self.target()
        ensembles = {}
        if "sysid" in methods:
            ensembles["sysid"] = [self.constant(data)]
        if "simgan" in methods:
            ensembles["simgan"] = self.generators(self.dynamics(gap.name, data))
        out = gap.run(gap.name, "predict") / "errors.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        flags = [word for files in ensembles.values() for word in ("--generators", *files)]
        self.do("predict", gap.source_env, gap.target_env, "--data", data, "--held-out", HELD_OUT, "--seed", gap.seed,
                "--out", out, *flags)  # fmt: skip
        names = ("nothing moves", "source", *ensembles, "target")
        rows = read_json(out)["simulators"]
        return tuple(
            Prediction(
                name,
                gap.target_env,
                {str(e["steps"]): e["normalised"] for e in row["errors"]},
                {key: mean for key, (mean, _) in row["parameters"].items()},
            )
            for name, row in zip(names, rows, strict=True)
        )

    def start(self) -> list[object]:
        """Say where refinement begins."""
        return ["--algo.start", self.behaviour(), "--algo.start-checkpoint", LAST]

    def refined(self, experiment: str, generators: Sequence[Path], *args: object) -> Path:
        """Learn on from the behaviour policy in the tuned simulator."""
        gap = self.gap
        self.train(
            f"{gap.robot}-refine", f"{experiment}/refined", "--env", f"tuned/{gap.hybrid_task}",
            "--env.hybrid.generators", *generators, *self.start(), *args, steps=gap.budget.refine_steps,
        )  # fmt: skip
        return gap.run(f"{experiment}/refined", gap.hybrid_task)

    def evaluated(self, method: str) -> RunSummary:
        """Return what is worth keeping of a method's run, with how its policy did in the target, likeliest actions."""
        run, target = METHODS[method](self), self.gap.target_env
        self.do("eval", run, "--env", target, "--checkpoint", LAST, "--episodes", self.gap.budget.eval_episodes,
                "--name", "simgan")  # fmt: skip
        made, name = read_summary(run), f"simgan-{task_name(target)}"
        there = tuple(each for each in made.evaluations if each.name == name)  # a run may have been put elsewhere too
        return replace(made, experiment=method, evaluations=there)


def _direct(pipe: Pipeline) -> Path:
    return pipe.behaviour()


def _simgan(pipe: Pipeline) -> Path:
    dynamics = pipe.dynamics(pipe.gap.name, pipe.target())
    return pipe.refined(pipe.gap.name, pipe.generators(dynamics), "--algo.guard", dynamics)


def _hard(pipe: Pipeline) -> Path:
    """What comes of the same work on data of the source itself: whatever is better than direct is not knowledge."""
    experiment = f"{pipe.gap.robot}-{pipe.gap.source}-hard"
    data = pipe.record(pipe.gap.source_env, pipe.gap.run(experiment, "data"))
    dynamics = pipe.dynamics(experiment, data)
    return pipe.refined(experiment, pipe.generators(dynamics), "--algo.guard", dynamics)


def _sysid(pipe: Pipeline) -> Path:
    return pipe.refined(f"{pipe.gap.name}/sysid", [pipe.constant(pipe.target())])


def _from_source(name: str, *args: object) -> Callable[[Pipeline], Path]:
    def learn(pipe: Pipeline) -> Path:
        gap, experiment = pipe.gap, f"{pipe.gap.robot}-{pipe.gap.source}-{name}"
        pipe.train(gap.robot, experiment, "--env", gap.source_env, *args, steps=gap.budget.behaviour_steps)
        return gap.run(experiment, gap.source)

    return learn


def _fine_tuned(pipe: Pipeline) -> Path:
    """Learn on in the target itself, for as many steps as the data have."""
    gap, steps = pipe.gap, Dataset.open(pipe.target()).num_steps
    experiment = f"{gap.name}/fine-tuned"
    pipe.train(f"{gap.robot}-refine", experiment, "--env", gap.target_env, *pipe.start(), steps=steps)
    return gap.run(experiment, gap.target_env.partition("/")[2])


def _oracle(pipe: Pipeline) -> Path:
    gap, experiment = pipe.gap, f"{pipe.gap.name}/oracle"
    pipe.train(gap.robot, experiment, "--env", gap.target_env, steps=gap.budget.behaviour_steps)
    return gap.run(experiment, gap.target_env.partition("/")[2])


METHODS: dict[str, Callable[[Pipeline], Path]] = {
    "direct": _direct,
    "randomized": _from_source("randomized", "--env.legged.randomize"),
    "pushed": _from_source("pushed", "--env.legged.push-n", PUSH_N),
    "fine-tuned": _fine_tuned,
    "sysid": _sysid,
    "hard": _hard,
    "simgan": _simgan,
    "oracle": _oracle,
}
"""Each returns the run whose policy is put into the target."""
LEARN_THE_GAP = {"sysid", "simgan"}
"""Those that make a simulator of the target."""


def simgan(args: list[str]) -> int:
    """Run the pipeline for each seed, and its baselines, and print what came of them in the target."""
    options = Options(prog="roboloop simgan", allow_abbrev=False)
    add = options.add_argument
    robots = [robot for robot in ROBOTS if f"{robot}-dynamics" in recipes.names()]
    add("robot", help=f"one with recipes for it: {', '.join(robots)}")
    add("--source", default="bullet", help=f"engine that is tuned: {', '.join(ENGINES)}")
    variants = ", ".join(VARIANTS)
    add("--target", required=True, help=f"a variant: {variants}; or another engine, with one or without: dart-heavy")
    add("--methods", nargs="+", default=["direct", "simgan"], help=f"rows of the table: {', '.join(METHODS)}")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--runs-dir", default="runs")
    add("--target-episodes", type=int, default=200, help="episodes that are recorded in the target")
    add("--generators", type=int, default=5, help="late checkpoints of the generator that make the ensemble")
    add("--sysid-generations", type=int, default=60, help="of the search for constant parameters")
    add("--eval-episodes", type=int, default=50)
    for stage in ("behaviour", "dynamics", "refine"):
        add(f"--{stage}-steps", type=int, help="the recipe's own unless given")
    known = options.parse_args(args)
    _check(known.robot, robots, "robot with recipes")
    _check(known.source, ENGINES, "engine")
    _check(known.target, (*VARIANTS, *TASKS), "target")
    for method in known.methods:
        _check(method, METHODS, "method")
    if known.target == known.source:
        raise ConfigError(f"--target {known.target} is the source itself: there is no gap")
    budget = Budget(**{field.name: getattr(known, field.name) for field in fields(Budget)})
    for name, value in asdict(budget).items():
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    gaps = [Gap(known.robot, known.source, known.target, seed, known.runs_dir, budget) for seed in known.seeds]
    try:
        found = [Pipeline(gap).evaluated(method) for method in known.methods for gap in gaps]
        truths = [Pipeline(gap).predicted(known.methods) for gap in gaps] if LEARN_THE_GAP & set(known.methods) else []
    except Stopped as stopped:
        print("stopped: the same command goes on")
        return stopped.code
    # runs are in order of methods, so the first are one of each seed: predictions of a seed are kept with that
    found[: len(truths)] = [replace(run, predictions=truth) for run, truth in zip(found, truths, strict=False)]
    _show(gaps[0], found)
    return 0


def _check(name: str, known: Sequence[str] | dict[str, Callable[[Pipeline], Path]], what: str) -> None:
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}{nearest(name, known)} (known: {', '.join(known)})")


def _show(gap: Gap, runs: Sequence[RunSummary]) -> None:
    """Print the report's tables of the target, and keep what they are made of."""
    out = save(runs, Path(gap.runs_dir) / "simgan" / gap.name / "methods.json")
    has_been_elsewhere = sections(runs, only=["elsewhere"])  # else all methods were trained in the target
    score = "elsewhere" if has_been_elsewhere else "final"
    made = sections(runs, only=[score, "truth"], group_by="experiment")
    for block in (block for section in made for block in section.blocks if isinstance(block, Table)):
        print(f"\n{block.caption}\n{table([block.header, *block.rows])}")
    print(f"curves and all else: roboloop report {out}")
