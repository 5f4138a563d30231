"""The progress of a run: one live line on a terminal, one plain line per report elsewhere."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TextIO

from roboloop.core.text import printable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_LIVE_EVERY_S = 0.25  # faster than the eye needs; rendering costs about a millisecond
_BAR_WIDTH = 24


class _Report(NamedTuple):
    step: int
    success: float | None = None
    episode_return: float | None = None
    updates_per_s: float | None = None
    steps_per_s: float | None = None
    eta_s: float | None = None
    doing: str = ""


class Progress:
    """Shows steps, success, return, speeds and the time left; cheap to call after every iteration."""

    def __init__(
        self, total_steps: int, enabled: bool = True, every_s: float = 10.0, stream: TextIO | None = None
    ) -> None:
        self.total_steps = total_steps
        self._stream = stream or sys.stdout
        self._enabled = enabled
        self._live: Live | None = _start_live(self._stream) if enabled and self._stream.isatty() else None
        self._every_s = every_s if self._live is None else _LIVE_EVERY_S
        self._next_s = -math.inf
        self._withheld: _Report | None = None
        self._last = _Report(0)

    def update(
        self,
        step: int,
        success: float | None = None,
        episode_return: float | None = None,
        updates_per_s: float | None = None,
        steps_per_s: float | None = None,
        eta_s: float | None = None,
    ) -> None:
        """Report; shown at most once per period, the last one at the latest by ``close``."""
        self._last = self._withheld = _Report(step, success, episode_return, updates_per_s, steps_per_s, eta_s)
        if self._enabled and time.monotonic() >= self._next_s:
            self._show(self._withheld)

    @property
    def is_due(self) -> bool:
        """Whether a live line should move on; never so where lines are printed one below another."""
        return self._live is not None and self._enabled and time.monotonic() >= self._next_s

    def move(self, step: int, eta_s: float | None, doing: str = "") -> None:
        """Bring a live line up to date between two reports."""
        if self.is_due:
            self._last = self._withheld = self._last._replace(step=step, eta_s=eta_s, doing=doing)
            self._show(self._withheld)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if self._enabled:
            self._emit(printable(text, keep="\n"))

    def finish(self) -> None:
        """Show the last report and end the live line; notes come below it from now on."""
        if self._enabled and self._withheld is not None:
            self._show(self._withheld)
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
        self._live = None

    def close(self) -> None:
        """Show the last report and leave the terminal as it was; closing twice is harmless."""
        self.finish()
        self._enabled = False

    def _show(self, report: _Report) -> None:
        self._withheld = None
        self._next_s = time.monotonic() + self._every_s
        width = 0 if self._live is None else self._live.console.width
        self._emit(self._row(report, width) if width else "  ".join(self._cells(report)))

    def _emit(self, line: str | Table) -> None:
        try:
            if self._live is None:
                print(line, file=self._stream, flush=True)
            elif isinstance(line, str):
                self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                self._live.update(line, refresh=True)
        except OSError:  # the reader of the pipe or the terminal has gone: training goes on without it
            self._enabled = False

    def _cells(self, report: _Report) -> list[str]:
        step = min(report.step, self.total_steps)  # the last rollout of many environments may reach beyond
        done = step / self.total_steps if self.total_steps else math.nan
        success = "-" if _unknown(report.success) else f"{report.success:.0%}"
        return [
            f"{count(step)}/{count(self.total_steps)} steps ({done:.0%})",
            f"success {success}",
            f"return {number(report.episode_return)}",
            f"{number(report.updates_per_s)} updates/s",
            f"{number(report.steps_per_s)} steps/s",
            f"ETA {duration(report.eta_s)}",
            *([report.doing] if report.doing else []),
        ]

    def _row(self, report: _Report, width: int) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Text("  ".join(self._cells(report)), no_wrap=True, overflow="crop")
        row = Table.grid(padding=(0, 2))
        if width < len(line) + _BAR_WIDTH + 2:  # a line that wraps would leave its head behind at each refresh
            row.add_row(line)
        else:
            row.add_row(ProgressBar(self.total_steps, report.step, width=_BAR_WIDTH), line)
        return row


class LiveLine:
    """One line on a terminal that each text replaces; nothing goes to files and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_seen = self._stream.isatty()
        """Whether anybody watches."""
        self._began_s, self._next_s = time.monotonic(), -math.inf
        self._is_empty = True

    @property
    def is_due(self) -> bool:
        """Whether a text would be shown now."""
        return self.is_seen and time.monotonic() >= self._next_s

    def show(self, text: str) -> None:
        """Replace the line, with the time since the beginning behind the text."""
        if self.is_seen:
            now_s = time.monotonic()
            text = f"{printable(text)}, {duration(now_s - self._began_s)}"
            self._write(text[: shutil.get_terminal_size().columns - 1])
            self._is_empty, self._next_s = False, now_s + _LIVE_EVERY_S

    def clear(self) -> None:
        """Empty the line: before anything else is printed, and at the end."""
        if self.is_seen and not self._is_empty:
            self._write("")
            self._is_empty, self._next_s = True, -math.inf

    def _write(self, text: str) -> None:
        try:
            print(f"\r{text}\x1b[K", end="", file=self._stream, flush=True)
        except OSError:  # the terminal has gone
            self.is_seen = False


def _start_live(stream: TextIO) -> Live:
    from rich.console import Console
    from rich.live import Live

    # refreshed by us only: rich's own refresh thread would wake the core that the learner uses
    live = Live(console=Console(file=stream), auto_refresh=False)
    live.start()
    return live


def _unknown(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells in columns."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def count(value: float) -> str:
    """Return a count as 950, 12.5k or 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}"


def number(value: float | None) -> str:
    """Return a number in about three digits, or a dash when it is unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return a duration as 0:03:20 or 2d 04:00, or a dash when it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours < 48 else f"{hours // 24}d {hours % 24:02}:{minute:02}"
