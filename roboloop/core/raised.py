"""An exception of code that a user brought, as one line that names the place in that code."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
import traceback
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from roboloop.core.text import printable

CRASHES = (Exception, SystemExit)
"""What other people's code may raise: one that exits must not end us without a word."""
MOST_CHARS = 300
"""Longest message of an exception that is shown."""


def where(error: BaseException) -> str:
    """Return type, place and message of an exception in one line; the place is in the user's own code if any."""
    message = " ".join(str(error).split())
    shown = message if len(message) <= MOST_CHARS else f"{message[:MOST_CHARS]}..."
    return printable(f"{place_of(error)}{': ' + shown if shown else ''}")


def place_of(error: BaseException) -> str:
    """Return type and place of an exception, such as ``ValueError at my_env.py:30``."""
    return f"{type(error).__name__}{_place(traceback.extract_tb(error.__traceback__))}"


def place_in(frame: FrameType | None) -> str:
    """Return where a stack is, such as `` at my_env.py:30``."""
    return _place(traceback.extract_stack(frame))


@functools.cache
def _between() -> tuple[str, ...]:
    """Return where roboloop and Gymnasium are: what is between us and code that a user brought."""
    gymnasium = find_spec("gymnasium")
    origins = [Path(__file__).parent, *([Path(gymnasium.origin)] if gymnasium and gymnasium.origin else [])]
    return tuple(f"{origin.parent}{os.sep}" for origin in origins)


@functools.cache
def _libraries() -> tuple[str, ...]:
    return (*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "<")


def _place(stack: traceback.StackSummary) -> str:
    """Return `` at FILE:LINE`` of the deepest frame of the user's own code, or of what is nearest to it."""
    frames = stack[::-1]
    beyond = [f for f in frames if not f.filename.startswith(_between())]
    own = [f for f in beyond if not f.filename.startswith(_libraries())]
    frame = next(iter(own or beyond or frames), None)
    if frame is None:
        return ""
    path = Path(frame.filename)
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" at {near}:{frame.lineno}"
