"""Make the pictures of docs/dash.md from runs: python docs/dash_pictures.py RUNS_DIR... (needs chromium)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent / "images"
CHROMIUM = "/usr/bin/chromium"


def main(roots: list[str]) -> None:
    """Serve the runs, look at them twice, save what is seen."""
    OUT.mkdir(exist_ok=True)
    server = subprocess.Popen([sys.executable, "-m", "roboloop.cli", "dash", *roots], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = re.sub(r"\s", "", server.stdout.readline())
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            for name, scheme in (("dash-curves", "light"), ("dash-run", "dark")):
                page = browser.new_context(viewport={"width": 1200, "height": 680}, color_scheme=scheme).new_page()
                page.goto(url)
                page.wait_for_selector('.chart[data-drawn]:not([data-lines="0"])')
                if name == "dash-run":
                    page.click("#rows tr")
                    page.wait_for_selector("#detail details")
                page.wait_for_timeout(1500)
                page.screenshot(path=OUT / f"{name}.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
