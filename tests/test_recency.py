"""Recent events count more in predictions, and nowhere else: weights, bits of training, files, nodes, options."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedmc import FedMC
from fedmc.algorithms.settings import Settings
from fedmc.data import recency, splits
from fedmc.data.feedback import EventOptions
from fedmc.data.loading import as_ratings, read_source
from fedmc.data.partition import Federation, make_shards, together
from fedmc.data.prepare import Plan, federation_of
from fedmc.data.prepared import open_prepared
from fedmc.data.ratings import Ratings
from fedmc.errors import DataError
from fedmc.evaluation.runner import fingerprint_of
from fedmc.model import load
from fedmc.model.given import explain_at_home
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from fedmc.training.tuning import hold_out
from tests.ials_oracle import least_squares
from tests.test_cli import refuse, run

ALPHA0, WEIGHT = 0.2, 0.05
GROUPS, SIZE, USERS = 8, 9, 80


def weight(later):
    return 1 + 2 * 2 ** (-later / 3)


def changing(seed=0):
    """Each user has seven items of one group, and then four of another one: the last is one of these."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(USERS):
        old, new = rng.choice(GROUPS, 2, replace=False)
        items = [*(old * SIZE + rng.choice(SIZE, 7, replace=False)), *(new * SIZE + rng.choice(SIZE, 4, replace=False))]
        rows += [(user, item, 1.0, 100 + place) for place, item in enumerate(items)]
    return Ratings.from_arrays(*np.array(rows).T)


@pytest.fixture(scope="module")
def parts():
    return splits.last(changing(), 1)


def settings_of(algorithm="ials", clients=4, **more):
    return Settings.preset("implicit", algorithm=f"{algorithm}:{ALPHA0},{WEIGHT}", rank=4, active=clients, **more)


def federation(train, test=None, clients=4, events=True):
    owner = np.arange(len(train.users)) % clients
    return Federation(make_shards(train, owner, "float64", test, events=events), train.users, train.items)


def ran(found, settings, number=4):
    for round in rounds(LocalEngine(found.shards), settings, measure_every=1):
        if round.number == number:
            return round
    raise AssertionError


# --- weights


def test_weights_by_hand():
    times = sparse.csr_array(np.array([[30, 10, 20, 0], [0, 7, 0, 0], [5, 9, 5, 9]]))  # 0: no event
    later = recency.later_of(times)
    assert later.dtype == np.uint16
    assert later.tolist() == [0, 2, 1, 0, 3, 1, 2, 0]  # at the same time, the later column is later
    events = sparse.csr_array((np.full(8, 2.0, np.float32), times.indices, times.indptr), shape=times.shape)
    found = recency.recent(events, later).data
    assert found[:4] == pytest.approx([2 * 3, 2 * (1 + 2 * 2 ** (-2 / 3)), 2 * (1 + 2 * 2 ** (-1 / 3)), 2 * 3])
    assert found[4] == pytest.approx(2 * 2)  # half as much more after three events
    assert events.data.tolist() == [2] * 8


def test_times_may_be_0_and_rows_empty():
    zeros = sparse.csr_array((np.array([0, 0, -5]), np.array([0, 2, 1]), np.array([0, 2, 2, 3])), shape=(3, 3))
    assert recency.later_of(zeros).tolist() == [1, 0, 0]


def test_long_histories_are_capped_where_nothing_is_added_any_more(monkeypatch):
    monkeypatch.setattr(recency, "MOST", 200)
    row = sparse.csr_array((np.arange(300), np.arange(300), np.array([0, 300])), shape=(1, 300))
    later = recency.later_of(row)
    assert later[:100].tolist() == [200] * 100
    assert (recency.recent(sparse.csr_array(row.astype(float)), later).data[:100] == np.arange(100)).all()


def test_the_last_event_is_the_one_that_the_split_would_hold_out():
    rng = np.random.default_rng(1)
    users, items = np.repeat(np.arange(30), 6), np.tile(np.arange(6), 30)
    ratings = Ratings.from_arrays(users, items, np.ones(180), rng.integers(0, 3, 180))
    last = splits.last(ratings, 1)[1]
    first = recency.later_of(ratings.time_table()) == 0
    assert np.array_equal(ratings.with_entries(first).matrix.indices, last.matrix.indices)


# --- shards


def test_times_give_the_order_of_events_and_the_days_of_ratings(parts):
    events, ratings = (federation(*parts, events=kind).shards[0] for kind in (True, False))
    assert (events.days, ratings.later) == (None, None)
    assert ratings.days is not None
    assert len(events.later) == events.by_user.nnz
    assert events.renumbered(3).later is events.later
    assert all(shard.later is None for shard in federation(parts[0].without_times()).shards)


def test_together_keeps_the_order(parts):
    shards = federation(*parts).shards
    assert np.array_equal(together(shards).later, np.concatenate([shard.later for shard in shards]))
    mixed = together([shards[0], replace(shards[1], later=None)]).later
    assert set(mixed[shards[0].by_user.nnz :].tolist()) == {recency.MOST}  # they count alike
    assert together([replace(shard, later=None) for shard in shards]).later is None


def test_held_out_events_are_not_counted(parts):
    train = parts[0]
    shard = federation(train).shards[0]
    kept = hold_out(shard, 0.3, 5)
    times = sparse.csr_array(train.time_table()[shard.users])
    for row in range(len(shard.users)):
        here = slice(*kept.by_user.indptr[row : row + 2])
        own = times[[row]].toarray()[0, kept.by_user.indices[here]]
        assert kept.later[here].tolist() == [int((own > one).sum()) for one in own]
    assert hold_out(replace(shard, later=None), 0.3, 5).later is None


# --- training and predictions


@pytest.mark.parametrize("algorithm", ["ials", "ials-blocks", "fcf", "fedrecon"])
def test_training_and_objective_keep_their_bits_and_rankings_change(parts, algorithm):
    timed, plain = federation(*parts), federation(parts[0].without_times(), parts[1])
    one, other = (ran(found, settings_of(algorithm)) for found in (timed, plain))
    assert one.broadcast.V.tobytes() == other.broadcast.V.tobytes()
    assert one.diagnostics.objective == other.diagnostics.objective
    assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
    assert one.diagnostics.ranking["test_ndcg_10"] != other.diagnostics.ranking["test_ndcg_10"]


def test_ease_counts_alike(parts):
    timed, plain = federation(*parts), federation(parts[0].without_times(), parts[1])
    one, other = (ran(found, Settings.preset("implicit", algorithm="ease", active=4), 1) for found in (timed, plain))
    assert one.diagnostics == other.diagnostics


def test_the_model_has_the_users_of_the_weighted_events(parts):
    done = train(federation(*parts), settings_of(), Stop(4))
    model, events = done.model, parts[0]
    later = recency.later_of(events.time_table())
    V, items = model.V.astype(np.float64), len(model.items)
    for row in (0, 17, USERS - 1):
        some = slice(*events.matrix.indptr[row : row + 2])
        c = np.zeros(items)
        c[events.matrix.indices[some]] = weight(later[some].astype(float))
        ridge = WEIGHT * (some.stop - some.start + ALPHA0 * items)
        assert model.U[row] == pytest.approx(least_squares(c, V, ALPHA0, ridge), rel=1e-7, abs=1e-10)
    assert model.ranking(parts[1])[10].ndcg == pytest.approx(done.history[-1].diagnostics.ranking["test_ndcg_10"])


def test_it_finds_what_comes_next_where_tastes_change():
    found = []
    for seed in (0, 1):
        known, test = splits.last(changing(seed), 1)
        runs = (train(federation(one, test), settings_of(), Stop(8)).model for one in (known, known.without_times()))
        found.append([model.ranking(test)[10].ndcg for model in runs])
    recent, alike = np.mean(found, axis=0)
    assert recent > alike + 0.05


# --- Python


def arrays_of(ratings):
    return ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices], ratings.matrix.data, ratings.times


def fit(X, **more):
    return FedMC(4, feedback="implicit", clients=3, rounds=3, **more).fit(X)


def test_arrays_and_tables_with_times_and_the_switch(parts):
    pandas = pytest.importorskip("pandas")
    arrays = arrays_of(parts[0])
    frame = pandas.DataFrame(dict(zip(("user", "item", "rating", "timestamp"), arrays, strict=True)))
    timed = [fit(one).model_ for one in (parts[0], arrays, frame)]
    alike = [fit(one, recency=False).model_ for one in (parts[0], arrays, frame)]
    alike += [fit(arrays[:3]).model_, fit(frame.drop(columns="timestamp")).model_]
    for models in (timed, alike):
        assert len({model.U.tobytes() for model in models}) == 1
    assert timed[0].V.tobytes() == alike[0].V.tobytes()
    assert timed[0].U.tobytes() != alike[0].U.tobytes()
    with pytest.raises(DataError, match="a time for each of 4 rows, got 3"):
        fit(([1, 1, 2, 2], [1, 2, 1, 2], np.ones(4), [1, 2, 3]))


def test_fold_in_by_times_gives_the_user_of_training(parts):
    fitted = fit(parts[0])
    new = parts[0].with_users(np.array([4, 9]))
    folded = fitted.fold_in(new)
    assert pytest.approx(fitted.model_.U[[4, 9]], abs=1e-12) == folded.U
    alike = fitted.fold_in(new.without_times())
    assert not np.allclose(alike.U, folded.U)
    assert pytest.approx(fit(parts[0], recency=False).model_.U[[4, 9]], abs=1e-12) == alike.U
    assert np.array_equal(fitted.transform(new)[0, new.matrix[[0]].indices], new.matrix[[0]].data)
    effects = folded.explain(9, 3)
    assert {one.kind for one in effects} == {"seen"}
    assert sum(one.effect for one in effects) == pytest.approx(folded.predict([9], [3])[0])


@pytest.mark.parametrize("on", [True, False])
def test_explanations_add_up_with_the_order_of_training(parts, on):
    model = fit(parts[0], recency=on).model_
    item = int(parts[1].items[0])
    effects = model.explain(7, item, ratings=changing())  # with what was held out
    assert {one.kind for one in effects} == {"seen"}
    assert sum(one.effect for one in effects) == pytest.approx(model.predict([7], [item])[0])
    kinds = {one.kind for one in model.explain(7, item)}
    assert kinds == ({"seen", "rest"} if on else {"seen"})  # the model itself has no order


# --- sources


def table(folder, header, rows):
    path = folder / "events.csv"
    path.write_text("\n".join([*([header] if header else []), *rows, ""]))
    return path


READ = {
    "named": ("user,item,timestamp", ["1,1,30", "1,2,10", "1,1,20"], [30, 10]),  # repeated: the latest
    "date": ("user,item,date", ["1,1,1970-01-02", "1,2,1970-01-03"], [86400, 2 * 86400]),
    "no header": ("", ["1,1,1,978300760", "1,2,1,978300761"], [978300760, 978300761]),
    "no time": ("user,item", ["1,1", "1,2"], None),
    "no header, no time": ("", ["1,1,1,3", "1,2,1,4"], None),
    "missing": ("user,item,timestamp", ["1,1,30", "1,2,"], None),
    "no date": ("user,item,time", ["1,1,noon", "1,2,dawn"], None),
}


@pytest.mark.parametrize("name", READ)
def test_times_are_read_if_there_are_any(name, tmp_path):
    header, rows, times = READ[name]
    path = table(tmp_path, header, rows)
    found = read_source(path, events=EventOptions())
    assert (None if found.times is None else found.times.tolist()) == times
    told = [note for note in found.notes if "times are not used" in note]
    assert len(told) == (name in ("missing", "no date"))
    off = read_source(path, events=EventOptions(recency=False))
    assert off.times is None
    assert len(off.notes) == 1  # about the columns
    assert (off.matrix.toarray() == found.matrix.toarray()).all()


def test_a_column_of_amounts_is_not_a_time_and_ratings_have_none(tmp_path):
    path = table(tmp_path, "user,item,time,rating", ["1,1,30,4", "1,2,10,5"])
    spent = read_source(path, events=EventOptions(confidence="time"))
    assert (spent.times, spent.matrix.data.tolist()) == (None, [30, 10])
    assert read_source(path).times is None


def test_bad_rows_are_refused_as_before(tmp_path):
    path = table(tmp_path, "user,item,rating,timestamp", ["1,1,4,5", "1,2,-1,6"])
    with pytest.raises(DataError, match="amounts of events must be above 0"):
        read_source(path, events=EventOptions())
    path = table(tmp_path, "user,item,timestamp", ["1,1,5", "1,2,"])
    with pytest.raises(DataError, match="time"):
        read_source(path, times=True, events=EventOptions())


def test_a_stream_of_arrow_is_read_with_times():
    pa = pytest.importorskip("pyarrow")
    rows = pa.table({"user": [1, 1], "item": [1, 2], "timestamp": [5, None]})
    found = as_ratings(rows, events=EventOptions())
    assert found.times is None
    assert len(found) == 2


# --- the command, files and nodes

OPTIONS = ["--feedback", "implicit", "--clients", 3, "--rounds", 3, "--rank", 4, "--test", "last:1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recency")
    users, items, _, times = arrays_of(changing())
    rows = [f"{u},{i},{t}" for u, i, t in zip(users, items, times, strict=True)]
    (folder / "log.csv").write_text("\n".join(["user,item,timestamp", *rows, ""]))
    run("prepare", "log.csv", "--feedback", "implicit", "--clients", 3, "--test", "last:1", "--out", "made", cwd=folder)
    return folder


def trained(place, source, name, *more):
    done = run("train", source, *OPTIONS, *more, "--out", name, "--overwrite", cwd=place)
    return done, load(place / name / "model.npz")


def test_train_says_it_and_can_be_told_not_to(place):
    told, timed = trained(place, "log.csv", "on")
    quiet, alike = trained(place, "log.csv", "off", "--no-recency")
    assert told.stderr.splitlines().count(recency.TOLD) == 1
    assert "recent" not in quiet.stderr
    assert timed.V.tobytes() == alike.V.tobytes()
    assert timed.U.tobytes() != alike.U.tobytes()
    settings = [tomllib.loads((place / name / "settings.toml").read_text()) for name in ("on", "off")]
    assert ["recency" in one for one in settings] == [False, True]
    refuse("train", "log.csv", "--no-recency", *OPTIONS[2:], message="--no-recency is about events", cwd=place)
    rows = json.loads(run("explain", "on", 3, 5, "--ratings", "log.csv", "--json", cwd=place).stdout)["effects"]
    assert "rest" not in {one["kind"] for one in rows}
    listed = [run("recommend", name, 3, "-n", 3, cwd=place).stdout for name in ("on", "off")]
    assert listed[0] != listed[1]


def test_prepared_shards_keep_the_order(place):
    opened, direct = open_prepared(place / "made"), federation_of(plan(place, "log.csv"), "float64")
    assert [shard.later.tolist() for shard in opened.shards] == [shard.later.tolist() for shard in direct.shards]
    assert all(shard.days is None for shard in opened.shards)
    assert json.loads((place / "made" / "manifest.json").read_text())["version"] == 2
    assert federation_of(plan(place, "made"), "float64").notes[-1] == recency.TOLD
    done, timed = trained(place, "made", "from-made")
    assert recency.TOLD in done.stderr
    assert pytest.approx(trained(place, "log.csv", "on")[1].U) == timed.U
    quiet, alike = trained(place, "made", "from-made", "--no-recency")
    assert "recent" not in quiet.stderr
    assert alike.U.tobytes() != timed.U.tobytes()
    effects = explain_at_home(timed, 3, 5, opened)
    assert {one.kind for one in effects} == {"seen"}


def plan(place, source):
    return Plan(str(place / source), split="last:1", clients=3, events=EventOptions(), confidence_scale="auto")


def test_shards_without_an_order_open_as_before(place, tmp_path):
    words = ["--feedback", "implicit", "--clients", 3, "--test", "last:1", "--out", tmp_path / "made", "--no-recency"]
    run("prepare", "log.csv", *words, cwd=place)
    opened = open_prepared(tmp_path / "made")
    assert {(shard.later, shard.days) for shard in opened.shards} == {(None, None)}
    found = federation_of(plan(tmp_path, "made"), "float64")
    assert recency.TOLD not in found.notes
    stars = ["user,item,rating,timestamp", *(f"{k},{k * j % 7},{1 + j % 5},{j}" for k in range(9) for j in range(1, 5))]
    (tmp_path / "stars.csv").write_text("\n".join([*stars, ""]))
    for more in ([], ["--times"]):
        run("prepare", "stars.csv", "--duplicates", "last", *more, "--out", "stars", "--overwrite", cwd=tmp_path)
        arrays = json.loads((tmp_path / "stars" / "manifest.json").read_text())["shards"][0]["arrays"]
        assert "later" not in arrays
        assert any(name.startswith("days/") for name in arrays) == bool(more)


def test_new_users_are_folded_in_by_their_times(place):
    def ndcg(*more):
        words = [*OPTIONS[:-1], "users:0.3", *more, "--out", "new", "--overwrite", "--json"]
        return json.loads(run("train", "log.csv", *words, cwd=place).stdout.splitlines()[-1])["test_ndcg_10"]

    off = ndcg("--no-recency")
    assert ndcg() != off
    assert ndcg("--no-recency", "--validation", "last:1") != ndcg("--validation", "last:1")


def test_evaluate_folds_in_as_in_training(place):
    for name, more in (("on", []), ("off", ["--no-recency"])):
        trained(place, "log.csv", name, *more)
    users, items, _, times = arrays_of(changing(5))
    for name, some in (("old.csv", times < 110), ("new.csv", times == 110)):
        rows = [f"{u},{i},{t}" for u, i, t in zip(users[some], items[some], times[some], strict=True)]
        (place / name).write_text("\n".join(["user,item,timestamp", *rows, ""]))
    words = ["new.csv", "--fold-in", "old.csv", "--unknown", "drop", "--json"]
    on, off = (json.loads(run("evaluate", name, *words, cwd=place).stdout)["ndcg_10"] for name in ("on", "off"))
    assert on > off


def test_compare_counts_alike_for_all_methods_of_its_objective(place, tmp_path):
    words = ["--feedback", "implicit", "--methods", "ials,pooled-ials,nearest", "--seeds", 1, "--clients", 3]
    words += ["--active", 3, "--rounds", 12, "--rank", 4, "--test", "last:1"]
    found = {}
    for name, more in (("on", []), ("off", ["--no-recency"])):
        done = run("compare", place / "log.csv", *words, *more, "--out", name, cwd=tmp_path)
        assert (recency.TOLD in done.stderr) == (name == "on")
        lines = json.loads((tmp_path / name / "summary.json").read_text())
        found[name] = {line["method"]: line["test_ndcg_20"] for line in lines}
    on, off = found["on"], found["off"]
    assert on["nearest items"] == off["nearest items"]
    assert on["iALS"] > off["iALS"]
    assert on["pooled iALS"] > off["pooled iALS"]
    words += ["--no-recency", "--out", "on"]
    refuse("compare", place / "log.csv", *words, message="another comparison", cwd=tmp_path)


def test_outcomes_of_other_times_are_not_reused(parts):
    moved = replace(parts[0], times=parts[0].times[::-1].copy())
    assert fingerprint_of(moved) == fingerprint_of(parts[0])
    assert fingerprint_of(moved, True) != fingerprint_of(parts[0], True)
    assert fingerprint_of(parts[0].without_times(), True) == fingerprint_of(parts[0])


def test_a_federation_ends_with_the_users_of_the_simulation(tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.data.catalogue import Catalogue
    from fedmc.federation.setup import founding, layout
    from tests import test_federation_events as world

    Catalogue.of(np.arange(world.ITEMS)).save(tmp_path / "catalogue.json")
    made = tmp_path / "made"
    founding.init(made, world.NAMES, founding.Address("localhost"), items=tmp_path / "catalogue.json", accept=["plain"])
    for k, name in enumerate(world.NAMES):
        rows = world.table_of(k, "user,item,timestamp", lambda user, step: f",{(user * 7 + step * 5) % 11}")
        off = "recency = false\n" if k == 1 else ""
        world.configure(made / name, world.EVENTS + 'test = "last:1"\n' + off, rows)
    settings = world.settings_of()
    with world.processes(made) as nodes:
        state, _ = world.simulated(nodes.opened, settings)
        world.check_same(world.conducted(made, world.planned(made, settings), nodes), state)
        shards = [one.prepared.shards[0] for one in nodes.opened]
        told = [recency.TOLD in one.notes for one in nodes.opened]
    assert [shard.later is None for shard in shards] == [k == 1 for k in range(len(shards))]
    assert told == [k != 1 for k in range(len(shards))]
    algorithm = settings.make_algorithm()
    for name, shard in zip(world.NAMES, shards, strict=True):
        U = algorithm.users_at(shard, None, state.broadcast)
        model = load(made / name / "model.npz")
        assert model.U.tobytes() == algorithm.prediction_users(shard, U, state.broadcast).tobytes()
        assert (model.U.tobytes() == U.tobytes()) == (shard.later is None)
    config = made / "north" / "config.toml"
    config.write_text(config.read_text() + "recency = false\n")
    with world.processes(made) as nodes:
        assert nodes.opened[0].prepared.shards[0].later is None
    world.configure(made / "north", "", "")
    config.write_text(config.read_text() + world.EVENTS + 'recency = "no"\n')
    with pytest.raises(DataError, match="recency must be true or false, got 'no'"):
        layout.load_node(made / "north")
