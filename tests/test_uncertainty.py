"""What a Bayesian model says about its own errors, in Python, on the command line and in the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmc import FedMC, Ratings, load
from fedmc.algorithms import gaussians
from fedmc.algorithms.posterior import free_part
from fedmc.cli import demo
from fedmc.data.partition import Federation, assign_users, make_shards
from fedmc.data.splits import at_random as split
from fedmc.errors import InputError
from fedmc.evaluation import coverage
from fedmc.evaluation.coverage import LEVELS, SHOWN, Calibration, Coverage, HeldOut
from fedmc.report.run import write_report
from tests.command import fedmc
from tests.conftest import planted

SMALL = dict(rank=3, clients=4, rounds=12)
TRAIN = ("--clients", "4", "--rounds", "6", "--rank", "2")


def whole_stars(ratings: Ratings) -> Ratings:
    """The ratings rounded and clipped to 1 to 5."""
    ratings.matrix.data[:] = np.clip(np.round(ratings.matrix.data), 1, 5)
    return ratings


@pytest.fixture(scope="module")
def fitted():
    return FedMC(**SMALL).fit(whole_stars(planted(users=80, items=30, noise=0.5)))


@pytest.fixture(scope="module")
def split_run():
    """A model of planted ratings with noise, and ratings that it was not trained on."""
    train, test = split(planted(users=400, items=60, density=0.4, noise=0.6, seed=3), 0.2, 0)
    return FedMC(rank=4, clients=5, rounds=30).fit(train), coverage.entries_of(test)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table of ratings, a run of each kind, and a Bayesian run with its report."""
    place = tmp_path_factory.mktemp("uncertain")
    entries = whole_stars(planted(users=60, items=20, noise=0.5)).matrix.tocoo()
    lines = [f"u{u},{i},{x:g}" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)]
    (place / "ratings.csv").write_text("user,item,rating\n" + "\n".join(lines) + "\n")
    for words in (("--out", "run", "--report"), ("--preset", "fast", "--out", "plain")):
        ran("train", "ratings.csv", *TRAIN, *words, cwd=place)
    return place


def ran(*words, cwd: Path) -> str:
    done = fedmc(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*words, cwd: Path) -> str:
    """The reason; exit code 2, no traceback."""
    done = fedmc(*words, cwd=cwd)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def table_of(text: str) -> list[dict[str, str]]:
    head, *rows = (line.split(",") for line in text.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


# --- in Python


def variance(noise, user, item):
    """Of a rating, scaled, from means and covariances of (factors, bias): noise + x'Cx + y'Dy + trace CD."""
    (m, C), (n, D) = user, item
    x, y = np.append(n[:-1], 1), np.append(m[:-1], 1)
    return 1 / noise + x @ C @ x + y @ D @ y + np.trace(C[:-1, :-1] @ D[:-1, :-1])


def test_the_standard_deviation_is_that_of_the_formula(fitted):
    model, known = fitted.model_, fitted.model_.posterior
    C, D = (gaussians.unpacked(packed.astype(float)) for packed in (known.user_covariances, known.item_covariances))
    users, items = [3, 3, 40, 79], [0, 29, 7, 7]
    predicted, std = fitted.predict(users, items, return_std=True)
    assert np.array_equal(predicted, fitted.predict(users, items))
    for u, i, found in zip(users, items, std, strict=True):
        expected = variance(known.hyper.noise, (free_part(model.U)[u], C[u]), (known.item_means[i], D[i]))
        assert found == pytest.approx(np.sqrt(expected) * model.scaling.scale, rel=1e-6)


def test_intervals_widen_with_the_level_and_stay_in_the_range(fitted):
    users, items = np.repeat(np.arange(80), 30), np.tile(np.arange(30), 80)
    before = np.zeros(len(users))
    for level in (0.05, 0.5, 0.8, 0.9, 0.99):
        predicted, low, high = fitted.interval(users, items, level)
        assert (low <= predicted).all()
        assert (predicted <= high).all()
        assert low.min() >= 1
        assert high.max() <= 5
        assert (high - low >= before).all()
        assert (high - low).mean() > before.mean()
        before = high - low
    assert np.array_equal(fitted.interval(users, items).low, fitted.interval(users, items, 0.9).low)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_intervals_hold_what_they_promise(split_run, level):
    """Three standard errors of the test, and two per cent for what the model itself estimates."""
    estimator, held_out = split_run
    found = coverage.coverage(estimator.model_, held_out, level)
    slack = 0.02 + 3 * np.sqrt(level * (1 - level) / len(held_out.ratings))
    assert found.coverage == pytest.approx(level, abs=slack)
    assert slack < 0.06


def test_the_test_of_coverage_can_fail(split_run):
    """Ratings with twice the noise are held less often, and a shift of the ratings is noticed."""
    estimator, held_out = split_run
    noise = np.random.default_rng(0).normal(scale=0.6 * np.sqrt(3), size=len(held_out.ratings))
    for other in (held_out.ratings + noise, held_out.ratings + 1):
        assert coverage.coverage(estimator.model_, held_out._replace(ratings=other), 0.9).coverage < 0.8


def test_coverage_counts_what_interval_gives(split_run):
    estimator, held_out = split_run
    found = coverage.calibration(estimator.model_, held_out)
    assert found.ratings == len(held_out.ratings)
    assert [one.level for one in found.levels] == list(LEVELS)
    assert set(SHOWN) <= set(LEVELS)
    for level in SHOWN:
        _, low, high = estimator.interval(held_out.users, held_out.items, level)
        inside = (low <= held_out.ratings) & (held_out.ratings <= high)
        assert found.at(level) == (level, pytest.approx(inside.mean(), abs=1e-3), pytest.approx((high - low).mean()))
    shares = [one.coverage for one in found.levels]
    assert shares == sorted(shares)


def test_a_rating_at_the_end_of_the_range_is_inside():
    """Also if that end, such as 0.1, is rounded as float32."""
    ratings = planted(users=30, items=10)
    ratings.matrix.data[:] = np.where(ratings.matrix.data > 3, 0.7, 0.1)
    for dtype in ("float32", "float64"):
        model = FedMC(2, clients=2, rounds=3, dtype=dtype).fit(ratings).model_
        users, items, x, _ = coverage.entries_of(ratings)
        low, high = model.interval(users, items, 0.999)[1:]
        found = coverage.coverage(model, HeldOut(users, items, x.astype(float)), 0.999)
        at_ends = (low == model.rating_range[0]) & (high == model.rating_range[1])
        assert found.coverage >= at_ends.mean() > 0


def test_test_ratings_of_a_federation_are_those_that_were_held_out():
    ratings = planted(users=50)
    train, test = split(ratings, 0.3, 1)
    shards = make_shards(train, assign_users(50, 4, 0), "float64", test)
    found = coverage.held_out_of(Federation(shards, train.users, train.items))
    triples = [
        set(zip(*(part.tolist() for part in one[:3]), strict=True)) for one in (found, coverage.entries_of(test))
    ]
    assert triples[0] == triples[1]
    assert len(found.ratings) == len(test)
    for some in (found.thinned(10), coverage.held_out_of(Federation(shards, train.users, train.items), 10)):
        assert 5 <= len(some.ratings) <= 10
        assert set(zip(*(part.tolist() for part in some[:3]), strict=True)) <= triples[0]
    bare = Federation(make_shards(train, assign_users(50, 4, 0), "float64"), train.users, train.items)
    assert len(coverage.held_out_of(bare).ratings) == 0


def test_no_calibration_without_a_posterior_or_ratings(fitted, split_run):
    plain = FedMC(**SMALL, preset="fast").fit(planted())
    assert coverage.calibration(plain.model_, coverage.entries_of(planted())) is None
    empty = split_run[1].some(slice(0))
    assert coverage.calibration(split_run[0].model_, empty) is None


def test_unknown_ids_are_refused_or_taken_from_the_prior(fitted):
    with pytest.raises(InputError, match="unknown user 999"):
        fitted.predict(999, 3)
    with pytest.raises(InputError, match="unknown item 999"):
        fitted.interval(3, 999)
    predicted, std = fitted.predict([3, 999, 3, 999], [4, 4, 999, 999], return_std=True, unknown="prior")
    assert predicted[0] == fitted.predict(3, 4)[0]
    assert std[0] < min(std[1:])
    model, (noise, *priors) = fitted.model_, fitted.model_.posterior.hyper
    user, item = ((prior.mean, np.linalg.inv(prior.precision)) for prior in priors)
    expected = user[0][:-1] @ item[0][:-1] + user[0][-1] + item[0][-1]
    assert predicted[3] == pytest.approx(model.scaling.mean + model.scaling.scale * expected)
    assert std[3] == pytest.approx(model.scaling.scale * np.sqrt(variance(noise, user, item)))
    wide = fitted.interval(999, 999, unknown="prior")
    assert wide.high[0] - wide.low[0] > np.ptp(fitted.interval(3, 4)[1:])


def test_cautious_is_another_order_and_never_higher(fitted):
    user = 5
    plain, cautious = (fitted.recommend(user, 30, exclude_seen=False, cautious=way) for way in (False, True))
    assert set(plain[0]) == set(cautious[0])
    assert plain[0].tolist() != cautious[0].tolist()
    means = fitted.predict(user, cautious[0])
    assert (cautious[1] <= means + 1e-9).all()
    assert (cautious[1] < means).any()


def test_at_equal_means_cautious_prefers_the_item_with_more_ratings():
    """Two items with the same mean rating, one rated by everybody, the other by two users."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(60), 6)
    items = np.tile(np.arange(6), 60)
    ratings = 3 + rng.normal(scale=0.5, size=len(users))
    popular, rare = items == 4, (items == 5) & (users < 2)
    ratings[popular] = np.where(users[popular] % 2, 3.5, 4.5)
    ratings[rare] = [3.8, 4.2]
    keep = (items < 5) | rare
    model = FedMC(1, clients=3, rounds=15).fit((users[keep], items[keep], ratings[keep])).model_
    # the same means: the difference is due to the spread
    same = model.V.copy()
    same[5] = same[4]
    posterior = replace(model.posterior, item_means=np.ascontiguousarray(same[:, :-1]))
    twins = replace(model, V=same, posterior=posterior)
    ids, scores = twins.recommend(30, 6, exclude_seen=False, cautious=True)
    at = dict(zip(ids.tolist(), scores, strict=True))
    assert twins.predict(30, 4) == twins.predict(30, 5)
    assert at[4] > at[5]


def test_newcomers_with_fewer_ratings_have_wider_intervals(fitted):
    items = np.arange(20)
    values = np.where(items % 2, 4.0, 2.0)
    spreads = []
    for count in (1, 5, 20):
        newcomer = (np.full(count, "new"), items[:count], values[:count])
        spreads.append(fitted.fold_in(newcomer).predict("new", 25, return_std=True)[1][0])
    prior = fitted.predict("new", 25, return_std=True, unknown="prior")[1][0]
    assert prior > spreads[0] > spreads[1] > spreads[2]


def test_other_models_say_what_they_lack():
    plain = FedMC(**SMALL, preset="fast").fit(planted())
    for call in (
        lambda: plain.interval(3, 4),
        lambda: plain.predict(3, 4, return_std=True),
        lambda: plain.predict(3, 4, unknown="prior"),
        lambda: plain.recommend(3, cautious=True),
    ):
        with pytest.raises(InputError, match=r"needs a Bayesian model: train with preset='bayes' \(this one: fast"):
            call()


@pytest.mark.parametrize("level", [0, 1, -0.1, 90, float("nan")])
def test_a_level_out_of_bounds(fitted, level):
    with pytest.raises(InputError, match=f"between 0 and 1, got {level:g}"):
        fitted.interval(3, 4, level)


# --- on the command line


def test_predict_adds_columns(folder):
    model = load(folder / "run" / "model.npz")
    assert list(table_of(ran("predict", "run", "u3", "5", "6", cwd=folder))[0]) == ["user", "item", "prediction"]
    rows = table_of(ran("predict", "run", "u3", "5", "6", "--interval", "0.9", "--std", cwd=folder))
    assert list(rows[0]) == ["user", "item", "prediction", "std", "low", "high"]
    predicted, low, high = model.interval("u3", [5, 6], 0.9)
    _, std = model.predict("u3", [5, 6], return_std=True)
    for k, row in enumerate(rows):
        found = [float(row[name]) for name in ("prediction", "std", "low", "high")]
        assert found == pytest.approx([predicted[k], std[k], low[k], high[k]], abs=1e-4)
    narrow = table_of(ran("predict", "run", "u3", "5", "--interval", "0.5", cwd=folder))[0]
    assert float(rows[0]["low"]) <= float(narrow["low"]) <= float(narrow["high"]) <= float(rows[0]["high"])


def test_predict_unknown_ids(folder):
    said = refused("predict", "run", "nobody", "5", cwd=folder)
    assert "unknown user nobody" in said
    assert "--unknown prior" in said
    (row,) = table_of(ran("predict", "run", "nobody", "5", "--unknown", "prior", "--std", cwd=folder))
    assert float(row["std"]) > float(table_of(ran("predict", "run", "u3", "5", "--std", cwd=folder))[0]["std"])
    assert "--unknown prior" not in refused("predict", "plain", "nobody", "5", cwd=folder)


def test_evaluate_tells_coverage_and_width(folder):
    plain = json.loads(ran("evaluate", "run", "ratings.csv", "--json", cwd=folder))
    assert set(plain) == {"ratings", "rmse", "mae"}
    result = json.loads(ran("evaluate", "run", "ratings.csv", "--interval", "0.8", "--json", cwd=folder))
    assert {name: result[name] for name in plain} == plain
    stored = json.loads((folder / "run" / "coverage.json").read_text())
    assert stored["ratings"] == result["ratings"]
    (same,) = (one for one in stored["levels"] if one["level"] == 0.8)
    assert (result["level"], result["coverage"]) == (0.8, same["coverage"])
    assert result["width"] == pytest.approx(same["width"])
    said = ran("evaluate", "run", "ratings.csv", "--interval", "0.8", cwd=folder)
    assert f"80 % intervals hold {100 * result['coverage']:.1f} % of them; their mean width is " in said


def test_evaluate_unknown_ids(folder):
    (folder / "new.csv").write_text("user,item,rating\nu3,5,3\nnobody,5,4\nnobody,unheard of,2\n")
    said = refused("evaluate", "run", "new.csv", "--include-seen", cwd=folder)
    assert "2 of 3 pairs are of 1 user and 1 item that the model does not know, such as user nobody" in said
    assert "--unknown prior" in said
    words = ("--include-seen", "--unknown", "prior", "--interval", "0.9", "--json")
    assert json.loads(ran("evaluate", "run", "new.csv", *words, cwd=folder))["ratings"] == 3
    said = refused("evaluate", "plain", "new.csv", cwd=folder)
    assert "such as user nobody" in said
    assert "--unknown prior" not in said


def test_recommend_cautiously(folder):
    plain, cautious = (json.loads(ran("recommend", "run", "u3", "-n", "20", "--include-seen", "--json", *more,
                       cwd=folder)) for more in ((), ("--cautious",)))  # fmt: skip
    ids, scores = load(folder / "run" / "model.npz").recommend("u3", 20, exclude_seen=False, cautious=True)
    assert [row["item"] for row in cautious] == ids.tolist()
    assert [row["score"] for row in cautious] == pytest.approx(scores, abs=1e-4)
    assert [row["score"] for row in cautious] != [row["score"] for row in plain]


def test_at_a_node(folder):
    """A run folder has a model.npz where a node's folder has it."""
    for more in ((), ("--cautious",)):
        at_node = ran("node", "recommend", "run", "u3", *more, cwd=folder)
        assert at_node == ran("recommend", "run", "u3", *more, cwd=folder)
    words = ("u3", "5", "6", "--interval", "0.9", "--std")
    assert ran("node", "predict", "run", *words, cwd=folder) == ran("predict", "run", *words, cwd=folder)
    assert ran("node", "predict", "plain", "u3", "5", cwd=folder) == ran("predict", "plain", "u3", "5", cwd=folder)
    assert "there is no model in ." in refused("node", "predict", ".", "u3", "5", cwd=folder)


def test_info_tells_noise_and_range(folder):
    model = load(folder / "run" / "model.npz")
    facts = json.loads(ran("info", "run", "--json", cwd=folder))
    assert facts["noise"] == pytest.approx(model.scaling.scale * model.posterior.hyper.noise**-0.5)
    assert facts["rating_range"] == [1, 5]
    said = ran("info", "run", cwd=folder)
    assert "rating_range   1 to 5\n" in said
    assert f"noise          {facts['noise']}  (standard deviation" in said
    assert "noise" not in json.loads(ran("info", "plain", "--json", cwd=folder))


@pytest.mark.parametrize("command", ["predict", "evaluate", "node predict"])
@pytest.mark.parametrize("level", ["0", "1", "90", "nan"])
def test_levels_out_of_bounds(folder, command, level):
    rest = ("ratings.csv",) if command == "evaluate" else ("u3", "5")
    said = refused(*command.split(), "run", *rest, "--interval", level, cwd=folder)
    assert said == f"error: --interval must lie between 0 and 1, got {level}: 0.9 stands for 90 %"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("predict plain u3 5 --interval 0.9", "--interval"),
        ("predict plain u3 5 --std", "--std"),
        ("predict plain u3 5 --unknown prior", "--unknown prior"),
        ("evaluate plain ratings.csv --interval 0.9", "--interval"),
        ("evaluate plain ratings.csv --unknown prior", "--unknown prior"),
        ("recommend plain u3 --cautious", "--cautious"),
        ("node predict plain u3 5 --interval 0.9", "--interval"),
        ("node recommend plain u3 --cautious", "--cautious"),
    ],
)
def test_a_model_without_a_posterior(folder, words, option):
    said = refused(*words.split(), cwd=folder)
    assert said == f"error: {option} needs a Bayesian model, this one has preset fast: train with --preset bayes"


# --- runs and reports


def test_train_tells_coverage_and_bound(folder, tmp_path):
    said = ran("train", folder / "ratings.csv", *TRAIN, "--out", "run", "--json", cwd=tmp_path)
    result = json.loads(said.splitlines()[-1])
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert result["bound"] == history[-1]["bound"]
    assert "evidence bound (nats)" in said
    stored = coverage.load(tmp_path / "run")
    assert result["intervals"] == stored.at(0.9)._asdict()
    assert f"90 % intervals hold {100 * stored.at(0.9).coverage:.1f} % of the test ratings\n" in said


@pytest.mark.parametrize("more", [("--preset", "fast"), ("--test", "0")])
def test_a_run_without_posterior_or_test_has_no_coverage(folder, tmp_path, more):
    said = ran("train", folder / "ratings.csv", *TRAIN, *more, "--out", "run", "--json", cwd=tmp_path)
    assert "intervals" not in said
    assert not (tmp_path / "run" / "coverage.json").exists()


def test_the_report_shows_intervals_and_bound(folder):
    page = (folder / "run" / "report.html").read_text(encoding="utf-8")
    stored = coverage.load(folder / "run")
    share = 100 * stored.at(0.9).coverage
    assert f"<p>Each prediction has an interval: 90 % intervals hold {share:.1f} % of the test ratings.</p>" in page
    section = page.partition("<h2>Intervals</h2>")[2].partition("</section>")[0]
    for level in SHOWN:
        assert f"<td>{100 * level:g} %</td><td>{100 * stored.at(level).coverage:.1f} %</td>" in section
    assert "The baseline is the dashed diagonal" in section
    assert section.count("<svg") == 1
    curves = page.partition("<h2>Curves</h2>")[2].partition("</section>")[0]
    assert curves.count("<svg") == 3
    assert "By round. The evidence bound falls while clients join" in curves
    assert "evidence bound (nats)" in page
    assert "--diagnostics" not in page
    for name in ("run", "bound", "calibration"):
        assert (folder / "run" / "figures" / f"{name}.png").is_file()
    plain = write_report(folder / "plain").read_text(encoding="utf-8")
    assert "evidence bound" not in plain
    assert "Intervals" not in plain


def test_damaged_coverage_is_said(tmp_path):
    assert coverage.load(tmp_path) is None
    whole = Calibration(7, [Coverage(level, level, 1.0) for level in LEVELS])
    coverage.save(whole, tmp_path)
    assert coverage.load(tmp_path) == whole
    coverage.save(Calibration(7, whole.levels[:3]), tmp_path)
    with pytest.raises(InputError, match=r"coverage\.json is damaged: the levels .*0\.95\] are missing; remove it"):
        coverage.load(tmp_path)
    (tmp_path / "coverage.json").write_text("{")
    with pytest.raises(InputError, match=r"coverage\.json is damaged"):
        coverage.load(tmp_path)


def test_the_demo_tells_coverage_and_an_example(tmp_path, monkeypatch):
    ratings = whole_stars(planted(users=60, items=20, noise=0.5))
    seen = ratings.matrix.toarray()[1] != 0
    monkeypatch.setattr(demo.datasets, "demo", lambda: ratings)
    monkeypatch.setattr(demo, "FILM", int(np.flatnonzero(~seen)[0]))
    for name, value in (("CLIENTS", 4), ("ACTIVE", 2), ("ROUNDS", 6), ("RANK", 2)):
        monkeypatch.setattr(demo, name, value)
    said = ran("demo", "--out", "out", cwd=tmp_path)
    found = coverage.load(tmp_path / "out").at(0.9)
    predicted, low, high = load(tmp_path / "out" / "model.npz").interval(1, demo.FILM, 0.9)
    assert f"90 % intervals hold {100 * found.coverage:.1f} % of the test ratings" in said
    example = f"{predicted[0]:.1f} ({low[0]:.1f} to {high[0]:.1f} with 90 % probability)"
    assert f"user 1 would rate film {demo.FILM} {example}" in said
    for row in ("biases only, pooled", "each client alone", "fedmc, 6 rounds", "the same model, pooled"):
        assert row in said
