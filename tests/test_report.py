"""The report, also in a real browser."""

from __future__ import annotations

import json
import re

import pytest

from fedmc.errors import InputError
from fedmc.report import html
from fedmc.report.run import write_report
from fedmc.report.sentences import certificate
from tests.command import fedmc
from tests.conftest import planted


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run with a report, its users named so that they can be looked for."""
    folder = tmp_path_factory.mktemp("report")
    entries = planted().matrix.tocoo()
    lines = [f"person-{u},{i},{x:.3f}" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)]
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    words = "train ratings.csv --preset fast --clients 4 --rounds 12 --rank 2 --out run --report --diagnostics"
    done = fedmc(*words.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"report in {folder / 'run' / 'report.html'}" in done.stdout
    return folder / "run"


@pytest.fixture(scope="module")
def bayesian_folder(run_folder):
    """A run whose report has intervals."""
    words = "train ratings.csv --clients 4 --rounds 12 --rank 2 --out bayesian --report"
    done = fedmc(*words.split(), cwd=run_folder.parent)
    assert done.returncode == 0, done.stderr
    return run_folder.parent / "bayesian"


@pytest.fixture(scope="module")
def comparison_folder(tmp_path_factory, run_folder):
    folder = tmp_path_factory.mktemp("comparison")
    words = f"compare {run_folder.parent / 'ratings.csv'} --methods fedmc,fedmavg,pooled,alone --seeds 1,2 --rank 2"
    words += " --clients 4 --active 2 --rounds 8 --out out"
    done = fedmc(*words.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def open_page(browser, path, width=1400, scheme="light"):
    """The page, with everything it complained of and everything it asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    return page, said, asked


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


@pytest.mark.parametrize(("which", "count"), [("run_folder", 4), ("comparison_folder", 2), ("bayesian_folder", 5)])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(browser, request, which, count, width, scheme):
    path = request.getfixturevalue(which) / "report.html"
    page, said, asked = open_page(browser, path, width, scheme)
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    unfold(page)
    figures = page.locator("figure svg")
    assert figures.count() == count
    for box in (figures.nth(k).bounding_box() for k in range(count)):
        assert box["width"] >= 300
        assert box["height"] >= 200
        assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor"))
    brightness = [sum(map(int, colour[4:-1].split(", "))) for colour in (ink, paper)]
    assert (brightness[0] < brightness[1]) == (scheme == "light")
    page.close()


def test_tables_sort(browser, run_folder):
    page, _, _ = open_page(browser, run_folder / "report.html")
    unfold(page)
    table = page.locator("table.sorts").first
    column = lambda: [float(v) for v in table.locator("tbody tr td:nth-child(2)").evaluate_all(  # noqa: E731
        "cells => cells.map(cell => cell.dataset.value)")]  # fmt: skip
    before = column()
    assert len(before) == 13
    heading = table.locator("th").nth(1)
    heading.click()
    assert column() == sorted(before)
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.focus()
    page.keyboard.press("Enter")
    assert column() == sorted(before, reverse=True)
    page.close()


def test_it_says_nothing_about_single_users(run_folder, comparison_folder, bayesian_folder):
    for folder in (run_folder, comparison_folder, bayesian_folder):
        for path in (p for p in folder.rglob("*") if p.suffix in (".html", ".svg", ".csv", ".json", ".toml")):
            assert "person-" not in path.read_text(encoding="utf-8"), path


def test_it_tells_what_was_run(run_folder):
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    for words in ("After 12 rounds", "4 organisations sent", "penalty_users", "numba", "beta above", "stationarity"):
        assert words in page
    assert str(run_folder) not in page


@pytest.mark.parametrize(
    ("options", "seen", "not_seen"),
    [
        ("", "The server saw each client&#x27;s own updates.", "sums over cohorts"),
        ("--privacy secagg --min-cohort 3", "the server saw only their sums over cohorts", "own updates"),
        ("--privacy dp", "the server saw each client&#x27;s noisy ones", "sums over cohorts"),
    ],
)
def test_totals_are_over_all_rounds_and_the_mode_is_told_apart(run_folder, options, seen, not_seen):
    """Two of thirteen rounds are measured; every one of them sends and takes time."""
    source, out = run_folder.parent / "ratings.csv", run_folder.parent / f"run{len(options)}"
    words = f"train {source} --clients 4 --rounds 12 --rank 2 --measure-every 12 --report --json --out {out} {options}"
    done = fedmc(*words.split())
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert len(history) == 13
    assert sum("objective" in record for record in history) == 2
    page = (out / "report.html").read_text(encoding="utf-8")
    sent, received, seconds = re.search(
        r"sent ([\d.,]+) MB and received ([\d.,]+) MB .* took ([\d.,]+) s", page
    ).groups()
    assert sent == f"{result['bytes_up'] / 1e6:,.1f}"
    assert received == f"{result['bytes_down'] / 1e6:,.1f}"
    assert seconds == f"{result['seconds']:,.1f}"
    assert seen in page
    assert not_seen not in page.partition("<section>")[0]
    mode = options.split()[1] if options else "plain"
    assert f"<p>Privacy {mode}: " in page, "the claim, in words"


def test_totals_of_unmeasured_rounds_are_counted(tmp_path):
    line = {"seconds": 1.5, "bytes_up": 2_000_000, "bytes_down": 1_000_000}
    rounds = [line | {"number": k} for k in range(4)]
    rounds[0] |= {"objective": 2.0, "train_rmse": 1.0}
    rounds[3] |= {"objective": 1.0, "train_rmse": 0.5}
    (tmp_path / "settings.toml").write_text("rank = 1\nclients = 7\n")
    (tmp_path / "history.jsonl").write_text("\n".join(map(json.dumps, rounds)))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "7 organisations sent 8.0 MB and received 4.0 MB in all; the updates took 6.0 seconds." in page


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match="is not a run folder"):
        write_report(tmp_path)
    (tmp_path / "settings.toml").write_text("rank = 1\n")
    (tmp_path / "history.jsonl").write_text("")
    with pytest.raises(InputError, match="no measured round"):
        write_report(tmp_path)


def test_certificate_in_words():
    assert "not worked out" in certificate({}).lower()
    assert "is certified" in certificate({"beta_needed": 3.0, "certified": True})
    assert "does not certify" in certificate({"beta_needed": 3.0, "certified": False})


def test_what_a_cell_holds_is_escaped_and_sorted_in_full():
    made = html.table(["<a>"], [["<script>"], [0.123456789], [None], [True]])
    assert "<script>" not in made
    assert "&lt;script&gt;" in made
    assert 'data-value="0.123456789">0.1235' in made
