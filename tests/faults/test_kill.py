from tests.faults.kill_and_resume import run


def test_kill_9_at_random_moments_leaves_no_trace(tmp_path):
    assert run(tmp_path, kills=6, steps=1200, seed=1) >= 6
