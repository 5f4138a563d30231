"""The command line: every verb in one table, simulators and torch loaded only by the verb that needs them."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from roboloop.core.errors import ConfigError, DiskError, UserError, WorkerLost, is_out_of_memory, nearest
from roboloop.core.outlet import ended_quietly, go_on_unheard
from roboloop.core.resolve import resolve
from roboloop.core.text import printable
from roboloop.core.verbs import LISTS, VERBS
from roboloop.core.version import __version__
from roboloop.core.vouched import find_typed_modules, vouched

BREAKS: dict[type[UserError], str] = {WorkerLost: "\n"}
"""Errors of more than one line: a lost process's own last words."""


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
            "--trust, with any verb: also use code, paths and addresses that a run's or a dataset's own files name",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; what the user can mend is one line on stderr and exit code 2 (see the table for others)."""
    args = vouched.take(sys.argv[1:] if argv is None else argv)
    find_typed_modules()
    works_on = argv is None and bool(args) and args[0] in VERBS and args[0] not in LISTS
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need be no text
    try:
        if not args or args[0] in ("-h", "--help", "help", "--version"):
            print(__version__ if args[:1] == ["--version"] else usage(), flush=True)
            return 0
        if args[0] not in VERBS:
            raise ConfigError(f"unknown verb {args[0]!r}{nearest(args[0], VERBS)}")
        if works_on:
            go_on_unheard()
        code: int = resolve(VERBS[args[0]][0])(args[1:])
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"roboloop: {printable(error.shown, keep=BREAKS.get(type(error), ''))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # outside training, which stops cleanly by itself
        return 130
    except BrokenPipeError:
        if not works_on and ended_quietly(sys.stdout):
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
