"""Videos of episodes: H.264 that every browser plays, or a GIF where ffmpeg cannot run."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.files import writing
from roboloop.core.types import Array

HUNG_S = 60.0
"""An encoder that takes nothing for this long is killed."""


def write_video(frames: Iterable[Array], path: Path, fps: float) -> Path:
    """Write uint8 frames ``[H, W, 3]`` as they come and return the file really written: ``path``, or its .gif."""
    checked = _checked(iter(frames))
    first = next(checked, None)
    if first is None:
        raise DataError(f"{path}: a video needs at least one frame")
    path = path.with_suffix(".mp4" if _ffmpeg_works() else ".gif")
    write = _write_mp4 if path.suffix == ".mp4" else _write_gif
    # beside the target, or the rename could not be atomic; in a new folder, where nobody has put a link yet
    with writing(path), tempfile.TemporaryDirectory(prefix=f".{path.stem}.tmp-", dir=path.parent) as folder:
        partial = Path(folder) / path.name  # the suffix tells the encoder the format
        write(chain([first], checked), partial, fps)
        partial.replace(path)
    return path


def _checked(frames: Iterator[Array]) -> Iterator[Array]:
    shape: tuple[int, ...] | None = None
    for frame in frames:
        shape = shape or frame.shape
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != shape:
            raise DataError(f"a video frame is {frame.dtype} {frame.shape}, expected uint8 {(*shape[:2], 3)}")
        yield frame


def _write_mp4(frames: Iterator[Array], path: Path, fps: float) -> None:
    first = _even(next(frames))
    height, width = first.shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"]
    # two threads: the encoder must not push the learner off its cores; faststart plays before it is fully loaded
    coding = ["-an", "-c:v", "libx264", "-crf", "23", "-pix_fmt", "yuv420p", "-threads", "2", "-movflags", "+faststart"]
    command = [_ffmpeg_exe(), "-y", "-loglevel", "error", *source, *coding, str(path)]
    with tempfile.TemporaryFile() as log:  # a file, not a pipe: nobody reads while we write frames
        # in a session of its own: Ctrl-C is for the training loop, which then closes the video
        process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
        assert process.stdin is not None
        try:
            # an encoder that died: its own words are in the log
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                for frame in chain([first], map(_even, frames)):
                    _feed(pipe.fileno(), np.ascontiguousarray(frame).data.cast("B"))
            process.wait(HUNG_S)
        except (TimeoutError, subprocess.TimeoutExpired):
            raise DataError(f"{path}: ffmpeg hung for {HUNG_S:g} s") from None
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            log.seek(0)
            reason = log.read().decode(errors="replace").strip().splitlines()
            raise DataError(f"{path}: ffmpeg failed ({reason[-1] if reason else f'code {process.returncode}'})")


def _feed(fd: int, data: memoryview) -> None:
    """Write to a pipe; a TimeoutError where nobody takes anything."""
    os.set_blocking(fd, False)
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while data:
        if not poll.poll(1000 * HUNG_S):
            raise TimeoutError
        data = data[os.write(fd, data) :]


def _write_gif(frames: Iterator[Array], path: Path, fps: float) -> None:
    from PIL import Image

    images = map(Image.fromarray, frames)
    # a GIF counts in hundredths of a second, and viewers slow down below two of them
    next(images).save(path, save_all=True, append_images=images, duration=max(20, round(1000 / fps)), loop=0)


def _even(frame: Array) -> Array:
    """Return the frame with its last row or column doubled where needed: yuv420p halves both sides."""
    height, width = frame.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _ffmpeg_exe() -> str:
    import imageio_ffmpeg

    return str(imageio_ffmpeg.get_ffmpeg_exe())


@cache
def _ffmpeg_works() -> bool:
    """Encode a tiny video once: an ffmpeg without H.264 is found before the frames are used up."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            _write_mp4(iter([np.zeros((16, 16, 3), np.uint8)]), Path(folder) / "probe.mp4", 1)
    except (ImportError, OSError, RuntimeError, DataError):
        return False
    return True
