"""The verbs that need the whole system: train, eval, bench."""

from __future__ import annotations

import contextlib
import runpy
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from roboloop.algos import registry as algorithms
from roboloop.core.errors import ConfigError, DataError, nearest
from roboloop.core.flags import describe, keys_of, parse_flags
from roboloop.core.options import Options
from roboloop.run.config import Experiment
from roboloop.run.rundir import find_run
from roboloop.run.training import Change, Training, base_config, changed, check_asked

STOPPED = 4


def train(args: list[str]) -> int:
    """Start, resume or fork a run."""
    options = train_options()
    # only the first word can be a recipe: later ones are values of config flags that argparse does not know
    recipe = args[0] if args and not args[0].startswith("-") else None
    known, flags = options.parse_known_args(args[1:] if recipe else args)
    flags = aliases(flags)
    if known.help or known.help_all:
        print(_train_help(options, _shown_config(recipe, known, flags), known.help_all))
        return 0
    named = recipe or known.config or known.algo
    check_asked(named, known.resume, known.resume is not None, known.fork, known.at, known.overwrite)
    training, change = Training(["train", *args]), given(flags, options.names)
    if known.fork is not None:
        done = training.fork(known.fork, known.at, change)
    elif known.resume:
        done = training.resume(Path(known.resume), change)
    else:
        config = changed(base_config(recipe, known.config, known.algo, flags), change)
        done = training.start(config, known.overwrite) if known.resume is None else training.go_on(config)
    return STOPPED if done.state == "stopped" else 0


def train_options() -> Options:
    """Return the options of ``train``; all other flags are config keys."""
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


def config_of(base: Experiment, flags: list[str], own: Sequence[str] = ()) -> Experiment:
    """Return the config of base and flags; ``own`` are the other options of the command."""
    return changed(base, given(flags, own))


def given(flags: list[str], own: Sequence[str] = ()) -> Change:
    """Return flags as the change that they make to a config."""
    return lambda config: parse_flags(config, flags, own)


def aliases(flags: list[str]) -> list[str]:
    """Return flags with short names spelled out."""
    short = {"--env": "--env.id", "--sampler": "--sample.on"}
    return [f"{short.get(name, name)}{equals}{value}" for name, equals, value in (f.partition("=") for f in flags)]


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
    pick = "pick strategy of a policy trained with algo.pick mvp or uniform (default: as trained)"
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
