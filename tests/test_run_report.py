"""A run's report, as a reader who does not know the field sees it: title, data, baselines, gains, examples, privacy."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, strategies

from fedmc.algorithms import registry
from fedmc.algorithms.settings import Settings
from fedmc.data.prepare import Plan, read_parts
from fedmc.evaluation import baselines, coverage
from fedmc.evaluation.pooled import bias_rmse
from fedmc.model import load
from fedmc.privacy import modes
from fedmc.report import applying, examples, html, title
from fedmc.report.best import best_of
from fedmc.report.run import write_report
from fedmc.report.run_folder import unit_of
from tests.command import fedmc
from tests.conftest import examples as many
from tests.conftest import planted
from tests.test_report import open_page, unfold

EVIL = "<img src=x onerror=alert(1)>"
TRAIN = "--clients 4 --rounds 8 --rank 2 --report"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A source below some folders, a table of titles, and a run with all baselines."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "deep" / "down").mkdir(parents=True)
    entries = planted(users=60, items=25).matrix.tocoo()
    stars = np.clip(np.round(entries.data), 1, 5)
    stars[:2] = 1, 5
    lines = [f"person-{u},{i},{x:.0f}" for u, i, x in zip(entries.row, entries.col, stars, strict=True)]
    (folder / "deep" / "down" / "north.csv").write_text("\n".join(lines) + "\n")
    titles = [f"{i},Film {chr(97 + i)} {EVIL if i % 5 == 0 else ''}" for i in range(25)]
    (folder / "films.csv").write_text("item,title\n" + "\n".join(titles) + "\n")
    run(folder, f"train deep/down/north.csv --items films.csv --baselines --out run {TRAIN}")
    return folder


def run(folder, words):
    done = fedmc(*words.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def page_of(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def section(page, heading):
    found = page.partition(f"<h2>{heading}</h2>")
    assert found[1], heading
    return found[2].partition("</section>")[0]


# --- the three defects


@pytest.mark.parametrize("options", ["", "--privacy secagg --min-cohort 3", "--privacy dp"])
def test_the_privacy_claim_is_near_the_top_and_whole_further_down(made, options):
    out = f"private{len(options)}"
    run(made, f"train deep/down/north.csv --preset fast --out {out} {TRAIN} {options}")
    page = unescape(page_of(made / out))
    words = {"privacy": options.split()[1] if options else "plain", "min_cohort": 3, "dp_rounds": 8}
    claim = modes.parse(words["privacy"], words).claim()
    claim = claim[:1].upper() + claim[1:]
    summary = page.partition('<div class="summary">')[2].partition("</div>")[0]
    assert f"<p>{claim.partition('. ')[0].removesuffix('.')}.</p>" in summary
    assert f"<p>{claim.removesuffix('.')}.</p>" in section(page, "Privacy")
    visitors = section(page, "Example recommendations").count("A visitor who gave 5 stars to item ")
    assert visitors == (1 if "dp" in options else 3), "so little data leave biases alone"


def test_the_title_is_no_path(made):
    page = page_of(made / "run")
    assert "<title>Ratings of north: 4 organisations, one model</title>" in page
    heading = re.search("<h1>(.*)</h1>", page)[1]
    assert heading == "Ratings of north: 4 organisations, one model"
    visible = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL).partition("<script>")[0]
    assert "deep/down" not in visible
    assert "north.csv" not in visible


def test_a_baseline_is_named_with_its_figure(made):
    train, test = (
        read_parts(Plan(str(made / "deep" / "down" / "north.csv"), split="0.2", clients=4))[k] for k in (0, 1)
    )
    own = bias_rmse(train, test)
    stored = baselines.load(made / "run")
    assert stored.biases == pytest.approx(own, rel=1e-4)
    page = page_of(made / "run")
    table = section(page, "How good it is")
    assert f'<td>biases only: averages of users and items</td><td data-value="{stored.biases!r}">{own:.4f}' in table
    assert f"Predictions by averages of users and items (biases only) have an error of {own:.4f} stars" in page
    done = fedmc("report", "run", cwd=made)
    assert done.returncode == 0, done.stderr
    assert page_of(made / "run") == page, "a later report has the same"


def test_biases_only_are_there_without_being_asked_for(made):
    run(made, f"train deep/down/north.csv --preset fast --out cheap {TRAIN} --json")
    stored = baselines.load(made / "cheap")
    assert stored.values().keys() == {"biases"}
    table = section(page_of(made / "cheap"), "How good it is")
    assert "biases only" in table
    assert "each organisation alone<" not in table
    assert "fedmc train --baselines" in table


@pytest.mark.parametrize(("start", "cut"), [(1.2, False), (9.0, True)])
def test_a_curve_that_is_cut_off_says_so(made, tmp_path, start, cut):
    """A start far above the baselines is left out of the drawing."""
    for name in ("settings.toml", "baselines.json"):
        (tmp_path / name).write_bytes((made / "run" / name).read_bytes())
    first, *others = (made / "run" / "history.jsonl").read_text().splitlines()
    levels = [*baselines.load(made / "run").values().values(), json.loads(others[-1])["test_rmse"]]
    line = json.loads(first) | {"test_rmse": start * max(levels)}
    (tmp_path / "history.jsonl").write_text("\n".join([json.dumps(line), *others]) + "\n")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert ("The curve begins far above the drawing" in page) == cut


# --- what a manager reads


def test_what_it_was_trained_on(made):
    found = json.loads((made / "run" / "data.json").read_text())
    table = section(page_of(made / "run"), "What it was trained on")
    pairs = dict(re.findall(r'<td>([^<]*)</td><td class="words">([^<]*)</td>', table))
    total = len(planted(users=60, items=25))
    assert found["ratings"] + found["test"] == total
    assert pairs == {
        "data": "Ratings of north", "users": "60", "items": "25",
        "ratings": f"{found['ratings']:,} to train on, from 1 to 5 stars",
        "organisations": "4 (clients), simulated on one machine",
        "held out": f"{found['test']:,} ratings, 20 % of all: not used for training",
    }  # fmt: skip


def test_the_period_is_there_if_times_are_known(made):
    lines = [f"u{k % 20},{k % 7},{k % 5 + 1},{1_700_000_000 + 86_400 * k}" for k in range(139)]
    (made / "timed.csv").write_text("user,item,rating,time\n" + "\n".join(lines) + "\n")
    run(made, f"train timed.csv --times --duplicates last --out timed {TRAIN}")
    assert '<td>period</td><td class="words">2023-11-14 to 2024-03-31</td>' in page_of(made / "timed")


@pytest.mark.parametrize(("test", "words"), [("0", "No ratings were held out"), ("users:0.2", "Whole users were held")])
def test_without_held_out_ratings_the_error_is_said_to_be_that_of_training(made, test, words):
    out = f"test-{test.partition(':')[0]}"
    run(made, f"train deep/down/north.csv --preset fast --out {out} {TRAIN} --test {test}")
    page = page_of(made / out)
    assert "stars on the ratings it was trained on; that on new ones is usually higher." in page
    assert words in section(page, "How good it is")
    assert not (made / out / "baselines.json").exists()


def test_what_each_organisation_gains(made):
    stored = baselines.load(made / "run")
    page = page_of(made / "run")
    gains = section(page, "What each organisation gains")
    assert gains.count("<svg") == 1
    rows = re.findall(r"<tr><td>organisation (\d)</td>.*?</tr>", gains)
    assert rows == ["1", "2", "3", "4"]
    for one in stored.clients:
        assert f'data-value="{one.alone!r}"' in gains
        assert f'data-value="{one.together!r}"' in gains
    better = sum(one.together < one.alone for one in stored.clients)
    where = "all 4 of them" if better == 4 else f"{better} of 4"
    assert f"an error of {stored.alone:.4f} stars: together, it is" in page
    assert f"and lower at {where}" in page
    assert "fewer than 5 users" not in page


def test_organisations_keep_the_names_of_a_column(made):
    lines = [f"u{k % 30},{k % 11},{k % 5 + 1},{'north' if k % 30 < 15 else EVIL}" for k in range(330)]
    (made / "named.csv").write_text("user,item,rating,place\n" + "\n".join(lines) + "\n")
    run(made, f"train named.csv --preset fast --partition column:place --baselines --out named {TRAIN}")
    gains = section(page_of(made / "named"), "What each organisation gains")
    assert "<td>north</td>" in gains
    assert EVIL not in gains
    assert "&lt;img src=x" in gains


def test_one_user_organisations_are_not_listed(made):
    run(made, f"train deep/down/north.csv --preset fast --partition one-user --baselines --out single {TRAIN}")
    page = page_of(made / "single")
    assert "What each organisation gains" not in page
    assert "each organisation alone (" in page, "some of them"
    assert baselines.load(made / "single").clients == ()


def test_examples_are_of_made_up_visitors_with_titles(made):
    page = page_of(made / "run")
    shown = section(page, "Example recommendations")
    assert "person-" not in page
    assert shown.count("A visitor who gave 5 stars to Film ") == 3
    items = re.findall(r"<li>(Film .)[^<]*: (\d\.\d) stars</li>", shown)
    assert len(items) == 15
    model = load(made / "run" / "model.npz")
    liked = [column for one in examples.visitors(model, "stars") for column in re.findall("Film (.)", one.who)]
    assert len(set(liked)) == 9, "three visitors with different tastes"
    for one in examples.visitors(model, "stars"):
        assert not set(re.findall("Film (.)", one.who)) & {chr(97 + int(item)) for item in one.items}
    assert "These visitors are made up" in shown


def test_a_user_is_shown_only_if_asked_for(made):
    try:
        run(made, "report run --example-user person-7")
        shown = section(page_of(made / "run"), "Example recommendations")
        assert "User person-7, shown because it was asked for" in shown
        assert "(`fedmc report --example-user`): make sure that they agreed" in shown
    finally:
        run(made, "report run")
    assert "person-" not in page_of(made / "run")
    done = fedmc("report", "run", "--example-user", "nobody", cwd=made)
    assert done.returncode == 2
    assert "unknown user nobody" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_given_title_is_kept_and_can_be_changed(made):
    run(made, f"train deep/down/north.csv --preset fast --out named-run {TRAIN} --title {EVIL.replace(' ', '_')}")
    page = page_of(made / "named-run")
    assert "<h1>&lt;img_src=x_onerror=alert(1)&gt;</h1>" in page
    assert "<img" not in page
    run(made, "report named-run --title Autumn")
    assert "<h1>Autumn</h1>" in page_of(made / "named-run")
    done = fedmc("report", made, "--title", "x", cwd=made)
    assert done.returncode == 2, "no run folder"


def test_the_best_round_is_marked_by_validation_if_there_is_any(made):
    words = f"train deep/down/north.csv --preset fast --measure-every 1 {TRAIN}"
    for out, more, measure in (("test", "", "test_rmse"), ("valid", "--validation 0.2", "validation_rmse")):
        run(made, f"{words} --out {out} {more}")
        page = page_of(made / out)
        history = [json.loads(line) for line in (made / out / "history.jsonl").read_text().splitlines()]
        best = min(history, key=lambda line: line[measure])
        rows = re.findall(
            r'<tr class="marked"><td data-value="(\d+)">\d+ <span class="tag">best', section(page, "Rounds")
        )
        assert rows == [str(best["number"])]
        label = measure.replace("_rmse", " RMSE")
        assert f"The best {label} is {best[measure]:.4f} stars, in round {best['number']}" in page
        assert f"best: round {best['number']}" in page
        assert ("there are no validation data" in page) == (measure == "test_rmse")


def test_settings_are_folded_away_and_only_those_that_apply(made):
    page = page_of(made / "run")
    assert '<section class="folded"><details><summary><h2>Settings</h2></summary>' in page
    named = re.findall(r"<td>([a-z_]+)</td>", section(page, "Settings"))
    assert {"rank", "algorithm", "privacy", "seed"} <= set(named)
    assert not {"beta", "beta_scale", "dual_step", "inner_steps", "passes", "clip", "validation"} & set(named)
    assert "theory's certificate" not in page


@pytest.mark.parametrize("name", [one for one in registry.names() if one != "gibbs"])
def test_no_setting_is_shown_that_the_algorithm_refuses(name):
    algorithm = registry.find(name)
    preset = "implicit" if algorithm.of_events else "fast"
    if name in ("bayes", "dp"):
        given = {"preset": "bayes"} if name == "bayes" else {"preset": "fast", "privacy": "dp"}
        settings = Settings.preset(given.pop("preset"), **given)
    else:
        settings = Settings.preset(preset, algorithm=name)
    shown = applying.that_apply(settings.to_dict())
    assert not shown.keys() & algorithm.unused_settings
    assert {"rank", "algorithm", "privacy"} <= shown.keys()


def test_settings_of_an_algorithm_that_is_not_here_are_all_shown():
    assert applying.that_apply({"algorithm": "nowhere", "beta": 1.0, "clip": 0}) == {
        "algorithm": "nowhere",
        "beta": 1.0,
    }


def test_events_are_measured_beside_popularity(made):
    lines = [f"u{k % 40},{(k * k + k // 40) % 23}" for k in range(600)]
    (made / "bought.csv").write_text("user,item\n" + "\n".join(lines) + "\n")
    run(made, f"train bought.csv --feedback implicit --baselines --out events {TRAIN}")
    page = page_of(made / "events")
    assert "<h1>Events of bought: 4 organisations, one model</h1>" in page
    table = section(page, "How good it is")
    last = json.loads((made / "events" / "history.jsonl").read_text().splitlines()[-1])
    for words in (
        "popularity: the same items for everybody",
        f"{last['test_popular_ndcg_20']:.4f}",
        "NDCG@20 says how",
    ):
        assert words in table
    assert baselines.load(made / "events").measure == "ndcg_20"
    assert "A visitor who has item " in section(page, "Example recommendations")


# --- words


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/home/anna/private/north.csv.gz", "Ratings of north"),
        ("C:\\data\\south.parquet", "Ratings of south"),
        ("postgresql://anna:secret@db.example.org/shop?sslmode=require", "Ratings of shop"),
        ("postgresql://anna:secret@db.example.org", "Ratings"),
        ("ratings.csv", "Ratings"),
        ("demo", "Film ratings (MovieLens, the demo set)"),
        ("ml-1m", "Film ratings (MovieLens 1M)"),
        ("like:ml-1m", "Synthetic ratings like ml-1m"),
        ("", "Ratings"),
        (None, "Ratings"),
    ],
)
def test_data_have_a_name(source, expected):
    assert title.data_name(source, events=False) == expected
    of_events = expected.replace("Ratings", "Events").replace("ratings", "events")
    assert title.data_name(source, events=True) == of_events


@given(strategies.text(max_size=80))
@many(200)
def test_a_name_is_never_a_path_or_an_address(source):
    name = title.data_name(source, events=True).removeprefix("Synthetic events like ")
    if not source.startswith("like:"):
        assert "/" not in name
    assert name.isprintable()
    assert title.of_run({"source": source, "clients": 2}, events=True)


class Tags(HTMLParser):
    """The tags and the names of their attributes, in order."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, sorted(name for name, _ in attrs)))


def page_with(text):
    mark = {0: text}
    body = [
        html.summary([text]), html.table([text], [[text, text]], marked=mark, label=text), html.ordered([text]),
        html.pairs({text: text}, text), html.cards([html.heading(text)]), html.folded(text, ""),
        html.folded_section(text, html.paragraph(text)), html.drawing([], text),
    ]  # fmt: skip
    return html.page(text, text, body, text)


PLAIN = Tags(page_with("x")).found


@given(
    strategies.text(max_size=60) | strategies.sampled_from([EVIL, '" onfocus="alert(1)', "</script><script>", "&lt;"])
)
@many(200)
def test_whatever_a_text_is_it_stays_text(text):
    page = page_with(text)
    assert Tags(page).found == PLAIN


def test_hostile_titles_stay_text_in_a_whole_report(made):
    page = page_of(made / "run")
    assert EVIL not in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in section(page, "Example recommendations")


def test_units():
    assert [unit_of(*ends) for ends in ((1, 5), (0.5, 5), (-10, 10), (0, 10), (None, None))] == [
        "stars", "stars", "points", "points", "points",
    ]  # fmt: skip


def test_the_best_of_a_ranking_metric_is_the_highest():
    found = best_of("validation_ndcg_10", [(1.0, 0.1), (2.0, 0.3), (3.0, 0.2)])
    assert (
        found.in_words()
        == "The best validation NDCG@10 is 0.3000, in round 2; the model is that of round 3, with 0.2000."
    )
    assert "not the test data" in found.chosen_by
    assert best_of("test_rmse", [(1.0, 0.1), (2.0, 0.3)]).number == 1
    assert (
        best_of("test_rmse", [(1.0, 0.3), (2.0, 0.1)]).in_words("stars").endswith("in round 2, the last measured one.")
    )


def test_a_model_that_cannot_be_opened_leaves_the_examples_out(made, tmp_path):
    for name in ("settings.toml", "history.jsonl", "coverage.json"):
        (tmp_path / name).write_bytes((made / "run" / name).read_bytes())
    assert coverage.load(tmp_path) is not None
    (tmp_path / "model.npz").write_bytes(b"no model")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Example recommendations" not in page
    assert "Ratings of north: 4 organisations" in page
    assert not list(tmp_path.glob("*.part*"))


# --- on a phone


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_tables_scroll_and_the_page_does_not(browser, made, scheme):
    page, said, asked = open_page(browser, made / "run" / "report.html", 390, scheme)
    unfold(page)
    assert (said, len(asked)) == ([], len([url for url in asked if url.startswith(("file:", "data:"))]))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    tables = page.locator(".wide")
    wider = 0
    for k in range(tables.count()):
        one = tables.nth(k)
        assert one.get_attribute("role") == "region"
        assert one.get_attribute("tabindex") == "0"
        assert one.get_attribute("aria-label")
        if one.evaluate("node => node.scrollWidth > node.clientWidth + 1"):
            wider += 1
            hint = one.evaluate("node => getComputedStyle(node, '::before').content")
            assert "scroll sideways" in hint
            one.focus()
            for _ in range(5):
                page.keyboard.press("ArrowRight")
            page.wait_for_function("node => node.scrollLeft > 0", arg=one.element_handle())
    assert wider >= 2
    page.close()


@pytest.mark.parametrize("width", [390, 1400])
def test_only_a_table_that_scrolls_says_so(browser, made, width):
    page, said, _ = open_page(browser, made / "run" / "report.html", width)
    unfold(page)
    page.wait_for_function("document.querySelectorAll('.wide.scrolls').length > 0")  # the table of rounds is wide
    wider = "nodes => nodes.map(one => [one.scrollWidth > one.clientWidth + 1, one.classList.contains('scrolls')])"
    found = page.locator(".wide").evaluate_all(wider)
    assert all(is_wider == says_so for is_wider, says_so in found)
    assert not all(is_wider for is_wider, _ in found)
    assert said == []
    page.close()
