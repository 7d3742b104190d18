"""The screenshots of the documentation: `python scripts/screenshots.py` writes them to docs/images.

It trains on the demo set, opens the report and the operator's page in Chromium, and takes pictures of what is there.
Needs the packages of the extra `dev`, and `chromium` on the PATH. Takes about two minutes.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from fedmc.algorithms.settings import Settings
from fedmc.federation.pages.operator import operator_pages
from fedmc.federation.presence import Presence
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.setup import founding, layout

FOLDER = Path(__file__).parents[1] / "docs" / "images"
LARGEST = 150_000  # bytes of a picture
COLOURS = 256
NAMES = ("north", "south", "east")
ROUNDS = 12
OF_RUN = (
    "train", "demo", "--clients", "3", "--active", "3", "--privacy", "secagg", "--min-cohort", "3", "--preset", "fast",
    "--rounds", str(ROUNDS), "--measure-every", "1",
)  # fmt: skip


class View(NamedTuple):
    """A window, and the part of a page that it shows: from the top, or from a heading on."""

    width: int
    height: int
    scheme: str = "light"
    heading: str | None = None


REPORT = {
    "report": View(1100, 1050),
    "report-gains": View(1100, 1400, heading="What each organisation gains"),
    "report-phone": View(390, 1000, "dark"),
}
OPERATOR = View(1100, 900)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, chromium() as browser:
        folder = Path(made)
        fedmc("demo", "--out", str(folder / "demo"))
        for name, view in REPORT.items():
            with opened(browser, (folder / "demo" / "report.html").as_uri(), view) as page:
                write(name, page.screenshot())
        fedmc(*OF_RUN, "--out", str(folder / "run"))
        with operator_page(folder) as address, opened(browser, address, OPERATOR) as page:
            page.get_by_text("test RMSE").first.wait_for()
            write("operator", page.screenshot())


def fedmc(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "fedmc", *words], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        sys.exit("there is no Chromium on the PATH: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, address: str, view: View) -> Iterator[Page]:
    size = {"width": view.width, "height": view.height}
    page = browser.new_page(viewport=size, color_scheme=view.scheme)
    page.goto(address)
    if view.heading is not None:
        page.get_by_role("heading", name=view.heading).evaluate("node => node.scrollIntoView()")
    yield page
    page.close()


@contextmanager
def operator_page(folder: Path) -> Iterator[str]:
    """The page of a server that conducts a run: the rounds are those of the simulated one, with the same settings."""
    founding.init(folder / "made", NAMES, founding.Address("127.0.0.1"))
    config = layout.load_server(folder / "made" / "server")
    words = tomllib.loads((folder / "run" / "settings.toml").read_text(encoding="utf-8"))
    kept = {name: words[name] for name in ("rank", "active", "privacy", "min_cohort")}
    plan = RunPlan(
        "autumn-0a1b", Settings.preset("fast", **kept), list(NAMES), [1, 2, 3], "0", 9066, ROUNDS + 8, 1, 60.0, 3
    )
    run = RunFolder(config.runs / "autumn")
    run.write_plan(plan)
    shutil.copy(folder / "run" / "history.jsonl", run.path / "history.jsonl")
    presence = Presence()
    for name in NAMES:
        presence.hear(name)
    pages = operator_pages(config, 0, presence)
    with run.lock():
        run.say(state="running", round=ROUNDS, rounds=ROUNDS + 8, online=list(NAMES), waiting=[], absent=[])
        yield f"{pages.start()}#{pages.site.token}"
        pages.end()


def write(name: str, png: bytes) -> None:
    """Write a picture with as many colours as keep small marks in theirs, such as the dot of a state."""
    path = FOLDER / f"{name}.png"
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes")
    if size > LARGEST:
        sys.exit(f"{path} has more than {LARGEST:,} bytes: take a smaller part of the page")


if __name__ == "__main__":
    main()
