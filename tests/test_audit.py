"""Attacks that work where nothing is hidden, fail where something is, and never pass by luck."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest

from fedmc.algorithms.admm_leakage import track
from fedmc.algorithms.settings import Settings
from fedmc.audit import attacks, results
from fedmc.audit.audit import Clients, audit, count_items, linked
from fedmc.audit.observer import watch
from fedmc.data.datasets import load_source
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.synthetic import Recipe, make_ratings
from fedmc.errors import InputError
from fedmc.report.run import write_report
from tests import command

KINDS = {
    "paper": ("paper", {}),
    "explicit": ("paper", {"update": "explicit", "beta": 30.0}),
    "exact": ("fast", {"update": "exact"}),
    "curvature": ("fast", {}),
    "curvature, no biases": ("fast", {"biases": False}),
    "linearised, beta of each item": ("paper", {"beta": "auto", "normalise": "standard"}),
    "huber": ("paper", {"loss": "huber:1"}),
    "fedmgs": ("paper", {"method": "fedmgs"}),
    "fedavg": ("paper", {"method": "fedavg"}),
    "fedmavg": ("fast", {"method": "fedmavg"}),
    "scaffold": ("paper", {"method": "scaffold"}),
}
OURS = ["paper", "exact", "curvature"]


def settings_of(kind, rank=4, **given):
    preset, options = KINDS[kind]
    return Settings.preset(preset, **{"rank": rank, "active": 6} | options | given)


@cache
def made_up(users=60, items=400, ratings=3000):
    return make_ratings(Recipe(users, items, ratings, rank=3, scale=(1.0, 5.0, 1.0)))


def shards_of(clients, dtype="float64", **size):
    ratings = made_up(**size)
    return make_shards(ratings, assign_users(len(ratings.users), clients, 0), dtype)


def heard(kind, clients, number=4, **given):
    """Shards, and what the server hears of every client."""
    shards = shards_of(clients, given.get("dtype", "float64"))
    settings = settings_of(kind, **given)
    return shards, watch(shards, settings, range(clients), number).heard


def rated(shard):
    return count_items(shard) > 0


def found(name, among):
    """The lines of the table about this."""
    return {one.sees: one for one in among if one.what == name}


def test_auc_by_hand():
    assert attacks.auc(np.array([3.0, 1, 2, 0]), np.array([True, False, True, False])) == 1
    assert attacks.auc(np.array([3.0, 1, 2, 0]), np.array([False, True, False, True])) == 0
    assert attacks.auc(np.zeros(4), np.array([True, False, True, False])) == 0.5
    assert attacks.auc(np.array([1.0, 2, 3]), np.array([True, False, True])) == 0.5
    assert np.isnan(attacks.auc(np.zeros(2), np.array([True, True])))


@pytest.mark.parametrize("clients", [6, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_plain_messages_tell_which_items_were_rated(kind, clients):
    """Of this client, that is: the items of another one are not in them."""
    shards, messages = heard(kind, clients)
    right, wrong = [], []
    for client, seen in messages.items():
        if seen:
            scores = attacks.rated_items(seen)
            right.append(attacks.auc(scores, rated(shards[client])))
            wrong.append(attacks.auc(scores, rated(shards[client - 1])))
    assert len(right) >= 6
    assert np.mean(right) >= 0.999
    assert np.mean(wrong) < 0.9


@pytest.mark.parametrize("kind", ["paper", "explicit", "exact", "linearised, beta of each item"])
def test_each_single_change_tells_it(kind):
    """Not only the first message: the later ones too, where the size of a row alone does not."""
    shards, messages = heard(kind, 6, number=6)
    naive = []
    for client, seen in messages.items():
        assert len(seen) == 3
        for scores in attacks.leakage_of(seen).evidence(seen)[1:]:
            assert attacks.auc(scores, rated(shards[client])) >= 0.999
        naive.append(attacks.auc(np.linalg.norm(seen[-1].parts["S"], axis=1), rated(shards[client])))
    assert np.mean(naive) < 0.995


@pytest.mark.parametrize("kind", ["paper", "explicit", "exact"])
def test_the_change_of_s_gives_the_copies_away(kind):
    """W and Y as the client has them, from what it sent."""
    shards = shards_of(6)
    engine = watch(shards, settings_of(kind, inner_steps=2), range(6), 2)
    for client, seen in engine.heard.items():
        tracked = track(seen)[-1]
        np.testing.assert_allclose(tracked.W_after, engine.states[client].W, atol=1e-9)
        np.testing.assert_allclose(tracked.Y_after, engine.states[client].Y, atol=1e-9)


@pytest.mark.parametrize("kind", OURS)
def test_single_precision_does_not_help(kind):
    shards, messages = heard(kind, 12, dtype="float32")
    right = [attacks.auc(attacks.rated_items(seen), rated(shards[k])) for k, seen in messages.items() if seen]
    assert np.mean(right) >= 0.999


@pytest.mark.parametrize("kind", [*OURS, "curvature, no biases", "fedmgs"])
def test_every_rating_of_a_single_user_is_read_off(kind):
    shards, messages = heard(kind, 60, number=1)
    grid = np.arange(1.0, 6.0)
    hits = whole = 0
    for client, seen in messages.items():
        if seen:
            recovered = attacks.ratings_of_one(seen, grid)
            said = dict(zip(recovered.items.tolist(), recovered.ratings.tolist(), strict=True))
            by_user = shards[client].by_user
            hits += sum(said.get(int(j)) == m for j, m in zip(by_user.indices, by_user.data, strict=True))
            whole += by_user.nnz
    assert whole > 200
    assert hits >= 0.99 * whole


@pytest.mark.parametrize("kind", OURS)
def test_the_ratings_of_several_users_are_not_read_off_like_that(kind):
    shards, messages = heard(kind, 6, number=1)
    for client, seen in messages.items():
        recovered = attacks.ratings_of_one(seen, np.arange(1.0, 6.0))
        said = np.zeros(400)
        said[recovered.items] = recovered.ratings
        by_user = shards[client].by_user
        assert (said[by_user.indices] == by_user.data).mean() < 0.7


@pytest.mark.parametrize("kind", [*OURS, "curvature, no biases", "fedmgs"])
def test_noise_is_survived_and_gives_nothing_away(kind):
    """The same messages of single users under noise that drowns them."""
    shards, messages = heard(kind, 60, number=1)
    rng, grid, shares, scores = np.random.default_rng(0), np.arange(1.0, 6.0), [], []
    for client, (first, *_) in ((client, seen) for client, seen in messages.items() if seen):
        loud = {name: part + 1e3 * rng.normal(size=np.shape(part)) for name, part in first.parts.items()}
        noised = [first._replace(parts=loud | {"joined": np.ones(())})]
        recovered, by_user = attacks.ratings_of_one(noised, grid), shards[client].by_user
        said = np.zeros(400)
        said[recovered.items] = recovered.ratings
        shares.append((said[by_user.indices] == by_user.data).mean())
        scores.append(attacks.auc(attacks.rated_items(noised), rated(shards[client])))
        assert sum(map(len, attacks.persons(noised))) <= 4
    assert np.mean(shares) < 0.4
    assert 0.4 < np.mean(scores) < 0.6


def test_averaged_factors_give_no_rating_in_this_way():
    _, messages = heard("fedavg", 60, number=1)
    assert attacks.ratings_of_one(next(seen for seen in messages.values() if seen), np.arange(1.0, 6.0)) is None


@pytest.mark.parametrize("kind", [*OURS, "fedmgs", "fedavg", "fedmavg", "scaffold"])
def test_items_are_linked_to_persons(kind):
    shards, messages = heard(kind, 12, number=1)
    parts = [linked(attacks.persons(seen), shards[k].by_user) for k, seen in messages.items() if seen]
    said, right = sum(part.said for part in parts), sum(part.right for part in parts)
    assert sum(part.separated for part in parts) > 0.7 * sum(part.users for part in parts)
    assert right == said > 300
    other = [linked(attacks.persons(seen), shards[k - 1].by_user) for k, seen in messages.items() if seen]
    assert sum(part.right for part in other) < 0.6 * said  # the same groups mean nothing in another client


def test_linking_is_counted_by_hand():
    by_user = Ratings.from_arrays([0, 0, 0, 1, 1, 2], [0, 1, 2, 2, 3, 4], np.ones(6)).matrix
    assert linked([np.array([0, 1]), np.array([2, 3, 4])], by_user) == (1, 3, 4, 5, 6)
    assert linked([], by_user) == (0, 3, 0, 0, 6)


@pytest.mark.parametrize("kind", OURS)
def test_a_masked_upload_says_nothing_and_a_sum_little(kind):
    """The same attack on the same messages, masked by the real members; the sums of few one-user clients do leak."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    many = shards_of(24, users=960, items=1000, ratings=40_000)
    settings = settings_of(kind, active=12, min_cohort=11, privacy="secagg")
    items = found("which items were rated", audit(many, settings, number=3, targets=12))
    assert 0.45 < items[results.MASKED].attack < 0.55
    assert items[results.sum_of(12)].guess > 0.6
    little = items[results.sum_of(12)].advantage
    assert little <= 0.03
    few = shards_of(60)
    leaks = found("which items were rated", audit(few, settings.replace(min_cohort=3, active=4), number=3))
    assert leaks[results.sum_of(4)].advantage > max(2 * little, 0.03)


@pytest.mark.parametrize("kind", ["exact", "curvature"])
def test_a_newcomer_stands_out_unless_others_come_with_it(kind):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    settings = settings_of(kind, active=10, min_cohort=10, privacy="secagg")
    done = audit(shards_of(60, users=600, items=400, ratings=24_000), settings, number=1)
    lone, batch = found("which items a newcomer rated", done).values()
    assert lone.supposed
    assert not batch.supposed
    assert lone.attack > 0.97
    assert lone.advantage > batch.advantage + 0.05


def test_popularity_leaves_the_client_itself_out():
    shards = shards_of(6)
    truth = Clients.of(shards)
    others = sum(count_items(shard) for shard in shards[1:])
    np.testing.assert_array_equal(truth.popularity(0), others)
    np.testing.assert_array_equal(truth.grid, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(truth.votes.sum(axis=1), truth.counts)


def test_what_is_asked_for_must_make_sense():
    shards, settings = shards_of(6), settings_of("curvature")
    for given, words in (({"targets": 0}, "targets must be at least 1, got 0"), ({"number": 0}, "rounds must be at")):
        with pytest.raises(InputError, match=words):
            audit(shards, settings, **given)
    with pytest.raises(InputError, match="6 clients, of whom 1 may work together with the server, are too few"):
        audit(shards, settings.replace(privacy="secagg", min_cohort=6))
    with pytest.raises(InputError, match="audit with the penalty it chose"):
        audit(shards, settings.replace(penalty_users="auto"))
    with pytest.raises(InputError, match="absences must be at least 0, got -1"):
        audit(shards, settings, absences=-1)


def test_the_words_follow_the_numbers():
    knows, coin = results.items("x", 1.0, 0.9, 3).meaning, results.items("x", 0.5, 0.9, 3).meaning
    hardly, something = results.items("x", 0.91, 0.9, 3).meaning, results.items("x", 0.95, 0.9, 3).meaning
    assert "knows which items" in knows
    assert "learns nothing" in coin
    assert "hardly more than popularity" in hardly
    assert "learns something" in something
    shown = results.summary("plain", [results.items("x", 0.91, 0.9, 3)])
    assert "No attack tried here beats the guess" in shown[1]


def run(*arguments, cwd):
    done = command.fedmc(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def plain(line):
    return {name: line[name] for name in results.Finding._fields}


def test_the_command_prints_and_keeps_what_it_found(tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    entries = made_up().matrix.tocoo()
    lines = [f"person-{u},{i},{x:g}" for u, i, x in zip(entries.row, entries.col, entries.data, strict=True)]
    (tmp_path / "r.csv").write_text("\n".join(lines) + "\n")
    common = ["r.csv", "--rank", 3, "--clients", 12]
    run("train", *common, "--rounds", 2, "--out", "run", cwd=tmp_path)
    modes = "--privacy", "plain,secagg", "--absences", 1
    done = run("audit", *common, *modes, "--json", "--out", "run", cwd=tmp_path)
    assert "The server knows which items the users of a client rated" in done.stdout
    record = json.loads(done.stdout.strip().splitlines()[-1])
    assert record == json.loads((tmp_path / "run" / "audit.json").read_text())
    assert set(record["modes"]) == {"plain", "secagg"}
    first = record["modes"]["plain"][0]
    assert first["attack"] == 1
    assert first["advantage"] == pytest.approx(1 - first["guess"])
    proven = found("which client rated an item", [results.Finding(**plain(one)) for one in record["modes"]["secagg"]])
    around = "rows around 9 absences"  # all twelve are one group: nothing without them
    assert list(proven) == ["the sums of 10 rounds, with 9 absences", around, f"{around}, rare items"]
    page = (tmp_path / "run" / "audit.html").read_text()
    assert "privacy=secagg" in page
    assert "person-" not in page
    write_report(tmp_path / "run")
    assert "The server knows which items" in (tmp_path / "run" / "report.html").read_text()


@cache
def movielens(path, users):
    whole = load_source(str(path))
    keep = np.sort(np.random.default_rng(1).permutation(len(whole.users))[:users])
    return Ratings(whole.users[keep], whole.items, whole.matrix[keep])


def real(data_folder, kind, per_client, users, **given):
    ratings = movielens(data_folder / "ml-1m" / "ratings.dat", users)
    shards = make_shards(ratings, assign_users(users, users // per_client, 0), "float64")
    return audit(shards, settings_of(kind, **{"rank": 10, "active": 10, "min_cohort": 9} | given), number=5)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize(("per_client", "users"), [(1, 400), (5, 1500), (60, 6040)])
@pytest.mark.parametrize("kind", OURS)
def test_plain_on_movielens_1m(data_folder, kind, per_client, users):
    """Items always; of one user every rating; of 60 users most persons, no link wrong."""
    done = real(data_folder, kind, per_client, users)
    items = found("which items were rated", done)[results.EACH]
    assert items.attack >= 0.999
    assert 0.75 < items.guess < 0.95
    if per_client == 1:
        ratings = found("the ratings themselves", done)[results.EACH]
        assert ratings.attack >= 0.99
        assert ratings.guess < 0.5
    else:
        persons = found("which items one person rated", done)[results.EACH]
        assert persons.attack > {5: 0.95, 60: 0.65}[per_client]
        assert "100 in 100 of the links are right" in persons.meaning


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("kind", OURS)
def test_secagg_on_movielens_1m(data_folder, kind):
    """60 users a client, cohorts of 10."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    done = real(data_folder, kind, 60, 6040, privacy="secagg")
    items = found("which items were rated", done)
    assert 0.45 < items[results.MASKED].attack < 0.55
    assert items[results.sum_of(10)].attack > 0.9
    assert items[results.sum_of(10)].advantage <= 0.02
    newcomers = found("which items a newcomer rated", done)
    if kind != "paper":  # there everybody comes at the start
        lone, batch = newcomers.values()
        assert lone.attack > 0.979
        assert batch.advantage <= 0.02


@pytest.mark.slow
@pytest.mark.realdata
def test_sums_of_single_users_leak_on_movielens_1m(data_folder):
    """What a cohort of ten hides of clients with 60 users, it does not hide of clients with one."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    done = real(data_folder, "curvature", 1, 400, privacy="secagg")
    assert found("which items were rated", done)[results.sum_of(10)].advantage > 0.03
    assert found("which items one person rated", done)[results.sum_of(10)].attack == 1


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("per_client", [1, 60])
def test_dp_on_movielens_1m(data_folder, per_client):
    """At epsilon 5 the noised messages add next to nothing to popularity; without noise they tell all."""
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    users = {1: 400, 60: 6040}[per_client]
    more = {"privacy": "dp", "active": users // per_client, "dp_rounds": 5}
    done = real(data_folder, "curvature", per_client, users, epsilon=5.0, **more)
    assert found("which items were rated", done)[results.EACH].advantage <= 0.05
    shown = real(data_folder, "curvature", per_client, users, epsilon=math.inf, **more)
    assert found("which items were rated", shown)[results.EACH].attack > 0.99
