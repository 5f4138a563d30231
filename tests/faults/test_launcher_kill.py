"""kill -9 of the launcher at random moments, again and again: nothing runs twice at a time, and all gets done."""

import random
import time

from tests.launch.kit import Sweep

KILLS = 6


def test_a_launcher_killed_at_any_moment_is_replaced_by_the_same_command(tmp_path):
    sweep = Sweep(tmp_path, "0 1 2", {0: "slow", 1: "slow", 2: "slow"})
    draw = random.Random(3)
    for _ in range(KILLS):
        launcher = sweep.begin("--slots", 2)
        time.sleep(draw.uniform(0.3, 2.5))  # from before it has read its sweep until it has started several runs
        launcher.kill()
        launcher.communicate()
    code, out = sweep.run("--slots", 2)
    assert code == 0, out
    assert out.splitlines()[-1] == "6 done"
    # a run that lives is never started a second time, so each was started once: none was ever killed itself
    assert sorted(sweep.started()) == sorted(f"gamma={gamma}/{seed}" for gamma in (0.9, 0.99) for seed in (0, 1, 2))
    assert not (tmp_path / "twice.txt").exists()
