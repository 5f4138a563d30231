from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image

from roboloop.core.errors import DataError
from roboloop.core.types import Array
from roboloop.track import video
from roboloop.track.curves import Curve, Traced
from roboloop.track.plots import plot_runs
from roboloop.track.sheet import write_sheet
from roboloop.track.video import write_video


def frames(n: int, height: int = 65, width: int = 97) -> Iterator[Array]:
    for index in range(n):
        frame = np.full((height, width, 3), 20, np.uint8)
        frame[10:30, 3 * index : 3 * index + 20] = (250, 40, 40)
        yield frame


@pytest.fixture
def no_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    video._ffmpeg_works.cache_clear()
    monkeypatch.setattr(video, "_ffmpeg_exe", lambda: "/no/such/ffmpeg")
    yield
    video._ffmpeg_works.cache_clear()


def test_a_video_of_odd_size_reads_back_with_every_frame(tmp_path: Path) -> None:
    path = write_video(frames(24), tmp_path / "videos" / "eval.mp4", fps=12)
    back = iio.imread(path, plugin="FFMPEG")
    assert back.shape == (24, 66, 98, 3)
    assert back[5, 20, 20, 0] > 200 > 60 > back[5, 50, 20, 0]
    meta = iio.immeta(path, plugin="FFMPEG")
    assert (meta["codec"], meta["fps"]) == ("h264", 12)
    assert meta["pix_fmt"].startswith("yuv420p")
    assert [p.name for p in path.parent.iterdir()] == ["eval.mp4"]


@pytest.mark.usefixtures("no_ffmpeg")
def test_without_ffmpeg_the_same_frames_become_a_gif(tmp_path: Path) -> None:
    path = write_video(frames(12), tmp_path / "eval.mp4", fps=10)
    assert path == tmp_path / "eval.gif"
    with Image.open(path) as image:
        assert (image.n_frames, image.size, image.info["duration"]) == (12, (97, 65), 100)  # type: ignore[attr-defined]
    assert [p.name for p in tmp_path.iterdir()] == ["eval.gif"]


def test_an_episode_that_fails_leaves_the_old_video_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "eval.mp4"
    path.write_bytes(b"old")

    def failing() -> Iterator[Array]:
        yield from frames(3)
        raise RuntimeError("the simulator died")

    with pytest.raises(RuntimeError, match="simulator"):
        write_video(failing(), path, fps=10)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["eval.mp4"]


@pytest.mark.parametrize(
    "bad", [[], [np.zeros((8, 8, 3), np.float32)], [np.zeros((8, 8), np.uint8)], [*frames(1), *frames(1, height=8)]]
)
def test_no_frames_or_wrong_frames_are_said_in_one_line(tmp_path: Path, bad: list[Array]) -> None:
    with pytest.raises(DataError, match="frame"):
        write_video(bad, tmp_path / "eval.mp4", fps=10)
    assert not list(tmp_path.iterdir())


def test_films_pictures_and_sheets_are_not_written_through_links_that_wait_for_them(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    folder.mkdir()
    for name in ("film.mp4", "film.gif", "sheet.png", "curve.png"):
        for waiting in (name, f".{name}.tmp", f".{Path(name).stem}.tmp-{os.getpid()}{Path(name).suffix}",
                        f".{name}.tmp-{os.getpid()}"):  # fmt: skip
            (folder / waiting).symlink_to(victim)
    made = write_video(frames(2), folder / "film.mp4", 10)
    write_sheet([np.zeros((3, 8, 8), np.uint8)], folder / "sheet.png", 1)
    curve = Curve(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([0.0, 1.0]))
    plot_runs([Traced("sac", "reach", 0, {"eval/return": curve})], folder / "curve.png")
    assert victim.read_text() == "precious"
    for path in (made, folder / "sheet.png", folder / "curve.png"):
        assert not path.is_symlink()
        assert path.stat().st_size > len("precious")


@pytest.mark.parametrize("when", ["at once", "at the end"])
def test_an_encoder_that_hangs_is_killed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    assert video._ffmpeg_works()
    fake = tmp_path / "ffmpeg"
    fake.write_text("#!/bin/sh\n" + ("" if when == "at once" else "cat > /dev/null\n") + "exec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setattr(video, "_ffmpeg_exe", lambda: str(fake))
    monkeypatch.setattr(video, "HUNG_S", 0.5)
    with pytest.raises(DataError, match=r"ffmpeg hung for 0\.5 s"):
        write_video(frames(24), tmp_path / "videos" / "eval.mp4", fps=12)
    assert not list((tmp_path / "videos").iterdir())
