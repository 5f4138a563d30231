"""A real browser for tests: Debian's Chromium without a window, and a page served by a real process."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: as root, apt-get install chromium")


@contextlib.contextmanager
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def served(*roots: Path):
    """Serve runs as the command does, and give its address."""
    command = [sys.executable, "-m", "roboloop.cli", "dash", *map(str, roots)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        url = process.stdout.readline().strip()
        assert re.match(r"http://127\.0\.0\.1:\d+/#token=\S+$", url), url
        yield url
    finally:
        process.terminate()
        process.wait(20)
