"""The verbs that need the whole system: train, eval, bench."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roboloop.algos import registry as algorithms
from roboloop.core.config import override, read_file, resource_keys, to_dict
from roboloop.core.errors import ConfigError, DataError, DiskError, RunExists, nearest
from roboloop.core.files import is_there
from roboloop.core.flags import describe, flag_names, hint_for, keys_of, parse_flags
from roboloop.core.options import Options
from roboloop.core.text import printable
from roboloop.run import checkpoint, recipes, trust
from roboloop.run.build import Parts, build
from roboloop.run.config import Experiment
from roboloop.run.envs import check_before_training
from roboloop.run.rundir import RunDir, find_run, run_path

STOPPED = 4


def train(args: list[str]) -> int:
    """Start, resume or fork a run."""
    options = _train_options()
    # only the first word can be a recipe: later ones are values of config flags that argparse does not know
    recipe = args[0] if args and not args[0].startswith("-") else None
    known, flags = options.parse_known_args(args[1:] if recipe else args)
    flags = aliases(flags)
    if known.help or known.help_all:
        print(_train_help(options, _shown_config(recipe, known, flags), known.help_all))
        return 0
    if known.fork:
        return _fork(known.fork, known.at, flags, args)
    if known.resume:
        return _run(_reopen(Path(known.resume), flags), resume=True)
    config = config_of(base_config(recipe, known.config, known.algo), flags)
    config.check()
    path = run_path(config)
    if known.resume == "" and is_there(path / "config.yaml"):
        trust.vouch_for(config)
        run = RunDir.open(path, write=True)
        if run.is_done:
            print(f"{printable(path)} is finished")
            return 0
        return _run(run, resume=True)
    from roboloop.run.start import take_over

    if not known.overwrite:
        RunDir.free_path(config)
    check_before_training(config)
    parts = build(config)  # before anything is on disk: an env that cannot be made leaves no trace
    with _closed_by_errors(parts):
        take_over(parts.algo, config)
        if known.overwrite and (old := RunDir.move_aside(config)):
            print(f"the run that was there is now {printable(old)}")
    return _run(RunDir.create(config, ["train", *args]), resume=False, parts=parts)


def _train_options() -> Options:
    options = Options(prog="roboloop train", add_help=False, allow_abbrev=False)
    add = options.add_argument
    add("--config", type=Path, metavar="FILE", help="YAML or JSON file with config keys, over the recipe's")
    add("--algo", metavar="NAME", help=f"algorithm to start from, or module:attr ({', '.join(algorithms.known())})")
    add("--resume", nargs="?", const="", default=None, metavar="RUN", help="continue a run; without RUN, this one")
    add("--fork", type=Path, metavar="RUN", help="branch off a run with other settings")
    add("--at", type=int, metavar="STEP", help="with --fork: the step of a checkpoint")
    add("--overwrite", action="store_true", help="move a run of the same name aside and start over")
    add("-h", "--help", action="store_true", help="show the keys of this algorithm and environment")
    add("--help-all", action="store_true", help="show all config keys with their full text")
    return options


def _shown_config(recipe: str | None, known: Namespace, flags: list[str]) -> Experiment:
    """Return the config whose keys help shows; other flags may be wrong, which is why help was asked for."""
    base = base_config(recipe, known.config, known.algo)
    with contextlib.suppress(ConfigError):
        return parse_flags(base, flags)
    return base


SHOWN = ("", "env", "algo")
"""Sections that ``train --help`` shows; ``--help-all`` shows all."""


def _train_help(options: Options, config: Experiment, everything: bool) -> str:
    usage = "usage: roboloop train [RECIPE] [--KEY VALUE]...        roboloop recipes lists recipes"
    own = options.format_help().partition("options:\n")[2].rstrip()
    head = f"{usage}\n\noptions:\n{own}\n\n"
    if everything:
        return f"{head}config keys, with their values:\n{describe(config)}"
    others = sorted({key.path[0] for key in keys_of(config) if len(key.path) > 1} - set(SHOWN))
    rest = f"more keys: --help-all shows those of {', '.join(others)}, and the full text of all"
    return f"{head}config keys of {config.algo.name} on {config.env.id}:\n{describe(config, SHOWN)}\n\n{rest}"


def config_of(base: Experiment, flags: list[str]) -> Experiment:
    """Return the config of base and flags; with a dataset, flags for the environment change that of the data."""
    config = parse_flags(base, flags)
    if not config.dataset:
        return config
    from roboloop.run.offline import env_of_dataset

    return parse_flags(override(base, {"env": env_of_dataset(config.dataset)}), flags)


def aliases(flags: list[str]) -> list[str]:
    """Return flags with short names spelled out."""
    short = {"--env": "--env.id", "--sampler": "--sample.on"}
    return [f"{short.get(name, name)}{equals}{value}" for name, equals, value in (f.partition("=") for f in flags)]


def base_config(recipe: str | None, file: Path | None, algo: str | None) -> Experiment:
    """Return the config that flags change: the defaults, a recipe over them, and a file over that."""
    data: dict[str, Any] = recipes.load(recipe) if recipe else {}
    config = override(Experiment(), data)
    if file:
        data = read_file(file)
        trust.vouch_for_file(data)
        config = override(config, data)
    return override(config, {"algo": {"name": algo}}) if algo else config


def _reopen(path: Path, flags: list[str]) -> RunDir:
    run = RunDir.open(path, write=True, check_names=False)
    for flag in [f.split("=")[0] for f in flags if f.startswith("--")]:
        name = flag[2:].replace("_", "-")
        if name not in flag_names(run.config):
            name = name.replace("no-", "", 1)  # as a switch is turned off
        if name not in flag_names(run.config):
            raise ConfigError(f"unknown option {flag}{hint_for(name, flag_names(run.config))}")
        if name.replace("-", "_") not in resource_keys(run.config):
            raise ConfigError(f"{flag} cannot change in a resumed run: --fork {path} --at STEP makes a new one")
    config = parse_flags(run.config, flags)
    trust.check(config, path / "config.yaml")
    config.check()
    if run.is_done and config.steps <= run.status()["step"]:
        raise RunExists(f"{path} is finished at step {run.status()['step']}: --resume {path} --steps MORE goes on")
    if config != run.config:
        run.save_config(config)
    return run


@contextlib.contextmanager
def _closed_by_errors(parts: Parts) -> Iterator[None]:
    """Close what was built for a run when weights do not fit it."""
    try:
        yield
    except Exception:
        for part in (parts.sampler, parts.evaluator, parts.algo):
            part.close()
        raise


def _fork(source: Path, step: int | None, flags: list[str], args: list[str]) -> int:
    if step is None:
        raise ConfigError("--fork RUN needs --at STEP")
    old = RunDir.open(source)
    config = parse_flags(old.config, flags)
    config.check()
    for name in ("env.id", "env.num_envs", "env.frame_stack", "algo.name", "sample.groups"):
        section, key = name.split(".")
        if getattr(getattr(config, section), key) != getattr(getattr(old.config, section), key):
            hint = f" (--start {source} takes over weights alone)" if name == "env.id" else ""
            raise ConfigError(f"a fork keeps {name}: its buffer and its running episodes depend on it{hint}")
    RunDir.free_path(config)
    check_before_training(config)
    parts = build(config)
    with _closed_by_errors(parts):  # what does not fit leaves no trace
        point = old.checkpoint_at(step)
        with checkpoint.fits(point.path):
            parts.algo.load(point.state["algo"])
    return _run(old.fork(config, step, ["train", *args]), resume=True, parts=parts)


def _run(run: RunDir, resume: bool, parts: Parts | None = None) -> int:
    """Train a run to its end, and leave its curve beside it."""
    from roboloop.run.runner import Runner
    from roboloop.run.start import take_over
    from roboloop.track.curves import traced
    from roboloop.track.plots import plot_runs
    from roboloop.track.sinks import Sink, TensorBoardSink, WandbSink
    from roboloop.track.terminal import Progress

    cfg = run.config
    progress = Progress(cfg.steps)
    progress.note(f"run {run.path}: {cfg.env.id}, seed {cfg.seed}, {cfg.steps} steps")
    mirrors: list[Sink] = [TensorBoardSink(run.path / "events", progress.note)] if cfg.tensorboard else []
    if cfg.wandb:
        mirrors.append(WandbSink(run.path, to_dict(cfg), offline=os.environ.get("WANDB_MODE") != "online"))
    runner = Runner(run, parts or build(cfg), mirrors, progress)
    try:
        if resume:
            step = runner.resume(progress.note)
            if not step:
                take_over(runner.algo, cfg)
            progress.note(f"resumed at step {step}")
        state = runner.train()
        progress.finish()
        hint = f"; go on with: roboloop train --resume {run.path}" if state == "stopped" else ""
        progress.note(f"{state} at step {runner.clock.step}{hint}")
        if state == "done" and not cfg.eval.episodes:
            progress.note(f"not evaluated yet: roboloop eval {run.path} --checkpoint all")
        out = run.path / "plots" / "curve.png"
        try:
            if not out.parent.is_symlink():
                progress.note(f"curve: {plot_runs([traced(run.path)], out)}")
        except DiskError as error:  # roboloop plot draws it again
            progress.note(f"no curve: {error}")
        except DataError:
            pass  # too short a run has nothing to draw
    finally:
        runner.close()
        run.close()
    return STOPPED if state == "stopped" else 0


def evaluate(args: list[str]) -> int:
    """Evaluate a checkpoint, all of them, or a scripted expert, on held-out episodes."""
    options = Options(prog="roboloop eval", allow_abbrev=False)
    options.add_argument("run", nargs="?", type=Path, help="run directory, or an experiment with one run")
    options.add_argument("--checkpoint", default="best", help="'best', 'last', a step, or 'all' one after another")
    options.add_argument("--episodes", type=int, default=50)
    options.add_argument("--seed", type=int, default=0, help="fixes the held-out goals")
    options.add_argument("--name", help="name of the results file")
    options.add_argument("--video", action="store_true", help="write a video of the first episodes")
    options.add_argument("--target", type=float, nargs="+", help="returns to ask a Decision Transformer for")
    options.add_argument("--task", metavar="NAME", help="let the policy of this auxiliary task act, and judge by it")
    parts = "policies of tasks one after another in each episode, such as reach:20,grasp:20,place; the last is judged"
    options.add_argument("--schedule", metavar="NAME:STEPS,...,NAME", help=parts)
    pick = "how a policy picks that learned to place any pick; the run's own way by default"
    options.add_argument("--pick", choices=("mvp", "uniform"), help=pick)
    expert = "evaluate a scripted expert instead of a run; some environments have several, by name"
    options.add_argument("--expert", metavar="ENV[:NAME]", help=expert)
    options.add_argument("--env", metavar="ID", help="in another environment of equal observations and actions")
    options.epilog = "--env.KEY VALUE changes a config key of the environment; give the run first."
    known, flags = options.parse_known_args(args)
    if flags and not flags[0].startswith("--env."):
        options.error(f"unrecognized arguments: {flags[0]}")
    if known.task and known.schedule:
        raise ConfigError("--task is a --schedule of one task: choose one of them")
    if known.episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, not {known.episodes}")
    from roboloop.run.posthoc import EvalRequest, evaluate_expert, evaluate_run

    if known.expert:
        of_runs = ("env", "name", "video", "target", "task", "schedule", "pick")
        given = [name for name in of_runs if getattr(known, name)]
        if given:
            raise ConfigError(f"--{given[0]} is for the policy of a run")
        if known.run:
            raise ConfigError(f"--expert takes no run, got {known.run} (config keys: --env.KEY=VALUE)")
        return evaluate_expert(known.expert, known.episodes, known.seed, flags)
    if known.run is None:
        raise ConfigError("eval needs a run directory (or --expert ENV)")
    for target in known.target or [None]:
        schedule = known.task or known.schedule or ""
        about = (known.episodes, known.seed, known.name, known.video, target, schedule, known.env, tuple(flags))
        wish = EvalRequest(*about, pick=known.pick or "")
        evaluate_run(find_run(known.run), known.checkpoint, wish)
    return 0


def bench(args: list[str]) -> int:
    """Run ``benchmarks/NAME.py`` of the source checkout."""
    directory = Path(__file__).parents[2] / "benchmarks"
    names = {p.stem.replace("_", "-"): p for p in sorted(directory.glob("*.py")) if not p.stem.startswith("_")}
    if not names:
        raise DataError(f"no benchmarks in {directory}: they are part of the source checkout, not of the wheel")
    if not args or args[0] in ("-h", "--help"):
        print("usage: roboloop bench NAME [...]\n\n  " + "\n  ".join(names))
        return 0
    name = {"sac": "sac-update"}.get(args[0], args[0])
    if name not in names:
        raise ConfigError(f"unknown benchmark {args[0]!r}{nearest(args[0], names)}")
    sys.argv = [str(names[name]), *args[1:]]
    sys.path.insert(0, str(directory))  # where benchmarks find what they share, as when they are run by themselves
    runpy.run_path(str(names[name]), run_name="__main__")
    return 0
