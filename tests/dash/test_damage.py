"""One damaged file of one run, and the page goes on."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra dash is not installed")

from roboloop.track.metrics import DELAY_EDGES_MS
from tests.dash.kit import client, make_run, run_id

HUGE = f"1{'0' * 400}"
"""A whole number beyond all floats."""
NESTED = "[" * 99_999
PLAN = {"episodes": 1, "split": "test", "seed": 0}
ODD = {
    "status.json": [
        '{"state": "running", "step": 1e999, "steps": 5}',
        f'{{"state": "done", "step": {HUGE}, "steps": 5}}',
        NESTED,
    ],
    "timing.jsonl": [
        '{"step": 1, "wall_s": NaN}',
        f'{{"step": 2, "memory_mb": {HUGE}}}',
        json.dumps({"step": 1, "sample/late_ticks": ["x"] * (len(DELAY_EDGES_MS) - 1)}),
    ],
    "metrics.jsonl": [
        '{"choice/a": 1}',
        '{"step": 1, "choice/a": "x"}',
        f'{{"step": 1, "train/return": {HUGE}}}',
        NESTED,
        '{"step": 1, "train/return": 1.7e308}\n{"step": 2, "train/return": -1.7e308}',
    ],
    "config.yaml": ["x: 2026-01-01", "x: 2026-99-99", "a: &a {b: *a}"],
    "launch/facts.json": ['{"slot": NaN}', '{"slot": [5]}', "5"],
    "meta.json": ['{"created_unix_s": NaN, "versions": {"a": Infinity}}', "5"],
    "eval/a.jsonl": [
        '{"plan": 5}\n{}',
        f'{{"plan": {json.dumps(PLAN)}, "checkpoint_step": Infinity}}\n{{"return": 1, "success": 1}}',
    ],
    "../../../.sweep/plan.json": ['{"runs": [5]}', '{"runs": [{"path": "a"}]}', '{"runs": 5}'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in ODD.items() for text in texts])
def test_one_damaged_file_of_one_run_leaves_the_page_and_the_other_runs_alone(tmp_path, name, text):
    root = tmp_path / "runs"
    good, odd = make_run(root, "sac/reach/0"), make_run(root, "sac/reach/1")
    path = (odd / name).resolve()
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}\n")
    page, both = client(root), f"runs={run_id(good)},{run_id(odd)}"
    assert {row["name"] for row in page.get("/api/runs").json()["runs"]} >= {"sac/reach/0", "sac/reach/1"}
    lines = page.get(f"/api/curves?{both}&key=train/return").json()["lines"]
    assert lines[0]["y"] == [float(i) for i in range(20)]
    for asked in (f"/api/curves?{both}&key=train/return&by=group", f"/api/keys?{both}", f"/api/diff?{both}"):
        assert page.get(asked).status_code == 200
    assert page.get(f"/api/run/{run_id(good)}").status_code == 200
    assert page.get(f"/api/run/{run_id(odd)}").status_code in (200, 409)  # what cannot be read is one line


def test_a_bug_is_one_line_on_the_page_and_whole_in_the_terminal(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path)
    page = client(tmp_path)
    monkeypatch.setattr("roboloop.dash.detail.media", lambda run: 1 / 0)
    answer = page.get(f"/api/run/{run_id(run)}")
    assert (answer.status_code, "ZeroDivisionError" in answer.json()["error"]) == (500, True)
    assert "Traceback" in capsys.readouterr().err
    assert page.get("/api/runs").status_code == 200
