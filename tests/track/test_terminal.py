from __future__ import annotations

import io
import subprocess
import sys
import time

import pytest

from roboloop.track.terminal import Progress, count, duration


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_one_plain_line_per_period_and_the_last_at_close() -> None:
    out = io.StringIO()
    progress = Progress(50_000, stream=out, every_s=60)
    for step in range(0, 50_001, 1000):
        progress.update(step, 0.25, 812.4, 210.0, 95.5, 3600.0)
    progress.note("checkpoint [step-50000] written")
    progress.close()
    progress.close()
    first, note, last = out.getvalue().splitlines()
    assert first == "0/50k steps (0%)  success 25%  return 812  210 updates/s  95.5 steps/s  ETA 1:00:00"
    assert note == "checkpoint [step-50000] written"
    assert last.startswith("50k/50k steps (100%)")


def test_what_is_unknown_is_a_dash() -> None:
    out = io.StringIO()
    Progress(100, stream=out).update(1, success=float("nan"))
    assert out.getvalue() == "1/100 steps (1%)  success -  return -  - updates/s  - steps/s  ETA -\n"


@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_gets_one_live_line_that_never_wraps(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = Progress(100, stream=out)
    progress.update(50, 1.0, 3.0, 1.0, 2.0, 3.0)
    progress.note("hello [bold]")
    progress.close()
    assert "50/100 steps (50%)" in out.getvalue()
    assert "hello [bold]\n" in out.getvalue()
    assert "\x1b[1A" not in out.getvalue()  # the cursor never goes up: it was one line


def test_too_many_calls_cost_next_to_nothing() -> None:
    progress = Progress(10_000, stream=io.StringIO())
    begin_s = time.thread_time()  # what others do meanwhile is not our cost
    for step in range(2000):
        progress.update(step, 0.5, 1.0, 1.0, 1.0, 1.0)
    assert (time.thread_time() - begin_s) / 2000 < 50e-6


def test_a_closed_pipe_does_not_end_the_training() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress = Progress(10, stream=Closed())
    progress.update(1)
    progress.note("still here")
    progress.close()


def test_disabled_progress_prints_nothing() -> None:
    out = Terminal()
    progress = Progress(10, enabled=False, stream=out)
    progress.update(1)
    progress.note("quiet")
    progress.close()
    assert out.getvalue() == ""


def test_counts_and_durations_are_short() -> None:
    assert [count(x) for x in (0, 950, 12_500, 1_000_000)] == ["0", "950", "12.5k", "1M"]
    assert [duration(x) for x in (5, 3_700, 200_000)] == ["0:00:05", "1:01:40", "2d 07:33"]


def test_importing_the_package_imports_nothing_heavy() -> None:
    modules = ["metrics", "sinks", "terminal", "read", "stats", "plots", "video"]
    heavy = {"torch", "matplotlib", "tensorboard", "wandb", "imageio", "rich", "PIL", "scipy"}
    code = f"import sys, {', '.join(f'roboloop.track.{name}' for name in modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "roboloop.track.video" in done.stdout
    assert not heavy & set(done.stdout.split())
