"""The command line: every verb in one table, simulators and torch loaded only by the verb that needs them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence

from roboloop import __version__
from roboloop.core.errors import ConfigError, DiskError, UserError, WorkerLost, is_out_of_memory, nearest
from roboloop.core.outlet import ended_quietly, go_on_unheard
from roboloop.core.text import printable
from roboloop.core.vouched import vouched

Verb = Callable[[list[str]], int]
BREAKS: dict[type[UserError], str] = {WorkerLost: "\n"}
"""Errors of more than one line: a lost process's own last words."""


def _train(args: list[str]) -> int:
    from roboloop.run.commands import train

    return train(args)


def _eval(args: list[str]) -> int:
    from roboloop.run.commands import evaluate

    return evaluate(args)


def _runs(args: list[str]) -> int:
    from roboloop.launch.watch import runs

    return runs(args)


def _sweep(args: list[str]) -> int:
    from roboloop.launch.commands import sweep

    return sweep(args)


def _stop(args: list[str]) -> int:
    from roboloop.launch.commands import stop

    return stop(args)


def _requeue(args: list[str]) -> int:
    from roboloop.launch.commands import requeue

    return requeue(args)


def _tail(args: list[str]) -> int:
    from roboloop.launch.commands import tail

    return tail(args)


def _dash(args: list[str]) -> int:
    from roboloop.dash.command import dash

    return dash(args)


def _plot(args: list[str]) -> int:
    from roboloop.track.commands import plot

    return plot(args)


def _report(args: list[str]) -> int:
    from roboloop.run.report import report

    return report(args)


def _dataset(args: list[str]) -> int:
    from roboloop.run.datasets import dataset

    return dataset(args)


def _record(args: list[str]) -> int:
    from roboloop.run.record import record

    return record(args)


def _export(args: list[str]) -> int:
    from roboloop.run.export import export

    return export(args)


def _predict(args: list[str]) -> int:
    from roboloop.run.predict import prediction

    return prediction(args)


def _sysid(args: list[str]) -> int:
    from roboloop.run.sysid import sysid

    return sysid(args)


def _rig(args: list[str]) -> int:
    from roboloop.run.rig import rig

    return rig(args)


def _simgan(args: list[str]) -> int:
    from roboloop.run.simgan import simgan

    return simgan(args)


def _recipes(args: list[str]) -> int:
    from roboloop.run.recipes import show

    return show(args)


def _envs(args: list[str]) -> int:
    from roboloop.run.match import envs

    return envs(args)


def _bench(args: list[str]) -> int:
    from roboloop.run.commands import bench

    return bench(args)


def _doctor(args: list[str]) -> int:
    from roboloop.run.doctor import doctor

    return doctor(args)


VERBS: dict[str, tuple[Verb, str]] = {
    "train": (_train, "train a recipe or a config file; --resume RUN goes on, --fork RUN --at STEP branches off"),
    "eval": (_eval, "evaluate a run's checkpoint on held-out goals, or a scripted expert"),
    "runs": (_runs, "list runs with state, steps, success, speed, ETA, slot and memory; --watch goes on"),
    "sweep": (_sweep, "train variants x seeds side by side; the same command goes on after any interruption"),
    "stop": (_stop, "let runs or a whole sweep save and end"),
    "requeue": (_requeue, "let runs of a sweep be started again that were stopped or failed"),
    "tail": (_tail, "print what a run of a sweep said last"),
    "dash": (_dash, "follow runs live in a browser: curves, evaluations, films, logs; stop them and go on"),
    "plot": (_plot, "draw learning curves of one or more runs"),
    "report": (_report, "write one page about many runs: curves, intervals, comparisons, settings, videos, origin"),
    "record": (_record, "make a dataset by acting: a run's policy, a scripted expert, or random actions"),
    "dataset": (_dataset, "look at, verify, repair, merge, filter, export or import recorded episodes"),
    "export": (
        _export,
        "write a run's policy as ONNX with a contract, proved equal to ours, or frozen for an environment",
    ),
    "predict": (_predict, "say how true simulators are: how well they predict what was recorded elsewhere"),
    "sysid": (_sysid, "find the constant parameters with which a simulator predicts recorded episodes best"),
    "rig": (_rig, "be a simulated robot for other processes to train on, until Ctrl-C"),
    "simgan": (_simgan, "learn the gap between a simulator and a target, train in the tuned simulator, compare"),
    "recipes": (_recipes, "list the recipes, or print one"),
    "envs": (_envs, "list environment ids; envs match ROBOT ENGINE... compares a robot in several engines"),
    "bench": (_bench, "run a benchmark of benchmarks/"),
    "doctor": (_doctor, "say what this machine can do and what is missing"),
}


LISTS = ("runs", "tail", "dash", "rig", "recipes", "envs", "bench", "doctor", "plot")
"""Verbs that end when nobody reads what they print; all others do their work to its end."""


def usage() -> str:
    """Return the help text."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in VERBS.items()]
    return "\n".join(
        [
            f"roboloop {__version__}: training for robot learning",
            "",
            "usage: roboloop VERB [...]        roboloop VERB --help",
            "",
            *lines,
            "",
            "exit codes: 0 done, 2 bad input, 3 run exists, 4 stopped by a signal, 5 disk full or failing, 6 diverged,",
            "            7 simulators broke too often, 8 fewer episodes than asked for,",
            "            9 an exported policy does not act as ours does: not written,",
            "            10 some runs of a sweep are not done",
            "",
            "--trust, with any verb: also use code and addresses that a run's or a dataset's own files name",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; what the user can mend is one line on stderr and exit code 2 (see the table for others)."""
    args = vouched.take(sys.argv[1:] if argv is None else argv)
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need be no text
    try:
        if not args or args[0] in ("-h", "--help", "help", "--version"):
            print(__version__ if args[:1] == ["--version"] else usage(), flush=True)
            return 0
        if args[0] not in VERBS:
            raise ConfigError(f"unknown verb {args[0]!r}{nearest(args[0], VERBS)}")
        if argv is None and args[0] not in LISTS:
            go_on_unheard()
        code = VERBS[args[0]][0](args[1:])
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"roboloop: {printable(error, keep=BREAKS.get(type(error), ''))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # outside training, which stops cleanly by itself
        return 130
    except BrokenPipeError:
        if ended_quietly(sys.stdout):
            return 0
        raise  # of another pipe: a child's
    except OSError as error:
        return _refused_by_system(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        what = printable(" ".join(str(error).split()) or "it is full")
        print(f"roboloop: not enough memory: {what}", file=sys.stderr)
        return UserError.exit_code


def _refused_by_system(error: OSError) -> int:
    """Say in one line what the operating system refused; a disk that is full or fails has an exit code of its own."""
    from roboloop.core.files import DISK_FAULTS

    fault = DISK_FAULTS.get(error.errno or 0)
    what = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
    print(f"roboloop: {printable(f'{fault}: {what}' if fault else what)}", file=sys.stderr)
    return DiskError.exit_code if fault else UserError.exit_code


if __name__ == "__main__":
    sys.exit(main())
