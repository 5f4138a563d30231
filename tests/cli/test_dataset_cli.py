"""The verb ``dataset`` end to end, as a user types it."""

import re

import pytest

from roboloop.cli import main
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from tests.cli.test_cli import roboloop
from tests.data.kit import episode_of, fill, numbers_in, same, schema_of


@pytest.fixture
def pictures(tmp_path):
    fill(tmp_path / "a", range(30), kind="pictures", shard_bytes=20_000)
    return tmp_path / "a"


def flip(directory, episode):
    """Damage one byte of an episode."""
    data = Dataset.open(directory)
    entry = data.entry(data.table["id"].tolist().index(episode))
    path = directory / "shards" / f"{entry.shard:06d}.bin"
    content = bytearray(path.read_bytes())
    content[entry.offset + 3] ^= 1
    path.write_bytes(content)


def test_info_says_what_is_in_a_dataset(pictures, tmp_path):
    done = roboloop("dataset", "info", pictures, "--sheet", tmp_path / "s" / "sheet.png")
    assert done.returncode == 0, done.stderr
    steps = sum(len(episode_of(n)[0].reward) for n in range(30))
    assert f"toy/toy, 30 episodes, {steps} steps" in done.stdout
    assert re.search(r"\d+ bytes/step", done.stdout)
    assert "task-0: 15 episodes" in done.stdout
    assert "Spearman" in done.stdout
    assert "success   50% of 20 episodes" in done.stdout
    assert "versions  0 to 3" in done.stdout
    assert "p90" in done.stdout
    assert "####" in done.stdout
    assert (tmp_path / "s" / "sheet.png").read_bytes()[:4] == b"\x89PNG"


def test_info_counts_bytes_per_step_of_live_episodes_and_says_how_many_are_dead(pictures, capsys):
    def disk_line():
        assert main(["dataset", "info", str(pictures)]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("disk"))

    assert "evicted" not in disk_line()
    before = Dataset.open(pictures).table["bytes"].sum()
    with StoreWriter(pictures, Dataset.open(pictures).schema) as store:
        store.evict([number for number in store.live["id"].tolist() if number % 3])
    data, shards = Dataset.open(pictures), sum(file.stat().st_size for file in (pictures / "shards").iterdir())
    live = int(data.table["bytes"].sum())
    assert live < shards <= before  # a shard with one live episode keeps its size
    said = re.search(r", ([\d.]+)kB of it of evicted or unfinished episodes, (\d+) bytes/step", disk_line())
    assert float(said[1]) == pytest.approx((shards - live) / 1000, rel=0.01)
    assert int(said[2]) == round(live / data.num_steps)


def test_verify_names_the_damage_and_repair_drops_it(pictures):
    assert "30 episodes" in roboloop("dataset", "verify", pictures).stdout
    flip(pictures, 7)
    flip(pictures, 12)
    done = roboloop("dataset", "verify", pictures)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "episode 7: the checksum of its columns differs (and 1 more)" in done.stderr
    done = roboloop("dataset", "repair", pictures)
    assert done.returncode == 0, done.stderr
    assert "dropped episode 7: " in done.stdout
    assert "dropped episode 12: " in done.stdout
    assert roboloop("dataset", "verify", pictures).returncode == 0
    assert numbers_in(Dataset.open(pictures)) == [n for n in range(30) if n not in (7, 12)]
    assert "dropped" not in roboloop("dataset", "repair", pictures).stdout


def test_a_damaged_index_line_is_dropped_and_its_episode_read_back_from_the_shard(pictures):
    index = pictures / "index.log"
    lines = index.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b"episode", b"Episode")
    index.write_bytes(b"".join(lines))
    done = roboloop("dataset", "verify", pictures)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is damaged in line 5" in done.stderr
    done = roboloop("dataset", "repair", pictures)
    assert "dropped index line 5" in done.stdout
    assert "read back from the shards: 1 episodes (4)" in done.stdout
    assert numbers_in(Dataset.open(pictures)) == list(range(30))


def test_a_wrong_return_on_record_is_damage(tmp_path):
    with StoreWriter(tmp_path / "a", schema_of()) as writer:
        episode, facts = episode_of(0)
        writer.append(episode, facts._replace(episode_return=facts.episode_return + 1))
    done = roboloop("dataset", "verify", tmp_path / "a")
    assert done.returncode == 2
    assert "episode 0: has return" in done.stderr


def test_merge_joins_datasets_of_one_environment(pictures, tmp_path):
    with StoreWriter(tmp_path / "b", schema_of("pictures", chunk_rows=7)) as writer:
        for number in range(30, 35):
            writer.append(*episode_of(number, kind="pictures"))
    done = roboloop("dataset", "merge", tmp_path / "out", pictures, tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert numbers_in(Dataset.open(tmp_path / "out")) == list(range(35))
    fill(tmp_path / "c", range(2))
    done = roboloop("dataset", "merge", tmp_path / "other", pictures, tmp_path / "c")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "obs_shape" in done.stderr
    assert not (tmp_path / "other").exists()
    again = roboloop("dataset", "merge", tmp_path / "out", pictures)
    assert (again.returncode, "already a dataset" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("flags", "keep"),
    [
        (["--success-only"], lambda n, f: f.success == 1),
        (["--min-return", "0.5"], lambda n, f: f.episode_return >= 0.5),
        (["--min-return", "-0.5", "--max-return", "0.5"], lambda n, f: -0.5 <= f.episode_return <= 0.5),
        (["--task", "task-1"], lambda n, f: n % 2 == 1),
        (["--every", "7"], lambda n, f: n % 7 == 0),
        (["--top-percent", "10"], None),
    ],
)
def test_filter_keeps_what_was_asked_for(pictures, tmp_path, flags, keep):
    done = roboloop("dataset", "filter", pictures, tmp_path / "out", *flags)
    assert done.returncode == 0, done.stderr
    facts = [episode_of(n, kind="pictures")[1] for n in range(30)]
    best = sorted(range(30), key=lambda n: -facts[n].episode_return)[:3]
    wanted = sorted(best) if keep is None else [n for n in range(30) if keep(n, facts[n])]
    data = Dataset.open(tmp_path / "out")
    assert numbers_in(data) == wanted
    assert same(data.episode(0), episode_of(wanted[0], kind="pictures")[0])
    assert roboloop("dataset", "verify", tmp_path / "out").returncode == 0


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["inof", "x"], "did you mean 'info'?"),
        (["info", "nowhere"], "nowhere is not a dataset"),
        (["verify", "nowhere"], "nowhere is not a dataset"),
        (["repair", "nowhere"], "nowhere is not a dataset"),
        (["merge", "out", "nowhere"], "nowhere is not a dataset"),
        (["filter", "a", "out", "--task", "tusk-1"], "did you mean 'task-1'?"),
        (["filter", "a", "out", "--min-retrun", "3"], "did you mean '--min-return'?"),
        (["filter", "a", "out", "--min-return", "1e9"], "no episode is left"),
        (["filter", "a", "out", "--top-percent", "0"], "--top-percent"),
        (["filter", "a", "out", "--every", "0"], "--every"),
    ],
)
def test_bad_input_is_one_line(pictures, args, hint):
    done = roboloop("dataset", *args, cwd=pictures.parent)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert hint in done.stderr
    assert not (pictures.parent / "out").exists()


def test_a_sheet_needs_pictures(tmp_path):
    fill(tmp_path / "a", range(2))
    done = roboloop("dataset", "info", tmp_path / "a", "--sheet", tmp_path / "s.png")
    assert done.returncode == 2
    assert "are not pictures" in done.stderr
