"""The command with events: what it understands, asks and refuses, ranking metrics, and recommendations with filters."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest

from fedmc.cli import feedback
from fedmc.data.readers import batches
from fedmc.data.readers.columns import ColumnSelection
from fedmc.evaluation.ranked import ranked
from fedmc.kernels.ranking import NONE
from fedmc.model import load
from fedmc.problem import ranking
from fedmc.training.stopping import Stop, until
from tests.test_cli import refuse, run

FAST = ["--clients", "4", "--rounds", "4", "--rank", "3"]
USERS, ITEMS = 50, 24


def pairs():
    """Users like the items near them: popularity alone is a poor guess."""
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(USERS, 3)), rng.normal(size=(ITEMS, 3))
    best = np.argsort(-(U @ V.T + 0.3 * rng.normal(size=(USERS, ITEMS))), axis=1)[:, :8]
    return [(user, int(item)) for user in range(USERS) for item in best[user]]


TYPES = ("view", "cart", "purchase")
FILES = {
    "buys.csv": ("user,item", lambda u, i: ""),
    "ones.csv": ("user,item,rating", lambda u, i: ",1"),
    "plays.csv": ("user,item,plays", lambda u, i: f",{1 + (u * i) % 17}"),
    "shop.csv": ("user,item,event,timestamp", lambda u, i: f",{TYPES[(u + i) % 3]},{1000 * u + i}"),
    "stars.csv": ("user,item,rating", lambda u, i: f",{1 + (u + 2 * i) % 5}"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    for name, (header, more) in FILES.items():
        rows = [f"u{u},{i}{more(u, i)}" for u, i in pairs()]
        (folder / name).write_text("\n".join([header, *rows, ""]))
    genres = ["Drama|War" if i % 2 else "Comedy" for i in range(ITEMS)]
    rows = [f"{i},Film {i},{genre},{1990 + i % 3}" for i, genre in enumerate(genres)]
    (folder / "items.csv").write_text("\n".join(["item,title,genres,year", *rows, ""]))
    return folder


@pytest.fixture(scope="module")
def trained(place):
    run("train", "buys.csv", "--feedback", "implicit", *FAST, "--out", "run", cwd=place)
    return place / "run"


# --- training


def test_train_says_what_it_understood_and_how_it_ranks(place, tmp_path):
    done = run("train", place / "buys.csv", "--feedback", "implicit", *FAST, "--out", "run", "--json", cwd=tmp_path)
    told = "events: 400 user-item pairs of 50 users and 24 items (two columns: user and item); confidence 1 each"
    assert told in done.stderr.splitlines()
    assert "RMSE" not in done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["test_rmse"] is None
    assert result["test_ndcg_20"] > result["test_popular_ndcg_20"]
    for name, label in (("ndcg_20", "NDCG@20"), ("recall_20", "Recall@20")):
        both = f"{result[f'test_{name}']:.4f} (popularity {result[f'test_popular_{name}']:.4f})"
        assert f"test {label} {both}" in " ".join(done.stdout.split())
    settings = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert (settings["feedback"], settings["confidence_scale"]) == ("implicit", "none")
    assert settings["preset_name"] == "implicit"


@pytest.mark.parametrize(
    ("words", "told", "scale"),
    [
        (["plays.csv", "--confidence", "plays"], "amounts 1 to 17, confidence 1.69 to 3.89, by scale log", "log"),
        (["plays.csv", "--confidence", "plays", "--confidence-scale", "none"], "17, confidence 1 each", "none"),
        (["plays.csv"], "the column 'plays' is not used: --confidence plays counts it", "none"),
        (["plays.csv", "--confidence", "plays", "--confidence-scale", "linear:2"], "confidence 3 to 35", "linear:2"),
        (["shop.csv", "--event-weights", "view=1,purchase=5", "--test", "last:1"], "(event types view 1, pur", "log"),
        (["shop.csv"], "all types in the column 'event' count the same: --event-weights", "none"),
        (["stars.csv", "--min-rating", "4"], "(ratings of at least 4); confidence 1 each", "none"),
        (["stars.csv", "--min-rating", "4", "--min-events", "2"], "with fewer than 2 events are left out", "none"),
        (["ones.csv", "--algorithm", "ials:0.2,0.02"], "confidence 1 each", "none"),
    ],
)
def test_amounts_types_and_ratings_as_events(words, told, scale, place, tmp_path):
    name, *more = words
    done = run("train", place / name, "--feedback", "implicit", *more, *FAST, "--out", "run", cwd=tmp_path)
    assert told in done.stderr
    assert "NDCG@20" in done.stdout
    settings = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert settings["confidence_scale"] == scale


def test_the_preset_alone_says_it(place, tmp_path):
    run("train", place / "buys.csv", "--preset", "implicit", *FAST, "--report", "--out", "run", cwd=tmp_path)
    assert "ranks what it has not seen with an NDCG@20 of" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["buys.csv"], "(two columns: user and item): train on them with --feedback implicit"),
        (["ones.csv"], "events, not ratings (every value is 1): train on them with --feedback implicit"),
        (["plays.csv"], "(the column is called 'plays'): train on them with --feedback implicit --confidence plays"),
        (["shop.csv"], "; --event-weights "),
        (["ones.csv", "--feedback", "explicit"], "every rating is 1: these are events, not ratings; use --feedback im"),
        (["buys.csv", "--feedback", "explicit"], "holds no ratings but events: use --feedback implicit"),
        (["stars.csv", "--min-rating", "4"], "--min-rating is about events, such as purchases: add --feedback imp"),
        (["buys.csv", "--feedback", "implicit", "--preset", "fast"], "--preset fast learns from ratings"),
        (["buys.csv", "--feedback", "implicit", "--algorithm", "fedavg"], "--algorithm fedavg learns from ratings"),
        (["stars.csv", "--feedback", "explicit", "--preset", "implicit"], "--preset implicit learns from events"),
        (
            ["buys.csv", "--feedback", "implicit", "--privacy", "dp"],
            "to the sums is not bounded; use --privacy plain or --privacy secagg",
        ),
        (["buys.csv", "--feedback", "implicit", "--confidence-scale", "cube"], "unknown confidence 'cube'"),
        (["buys.csv", "--feedback", "implicit", "--confidence", "hours"], "has no column 'hours'"),
        (["buys.csv", "--feedback", "implicit", "--event", "e"], "--event e needs the weights of its types: --event-w"),
        (["buys.csv", "--feedback", "implicit", "--event-weights", "a=b"], "must be a number, got 'b'"),
        (["buys.csv", "--feedback", "implicit", "--min-events", "99"], "no event is left with --min-events 99"),
        (["stars.csv", "--feedback", "implicit", "--test", "last:1"], "no time column found"),
    ],
)
def test_refusals_name_the_cure(words, message, place, tmp_path):
    refuse("train", place / words[0], *words[1:], *FAST, "--out", "run", cwd=tmp_path, message=message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("test", ["last:8", "leave:9", "date:2030-01-01", "share:0.01"])
def test_a_split_that_holds_out_nothing_is_refused(test, place, tmp_path):
    words = ["train", place / "shop.csv", "--feedback", "implicit", *FAST, "--out", "run", "--test", test]
    refuse(*words, cwd=tmp_path, message=f"the split '{test}' holds out none of 400 ratings or events")
    assert not (tmp_path / "run").exists()


def test_on_a_terminal_a_person_is_asked(place, tmp_path, monkeypatch):
    asked, answers = [], []

    def confirm(question, **more):
        asked.append(question)
        return answers.pop(0)

    monkeypatch.setattr(feedback, "on_terminal", lambda: True)
    monkeypatch.setattr(feedback.typer, "confirm", confirm)
    answers += [True, True, False, False]
    done = run("train", place / "ones.csv", *FAST, "--out", "yes", cwd=tmp_path)
    assert "NDCG@20" in done.stdout
    done = run("train", place / "plays.csv", *FAST, "--out", "plays", cwd=tmp_path)
    assert "amounts 1 to 17" in done.stderr
    refuse("train", place / "ones.csv", *FAST, "--out", "no", cwd=tmp_path, message="every rating is 1: these are")
    refuse("train", place / "buys.csv", *FAST, "--out", "no", cwd=tmp_path, message="cannot be read as ratings")
    assert asked[0] == "These look like events, not ratings (every value is 1). Train on them as implicit feedback?"
    assert asked[1].endswith("Train on them as implicit feedback, with the amounts in 'plays'?")


def test_ratings_are_trained_on_as_before(place, tmp_path):
    done = run("train", place / "stars.csv", *FAST, "--out", "run", cwd=tmp_path)
    assert "test RMSE" in done.stdout
    assert "events:" not in done.stderr


def test_patience_waits_for_a_better_ndcg(place, tmp_path):
    more = ["--validation", "0.2", "--patience", "2", "--rounds", "60"]
    run("train", place / "buys.csv", "--feedback", "implicit", *FAST[:2], "--rank", "3", *more, "--out", "run",
        cwd=tmp_path)  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    values = [line["validation_ndcg_10"] for line in lines]
    best = max(range(len(values)), key=lambda k: (values[k], -k))
    assert len(values) < 61
    assert len(values) - 1 == best + 2
    assert list(until([], Stop(3, patience=1))) == []


def test_prepared_shards_hold_confidences(place, tmp_path):
    options = ["--feedback", "implicit", "--confidence", "plays", "--test", "0.2", "--clients", "4"]
    done = run("prepare", place / "plays.csv", *options, "--out", "shards", cwd=tmp_path)
    assert "320 events of 4 client(s)" in done.stdout
    refuse("train", "shards", *FAST, cwd=tmp_path, message="(the shards were prepared as events): train on them with")
    refuse("train", "shards", "--feedback", "explicit", *FAST, cwd=tmp_path, message="prepared as events, not ratings")
    given = ["--feedback", "implicit", *FAST]
    refuse("train", "shards", *given, "--confidence-scale", "none", cwd=tmp_path, message="hold confidences by scale")
    first = run("train", "shards", *given, "--dtype", "float32", "--out", "a", "--json", cwd=tmp_path)
    assert "(prepared shards); confidences by scale log" in first.stderr
    again = run("train", place / "plays.csv", *given, *options[2:4], "--dtype", "float32", "--out", "b", "--json",
                cwd=tmp_path)  # fmt: skip
    a, b = (json.loads(done.stdout.splitlines()[-1])["test_ndcg_20"] for done in (first, again))
    assert a == pytest.approx(b, abs=1e-3)


def test_other_commands_refuse_constant_ratings(place, tmp_path):
    for name in ("compare", "tune"):
        refuse(name, place / "ones.csv", cwd=tmp_path, message="these look like events, not ratings (every value is 1)")
    for name in ("buys.csv", "ones.csv"):
        done = run("catalogue", "make", place / name, "--out", "items.json", cwd=tmp_path)
        assert "24 items" in done.stdout
        run("catalogue", "check", "items.json", place / name, cwd=tmp_path)


# --- evaluation


def test_evaluate_ranks_all_items_beside_popularity(trained, place):
    done = run("evaluate", trained, place / "buys.csv", "--json", cwd=place)
    result = json.loads(done.stdout)
    summary = json.loads((trained / "history.jsonl").read_text().splitlines()[-1])
    assert result["pairs"] == 80
    for name in ("ndcg_20", "recall_10", "map_10", "novelty_20"):
        assert result[name] == pytest.approx(summary[f"test_{name}"], rel=1e-9)
    assert result["popular_ndcg_20"] == pytest.approx(summary["test_popular_ndcg_20"], rel=1e-9)
    assert 0 < result["popular_coverage_10"] <= result["coverage_20"] <= 1
    shown = run("evaluate", trained, place / "buys.csv", cwd=place).stdout
    for label in ("Recall@10", "NDCG@20", "Hit rate@20", "MRR@10", "Novelty (bits), 10 items", "Coverage, 20 items"):
        assert label in shown
    assert "RMSE" not in shown


def test_events_to_test_on_are_read_as_in_training(place, tmp_path):
    given = ["--feedback", "implicit", "--event-weights", "cart=3,purchase=5"]
    run("train", place / "shop.csv", *given, *FAST, "--out", "run", cwd=tmp_path)
    done = run("evaluate", "run", place / "shop.csv", "--json", cwd=tmp_path)
    counted = sum((u + i) % 3 > 0 for u, i in pairs())
    assert json.loads(done.stdout)["pairs"] == round(0.2 * counted)  # no views
    assert "events are read as in training: --event-weights cart=3,purchase=5" in done.stderr
    assert f"{400 - counted} of 400 rows are left out: their type has no weight ('view'" in done.stderr
    words = ["evaluate", "run", place / "shop.csv", "--event-weights", "view=1", "--json"]
    assert json.loads(run(*words, cwd=tmp_path).stdout)["pairs"] == 400 - counted
    (tmp_path / "two.csv").write_text("user,item\n" + "".join(f"u1,{i}\n" for i in range(ITEMS)))
    assert "as in training" not in run("evaluate", "run", "two.csv", cwd=tmp_path).stderr


@pytest.mark.parametrize(("least", "columns"), [("4", []), ("1", []), ("4", ["--columns", "user,item,rating"])])
def test_ratings_to_test_on_are_events_from_the_rating_of_training_on(least, columns, place, tmp_path):
    run("train", place / "stars.csv", "--feedback", "implicit", "--min-rating", least, *FAST, "--out", "run",
        cwd=tmp_path)  # fmt: skip
    done = run("evaluate", "run", place / "stars.csv", *columns, "--json", cwd=tmp_path)
    counted = sum(1 + (u + 2 * i) % 5 >= int(least) for u, i in pairs())
    assert json.loads(done.stdout)["pairs"] == round(0.2 * counted)
    assert f"events are read as in training: --min-rating {least}" in done.stderr
    headless = "".join((place / "stars.csv").read_text().splitlines(keepends=True)[1:])
    (tmp_path / "headless.csv").write_text(headless)
    found = json.loads(run("evaluate", "run", "headless.csv", "--json", cwd=tmp_path).stdout)
    assert found["pairs"] == round(0.2 * counted)


def test_sampled_candidates_only_on_request_and_with_a_warning(trained, place):
    done = run("evaluate", trained, place / "buys.csv", "--sampled", "5", "--json", cwd=place)
    assert "not comparable with those of a full ranking" in done.stderr
    assert json.loads(done.stdout)["sampled"] == 5
    refuse("evaluate", trained, place / "buys.csv", "--sampled", "0", cwd=place, message="at least 1, got 0")


def test_ranking_of_a_model_of_ratings(place, tmp_path):
    run("train", place / "stars.csv", "--preset", "fast", *FAST, "--out", "run", cwd=tmp_path)
    done = run("evaluate", "run", place / "stars.csv", "--ranking", "--min-rating", "4", "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert {"rmse", "ndcg_10", "popular_ndcg_10"} <= set(result)
    assert result["pairs"] < result["ratings"] == 80
    assert "rmse" in run("evaluate", "run", place / "stars.csv", "--json", cwd=tmp_path).stdout
    refuse("evaluate", "run", place / "stars.csv", "--min-rating", "4", cwd=tmp_path, message="add --ranking")
    refuse("evaluate", "run", place / "stars.csv", "--event", "x", "--event-weights", "a=1", cwd=tmp_path,
           message="the model was trained on ratings")  # fmt: skip


def test_new_users_are_folded_in_by_the_scale_of_training(place, tmp_path):
    given = ["--feedback", "implicit", "--confidence", "plays"]
    run("train", place / "plays.csv", *given, *FAST, "--out", "run", cwd=tmp_path)
    (tmp_path / "known.csv").write_text("user,item,plays\nnew,1,5\nnew,2,9\n")
    (tmp_path / "test.csv").write_text("user,item,plays\nnew,3,1\nnew,4,1\n")
    words = ["evaluate", "run", "test.csv", "--fold-in", "known.csv", "--confidence", "plays"]
    assert "2 held-out pairs of 1 user, ranked" in " ".join(run(*words, cwd=tmp_path).stdout.split())
    words[1] = "alone/model.npz"
    (tmp_path / "alone").mkdir()
    (tmp_path / "run" / "model.npz").rename(tmp_path / "alone" / "model.npz")
    refuse(*words, cwd=tmp_path, message="say --confidence-scale as in training")


def test_ranked_is_the_definition(trained):
    model = load(trained / "model.npz")
    users, items = model.users[[0, 0, 1]], model.items[[3, 5, 3]]
    found = ranked(model, users, items)
    scores = model.U @ model.V.T
    scores[model.seen.toarray() > 0] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:2, :20]
    top = np.where(np.isneginf(np.take_along_axis(scores[:2], order, axis=1)), NONE, order)
    counts = np.bincount(model.seen.indices, minlength=ITEMS)
    pattern = np.array([0, 2, 3]), np.array([3, 5, 3])
    expected = ranking.means_of(ranking.sums_of(top, pattern, ranking.Popularity(counts, USERS)))
    assert {K: list(one) for K, one in found.model.items()} == {K: pytest.approx(one) for K, one in expected.items()}
    assert (found.users, found.pairs) == (2, 3)


# --- recommendations


def recommended(*words, cwd):
    return json.loads(run("recommend", "run", *words, "--json", cwd=cwd).stdout)


def test_filters(trained, place):
    everything = recommended("u0", "-n", "99", cwd=place)
    items = [row["item"] for row in everything]
    (place / "stock.txt").write_text(f"{items[3]}\n\n{items[5]}\n999\n")
    assert [row["item"] for row in recommended("u0", "--only", "stock.txt", cwd=place)] == [items[3], items[5]]
    left = f"{items[0]},{items[1]}"
    assert [row["item"] for row in recommended("u0", "--exclude", left, "-n", "2", cwd=place)] == items[2:4]
    drama = [item for item in items if item % 2 and item % 3 != 0]
    words = ["--category", "genres=War", "--category", "year=1991", "--category", "year=1992", "--items", "items.csv"]
    assert [row["item"] for row in recommended("u0", *words, "-n", "99", cwd=place)] == drama
    words = ["--category", "genres=War", "--items", "items.csv", "--only"]
    refuse("recommend", "run", "u0", *words, "2,4", cwd=place, message="no item of --only is of the --category")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["u0", "--only", "x,y"], "no id of --only is an item of the model: it has 0, ..., not x"),
        (["u0", "--only", ","], "--only takes ids separated by commas"),
        (["u0", "--category", "genres=Drama"], "--category needs a table of the items"),
        (["u0", "--category", "Drama", "--items", "items.csv"], "a category is NAME=VALUE, such as genres=Drama"),
        (["u0", "--category", "genres=Horror", "--items", "items.csv"], "there are Comedy, Drama, War"),
        (["u0", "--category", "mood=x", "--items", "items.csv"], "there are title, genres, year"),
        ([], "name a user at least, or --all with --out FILE"),
        (["--all"], "--all needs --out FILE.parquet, .feather"),
        (["u0", "--all", "--out", "a.csv"], "--all recommends to all users: leave out the ids"),
        (["--all", "--out", "a.doc"], "unknown ending '.doc': choose one of .parquet, .feather, .csv"),
        (["--all", "--out", "items.csv"], "items.csv exists already: --overwrite to replace it"),
        (["--all", "--out", "a.csv", "--json"], "--json prints, --out writes a file"),
        (["u0", "--cautious"], "--cautious needs a Bayesian model"),
    ],
)
def test_recommend_refuses(words, message, trained, place):
    refuse("recommend", "run", *words, cwd=place, message=message)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_all_users_into_a_file(ending, trained, place, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmc.cli.recommend.BLOCK", 7)
    done = run("recommend", trained, "--all", "-n", "3", "--out", f"all.{ending}", cwd=tmp_path)
    assert f"150 recommendations to 50 users in all.{ending}" in done.stdout
    (found,) = list(batches(tmp_path / f"all.{ending}", ColumnSelection(("user", "item", "score"))))
    model = load(trained / "model.npz")
    ids, scores = model.recommend(model.users, 3)
    users, items = (
        (one if isinstance(one, np.ndarray) else np.asarray(one.values)[one.codes]).tolist()
        for one in (found.users, found.items)
    )
    assert users == np.repeat(model.users, 3).tolist()
    assert items == ids.ravel().tolist()
    assert found.ratings == pytest.approx(scores.ravel(), abs=5e-5)
    assert [path.name for path in tmp_path.iterdir()] == [f"all.{ending}"]


def test_explanations_are_exact_with_the_events_of_training(place, tmp_path):
    given = ["--feedback", "implicit", "--event-weights", "view=1,purchase=5"]
    run("train", place / "shop.csv", *given, *FAST, "--out", "run", cwd=tmp_path)
    words = ["explain", "run", "u3", "5"]
    shown = " ".join(run(*words, cwd=tmp_path).stdout.split())
    assert "had item" in shown
    assert "how much each event counts, which the model does not hold" in shown
    found = json.loads(run(*words, "--ratings", place / "shop.csv", "--json", cwd=tmp_path).stdout)
    assert {one["kind"] for one in found["effects"]} == {"seen"}  # no rest
    predicted = run("predict", "run", "u3", "5", cwd=tmp_path).stdout.splitlines()[1].split(",")[2]
    assert f"{sum(one['effect'] for one in found['effects']):.4f}" == predicted


def test_similar(trained, place):
    rows = json.loads(run("similar", "run", "3", "4", "-n", "2", "--json", cwd=place).stdout)
    assert [(row["item"], row["rank"]) for row in rows] == [("3", 1), ("3", 2), ("4", 1), ("4", 2)]
    first = rows[0]["similar"]
    others = json.loads(run("similar", "run", "3", "-n", "2", "--exclude", first, "--json", cwd=place).stdout)
    assert others[0]["similar"] == rows[1]["similar"]
    few = run("similar", "run", "3", "--only", "3,7,8", cwd=place).stdout.splitlines()
    assert {line.split(",")[2] for line in few[1:]} == {"7", "8"}
    refuse("similar", "run", "99", cwd=place, message="unknown item 99")


def test_info_of_a_model_of_events(trained, place):
    facts = json.loads(run("info", "run", "--json", cwd=place).stdout)
    assert facts["events"] == 320
    assert not {"ratings", "rating_range", "mean"} & set(facts)


# --- users and items that the model has never seen


def with_strangers(folder):
    """Test events: 12 of known users and items, 3 of a new item, 2 of a new user."""
    had = set(pairs())
    new = [(u, i) for u in range(4) for i in range(ITEMS) if (u, i) not in had][:12]
    lines = [f"u{u},{i}" for u, i in new] + ["u0,900", "u1,900", "u2,900", "nobody,3", "nobody,900"]
    (folder / "test.csv").write_text("\n".join(["user,item", *lines, ""]))
    return [f"u{u}" for u, _ in new], [i for _, i in new]


def test_evaluate_says_how_many_pairs_the_model_cannot_rank(trained, tmp_path):
    with_strangers(tmp_path)
    told = "error: 5 of 17 pairs are of 1 user and 1 item that the model does not know, such as user nobody"
    cure = "--unknown drop leaves them out, --fold-in FILE adds new users"
    refuse("evaluate", trained, "test.csv", cwd=tmp_path, message=f"{told}: {cure}")
    (tmp_path / "item.csv").write_text("user,item\nu1,900\nu2,900\n")
    told = "2 of 2 pairs are of 1 item that the model does not know, such as item 900: --unknown drop leaves them out\n"
    assert run("evaluate", trained, "item.csv", cwd=tmp_path, code=2).stderr.endswith(told)


def test_evaluate_leaves_unknown_pairs_out_on_request(trained, tmp_path):
    users, items = with_strangers(tmp_path)
    done = run("evaluate", trained, "test.csv", "--unknown", "drop", "--json", cwd=tmp_path)
    assert "5 of 17 pairs are of 1 user and 1 item that the model does not know: they are left out" in done.stderr
    found = json.loads(done.stdout)
    assert (found["left_out"], found["unknown_users"], found["unknown_items"], found["pairs"]) == (5, 1, 1, 12)
    expected = ranked(load(trained / "model.npz"), np.array(users), np.array(items))
    assert found["ndcg_20"] == pytest.approx(expected.model[20].ndcg)
    (tmp_path / "none.csv").write_text("user,item\nnobody,900\nno,3\n")
    told = "2 of 2 pairs are of 2 users and 1 item that the model does not know: none is left; compare the ids"
    refuse("evaluate", trained, "none.csv", "--unknown", "drop", cwd=tmp_path, message=told)


def test_new_users_are_ranked_beside_the_popularity_of_training(trained, tmp_path):
    (tmp_path / "known.csv").write_text("user,item\nnew,1\nnew,2\nnew,900\n")
    (tmp_path / "test.csv").write_text("user,item\nnew,3\nnew,4\nnew,901\n")
    words = ["evaluate", trained, "test.csv", "--fold-in", "known.csv"]
    refuse(*words, cwd=tmp_path, message="--fold-in: unknown item 900 (1 of 3 unknown)")
    refuse(*words, cwd=tmp_path, message="; --unknown drop leaves the others out")
    words[2] = "known.csv"
    refuse(*words, "--unknown", "drop", cwd=tmp_path, message="--fold-in has every event of known.csv: test on others")
    words[2] = "test.csv"
    found = json.loads(run(*words, "--unknown", "drop", "--json", cwd=tmp_path).stdout)
    assert (found["pairs"], found["left_out"], found["unknown_items"]) == (2, 1, 1)
    model = load(trained / "model.npz")
    counts = np.bincount(model.seen.indices, minlength=ITEMS)
    unseen = np.setdiff1d(np.arange(ITEMS), [1, 2])
    top = unseen[np.argsort(-counts[unseen], kind="stable")][:10]
    hits = np.isin(top, [3, 4])
    ideal = 1 + 1 / np.log2(3)
    assert found["popular_ndcg_10"] == pytest.approx((hits / np.log2(2 + np.arange(10))).sum() / ideal)
    assert found["popular_recall_10"] == pytest.approx(hits.sum() / 2)


def test_ratings_of_unknown_users_and_items_are_left_out_too(place, tmp_path):
    run("train", place / "stars.csv", "--preset", "fast", *FAST, "--out", "run", cwd=tmp_path)
    lines = (place / "stars.csv").read_text().splitlines()
    (tmp_path / "more.csv").write_text("\n".join([*lines, "nobody,3,4", "u0,900,1", ""]))
    found = json.loads(run("evaluate", "run", "more.csv", "--unknown", "drop", "--json", cwd=tmp_path).stdout)
    assert (found["left_out"], found["ratings"]) == (2, 80)
    refuse("evaluate", "run", "more.csv", cwd=tmp_path, message="--unknown drop leaves them out")
