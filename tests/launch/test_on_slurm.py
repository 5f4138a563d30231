"""What Slurm is asked for and how it refuses, with programs of Slurm's names in its place."""

import os
from pathlib import Path

import pytest

from roboloop import cli
from roboloop.core.errors import ConfigError
from roboloop.launch.job import Job
from roboloop.launch.on_slurm import OnSlurm
from roboloop.launch.slots import Slot
from roboloop.launch.sweep import Planned

pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")
REFUSAL = "sbatch: error: Batch job submission failed: Invalid partition name specified"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put an sbatch into the path that keeps what it is given and refuses it; return where it keeps it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    kept = tmp_path / "script.sh"
    for name, text in (
        ("srun", ""),
        ("sbatch", f'cp "$1" {kept}; echo "sbatch: error: x" >&2; echo "{REFUSAL}" >&2; exit 1'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return kept


def asked_for(kept: Path) -> set[str]:
    return {line.removeprefix("#SBATCH --") for line in kept.read_text().splitlines() if line.startswith("#SBATCH")}


def submit(tiny, timeout_s: float) -> None:
    config = tiny()
    planned = Planned("v", 0, {}, config)
    OnSlurm("gpu", 4, 3000, timeout_s).start(Job(planned.path, planned), Slot(0, (), 4), pytest.fail)


def test_a_job_that_slurm_refuses_is_one_line_with_its_last_words(slurm, tiny):
    with pytest.raises(ConfigError, match=f"the job of .* was refused: {REFUSAL}$"):
        submit(tiny, 0.0)


def test_the_limit_of_time_is_the_users_or_else_the_partitions(slurm, tiny):
    with pytest.raises(ConfigError):
        submit(tiny, 0.0)
    asked = asked_for(slurm)
    assert asked >= {"partition=gpu", "cpus-per-task=4", "mem=3000M", "ntasks-per-node=1", "job-name=roboloop-0"}
    assert not [each for each in asked if each.startswith("time")]
    with pytest.raises(ConfigError):
        submit(tiny, 3600.0)
    assert "time=65" in asked_for(slurm)  # with some minutes to save in


def test_a_missing_slurm_is_found_out_before_anything_is_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["sweep", "cartpole", "--on", "slurm:gpu", "--runs-dir", str(tmp_path / "runs"), "--dry-run"]
    assert cli.main(words) == 2
    assert "--on slurm: Could not detect" in capsys.readouterr().err
