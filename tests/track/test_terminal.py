from __future__ import annotations

import io
import subprocess
import sys
import time

import pytest

from roboloop.track import terminal
from roboloop.track.terminal import LiveLine, Progress, count, duration


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
    modules = ["metrics", "trackers.mirrors", "trackers.registry", "terminal", "read", "stats", "plots", "video"]
    heavy = {"torch", "matplotlib", "tensorboard", "wandb", "imageio", "rich", "PIL", "scipy"}
    code = f"import sys, {', '.join(f'roboloop.track.{name}' for name in modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "roboloop.track.video" in done.stdout
    assert not heavy & set(done.stdout.split())


def test_steps_beyond_the_last_are_not_shown() -> None:
    out = io.StringIO()
    Progress(100, stream=out).update(128)
    assert out.getvalue().startswith("100/100 steps (100%)")


def test_the_last_report_stands_above_what_is_noted_at_the_end() -> None:
    for out in (io.StringIO(), Terminal()):
        progress = Progress(100, stream=out, every_s=60)
        progress.update(1)
        progress.update(100)
        progress.finish()
        progress.note("done at step 100")
        progress.close()
        assert out.getvalue().rindex("100/100 steps (100%)") < out.getvalue().index("done at step 100")
        assert out.getvalue().endswith("done at step 100\n")


def test_a_live_line_moves_between_reports_and_a_pipe_gets_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_LIVE_EVERY_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    pipe, live = io.StringIO(), Terminal()
    for out in (pipe, live):
        progress = Progress(100, stream=out, every_s=0.0)
        progress.update(50, 0.25, 3.0, 1.0, 2.0, 30.0)
        progress.move(57, 20.0, "evaluating 3/10")
        progress.close()
    assert "57/100 steps (57%)  success 25%" in live.getvalue()
    assert "ETA 0:00:20  evaluating 3/10" in live.getvalue()
    assert pipe.getvalue().count("\n") == 1
    assert "57" not in pipe.getvalue()


def test_one_line_replaces_itself_on_a_terminal_and_is_cut_at_its_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    line = LiveLine(out)
    line.show("3/50 episodes, 120 steps")
    line.clear()
    line.clear()
    assert out.getvalue() == "\r3/50 episodes, 120 \x1b[K\r\x1b[K"


def test_a_line_is_shown_to_nobody_who_does_not_watch() -> None:
    out = io.StringIO()
    line = LiveLine(out)
    assert not line.is_due
    line.show("3/50 episodes")
    line.clear()
    assert out.getvalue() == ""
