from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError, DataError
from roboloop.track.report import markdown, page
from roboloop.track.report.blocks import Chart, Note, Stroke, Table
from roboloop.track.report.document import KEYS, sections
from roboloop.track.report.refresh import refreshed
from roboloop.track.report.svg import draw, ticks
from roboloop.track.stats import improvement_interval
from roboloop.track.summary import RunSummary, read_summary, renamed
from roboloop.track.summary_file import load, save
from tests.run.fake_runs import write_eval, write_run

ROOT = Path(__file__).parents[2]
VOID = {"meta", "path", "circle", "img", "br"}


class Page(HTMLParser):
    """Everything that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._open = "", list[str]()
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open, f"{tag} was not open"
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def table(runs: list[RunSummary], key: str, which: int = 0) -> Table:
    (section,) = sections(runs, only=[key])
    return [block for block in section.blocks if isinstance(block, Table)][which]


def two_methods(root: Path) -> list[RunSummary]:
    paths = [write_run(root, "sac", seed=seed, success={10: 0.5, 20: 0.6 + 0.1 * seed}) for seed in range(3)]
    paths += [
        write_run(root, "ppo", seed=seed, success={10: 0.1, 20: 0.65}, config={"algo": {"name": "sac", "gamma": 0.9}})
        for seed in range(2)
    ]
    return [read_summary(path) for path in paths]


def test_a_page_is_sound_accessible_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    runs = two_methods(tmp_path)
    found = Page(page.document("Title", sections(runs), tmp_path / "r.html"))
    assert not found.named("script")
    assert not found.named("link")
    sources = [a[k] for _, a in found.tags for k in ("src", "href") if k in a]
    assert sources
    assert all(source and source.startswith("#") for source in sources)
    assert len(found.named("table")) == len(found.named("caption")) > 3
    assert all(attrs.get("scope") in ("row", "col") for attrs in found.named("th"))
    charts = [attrs for attrs in found.named("svg") if attrs.get("role") == "img"]
    assert len(charts) == 4
    assert all(attrs["aria-label"] for attrs in charts)
    assert "prefers-color-scheme: dark" in found.text
    assert any(attrs.get("name") == "viewport" for attrs in found.named("meta"))


@pytest.mark.parametrize("evil", ["<script>alert(1)<", '"><img src=x onerror=alert(1)>', "'onload='x", "</table><b>"])
def test_names_settings_and_protocols_are_text_and_never_markup(tmp_path: Path, evil: str) -> None:
    name = evil.replace("/", "")  # a folder cannot hold it
    path = write_run(tmp_path, name, name, config={evil: evil, "algo": {"name": evil}})
    write_eval(path, 20, [1, 0], tasks=(evil, "b"), protocol={evil: evil}, schedule=evil)
    other = write_run(tmp_path, "other", name, config={evil: "x"})
    (path / "meta.json").write_text('{"command": ["<script>x</script>"], "versions": {"<i>": "<u>"}, "git": "<s>"}')
    runs = [read_summary(path), read_summary(other)]
    made = sections(runs, left_out=[f"{evil}: bad"])
    found = Page(page.document(evil, made, tmp_path / "r.html"))
    tags = {tag for tag, _ in found.tags}
    assert not tags & {"script", "img", "b", "i", "u", "s"}
    assert not [attrs for _, attrs in found.tags if any(key.startswith("on") for key in attrs)]
    assert evil in found.text
    text = markdown.document(evil, made)
    assert "<" not in text
    assert "&lt;" in text or "<" not in evil


def test_markdown_cells_cannot_break_out_of_their_table(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a|b", "[x](javascript:1)", config={"k": "line\nbreak `code` *star*"})
    other = write_run(tmp_path, "other", "t", config={"k": 1})
    text = markdown.document("t", sections([read_summary(path), read_summary(other)]))
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
    assert "a\\|b" in text
    assert "](" not in text
    assert "line break \\`code\\` \\*star\\*" in text


def test_a_report_of_summaries_equals_the_report_of_the_runs(tmp_path: Path) -> None:
    runs = two_methods(tmp_path)
    again = load(save(runs, tmp_path / "s.json"))
    for write in (markdown.document, lambda title, made: page.document(title, made, tmp_path / "r.html")):
        assert write("t", sections(runs)) == write("t", sections(again))


def test_the_final_row_is_the_iqm_over_seeds_and_all_episodes_as_one(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, seed=seed, success={20: value}) for seed, value in enumerate((0.2, 0.4, 0.6, 1.0))]
    for path, successes in zip(paths, (1, 2, 3, 4), strict=True):
        write_eval(path, 20, [1] * successes + [0] * (4 - successes))
    ((label, seeds, steps, in_training, held_out, episodes, returned),) = table(
        [read_summary(path) for path in paths], "final"
    ).rows
    assert (label, seeds, steps) == ("sac/reach", "4", "20")
    assert in_training.startswith("50 % [")  # the mean of 0.4 and 0.6
    assert held_out.startswith("62 % [")  # of 0.5 and 0.75
    assert episodes == "62 % [39, 82]"  # 10 of 16, Wilson
    assert returned.startswith("50 [")


def test_one_seed_has_no_interval_over_seeds(tmp_path: Path) -> None:
    run = read_summary(write_run(tmp_path))
    found = table([run], "final")
    assert dict(zip(found.header, found.rows[0], strict=True)) == {
        "runs": "sac/reach", "seeds": "1", "steps": "20", "in training, at the end": "100 %", "return": "100"
    }  # fmt: skip


def test_a_run_shows_its_last_weights_and_an_earlier_checkpoint(tmp_path: Path) -> None:
    run = write_run(tmp_path, success={10: 0.95, 20: 0.5})
    write_eval(run, 10, [1] * 10)
    write_eval(run, 20, [1, 0] * 5)
    write_eval(run, 20, [1] * 50, name="aimed", target=3.0)  # asked for something else: does not count
    write_eval(run, 20, [1] * 50, name="half", plan={"episodes": 90, "seed": 0, "split": "test"})  # unfinished
    (row,) = table([read_summary(run)], "runs").rows
    assert row == ("sac/reach", "0", "done", "20", "10", "50 %", "50 % [24, 76]", "100 % [72, 100] at 10")


def test_progress_has_a_value_only_where_a_run_was_evaluated(tmp_path: Path) -> None:
    runs = [
        read_summary(write_run(tmp_path, "a", success={15003: 0.5, 30006: 0.75})),
        read_summary(write_run(tmp_path, "b", success={15000: 0.25})),
        read_summary(write_run(tmp_path, "c", "other", success={7: 1.0})),
    ]
    found = table(runs, "progress")
    assert found.header == ("run", "seed", "15k", "30k")
    assert found.rows == (("a/reach", "0", "50", "75"), ("b/reach", "0", "25", "–"))
    assert table(runs, "progress", 1).rows == (("c/other", "0", "100"),)


def test_of_a_set_of_tasks_each_has_its_row(tmp_path: Path) -> None:
    runs = []
    for seed in range(2):
        tasks = {"push": {10: 0.0, 20: 0.5 * seed}, "pull": {10: 1.0, 20: 1.0}}
        run = write_run(tmp_path, "mt", "set", seed, {10: 0.5, 20: 0.75}, tasks)
        write_eval(run, 20, [seed, 1, seed, 1], tasks=("push", "pull"))
        runs.append(read_summary(run))
    found = table(runs, "tasks")
    assert found.header == ("task", "10", "20", "held out")
    assert [row[:3] for row in found.rows] == [("push", "0", "25"), ("pull", "100", "100"), ("all", "50", "75")]
    assert [row[3] for row in found.rows] == ["50 % [15, 85]", "100 % [51, 100]", "75 % [41, 93]"]
    assert table(runs, "final").rows[0][-1] == "75 [75, 75]"  # the return of a run is over all its tasks
    # both seeds and both tasks: 0, 1, 1, 1 held out, of which the middle half is 1
    assert table(runs, "final").rows[0][4].startswith("100 % [")
    assert table(runs, "compare").rows[0][:3] == ("mt", "2", "2")
    assert "Performance profile" in Page(page.document("t", sections(runs), tmp_path / "r.html")).text


def test_the_better_method_comes_first_with_its_probability(tmp_path: Path) -> None:
    (row,) = table(two_methods(tmp_path), "compare").rows
    # sac has 0.6, 0.7, 0.8 and ppo twice 0.65: sac wins four of six pairs
    low, high = improvement_interval([[0.6, 0.7, 0.8]], [[0.65, 0.65]])
    interval = f"[{100 * low:.0f}, {100 * high:.0f}]"
    assert row == ("sac", "ppo", f"67 % {interval}", "1", "3 and 2", "success, the end of training")


def test_settings_show_only_what_differs_and_what_differs_within_a_group(tmp_path: Path) -> None:
    runs = two_methods(tmp_path)
    assert table(runs, "settings").rows == (("algo.gamma", "0.9", "0.99"),)
    odd = read_summary(write_run(tmp_path, "sac", seed=9, config={"device": "cuda"}))
    (section,) = sections([*runs, odd], only=["settings"])
    notes = [block.text for block in section.blocks if not isinstance(block, Table)]  # type: ignore[union-attr]
    assert any("sac/reach" in note and "device" in note for note in notes)


def test_seeds_are_in_order_whatever_they_were_read_from(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, seed=seed) for seed in (2, 0, 10, 1)]
    assert [row[1] for row in table([read_summary(path) for path in paths], "runs").rows] == ["0", "1", "2", "10"]


def test_progress_is_shown_at_steps_of_the_longest_runs_and_of_runs_that_have_any_of_them(tmp_path: Path) -> None:
    long = write_run(tmp_path, "long", success=dict.fromkeys(range(4000, 60001, 4000), 0.5))
    short = write_run(tmp_path, "short", success=dict.fromkeys(range(2500, 10001, 2500), 0.5))
    half = write_run(tmp_path, "half", success=dict.fromkeys(range(4000, 30001, 4000), 0.5))
    found = table([read_summary(path) for path in (long, short, half)], "progress")
    assert found.header == ("run", "seed", "4k", "12k", "20k", "28k", "36k", "44k", "52k", "60k")
    assert found.rows == (
        ("half/reach", "0", *["50"] * 4, *["–"] * 4),
        ("long/reach", "0", *["50"] * 8),
    )


def test_folders_named_by_the_seed_are_no_difference_within_a_group(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, seed=seed, config={"start": f"runs/a/{seed}/x", "n": 1}) for seed in (0, 1)]
    assert not sections([read_summary(path) for path in paths], only=["settings"])
    paths.append(write_run(tmp_path, seed=2, config={"start": "runs/b/2/x", "n": 1}))
    (section,) = sections([read_summary(path) for path in paths], only=["settings"])
    assert len(section.blocks) == 1


def test_an_evaluation_elsewhere_is_shown_with_where_and_does_not_count(tmp_path: Path) -> None:
    runs = []
    for seed in range(2):
        run = write_run(tmp_path, seed=seed, config={"env": {"id": "toy/a", "mass": 1.0}})
        write_eval(run, 10, [0], env={"id": "toy/b", "mass": 2.0})
        write_eval(run, 20, [1, seed], env={"id": "toy/b", "mass": 2.0})  # newer: this one counts
        write_eval(run, 20, [None], name="aimed", target=3.5)
        runs.append(read_summary(run))
    assert table(runs, "protocols", 1).rows[0][3] == "1, test, seed 0, in toy/b, env.mass 2.0"
    assert "held out" not in table(runs, "final").header
    found = table(runs, "elsewhere")
    assert found.header == ("runs", "asked for", "seeds", "outcome", "all episodes", "length", "each seed")
    there, aimed = found.rows
    assert there == (
        "sac/reach", "in toy/b, env.mass 2.0", "2", "75 % [50, 100]", "75 % [30, 95]", "10", "50 %, 100 %"
    )  # fmt: skip
    assert aimed == ("sac/reach", "target 3.5", "2", "0 [0, 0]", "–", "10", "0, 0")


def test_who_was_trained_in_an_environment_stands_beside_who_was_put_there(tmp_path: Path) -> None:
    put = write_run(tmp_path, "source", config={"env": {"id": "toy/a", "mass": 1.0}})
    write_eval(put, 20, [0, 1], env={"id": "toy/b", "mass": 1.0})
    home = write_run(tmp_path, "oracle", config={"env": {"id": "toy/b", "mass": 1.0}})
    write_eval(home, 20, [1, 1])
    other = write_run(tmp_path, "heavy", config={"env": {"id": "toy/c", "mass": 2.0}})
    write_eval(other, 20, [1, 1])  # at home in a third place: no row
    runs = [read_summary(path) for path in (put, home, other)]
    found = table(runs, "elsewhere")
    assert found.caption.startswith("Held-out episodes in toy/b: ")
    assert [row[:3] for row in found.rows] == [
        ("oracle/reach", "1", "100 % [34, 100]"),
        ("source/reach", "1", "50 % [9, 91]"),
    ]


def test_settings_of_an_environment_without_its_name_are_nobody_elses_home(tmp_path: Path) -> None:
    put = write_run(tmp_path, "light", config={"env": {"id": "toy/a", "mass": 1.0}})
    write_eval(put, 20, [0], env={"id": "toy/a", "mass": 2.0})
    other = write_run(tmp_path, "other", config={"env": {"id": "toy/b", "mass": 2.0}})
    write_eval(other, 20, [1])
    runs = [read_summary(path) for path in (put, other)]
    assert [row[0] for row in table(runs, "elsewhere").rows] == ["light/reach"]


def test_experiments_of_one_new_name_are_one_method(tmp_path: Path) -> None:
    runs = renamed(two_methods(tmp_path), {"ppo": "sac"})
    assert [row[:2] for row in table(runs, "final").rows] == [("sac/reach", "5")]
    with pytest.raises(ConfigError, match="no run is of the experiment 'pppo'; did you mean 'ppo'"):
        renamed(two_methods(tmp_path / "again"), {"pppo": "sac"})


def test_time_protocols_and_origin_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_eval(run, 20, [1])
    made = read_summary(run)
    assert table([made], "time").rows == (("sac/reach", "0:00:08", "2.5", "25 %", "75 %", "0 %"),)
    assert table([made], "protocols").rows[0] == ("sac/reach", "suite toy 1, horizon 10", "1, test, seed 0")
    assert table([made], "origin").rows[0][1:3] == ("numpy 2.0", "0123456789ab with changes")


def test_small_videos_are_embedded_and_large_ones_linked(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "videos").mkdir()
    (run / "videos" / "javascript:x.mp4").write_bytes(b"x" * 2000)
    made = sections([read_summary(run)], only=["videos"])
    small = Page(page.document("t", made, tmp_path / "r.html", embed_mb=1))
    assert str(small.named("video")[0]["src"]).startswith("data:video/mp4;base64,eHh4")
    large = Page(page.document("t", made, tmp_path / "r.html", embed_mb=0.001))
    assert not large.named("video")
    assert large.named("a")[1]["href"] == "sac/reach/0/videos/javascript%3Ax.mp4"


def test_runs_that_logged_nothing_yet_are_listed(tmp_path: Path) -> None:
    run = read_summary(write_run(tmp_path, success={}, state="running", step=0))
    assert table([run], "runs").rows == (("sac/reach", "0", "lost", "0"),)
    Page(page.document("t", sections([run]), tmp_path / "r.html"))


def test_an_unknown_section_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'tasks'"):
        sections([], only=["task"])


def test_marked_tables_of_a_text_are_made_anew_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    save(two_methods(tmp_path), tmp_path / "s.json")
    mark = "<!-- roboloop report s.json --only progress --runs ppo -->\n"
    text = f"Words.\n\n{mark}old\n<!-- end of report -->\nMore words.\n"
    new = refreshed(text, tmp_path)
    assert "| ppo/reach | 0 | 10 | 65 |" in new
    assert "sac/reach" not in new
    assert "old" not in new
    assert new.startswith(f"Words.\n\n{mark}")
    assert new.endswith("<!-- end of report -->\nMore words.\n")
    assert refreshed(new, tmp_path) == new
    with pytest.raises(DataError, match="end of report"):
        refreshed(mark, tmp_path)
    with pytest.raises(DataError, match="no runs of dqn"):
        refreshed(text.replace("ppo", "dqn"), tmp_path)


def test_runs_that_know_success_can_be_judged_by_their_returns(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, seed=seed, success={20: value}) for seed, value in enumerate((0.2, 0.4, 0.6, 1.0))]
    for path in paths:
        write_eval(path, 20, [1, 0, 0, 0])
    save([read_summary(path) for path in paths], tmp_path / "s.json")
    mark = "<!-- roboloop report s.json --only final,runs,progress {}-->\n<!-- end of report -->"
    assert "%" in refreshed(mark.format(""), tmp_path).partition("| runs |")[2]
    by_return = refreshed(mark.format("--by-return "), tmp_path)
    assert "| sac/reach | 4 | 20 | 50 [" in by_return  # a return of the mean of 40 and 60
    assert " %" not in "".join(line for line in by_return.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "results").glob("*.md")), ids=lambda path: path.name)
def test_the_tables_in_the_docs_are_those_of_the_committed_summaries(path: Path) -> None:
    text = path.read_text()
    assert refreshed(text, path.parent) == text, f"roboloop report --refresh {path.relative_to(ROOT)}"


def test_marks_of_an_axis_are_round_numbers_within_its_ends() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(-3, 7) == [-2, 0, 2, 4, 6]
    assert ticks(0.1, 0.35) == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3, 0.35])


def test_a_chart_draws_a_level_line_one_point_and_leaves_out_what_is_not_finite() -> None:
    level = Stroke(0, (0.0, 1.0), (5.0, 5.0), (5.0, 5.0), (5.0, 5.0))
    hole = Stroke(9, (0.0, 0.5, 1.0), (5.0, float("nan"), 5.0))
    found = Page(draw(Chart("c", "x", "y", (level, Stroke(1, (0.5,), (5.0,)), hole))))
    assert len(found.named("circle")) == 1
    paths = [attrs for attrs in found.named("path") if "line" in str(attrs["class"])]
    assert [str(attrs["d"]).count("L") for attrs in paths] == [1, 1]
    assert "c1 dashed" in str(paths[1]["class"])
    assert "nan" not in draw(Chart("c", "x", "y", (hole,)))


def test_every_section_has_a_key_that_can_be_asked_for(tmp_path: Path) -> None:
    runs = two_methods(tmp_path)
    assert [section.key for section in sections(runs, ["x: bad"])] == [
        key
        for key in KEYS
        if key not in ("tasks", "over-tasks", "elsewhere", "truth", "protocols", "videos", "datasets")
    ]


def test_a_run_that_failed_at_once_does_not_change_who_is_better(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, name, seed=seed, success={20: value}) for name, value in (("sac", 0.9), ("ppo", 0.3))
             for seed in range(3)]  # fmt: skip
    for path, successes in zip(paths, (9, 9, 9, 3, 3, 3), strict=True):
        write_eval(path, 20, [1] * successes + [0] * (10 - successes))
    runs = [read_summary(path) for path in paths]
    before = table(runs, "compare").rows[0]
    assert before[:2] == ("sac", "ppo")
    assert before[-1] == "success, held-out episodes"
    failed = read_summary(write_run(tmp_path, "sac", seed=9, success={}, state="failed"))
    (section,) = sections([*runs, failed], only=["compare"])
    assert isinstance(section.blocks[0], Table)
    assert section.blocks[0].rows[0] == before
    assert [block.text for block in section.blocks if isinstance(block, Note)] == [
        "Not compared, since nothing is known of how they did: sac/reach/9."
    ]


@pytest.mark.parametrize("values", [(200.0, 200.00000000000003), (-1.7e308, 1.7e308), (5.0, 5.0)])
def test_charts_of_any_numbers_have_a_few_marks(values: tuple[float, float]) -> None:
    made = draw(Chart("c", "x", "y", (Stroke(0, (0.0, 1.0), values),)))
    assert "nan" not in made
    assert "inf" not in made
    assert 2 <= made.count('text-anchor="end"') <= 12


def test_methods_that_were_put_into_one_environment_are_compared_there(tmp_path: Path) -> None:
    paths = {
        name: write_run(tmp_path, name, success={20: trained}, config={"env": {"id": env}})
        for name, env, trained in (("direct", "sim", 0.9), ("simgan", "tuned", 0.6), ("oracle", "real", 0.5))
    }
    for name, success in (("direct", [0, 0, 1]), ("simgan", [1, 1, 1])):
        write_eval(paths[name], 20, success, env={"id": "real"})
    write_eval(paths["oracle"], 20, [1, 1, 0])  # at home there
    rows = table([read_summary(path) for path in paths.values()], "compare").rows
    assert {(better, worse): judged_by for better, worse, *_, judged_by in rows} == {
        ("simgan", "direct"): "success, held-out episodes in real",
        ("oracle", "direct"): "success, held-out episodes in real",
        ("simgan", "oracle"): "success, held-out episodes in real",
    }
