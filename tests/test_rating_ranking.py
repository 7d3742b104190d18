"""Models of ratings measured by how they rank: sums over clients are the metrics of the whole model."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from fedmc.algorithms import rating_ranking
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Federation, make_shards
from fedmc.data.splits import at_random
from fedmc.errors import InputError
from fedmc.evaluation.ranked import ranked
from fedmc.problem.ranking import CUTOFFS
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from tests.conftest import planted
from tests.test_cli import refuse, run

CLIENTS, ROUNDS = 5, 4
MODES = [("paper", {}), ("fast", {}), ("bayes", {}), ("fast", {"privacy": "secagg", "min_cohort": 4})]


def federation(validation=False):
    whole = planted(users=40, items=30, density=0.5)
    rest, test = at_random(whole, 0.2, 1)
    rest, other = at_random(rest, 0.2, 2) if validation else (rest, None)
    return Federation(make_shards(rest, np.arange(40) % CLIENTS, "float64", test, other), rest.users, rest.items), test


def pairs(ratings):
    return ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices]


@pytest.mark.parametrize(("preset", "more"), MODES)
def test_sums_over_clients_are_the_metrics_of_the_model(preset, more):
    table, test = federation()
    settings = Settings.preset(preset, rank=2, active=CLIENTS, ranking=True, **more)
    done = train(table, settings, Stop(ROUNDS), measure_every=1)
    expected, found = ranked(done.model, *pairs(test)).model, done.history[-1].diagnostics.ranking
    assert len(found) == len(rating_ranking.NAMES) == 12
    for K in CUTOFFS:
        for name in ("recall", "precision", "ndcg", "hit_rate", "map", "mrr"):
            assert found[f"test_{name}_{K}"] == pytest.approx(getattr(expected[K], name), abs=1e-6), name
    assert done.history[-1].diagnostics.test_rmse is not None


def test_it_changes_nothing_but_measurements():
    table, _ = federation()
    runs = [train(table, Settings.preset("fast", rank=2, active=2, ranking=on), Stop(ROUNDS)) for on in (False, True)]
    assert runs[0].model.V.tobytes() == runs[1].model.V.tobytes()
    assert runs[0].history[-1].diagnostics.ranking is None
    assert [one.bytes_up for one in runs[0].history] == [one.bytes_up for one in runs[1].history]


def test_validation_ratings_are_no_candidates_in_the_test():
    table, _ = federation(validation=True)
    settings = Settings.preset("fast", rank=2, active=CLIENTS, ranking=True)
    engine = LocalEngine(table.shards)
    *_, last = islice(rounds(engine, settings), ROUNDS + 1)
    algorithm, found = settings.make_algorithm(), {"test": 0.0, "validation": 0.0}
    users = dict.fromkeys(found, 0)
    for shard, state in zip(engine.shards, engine.states, strict=True):
        scores = algorithm.users_at(shard, state, last.broadcast) @ last.V.T
        scores[shard.by_user.toarray() != 0] = -np.inf
        for part in ("validation", "test"):
            held_out = getattr(shard, part).toarray() != 0
            for row in np.flatnonzero(held_out.any(axis=1)):
                top = np.argsort(-scores[row], kind="stable")[:10]
                hits = held_out[row, top] & np.isfinite(scores[row, top])
                found[part] += hits.sum() / held_out[row].sum()
                users[part] += 1
            scores[held_out] = -np.inf
    for part, total in found.items():
        assert last.diagnostics.ranking[f"{part}_recall_10"] == pytest.approx(total / users[part])


def test_patience_still_waits_for_the_error():
    """With ranking metrics, a run of ratings stops where it stops without them."""
    table, _ = federation(validation=True)
    given = [Settings.preset("fast", rank=2, active=CLIENTS, ranking=on) for on in (False, True)]
    without, with_it = (train(table, one, Stop(40, patience=2), measure_every=1) for one in given)
    assert len(without.history) == len(with_it.history) < 41


def test_the_setting_is_unknown_to_earlier_versions_unless_it_is_used():
    settings = Settings.preset("fast", rank=2)
    assert "ranking" not in settings.to_dict()
    asked = settings.replace(ranking=True)
    assert asked.to_dict()["ranking"] is True
    assert Settings.from_dict(asked.to_dict()) == asked
    with pytest.raises(InputError, match="always measured by their ranking"):
        Settings.preset("implicit", rank=2, ranking=True)
    with pytest.raises(InputError, match="ranking"):
        Settings.preset("fast", rank=2, ranking=3)


def test_train_shows_it_in_every_measured_round(tmp_path):
    entries = planted(users=40, items=30, density=0.5).matrix.tocoo()
    lines = [f"u{u},{i},{x:.3f}" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,item,rating", *lines, ""]))
    words = ["train", "ratings.csv", "--clients", "4", "--rounds", "4", "--rank", "2", "--measure-every", "1"]
    done = run(*words, "--ranking", "--report", "--out", "run", "--json", cwd=tmp_path)
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert all("test_ndcg_20" in line and "test_rmse" in line for line in history)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["test_ndcg_20"] == pytest.approx(history[-1]["test_ndcg_20"], abs=1e-9)
    assert f"{result['test_ndcg_20']:.4f} (popularity {result['test_popular_ndcg_20']:.4f})" in done.stdout
    assert '<th scope="col">NDCG@20</th>' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "events.csv").write_text("user,item\n" + "".join(f"{u},{u % 7}\n{u},{u % 5}\n" for u in range(40)))
    refuse("train", "events.csv", "--feedback", "implicit", "--ranking", "--clients", "4", cwd=tmp_path,
           message="models of events are always measured by their ranking: leave out --ranking")  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "secagg"])
def test_in_a_federation(kind, tmp_path):
    """The sums of a federation are the simulation's, and no item's popularity is told."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.problem.quality import quality
    from tests.test_federation_events import configure, planned, simulated, table_of
    from tests.test_federation_side import NAMES, check_same, conducted, processes

    made = folders(tmp_path, configure, table_of, NAMES)
    more = {"privacy": "secagg", "min_cohort": 3} if kind == "secagg" else {}
    settings = Settings.preset("fast", rank=2, active=len(NAMES), update="exact", ranking=True, **more)
    folder = planned(made, settings)
    with processes(made) as nodes:
        expected, last = simulated(nodes.opened, settings)
        check_same(conducted(made, folder, nodes), expected)
    found = folder.history()[-1]
    for name, value in last.diagnostics.ranking.items():
        assert found[name] == pytest.approx(value, abs=1e-6)
    assert found["test_rmse"] == pytest.approx(last.diagnostics.test_rmse, abs=1e-6)
    assert not any("popular" in name for name in found)
    assert quality(found).startswith(f"RMSE {found['test_rmse']:.4f}  NDCG@20 {found['test_ndcg_20']:.4f}")


def folders(root, configure, table_of, names):
    from fedmc.data.catalogue import Catalogue
    from fedmc.federation.setup import founding

    Catalogue.of(np.arange(15)).save(root / "catalogue.json")
    address = founding.Address("localhost")
    founding.init(root / "made", names, address, items=root / "catalogue.json", accept=["plain", "secagg"])
    for k, name in enumerate(names):
        table = table_of(k, "user,item,rating", lambda user, step: f",{1 + (user + 3 * step) % 5}")
        configure(root / "made" / name, 'test = "leave:1"\n', table)
    return root / "made"


def test_a_shard_without_held_out_ratings_adds_nothing():
    table, _ = federation()
    shard = replace(table.shards[0], test=None)
    found = rating_ranking.client(shard, np.ones((len(shard.users), 2)), np.ones((30, 2)))
    assert found.keys() == rating_ranking.schema().keys()
    assert not any(found.values())


def test_a_broadcast_of_another_type_does_not_fail():
    """A failure only where ratings are held out would tell the server that there are some."""
    table, _ = federation()
    shard, rng = table.shards[0], np.random.default_rng(0)
    U, V = rng.normal(size=(len(shard.users), 2)), rng.normal(size=(30, 2))
    found = rating_ranking.client(shard, U, V.astype(np.float32))
    assert found == pytest.approx(rating_ranking.client(shard, U, V))
