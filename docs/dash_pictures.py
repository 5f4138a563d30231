"""Make the pictures of docs/dash.md from runs: python docs/dash_pictures.py RUNS_DIR... (needs chromium).

A picture is taken where there are runs for it, by their names; the others are left as they are.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent / "images"
CHROMIUM = "/usr/bin/chromium"


@dataclass(frozen=True)
class Picture:
    """What is looked at, and how."""

    name: str
    scheme: str = "light"
    width: int = 1200
    height: int = 680
    search: str = ""
    """What is typed into the search field."""
    key: str = ""
    """The column of the curves; none shows all about the first run that was found."""
    heading: str = ""
    """The part of a run to begin at."""


PICTURES = (
    Picture("dash-curves", search="cloth", key="eval/return"),
    Picture("dash-run", scheme="dark", search="reach-v3", height=1000),
    Picture("dash-ticks", search="rig", heading="real-time latency", height=600),
    Picture("dash-tasks", search="lfgp", heading="which task acted", height=480),
    Picture("dash-phone", search="cloth", key="eval/return", width=380, height=860),
)


def main(roots: list[str]) -> None:
    """Serve the runs, look at them, save what is seen."""
    OUT.mkdir(exist_ok=True)
    server = subprocess.Popen([sys.executable, "-m", "roboloop.cli", "dash", *roots], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = re.sub(r"\s", "", server.stdout.readline())
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            for picture in PICTURES:
                take(browser, url, picture)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def take(browser: Any, url: str, picture: Picture) -> None:
    """Look at the page in a window of its own."""
    size = {"width": picture.width, "height": picture.height}
    page = browser.new_context(viewport=size, color_scheme=picture.scheme).new_page()
    page.goto(url)
    page.wait_for_selector('.chart[data-drawn]:not([data-lines="0"])')
    page.fill("#search", picture.search)
    page.wait_for_timeout(500)
    if not page.locator("#rows tr").count():
        print(f"{picture.name}: no run has {picture.search!r} in its name")
        page.context.close()
        return
    if picture.key:
        page.click("#none")
        page.click("#all")
        page.select_option("#key", picture.key)
    else:
        page.click("#rows tr")
        page.wait_for_selector("#detail details")
    page.wait_for_timeout(1500)
    if picture.heading:
        page.locator("#detail h2", has_text=picture.heading).first.evaluate("node => node.scrollIntoView()")
        page.wait_for_timeout(500)
    page.screenshot(path=OUT / f"{picture.name}.png")
    page.context.close()


if __name__ == "__main__":
    main(sys.argv[1:])
