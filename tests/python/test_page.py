"""Every snippet of ``docs/python.md`` runs as it stands there, one after another: in the main thread and in another."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import roboloop as rl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()
IN_A_THREAD = """
import threading
failed = []
def run():
    try:
        exec(compile(code, "docs/python.md", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        failed.append(error)
        raise
thread = threading.Thread(target=run)
thread.start()
thread.join()
assert not failed
of_torch = "QueueFeederThread"  # of its DataLoader
assert not [each for each in threading.enumerate()[1:] if each.name != of_torch], "left behind"
"""


@pytest.mark.parametrize("thread", ["main", "another"])
def test_the_snippets_of_the_page_run(tmp_path, thread):
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) > 6
    script = tmp_path / "page.py"
    code = "\n".join(snippets)
    script.write_text(code if thread == "main" else f"code = {code!r}\n{IN_A_THREAD}")
    path = os.pathsep.join((str(ROOT), str(ROOT / "examples" / "outside")))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_page_lists_every_public_name():
    listed = set(re.findall(r"`rl\.(\w+)", PAGE))
    assert set(rl.__all__) - {"__version__"} <= listed
    assert listed <= set(rl.__all__)
