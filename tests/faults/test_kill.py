import re

from tests.cli.test_cli import roboloop
from tests.faults.kill_and_resume import run


def test_kill_9_at_random_moments_leaves_no_trace(tmp_path):
    assert run(tmp_path, kills=6, steps=1200, seed=1) >= 6


def test_kills_of_a_run_and_of_its_children_are_counted_and_their_ends_compared():
    said = roboloop("bench", "random-kills", "--kills", "5", "--only", r"^refine, in the loop \+ helper$").stdout
    assert re.search(r"^ *refine, in the loop \+ helper +5 +(\d) of \1 .* (\d) of \2 compared", said, re.MULTILINE), (
        said
    )
