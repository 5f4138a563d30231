"""A run's replay journal as a dataset: the episodes that a recorder would have kept, bit for bit."""

import numpy as np
import pytest

from roboloop.cli import main
from roboloop.data.dataset import Dataset
from tests.data.recording import names as names_of
from tests.run.helpers import resume, train
from tests.run.test_samplers import PPO, SAC, with_workers

ALL = {"keep": "all", "min_free_mb": 0}
KINDS = {"several": SAC, "one": {}, "free": with_workers(SAC, workers=2, free_running=True)}


def bring_in(run, out):
    assert main(["dataset", "import", str(run), str(out), "--format", "replay"]) == 0
    return Dataset.open(out)


def by_name(dataset):
    pairs = zip(dataset.table["env"].tolist(), dataset.table["episode"].tolist(), strict=True)
    return {pair: row for row, pair in enumerate(pairs)}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_it_holds_what_the_recorder_kept_bit_for_bit(tiny, tmp_path, changes):
    run = train(tiny(record=ALL, **changes))
    found, recorded = bring_in(run, tmp_path / "out"), Dataset.open(run / "dataset")
    ours, theirs = by_name(found), by_name(recorded)
    assert ours.keys() == theirs.keys()
    for name, row in ours.items():
        episode, wanted = found.episode(row), recorded.episode(theirs[name])
        for column in ("obs", "action", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(episode, column), getattr(wanted, column), err_msg=column)
        facts, known = found.entry(row).facts, recorded.entry(theirs[name]).facts
        assert (facts.length, facts.task, facts.key) == (known.length, known.task, known.key)
        assert facts.episode_return == pytest.approx(known.episode_return, rel=1e-5)
    assert found.schema.spec == recorded.schema.spec
    assert found.schema.source["env"] == recorded.schema.source["env"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_a_finished_episode_is_there_once_also_after_a_crash(tiny, tmp_path, kind, capsys):
    run = train(tiny(**KINDS[kind]), crash_after=150 if kind == "one" else 30)
    resume(run)
    data = bring_in(run, tmp_path / "out")
    steps = [
        (env, step.tobytes())
        for row, env in enumerate(data.table["env"].tolist())
        for step in np.column_stack([data.episode(row).obs[:-1], data.episode(row).action])
    ]
    assert len(set(steps)) == len(steps) == data.num_steps
    assert len(set(names_of(data))) == len(data)
    said = capsys.readouterr().out
    running = int(said.partition("altered: ")[2].partition(" steps of episodes that had not ended")[0] or 0)
    assert data.num_steps + running == 400
    assert data.table["step"].tolist() == sorted(data.table["step"])
    if kind != "free":  # its crash cuts the running episodes; all others have the length that the clock gives them
        assert set(data.table["length"]) == {40}
    if kind == "one":
        assert data.table["step"].tolist() == np.cumsum(data.table["length"]).tolist()
    assert main(["dataset", "verify", str(tmp_path / "out")]) == 0


def test_a_run_without_a_journal_says_so(tiny, tmp_path, capsys):
    run = train(tiny(**PPO))
    assert main(["dataset", "import", str(run), str(tmp_path / "out"), "--format", "replay"]) == 2
    assert "keeps no replay journal: record it with --record.keep" in capsys.readouterr().err
    assert main(["dataset", "import", str(tmp_path), str(tmp_path / "out"), "--format", "replay"]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
