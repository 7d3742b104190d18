"""Explanations: effects that add up to the prediction, and that are what each part adds."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmc import FedMC, Ratings, load
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Federation, make_shards, narrow
from fedmc.errors import InputError
from fedmc.model import explain
from fedmc.model.explain import Case, Effect, Names
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from tests.command import fedmc
from tests.conftest import examples, planted

RANK = 2


def trained(ratings, user_features=None, item_features=None, also_seen=None, clients=1, **options):
    owner = np.arange(len(ratings.users)) % clients
    seen = None if also_seen is None else narrow(sparse.csr_array(also_seen.astype(np.int8)))
    shards = make_shards(ratings, owner, "float64", None, None, user_features, seen)
    federation = Federation(shards, ratings.users, ratings.items, None, item_features)
    settings = Settings.preset("bayes", rank=RANK, active=clients, **options)
    return train(federation, settings, Stop(8), measure_every=100).model


def total(effects):
    return sum(one.effect for one in effects)


def score(model, user, item):
    """The prediction, not clipped."""
    return replace(model, rating_range=None).predict(user, item)[0]


def of_kind(effects, *kinds):
    """The effects of these kinds, or all, by kind and name."""
    return {(one.kind, one.name): one.effect for one in effects if not kinds or one.kind in kinds}


@st.composite
def worlds(draw):
    """Ratings with any side information."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    ratings = planted(
        draw(st.integers(6, 20)), draw(st.integers(4, 12)), 2, draw(st.sampled_from([0.2, 0.6])), seed=seed
    )
    users, items = ratings.matrix.shape
    return ratings, {
        "user_features": rng.normal(size=(users, draw(st.integers(1, 3)))) if draw(st.booleans()) else None,
        "item_features": rng.normal(size=(items, draw(st.integers(1, 3)))) if draw(st.booleans()) else None,
        "also_seen": rng.random((users, items)) < 0.2 if draw(st.booleans()) else None,
    }  # fmt: skip


def known_of(side, row, column, items):
    """What is given of a user and an item of `worlds`."""
    users, features, seen = side["user_features"], side["item_features"], side["also_seen"]
    return {
        "user_features": None if users is None else users[row],
        "item_features": None if features is None else features[column],
        "also_seen": None if seen is None else items[seen[row]],
    }


@given(world=worlds(), implicit=st.booleans(), data=st.data())
@examples(25)
def test_effects_add_up_to_the_prediction(world, implicit, data):
    ratings, side = world
    model = trained(ratings, **side, implicit=implicit)
    row, column = data.draw(st.integers(0, len(model.users) - 1)), data.draw(st.integers(0, len(model.items) - 1))
    pair = model.users[row], model.items[column]
    known = known_of(side, row, column, model.items)
    found = model.explain(*pair, ratings=ratings, **known)
    assert total(found) == pytest.approx(score(model, *pair), abs=1e-8)
    assert all(one.kind != "rest" for one in found)
    sizes = [abs(one.effect) for one in found]
    assert sizes == sorted(sizes, reverse=True)
    rated = ratings.matrix[[row]].indices
    assert of_kind(found, "rating").keys() == {("rating", k) for k in rated}
    saw = {*rated, *(() if known["also_seen"] is None else known["also_seen"])}
    assert of_kind(found, "seen").keys() == (
        {("seen", k) for k in saw} if model.posterior.directions is not None else set()
    )
    for name in known:
        less = model.explain(*pair, **(known | {name: None}))
        assert total(less) == pytest.approx(score(model, *pair), abs=1e-8)
        assert of_kind(less, "rating") == {}


def test_ratings_that_are_not_known_are_told_as_one(tmp_path):
    ratings = planted()
    model = trained(ratings)
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    apart, together = model.explain(3, 5, ratings=ratings), again.explain(3, 5)
    each = of_kind(apart, "rating").values()
    assert of_kind(together, "ratings")["ratings", None] == pytest.approx(sum(each), abs=1e-10)
    same = "mean", "item", "seen"
    assert of_kind(apart, *same) == pytest.approx(of_kind(together, *same))


def test_a_rating_moves_the_prediction_as_its_effect_says():
    model = trained(planted())

    def told(rating):
        folded = model.fold_in(Ratings.from_arrays([9, 9, 9], [1, 4, 7], [2.0, 3.0, rating]))
        return folded.explain(9, 5), score(folded, 9, 5)

    (low, before), (high, after) = told(1.0), told(4.5)
    moved = {key: of_kind(high, "rating")[key] - effect for key, effect in of_kind(low, "rating").items()}
    assert moved["rating", 7] == pytest.approx(after - before, abs=1e-10)
    assert abs(after - before) > 0.05
    assert moved["rating", 1] == pytest.approx(0, abs=1e-12)
    assert of_kind(low, "seen") == of_kind(high, "seen")


def test_a_new_users_features_move_the_prediction_as_their_effects_say():
    ratings, rng = planted(), np.random.default_rng(0)
    features = np.asarray(ratings.matrix.mean(axis=1)).reshape(-1, 1) + rng.normal(size=(40, 1))
    model = trained(ratings, features, implicit=False)
    nobody = Ratings(np.array([9]), model.items, sparse.csr_array((1, len(model.items))))
    found = {}
    for x in (0.0, 1.5):
        row = np.array([x])
        folded = model.fold_in(nobody, row[None])
        effects = folded.explain(9, 5, user_features=row, names=Names(user=["income"]))
        found[x] = score(folded, 9, 5), of_kind(effects, "user feature")["user feature", "income"]
        assert {one.kind for one in effects} == {"mean", "item", "user feature"}
    assert found[1.5][1] == pytest.approx(found[1.5][0] - found[0.0][0], abs=1e-10)
    assert abs(found[1.5][1]) > 1e-3


def test_effects_are_shapley_values():
    """By all orders in which a user's and an item's parts can come: the mean of what each adds when it comes."""
    ratings, rng = planted(users=12, items=6, density=0.3), np.random.default_rng(1)
    model = trained(ratings, rng.normal(size=(12, 1)), rng.normal(size=(6, 2)), implicit=False)
    row, x = int(np.flatnonzero(np.diff(ratings.matrix.indptr) == 2)[0]), np.array([0.7, -1.2])
    rated = ratings.matrix[[row]]
    scaled = (rated.data - model.scaling.mean) / model.scaling.scale
    about = rated.indices, scaled, rated.indices, np.array([1.3]), x, Names()
    case = Case(model.posterior, model.items, row, 3, np.delete(model.U[row], -2), *about)
    parts = [("user", part) for part in explain._user_parts(case)]
    parts += [("item", part) for part in explain._item_parts(case)]
    nobody, whole = model.posterior.hyper.users.mean, model.posterior.item_means[3]
    bare = whole - sum(part.vector for side, part in parts if side == "item")

    def value(some):
        u = nobody + sum(part.vector for side, part in some if side == "user")
        v = bare + sum(part.vector for side, part in some if side == "item")
        return u[:-1] @ v[:-1] + u[-1] + v[-1]

    added = np.zeros(len(parts))
    orders = list(permutations(range(len(parts))))
    for order in orders:
        values = np.array([value([parts[k] for k in order[:count]]) for count in range(len(order) + 1)])
        added[list(order)] += np.diff(values) / len(orders)
    told = {(one.kind, one.name): one.effect for one in explain.effects(case)}
    assert told.pop(("item", 3)) == pytest.approx(value([]), abs=1e-12)
    shapley = {(part.kind, part.name): one for (_, part), one in zip(parts, added, strict=True)}
    assert len(parts) == 6
    assert told == pytest.approx({key: shapley[key] for key in told}, abs=1e-12)
    assert value(parts) == pytest.approx(sum(told.values()) + value([]), abs=1e-9)
    assert {kind for kind, _ in told} == {"rating", "user feature", "item feature", "rest"}


def test_features_of_an_item_without_ratings_count_in_full():
    rng, ratings = np.random.default_rng(0), planted()
    matrix = sparse.csr_array(sparse.hstack([ratings.matrix, sparse.csr_array((40, 1))], format="csr"))
    wider = Ratings(ratings.users, np.arange(16), matrix)
    features = rng.normal(size=(16, 2))
    model = trained(wider, item_features=features, implicit=False)
    effects = of_kind(model.explain(3, 15, item_features=features[15]), "item feature")
    weights = model.posterior.item_weights * features[15][:, None] * model.scaling.scale
    middle = (model.posterior.hyper.users.mean + np.delete(model.U[3], -2)) / 2
    for k in (0, 1):
        expected = weights[k, :-1] @ middle[:-1] + weights[k, -1]
        assert effects["item feature", f"feature {k + 1}"] == pytest.approx(expected, abs=1e-10)


def test_clients_with_weights_of_their_own_leave_a_rest():
    ratings, rng = planted(), np.random.default_rng(0)
    features = rng.normal(size=(40, 2))
    model = trained(ratings, features, clients=3)
    found = model.explain(3, 5, ratings=ratings, user_features=features[3])
    assert total(found) == pytest.approx(score(model, 3, 5), abs=1e-8)
    assert 1e-9 < abs(of_kind(found, "rest")["rest", None]) < 0.1


def test_refusals():
    ratings = planted()
    model = trained(ratings)
    with pytest.raises(InputError, match="unknown item 99"):
        model.explain(3, 99)
    with pytest.raises(InputError, match="knows 0 user features, but a row of shape"):
        model.explain(3, 5, user_features=np.ones(2))
    with pytest.raises(InputError, match="the given ratings have none of user 3"):
        model.explain(3, 5, ratings=Ratings.from_arrays([4], [5], [1.0]))
    with pytest.raises(InputError, match=r"the given ratings lack \d of the \d that the model knows of user 3: item"):
        model.explain(3, 5, ratings=Ratings.from_arrays([3], [5], [1.0]))
    with pytest.raises(InputError, match="an explanation needs a Bayesian model"):
        FedMC(RANK, preset="fast", rounds=2, clients=2).fit(ratings).explain(3, 5)


# --- from tables, at the command line, at a node


def frames():
    ratings, rng = planted(), np.random.default_rng(0)
    users, items = ratings.users, ratings.items
    entries = ratings.matrix.tocoo()
    table = pd.DataFrame({"user": users[entries.row], "item": items[entries.col], "rating": entries.data})
    return table, {
        "user_features": pd.DataFrame({"user": users, "age": rng.integers(18, 80, 40), "town": ["a", "b"] * 20}),
        "items": pd.DataFrame({"item": items, "title": [f"Film {k}" for k in items], "year": 1990 + items}),
        "also_seen": pd.DataFrame({"user": rng.choice(users, 60), "item": rng.choice(items, 60)}),
    }  # fmt: skip


def test_the_estimator_takes_the_tables_of_fit_again():
    table, side = frames()
    fitted = FedMC(RANK, clients=1, rounds=8).fit(table, **side)
    found = fitted.explain(3, 5, table, **side)
    assert total(found) == pytest.approx(score(fitted.model_, 3, 5), abs=1e-8)
    kinds = {one.kind for one in found}
    assert kinds == {"mean", "item", "item feature", "user feature", "seen", "rating"}
    assert {name for _, name in of_kind(found, "user feature", "item feature")} == {"age", "town=a", "town=b", "year"}
    assert isinstance(found[0], Effect)
    assert total(fitted.explain(3, 5)) == pytest.approx(total(found), abs=1e-10)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    table, side = frames()
    options = []
    for name, frame in {"ratings": table, **side}.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        options += ["--" + name.replace("_", "-"), folder / f"{name}.csv"]
    source, options = options[1], options[2:]
    made = fedmc("train", source, "--rank", RANK, "--clients", 1, "--rounds", 8, "--out", folder / "run", *options)
    assert made.returncode == 0, made.stderr
    return folder / "run", source, options


def told(*words):
    done = fedmc("explain", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def effects_of(record):
    """The effects in JSON; those of items have a title too."""
    for one in record["effects"]:
        assert one.get("title") == (f"Film {one['name']}" if one["kind"] in ("item", "seen", "rating") else None)
    return [Effect(one["kind"], one["name"], one["effect"]) for one in record["effects"]]


def test_command(files):
    run, source, options = files
    text = told(run, 3, 5, "--ratings", source, *options)
    assert "the mean of all ratings" in text
    assert "item 5 (Film 5), for anyone" in text
    assert "the rating of item " in text
    assert "other items that the user rated, saw or had" in text
    assert len(told(run, 3, 5, "--number", 3).splitlines()) < len(text.splitlines())
    found = json.loads(told(run, 3, 5, "--ratings", source, *options, "--json"))
    assert total(effects_of(found)) == pytest.approx(found["sum"])
    predicted = fedmc("predict", run, 3, 5).stdout.splitlines()[1].split(",")[2]
    assert f"{found['prediction']:.4f}" == predicted
    assert "rest" not in {one["kind"] for one in found["effects"]}
    assert "ratings" in {one["kind"] for one in json.loads(told(run, 3, 5, "--json"))["effects"]}


def test_command_with_prepared_shards(files, tmp_path):
    run, source, options = files
    kept = tmp_path / "shards"
    made = fedmc("prepare", source, "--clients", 2, "--test", 0, "--out", kept, *options)
    assert made.returncode == 0, made.stderr
    apart = json.loads(told(run, 3, 5, "--ratings", source, *options, "--json"))
    alike = json.loads(told(run, 3, 5, "--ratings", kept, "--json"))
    assert apart["title"] == alike["title"] == "Film 5"
    first, second = (of_kind(effects_of(some)) for some in (apart, alike))
    assert first == pytest.approx({key: second[key] for key in first}, abs=1e-5)  # shards hold float32
    assert fedmc("explain", run, 3, 5, "--ratings", kept, *options).returncode == 2
    assert "no ratings of user" in fedmc("explain", run, 77, 5, "--ratings", kept).stderr


def test_command_refuses(files, tmp_path):
    run, source, _ = files
    for words, said in [
        ((run, 3, 99), "unknown item 99"),
        ((run, 99, 5), "unknown user 99"),
        ((run, 3, 5, "--number", 0), "--number must be at least 1"),
    ]:
        done = fedmc("explain", *words)
        assert done.returncode == 2
        assert said in done.stderr
    fedmc("train", source, "--preset", "fast", "--rank", RANK, "--rounds", 2, "--out", tmp_path / "fast")
    assert "explain needs a Bayesian model" in fedmc("explain", tmp_path / "fast", 3, 5).stderr


def test_a_node_explains_by_its_own_ratings(tmp_path):
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from fedmc.cli.federation_demo import NAMES, set_up
    from fedmc.data.prepared import open_prepared
    from fedmc.federation.node.organisation import open_folder
    from fedmc.federation.setup.layout import load_node

    set_up(tmp_path / "made", planted())
    home = tmp_path / "made" / NAMES[0]
    assert "there is no model" in fedmc("node", "explain", home, 3, 5).stderr
    open_folder(load_node(home))
    prepared = open_prepared(home / "shard")
    shard, ids = prepared.shards[0], prepared.ids[0]
    model = trained(Ratings(ids, prepared.catalogue.items, shard.by_user.astype(np.float64)))
    model.save(home / "model.npz")
    done = fedmc("node", "explain", home, ids[0], 5)
    assert done.returncode == 0, done.stderr
    assert "the rating of item" in done.stdout
    found = json.loads(fedmc("node", "explain", home, ids[0], 5, "--json").stdout)
    assert found["sum"] == pytest.approx(score(model, ids[0], 5), abs=1e-8)
    assert "rest" not in {one["kind"] for one in found["effects"]}
