"""Every command of README and docs: those of README and the guides run with small budgets, all others are parsed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest

from roboloop.cli import main
from roboloop.core.verbs import VERBS
from roboloop.envs import registry
from tests.documented import PAGES, ROOT, commands, fences, inline, small, words_of

GUIDES = {
    "README.md": "",
    "docs/algorithms/gail.md": "roboloop record play/grasp --expert --out demos/grasp",
    "docs/algorithms/mtsac.md": "",
    "docs/algorithms/pick-and-place.md": "",
    "docs/algorithms/pixel-sac.md": "",
    "docs/algorithms/ppo.md": "",
    "docs/algorithms/sac.md": "",
    "docs/config.md": "",
    "docs/deformables.md": "",
    "docs/deployment.md": "roboloop train reach --seed 1",
    "docs/experiments.md": "",
    "docs/guided-play.md": "",
    "docs/hybrid-simulators.md": "roboloop record hopper/mujoco --random --episodes 2 --out DATASET",
    "docs/interchange.md": """roboloop train cartpole --record.keep all --record.min-free-mb 0
        roboloop train reach --seed 1
        roboloop record gym/Hopper-v5 --random --out hop
        roboloop dataset export hop hopper.hdf5 --format d4rl-hdf5""",
    "docs/reports.md": """roboloop train reach
        roboloop train reach --experiment push
        roboloop train reach --experiment new""",
}
"""Pages whose commands run, one after another in a directory of their own, after what they take for granted."""
ONLY_PARSED = {
    "docs/algorithms/decision-transformer.md": "its datasets are placeholders; tests/cli/test_offline_cli.py has some",
    "docs/algorithms/dynamics.md": "its runs and files are placeholders; tests/cli/test_simgan_cli.py runs all stages",
    "docs/results/": "hours: what the figures were made with",
    "docs/extending.md": "tests/outside/test_extending.py runs them beside the files that they name",
    "docs/dash.md": "tests/dash runs the page",
    "docs/many-machines.md": "needs a cluster; tests/ray and tests/launch have one of this machine",
    "docs/real-time.md": "needs a rig that stands by itself; tests/faults/test_real_time.py trains on one",
    "docs/python.md": "tests/python runs it",
}
"""Pages whose commands are parsed and not run here, and why."""
EXTENDING = (ROOT / "docs/extending.md").read_text()
"""Its files and commands are run by tests/outside/test_extending.py."""
NOT_RUN = {
    "make ": "sets up a virtual environment, or runs all tests",
    "pip install": "changes the environment; that the extras are there is tested below",
    "ssh ": "needs another machine",
    "ray start": "needs a cluster; tests/ray has one of this machine",
    "roboloop bench": "takes minutes and wants a quiet machine; its options are checked",
    "roboloop simgan hopper": "half a minute; tests/cli/test_simgan_cli.py runs it",
}
"""Beginnings of commands that are not run here, and why."""
SERVES = ("roboloop dash", "roboloop rig", "roboloop runs --watch")
"""Commands that go on until Ctrl-C."""
PLACEHOLDERS = {"S": "0", "STEP": "100", "HEAD": "127.0.0.1", "soft/TASK:NAME": "soft/cloth-spread:random"}
ABSENT = re.compile(
    r"not a run directory|is not a dataset|not found locally|No such file|is no directory|no runs|does not exist"
)
"""What is said of a run, a dataset or a file that an example takes for granted: all words before it were understood."""


PUSHER = """
import gymnasium
from tests.envs.broken import Whole as Pusher
gymnasium.register("Pusher-v0", "tests.envs.broken:Whole", max_episode_steps=200)
"""


class Began(BaseException):
    """A command has understood all its words and begins to work."""


def begin(*_, **__):
    raise Began


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Make a directory in which a page's commands find what it shows, and go there."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("images"))  # some are written anew
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "mine.yaml").write_text(fences("docs/config.md", "yaml")[0])
    for name, file in re.findall(r"`(my_\w+\.py)`[^`]*```python\n(.*?)```", EXTENDING, re.DOTALL):
        (tmp_path / name).write_text(file)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "envs.py").write_text(PUSHER)
    (tmp_path / "sweep.yaml").write_text((ROOT / "docs/examples/cartpole-lr.yaml").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def parsed(place, monkeypatch, capsys):
    """Return a function that gives a command to the command line, which stops where work would begin."""
    monkeypatch.setattr(registry, "make", begin)
    monkeypatch.setattr(registry, "serve_rig", begin)

    def parse(command):
        words = [PLACEHOLDERS.get(word, word) for word in words_of(command)]
        if words[0] == "bench":
            return options_of_bench(words, capsys)
        if words[0] == "sweep":
            words = [*without(words, "--on", "--cores-per-run"), "--dry-run"]  # no cluster is asked
        try:
            code = main(words)
        except Began:
            return ""
        told = capsys.readouterr().err
        return "" if code == 0 or ABSENT.search(told) else f"{command}: exit code {code}: {told}"

    return parse


def without(words, *names):
    """Return words without some options and the value of each."""
    taken = {i + k for i, word in enumerate(words) if word in names for k in (0, 1)}
    return [word for i, word in enumerate(words) if i not in taken]


def options_of_bench(words, capsys):
    """Return what a benchmark does not know; nothing is measured."""
    with pytest.raises(SystemExit) as ended:
        main([*words[:2], "--help"])
    told = capsys.readouterr().out
    unknown = [word for word in words[2:] if word.startswith("--") and not re.search(rf"{word}(?![\w-])", told)]
    return f"{words}: {ended.value.code}, unknown {unknown}" if ended.value.code or unknown else ""


def is_ours(command):
    return command.startswith("roboloop ")


def reason(command):
    """Return why a command is not run, or nothing."""
    return next((why for begins, why in NOT_RUN.items() if command.startswith(begins)), "")


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_ours, commands(page)))])
def test_every_command_of_a_page_is_understood(page, parsed):
    wrong = [parsed(command) for command in commands(page) if is_ours(command)]
    assert not [each for each in wrong if each]


@pytest.mark.parametrize(
    "command",
    [
        "roboloop train reach --algo.gama 0.9",
        "roboloop train reech",
        "roboloop train --env tiny/point --env.num-envs 0",
        "roboloop eval runs/reach/reach-v3/0 --episods 3",
        "roboloop sweep reach --axis algo.gama 1 2",
        "roboloop bench sac --block 3",
    ],
)
def test_a_command_that_is_wrong_is_found(command, parsed):
    assert command.split()[1] in parsed(command)


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/results/") and inline(page)])
def test_the_commands_that_results_were_made_with_are_understood(page, parsed):
    wrong = [parsed(command) for command in inline(page) if len(command.split()) > 2 and command.split()[1] in VERBS]
    assert not [each for each in wrong if each]


@pytest.mark.parametrize("page", GUIDES)
def test_the_commands_of_readme_and_guides_run(page, place):
    for command in map(str.strip, GUIDES[page].splitlines()):
        assert run(command) == 0, command
    for command in filter(is_ours, commands(page)):
        if not reason(command):
            assert run(command) == 0, command


def run(command):
    if command.startswith(SERVES):
        return until_ctrl_c(words_of(command))
    return main(small(words_of(command, whole=False)))


def until_ctrl_c(words):
    """Return 0 where a command says something, goes on, and ends by Ctrl-C, also while it still starts."""
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    with subprocess.Popen(
        [sys.executable, "-m", "roboloop.cli", *words], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"BROWSER": "true", "PYTHONPATH": path},
        # where tests run in the background, the shell has children ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        assert process.stdout.readline().strip()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            return -1
        return 0 if process.returncode in (0, 130) else process.returncode


def test_every_page_with_commands_runs_or_has_a_reason():
    pages = [page for page in PAGES if any(map(is_ours, commands(page))) and page not in GUIDES]
    assert [page for page in pages if not page.startswith(tuple(ONLY_PARSED))] == []


def test_every_command_that_is_not_ours_or_does_not_run_has_a_reason():
    others = [command for page in PAGES for command in commands(page) if not is_ours(command)]
    assert [command for command in others if not reason(command)] == []
    stale = [begins for begins in NOT_RUN if not any(c.startswith(begins) for p in PAGES for c in commands(p))]
    assert not stale


def test_every_extra_that_is_installed_in_a_page_is_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for page in PAGES
        for command in commands(page)
        for found in re.findall(r"\[([\w,]+)\]", command if command.startswith("pip install") else "")
        for extra in found.split(",")
    }
    assert len(named) > 3
    assert named <= set(extras)
