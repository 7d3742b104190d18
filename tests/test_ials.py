"""iALS by sums: the iterates of a slow and dense version, an objective that never rises, the same bits every way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmc.algorithms import event_sums, ials
from fedmc.algorithms.event_measures import COUNTS, USERS
from fedmc.algorithms.event_sums import EventSums
from fedmc.algorithms.ials import IALS
from fedmc.algorithms.messages import SUM_BITS, Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import ServerState
from fedmc.data.partition import Federation, Shard, narrow
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.kernels import threads, weighted
from fedmc.model import load
from fedmc.training import members
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Checkpoint, Round, rounds
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from tests.conftest import examples
from tests.ials_oracle import Oracle, Weights
from tests.test_bayes import Scripted, bits, near, run

ROUNDS = 20
ROUNDING = 1e-10  # times the objective, whose terms are all positive
USUAL = Weights(0.1, 0.05, 1.0)


class Problem(NamedTuple):
    """Users x items confidences (0: no event), each user's client, who takes part when, and held-out events."""

    C: np.ndarray
    owner: np.ndarray
    turns: tuple[tuple[int, ...], ...]
    test: np.ndarray | None = None
    validation: np.ndarray | None = None

    def shards(self, dtype: str = "float64") -> list[Shard]:
        """Unlike `make_shards`, also of clients without events."""
        made = []
        for client in range(int(self.owner.max()) + 1):
            users = np.flatnonzero(self.owner == client)
            parts = [
                None if part is None else table(part[users], dtype) for part in (self.C, self.test, self.validation)
            ]
            made.append(Shard.of(client, users, *parts))
        return made

    def settings(self, rank: int, weights: Weights = USUAL, **changes: object) -> Settings:
        spec = "ials:{!r},{!r},{!r}".format(*weights)
        given = {"rank": rank, "algorithm": spec, "dtype": "float64", "sampler": Scripted(self.turns)}
        given["active"] = max(1, *map(len, self.turns))
        return Settings.preset("implicit", **given | changes)

    @property
    def clients(self) -> int:
        return int(self.owner.max()) + 1


def table(C: np.ndarray, dtype: str) -> sparse.csr_array:
    return narrow(sparse.csr_array(C.astype(dtype)))


def events(rng, users: int, items: int, density: float = 0.3) -> np.ndarray:
    """Confidences from 0.1 to 10, more of them on some items, a user and an item without any."""
    popular = density * rng.dirichlet([1.0] * items) * items
    C = np.where(rng.random((users, items)) < popular, 10 ** rng.uniform(-1, 1, (users, items)), 0)
    C[rng.integers(users)] = C[:, rng.integers(items)] = 0
    return C


def problem(seed: int, users: int = 24, items: int = 12, clients: int = 5, number: int = ROUNDS) -> Problem:
    """Clients of unequal sizes that join at different rounds and then take part at random, some rounds without any."""
    rng = np.random.default_rng(seed)
    owner = np.concatenate([np.arange(clients), rng.choice(clients, users - clients, p=rng.dirichlet([2.0] * clients))])
    joins = rng.integers(1, 1 + number // 2, size=clients)
    joins[rng.integers(clients)] = 1
    takes_part = rng.random((number, clients)) < 0.5
    for client, first in enumerate(joins):
        takes_part[: first - 1, client], takes_part[first - 1, client] = False, True
    takes_part[number // 3] = False
    return Problem(events(rng, users, items), owner, tuple(tuple(np.flatnonzero(row).tolist()) for row in takes_part))


def everybody(given: Problem, number: int = ROUNDS) -> Problem:
    return given._replace(turns=(tuple(range(given.clients)),) * number)


# --- the iterates


def users_of(engine: LocalEngine, users: int, rank: int) -> np.ndarray:
    """The factors behind the contributions of all clients that have joined."""
    U = np.full((users, rank), np.nan)
    for shard, state in zip(engine.shards, engine.states, strict=True):
        if state is not None:
            U[shard.users] = state.U
    return U


def compare_run(given: Problem, rank: int, weights: Weights, tolerance: float = 1e-9, anew: bool = False) -> None:
    """A run and the oracle, side by side: factors of users and items, counts, and the objective of all.

    If the oracle starts `anew` from the run's factors in every round, rounding does not add up.
    """
    engine, oracle = LocalEngine(given.shards()), None
    for round in islice(rounds(engine, given.settings(rank, weights)), len(given.turns) + 1):
        if oracle is None:
            oracle = Oracle(given.C, given.owner, round.V, weights, -(-given.clients // max(1, *map(len, given.turns))))
            continue
        assert round.participants == given.turns[round.number - 1]
        oracle.round(round.participants)
        assert engine.joined == oracle.joined
        counted, U = oracle.counted(), users_of(engine, len(given.C), rank)
        assert np.isnan(np.delete(U, counted, 0)).all()
        near(U[counted], oracle.U[counted], tolerance, f"users, round {round.number}")
        near(round.V, oracle.V, tolerance, f"items, round {round.number}")
        arrays = round.broadcast.shared.arrays
        assert arrays[COUNTS].tolist() == np.count_nonzero(given.C[counted], axis=0).tolist(), "counts of items"
        assert arrays[USERS].tolist() == [len(counted)], "counts of users"
        if len(oracle.joined) == given.clients:
            near(round.diagnostics.objective, oracle.best_objective(oracle.V), tolerance, "objective")
        if anew:
            oracle.U, oracle.V = U, round.V.copy()
    assert oracle is not None


CASES = [  # seed, rank, weights: few events a user (rank above), many, and all exponents
    (0, 3, Weights(0.1, 0.05, 1.0)), (1, 4, Weights(0.5, 0.01, 0.5)), (2, 1, Weights(0.02, 0.3, 0.0)),
    (3, 5, Weights(1.0, 0.003, 1.0)), (4, 6, Weights(1e-3, 1.0, 0.5)), (5, 4, Weights(3.0, 0.1, 0.0)),
]  # fmt: skip


def many_at_first(seed: int) -> Problem:
    """The first clients have more users than there are factors.

    Otherwise V has as many dimensions as they have users, and further ones grow from nothing but rounding.
    """
    given = problem(seed, users=40)
    return given._replace(turns=((0, 1, 3), *given.turns[1:-1], (0, 2, 4)))


@pytest.mark.parametrize(("seed", "rank", "weights"), CASES)
def test_iterates_are_those_of_the_definition(seed, rank, weights):
    given = many_at_first(seed)
    assert {client for turn in given.turns for client in turn} == set(range(5))
    compare_run(given, rank, weights)


@pytest.mark.parametrize(("seed", "rank", "weights"), [(seed, 3 * rank, weights) for seed, rank, weights in CASES])
def test_each_round_is_that_of_the_definition(seed, rank, weights):
    """With more factors than many users have events, than the first clients have users, than there are items."""
    compare_run(problem(seed), rank, weights, anew=True)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 130))
def test_each_round_is_that_of_the_definition_many_times(seed):
    """Some systems are ill-conditioned: a change of V in its last bit moves the definition itself by 1e-8."""
    rng = np.random.default_rng(seed)
    weights = Weights(10 ** rng.uniform(-3, 0.5), 10 ** rng.uniform(-2.5, 0.5), float(rng.choice([0, 0.5, 1, 1.5])))
    compare_run(problem(seed, users=60, items=30, clients=7, number=30), 1 + seed % 12, weights, 1e-7, anew=True)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_all_clients_together_are_pooled_least_squares(exponent):
    """Also the oracle's definition of a federation: its clients are the users of one."""
    given, weights = everybody(problem(7)), Weights(0.2, 0.02, exponent)
    history = list(islice(rounds(LocalEngine(given.shards()), given.settings(4, weights)), ROUNDS + 1))
    pooled = Oracle(given.C, np.zeros(len(given.C), int), history[0].V, weights)
    for round in history[1:]:
        pooled.round([0])
        near(round.V, pooled.V, 1e-9, f"items, round {round.number}")
        near(round.diagnostics.objective, pooled.best_objective(pooled.V), 1e-9, "objective")


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_a_large_catalogue_with_small_weights(scale):
    """Thousands of items, whose systems have small pivots."""
    rng = np.random.default_rng(0)
    C = np.where(rng.random((30, 2_000)) < 0.02, scale, 0)
    given = Problem(C, np.arange(30) % 3, ((0, 1, 2),) * 2)
    weights = Weights(1e-3 * scale, 1e-3 * scale, 0.0)
    history = list(islice(rounds(LocalEngine(given.shards()), given.settings(3, weights)), 3))
    U = least(C, history[1].V, weights)
    expected = least(C.T, U, weights)
    near(history[2].V, expected, 1e-7, "items")


def least(C: np.ndarray, F: np.ndarray, weights: Weights) -> np.ndarray:
    """The rows that fit F, with a penalty that is the same for all."""
    A = np.einsum("ij,ja,jb->iab", C + weights.alpha0, F, F) + weights.weight * np.eye(F.shape[1])
    return np.linalg.solve(A, (C @ F)[..., None])[..., 0]


# --- the objective


class Moment(NamedTuple):
    """What a run knows between two rounds."""

    joined: frozenset[int]
    U: np.ndarray
    broadcast: Broadcast

    @property
    def V(self) -> np.ndarray:
        return self.broadcast.V


def moments_of(given: Problem, rank: int, weights: Weights) -> Iterator[Moment]:
    engine = LocalEngine(given.shards())
    running = rounds(engine, given.settings(rank, weights), measure_every=10**6)
    for round in islice(running, len(given.turns) + 1):
        round.broadcast.settings.make_algorithm().check_broadcast(round.broadcast)  # an honest server is never refused
        yield Moment(frozenset(engine.joined), users_of(engine, len(given.C), rank), round.broadcast)


def check_round(oracle: Oracle, shards: list[Shard], old: Moment, new: Moment) -> None:
    """One round from (J, U, V) to (J', U', V'), with F the objective of the clients counted:

        clients   F(J; U', V)   <=  F(J; U, V)       and the terms of no single client rise
        joins     F(J'; U', V)   =  F(J; U', V) + the newcomers' own terms + the change of the items' penalty
        server    F(J'; U', V') <=  F(J'; U', V)

    The newcomers' terms and the penalty are those that the package computes, F is the oracle's.
    """  # fmt: skip
    algorithm, newcomers = old.broadcast.settings.make_algorithm(), new.joined - old.joined
    start, moved = (oracle.objective(old.joined, U, old.V) for U in (old.U, new.U))
    assert moved <= start * (1 + ROUNDING), "the clients' steps raised the objective"
    for client in old.joined:
        before, after = (oracle.client_terms(client, U, old.V) for U in (old.U, new.U))
        assert after <= before * (1 + ROUNDING) + ROUNDING * start, "a client's own terms rose"
    enlarged = oracle.objective(new.joined, new.U, old.V)
    own = [sum(algorithm.terms(shards[k], new.U[shards[k].users], old.broadcast)) for k in sorted(newcomers)]
    penalties = [algorithm.item_terms(at._replace(V=old.V)) for at in (old.broadcast, new.broadcast)]
    change = math.fsum([*own, penalties[1] - penalties[0]])
    assert abs(enlarged - moved - change) <= ROUNDING * (enlarged + moved), "a join added something else"
    if not newcomers:
        assert change == 0
    final = oracle.objective(new.joined, new.U, new.V)
    assert final <= enlarged * (1 + ROUNDING), "the server's step raised the objective"


def check_run(given: Problem, rank: int, weights: Weights) -> None:
    shards, moments = given.shards(), list(moments_of(given, rank, weights))
    oracle = Oracle(given.C, given.owner, moments[0].V, weights)
    for old, new in pairwise(moments):
        check_round(oracle, shards, old, new)


WEIGHTS = st.builds(
    Weights,
    st.sampled_from([1e-3, 0.1, 1.0]),
    st.sampled_from([1e-3, 0.05, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)


@st.composite
def problems(draw) -> Problem:
    """Few or many users of each client, with few or many events or none; any participation."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    items, number = draw(st.integers(1, 9)), draw(st.integers(1, 8))
    C = events(rng, sum(sizes), items, draw(st.sampled_from([0.1, 0.5, 1.0])))
    turn = st.sets(st.sampled_from(range(len(sizes)))).map(lambda found: tuple(sorted(found)))
    turns = draw(st.lists(turn, min_size=number, max_size=number))
    return Problem(C, np.repeat(np.arange(len(sizes)), sizes), tuple(turns))


@given(drawn=problems(), rank=st.integers(1, 6), weights=WEIGHTS)
@examples(60)
def test_the_objective_never_rises_but_by_joins(drawn, rank, weights):
    check_run(drawn, rank, weights)


@given(drawn=problems(), rank=st.integers(1, 12), weights=WEIGHTS)
@examples(25)
def test_each_round_is_that_of_the_definition_whoever_takes_part(drawn, rank, weights):
    compare_run(drawn, rank, weights, 1e-8, anew=True)  # weights of a thousandth: less well conditioned


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(200, 230))
def test_the_objective_never_rises_in_longer_runs(seed):
    given = problem(seed, users=50, items=20, clients=6, number=60)
    check_run(given, 1 + seed % 8, Weights(10.0 ** -(seed % 4), 10.0 ** -(seed % 3), (seed % 5) / 2))


def test_the_reported_objective_never_rises_after_the_last_join():
    given = problem(8, number=40)
    history = list(islice(rounds(LocalEngine(given.shards()), given.settings(4)), 41))
    joined = max(next(k for k, turn in enumerate(given.turns, 1) if client in turn) for client in range(5))
    found = np.array([round.diagnostics.objective for round in history[joined:]])
    assert (np.diff(found) <= ROUNDING * found[:-1]).all()
    assert found[-1] < found[0]


# --- clients that join late

STUCK = "u = 0 and v = 0 are a saddle point, and so is every V of fewer dimensions"


def test_a_client_with_items_of_its_own_learns_though_it_joins_late():
    """Nobody has its items before: they must not be at 0 when it joins, or it stays there with them."""
    rng, C = np.random.default_rng(0), np.zeros((40, 30))
    C[:20, :15], C[20:, 15:] = rng.random((2, 20, 15)) < 0.4
    both = Problem(C, np.repeat([0, 1], 20), ((0, 1),) * 30)
    late = both._replace(turns=((0,), *both.turns[1:]))
    expected, found = (last_of(one, 4, USUAL, "float64") for one in (both, late))
    assert found.V[15:].any()
    assert found.diagnostics.objective == pytest.approx(expected.diagnostics.objective, rel=0.05)


def test_few_users_at_first_do_not_take_dimensions_away():
    rng = np.random.default_rng(1)
    C = np.where(rng.random((40, 30)) < 0.3, 1.0, 0.0)
    given = Problem(C, np.repeat([0, 1], [2, 38]), ((0,), *((0, 1),) * 5))
    assert np.linalg.svd(last_of(given, 6, USUAL, "float64").V, compute_uv=False).min() > 1e-3


# --- mutations that the comparison must notice


def edited(function, **edits):
    """The function with some of its positional arguments replaced: edits are name=(place, change)."""

    def wrong(*given):
        changed = list(given)
        for place, change in edits.values():
            changed[place] = change(changed[place])
        return function(*changed)

    return wrong


def only_events(self, number, others):
    return np.asarray(self.weight * number**self.exponent)


def always_one(self, number, others):
    return np.asarray(self.weight * (number + self.alpha0 * others))


def constant(self, number, others):
    return np.full(np.shape(number), self.weight)


def others_unweighted(self, number, others):
    return np.asarray(self.weight * (number + others) ** self.exponent)


def added_again(self, shard, height, U, before, known, honest=EventSums.__init__):
    """Nothing of what was sent before is subtracted."""
    honest(self, shard, height, U, before, np.zeros_like(known))


def gram_added_again(now, before, honest=ials.user_change):
    return np.append(honest(now, None)[:-1], 0 if before is not None else len(now))


def gram_never_again(now, before, honest=ials.user_change):
    return honest(now, before) * (before is None)


def users_with_events(now, before, honest=ials.user_change):
    found = honest(now, before)
    found[-1] = 0 if before is not None else np.count_nonzero(now.any(axis=1))
    return found


def without_users(S, rank, honest=ials.user_sums):
    return honest(S, rank)._replace(number=0.0)


def other_order(V, honest=event_sums.turned):
    found = honest(V)
    return found._replace(squares=found.squares[::-1].copy())


def stale(self, server, total, broadcast, participants, honest=IALS.aggregate):
    """The server adds, but does not solve."""
    after = honest(self, server, total, broadcast, participants)
    return ServerState(after.S, server.V, after.seen)


def zero(values):
    return 0 * values


MUTATIONS = {
    "alpha0 missing in users": (weighted, "solve_events", edited(weighted.solve_events, shift=(4, zero))),
    "alpha0 missing in items": (weighted, "solve_event_sums", edited(weighted.solve_event_sums, common=(1, zero))),
    "half the penalty of users": (weighted, "solve_events", edited(weighted.solve_events, ridge=(5, lambda x: x / 2))),
    "penalty missing in items": (weighted, "solve_event_sums", edited(weighted.solve_event_sums, ridge=(2, zero))),
    "nu ignored": (IALS, "ridges", always_one),
    "counts ignored": (IALS, "ridges", constant),
    "only events counted": (IALS, "ridges", only_events),
    "alpha0 missing in the penalty": (IALS, "ridges", others_unweighted),
    "events added again": (EventSums, "__init__", added_again),
    "U'U added again": (ials, "user_change", gram_added_again),
    "U'U never again": (ials, "user_change", gram_never_again),
    "users without events not counted": (ials, "user_change", users_with_events),
    "items' penalty without users": (ials, "user_sums", without_users),
    "confidences without square root": (ials, "event_roots", lambda confidence, dtype: confidence.astype(dtype)),
    "confidences ignored": (ials, "event_roots", lambda confidence, dtype: np.ones(len(confidence), dtype)),
    "another eigenbasis": (event_sums, "turned", other_order),
    "no solve": (IALS, "aggregate", stale),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_comparison_notices(name, monkeypatch):
    where, what, wrong = MUTATIONS[name]
    monkeypatch.setattr(where, what, wrong)
    with pytest.raises(AssertionError, match=r"users|items|counts|objective"):
        compare_run(many_at_first(1), 4, Weights(0.5, 0.05, 0.5), tolerance=1e-6)


RAISING = [  # the objective in some round; the others are wrong in a way that lowers it or that joins show
    "alpha0 missing in users", "alpha0 missing in items", "U'U added again", "U'U never again", "confidences ignored",
    "confidences without square root", "another eigenbasis",
]  # fmt: skip
AT_JOINS = [
    "nu ignored", "counts ignored", "only events counted", "events added again", "users without events not counted",
    "items' penalty without users",
]  # fmt: skip


@pytest.mark.parametrize("name", RAISING + AT_JOINS)
def test_wrong_steps_raise_the_objective_or_add_something_else(name, monkeypatch):
    where, what, wrong = MUTATIONS[name]
    monkeypatch.setattr(where, what, wrong)
    with pytest.raises(AssertionError, match="raised the objective" if name in RAISING else "something else"):
        check_run(many_at_first(1), 4, Weights(0.5, 0.05, 0.5))


# --- measures


def with_held_out(seed: int, users: int = 30, items: int = 40) -> Problem:
    """Test and validation events, which some users do not have; clients join in the first three rounds."""
    rng = np.random.default_rng(seed)
    whole = events(rng, users, items, 0.4)
    part = rng.choice(3, whole.shape, p=[0.6, 0.25, 0.15])
    part[rng.random(users) < 0.2] = 0
    train, test, validation = (np.where(part == k, whole, 0) for k in range(3))
    return Problem(train, np.arange(users) % 3, ((0,), (0, 2), (1,), (0, 1, 2)), test, validation)


def metrics_of(order: list[int], wanted: set[int], counts: np.ndarray, users: int, K: int) -> dict[str, float]:
    """Of one user, place by place."""
    hits = [item in wanted for item in order[:K]]
    places = [place for place, hit in enumerate(hits, 1) if hit]
    ideal = sum(1 / math.log2(1 + place) for place in range(1, min(K, len(wanted)) + 1))
    shares = [min(max(counts[item], 1), users) / users for item in order[:K]]
    return {
        "recall": len(places) / len(wanted),
        "precision": len(places) / K,
        "ndcg": sum(1 / math.log2(1 + place) for place in places) / ideal,
        "hit_rate": float(bool(places)),
        "map": sum((k + 1) / place for k, place in enumerate(places)) / min(K, len(wanted)),
        "mrr": 1 / places[0] if places else 0.0,
        "novelty": -sum(map(math.log2, shares)) / max(len(shares), 1),
    }


def ranking_of(given: Problem, U: np.ndarray, V: np.ndarray, counted: np.ndarray) -> dict[str, float]:
    """Every metric of the model, and recall and NDCG of popularity, as means over users with held-out events."""
    counts, found = np.count_nonzero(given.C[counted], axis=0), {}
    for part, held_out, also in (("validation", given.validation, None), ("test", given.test, given.validation)):
        by_user = []
        for user in np.flatnonzero(held_out.any(axis=1)):
            seen = given.C[user] > 0 if also is None else (given.C[user] > 0) | (also[user] > 0)
            unseen, wanted = np.flatnonzero(~seen), set(np.flatnonzero(held_out[user]).tolist())
            best = sorted(unseen, key=lambda item, u=U[user]: (-float(u @ V[item]), item))
            popular = sorted(unseen, key=lambda item: (-counts[item], item))
            numbers = {}
            for K in (10, 20):
                own, base = (metrics_of(one, wanted, counts, len(counted), K) for one in (best, popular))
                numbers |= {f"{part}_{name}_{K}": value for name, value in own.items()}
                numbers |= {f"{part}_popular_{name}_{K}": base[name] for name in ("recall", "ndcg")}
            by_user.append(numbers)
        found |= {name: float(np.mean([one[name] for one in by_user])) for name in by_user[0]}
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_objective_and_ranking_are_those_of_the_definition(seed):
    """Before all have joined, popularity counts the users of those who have."""
    given = with_held_out(seed)
    engine, oracle = LocalEngine(given.shards()), None
    for round in islice(rounds(engine, given.settings(5)), len(given.turns) + 1):
        oracle = oracle or Oracle(given.C, given.owner, round.V, USUAL)
        oracle.round(given.turns[round.number - 1] if round.number else ())
        if round.number == 0:
            continue
        U = np.array([oracle.fitted(user, oracle.V) for user in range(len(given.C))])
        expected = ranking_of(given, U, oracle.V, oracle.counted())
        assert round.diagnostics.ranking == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert round.record()["test_ndcg_20"] == round.diagnostics.ranking["test_ndcg_20"]
        assert round.diagnostics.test_rmse is None
        if len(oracle.joined) == 3:
            near(round.diagnostics.objective, oracle.best_objective(oracle.V), 1e-9, "objective")


def test_a_model_of_planted_groups_beats_popularity():
    """Users of a group use the items of their group: each has a few of them left to find."""
    rng = np.random.default_rng(0)
    group = np.arange(60) % 4
    own = (np.arange(48) % 4) == group[:, None]
    train = own & (rng.random(own.shape) < 0.6)
    given = Problem(train.astype(float), np.arange(60) % 5, ((0, 1, 2, 3, 4),) * 8, (own & ~train).astype(float))
    *_, last = islice(rounds(LocalEngine(given.shards()), given.settings(6)), 9)
    found = last.diagnostics.ranking
    assert found["test_recall_20"] > 0.95
    assert found["test_recall_20"] > 1.5 * found["test_popular_recall_20"]
    assert not any(name.startswith("validation") for name in found)


# --- models


def ratings_of(C: np.ndarray) -> Ratings:
    return Ratings(np.arange(len(C)) + 100, np.arange(C.shape[1]) + 500, table(C, "float64"))


def trained(seed: int = 9, dtype: str = "float64", weights: Weights = USUAL, **changes: object):
    """A run over four clients, and its events."""
    C = events(np.random.default_rng(seed), 30, 20)
    given = Problem(C, np.arange(30) % 4, ((0, 1, 2, 3),) * 6)
    known = ratings_of(C)
    federation = Federation(given.shards(dtype), known.users, known.items)
    settings = given.settings(4, weights, dtype=dtype, active=4, sampler="passes", **changes)
    return train(federation, settings, Stop(rounds=6)).model, C


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_known_users_as_new_users_have_the_same_factors(dtype):
    model, C = trained(dtype=dtype)
    folded = model.fold_in(ratings_of(C))
    assert folded.U.tobytes() == model.U.tobytes()
    alone = model.fold_in(Ratings(np.array([7]), model.items, table(C[[3]], "float64")))
    assert alone.U.tobytes() == model.U[[3]].tobytes()
    oracle = Oracle(C, np.zeros(30, int), model.V, USUAL)
    expected = np.array([oracle.fitted(user, oracle.V) for user in range(30)])
    near(model.U, expected, {"float32": 1e-4, "float64": 1e-9}[dtype], "users")


def test_new_users_of_two_models():
    """Each is fitted to the items of its own model."""
    models = [trained(seed) for seed in (9, 10)]
    for model, C in (*models, *models):
        near(model.fold_in(ratings_of(C)).U, model.U, 1e-12, "new users")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_model_is_the_same_after_a_file(dtype, tmp_path):
    model, C = trained(dtype=dtype)
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    for name in ("items", "V", "users", "U"):
        one, other = getattr(model, name), getattr(again, name)
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
    assert again.settings.to_dict() == model.settings.to_dict()
    assert again.settings.make_algorithm().feedback == "implicit"
    users = model.users[:7]
    for found, expected in zip(again.recommend(users, 5), model.recommend(users, 5), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert again.fold_in(ratings_of(C)).U.tobytes() == model.U.tobytes()


def test_a_file_holds_all_digits_of_the_weights(tmp_path):
    weights = Weights(0.123456789012, 0.0123456789012, 1 / 3)
    model, _ = trained(weights=weights)
    model.save(tmp_path / "model.npz")
    found = load(tmp_path / "model.npz").settings.make_algorithm()
    assert (found.alpha0, found.weight, found.exponent) == weights


def plain_best(model, C, user: int, n: int, allowed) -> tuple[list[int], list[float]]:
    scores = model.V @ model.U[user]
    chosen = sorted((item for item in range(C.shape[1]) if allowed(item)), key=lambda item: -scores[item])[:n]
    return [500 + item for item in chosen], [float(scores[item]) for item in chosen]


def test_recommendations():
    """Scores are inner products, whatever the confidences were."""
    model, C = trained()
    rng = np.random.default_rng(0)
    only, exclude = rng.choice(20, 9, replace=False), rng.choice(20, 6, replace=False)
    for user in range(0, 30, 4):
        for more, allowed in (
            ({}, lambda item, user=user: not C[user, item]),
            ({"exclude_seen": False}, lambda item: True),
            ({"only": only + 500}, lambda item, user=user: item in only and not C[user, item]),
            ({"exclude": exclude + 500}, lambda item, user=user: item not in exclude and not C[user, item]),
            (
                {"only": only + 500, "exclude": exclude + 500, "exclude_seen": False},
                lambda item: item in set(only) - set(exclude),
            ),
        ):
            ids, scores = model.recommend(100 + user, 5, **more)
            expected = plain_best(model, C, user, 5, allowed)
            count = len(expected[0])
            assert ids.tolist() == expected[0] + [-1] * (5 - count)
            assert np.isnan(scores[count:]).all()
            np.testing.assert_allclose(scores[:count], expected[1], rtol=1e-12)
    with pytest.raises(InputError, match="leave no item"):
        model.recommend(100, only=[500], exclude=[500])


def test_predictions_are_inner_products():
    model, _ = trained()
    expected = model.U[[3, 3, 5]] @ model.V[[0, 1, 2]].T
    found = model.predict([103, 103, 105], [500, 501, 502])
    np.testing.assert_allclose(found, np.diag(expected), rtol=1e-12)


def test_similar_items():
    model, C = trained()
    size = np.linalg.norm(model.V, axis=1)
    used = np.flatnonzero(C.any(axis=0))
    cosines = model.V @ model.V.T / np.maximum(np.outer(size, size), 1e-300)
    np.fill_diagonal(cosines, -np.inf)
    ids, found = model.similar(used + 500, 4)
    for row, item in enumerate(used):
        expected = np.argsort(-cosines[item], kind="stable")[:4]
        assert ids[row].tolist() == (500 + expected).tolist()
        np.testing.assert_allclose(found[row], cosines[item, expected], rtol=1e-10)
    unused = np.setdiff1d(np.arange(20), used)
    with pytest.raises(InputError, match="without ratings or events"):
        model.similar(500 + unused[0])


def test_an_object_is_taken_as_its_spec():
    found = Settings.preset("implicit", algorithm=IALS(0.2, 0.03, 0.5), rank=3).make_algorithm()
    assert str(found) == "ials:0.2,0.03,0.5"


# --- the same bits every way


def many_clients(dtype: str) -> Problem:
    rng = np.random.default_rng(11)
    C = np.where(rng.random((120, 40)) < 0.15, rng.integers(1, 5, (120, 40)), 0)
    turns = tuple(tuple(np.flatnonzero(rng.random(21) < 0.5).tolist()) for _ in range(6))
    return Problem(C, np.minimum(np.arange(120) // 2, 20), turns)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_of_clients_give_the_bits_of_one_at_a_time(dtype, monkeypatch):
    given, found = many_clients(dtype), []
    for size in (members.BATCH, 40, 1):
        monkeypatch.setattr(members, "BATCH", size)
        engine = LocalEngine(given.shards(dtype))
        found.append(bits(engine, run(engine, given.settings(7, dtype=dtype), 6)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_report_the_bytes_of_one_at_a_time(dtype, monkeypatch):
    given, found = many_clients(dtype), []
    for size in (members.BATCH, 1):
        monkeypatch.setattr(members, "BATCH", size)
        history = islice(rounds(LocalEngine(given.shards(dtype)), given.settings(7, dtype=dtype)), 7)
        found.append([(round.bytes_up, round.bytes_down) for round in history])
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_do_not_depend_on_the_number_of_threads(dtype, monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 1_000)
    monkeypatch.setattr(threads, "SHARED", 1)
    given, found = many_clients(dtype), []
    for number in (1, 2, 3):
        engine = LocalEngine(given.shards(dtype))
        with threads.limited(number):
            found.append(bits(engine, run(engine, given.settings(7, dtype=dtype), 6)))
    assert found[0] == found[1] == found[2]


def test_a_resumed_run_has_the_same_bits():
    given = many_clients("float64")
    whole, parts = (LocalEngine(given.shards()) for _ in range(2))
    expected = bits(whole, run(whole, given.settings(5), 6))
    middle = run(parts, given.settings(5), 3)
    assert bits(parts, run(parts, given.settings(5), 6, middle)) == expected


def test_contributions_are_what_the_server_has_added():
    given = problem(3)
    engine = LocalEngine(given.shards())
    last = run(engine, given.settings(4), ROUNDS)
    algorithm = last.broadcast.settings.make_algorithm()
    pairs = zip(engine.shards, engine.states, strict=True)
    parts = [algorithm.contribution(shard, state, last.broadcast) for shard, state in pairs]
    near(last.server.S[:-1], sum(part["S"] for part in parts), 1e-12, "S")
    near(last.server.S[-1, :11], sum(part["users"][0] for part in parts), 1e-12, "users")
    assert last.server.seen == 5


# --- precision


def last_of(given: Problem, rank: int, weights: Weights, dtype: str) -> Round:
    engine = LocalEngine(given.shards(dtype))
    *_, last = islice(rounds(engine, given.settings(rank, weights, dtype=dtype)), len(given.turns) + 1)
    return last


@pytest.mark.parametrize(("seed", "rank", "weights"), CASES)
def test_float32_is_close_to_float64(seed, rank, weights):
    short, long = (last_of(many_at_first(seed), rank, weights, dtype) for dtype in ("float32", "float64"))
    assert short.V.dtype == np.float32
    near(short.V, long.V, 2e-3, "V")
    assert short.diagnostics.objective == pytest.approx(long.diagnostics.objective, rel=1e-4)


@given(drawn=problems(), rank=st.integers(1, 8), weights=WEIGHTS, scale=st.sampled_from([1e-3, 1.0, 1e3]))
@examples(25)
def test_runs_in_float32_stay_finite(drawn, rank, weights, scale):
    last = last_of(drawn._replace(C=scale * drawn.C), rank, weights, "float32")
    assert np.isfinite(last.V).all()
    assert np.isfinite(last.diagnostics.objective)


# --- secure sums


def test_secure_sums_stay_within_the_fixed_point_bound_of_plain_ones():
    """After 20 rounds the server's sums are off by half a step per client, and V by what follows from that."""
    given, clients, rank = problem(12, users=40, clients=8), 8, 4
    settings = given.settings(rank, active=4, sampler="passes", privacy="secagg", min_cohort=3)
    engine, kept = LocalEngine(given.shards()), list[Checkpoint]()
    history = list(islice(rounds(engine, settings, on_checkpoint=kept.append), ROUNDS + 1))
    last, algorithm = kept[-1], settings.make_algorithm()
    assert engine.joined == set(range(clients))
    pairs = zip(engine.shards, engine.states, strict=True)
    exact = [algorithm.contribution(shard, state.inner, last.broadcast) for shard, state in pairs]
    half = clients * 2.0 ** -(SUM_BITS + 1)
    S, users = (sum(one[name] for one in exact) for name in ("S", "users"))
    assert 0 < np.abs(last.server.S[:-1] - S).max() <= half
    assert np.abs(last.server.S[-1, : users.shape[1]] - users[0]).max() <= half
    assert (last.server.S[:-1, -1] == np.count_nonzero(given.C, axis=0)).all()
    assert last.server.S[-1, users.shape[1] - 1] == len(given.C)

    plain = algorithm.aggregate(
        ServerState(np.zeros_like(last.server.S), last.server.V),
        ials.Sums.of(S=S, users=users, joined=clients), last.broadcast, clients,
    )  # fmt: skip
    ridge = algorithm.ridges(S[:, -1], len(given.C))  # no eigenvalue is below it
    off = half * (math.sqrt(rank) + (1 + USUAL.alpha0) * rank * np.linalg.norm(last.server.V, axis=1)) / ridge
    assert (np.linalg.norm(last.server.V - plain.V, axis=1) <= off * (1 + 1e-6)).all()

    turns = tuple(round.participants for round in history[1:])
    assert {len(turn) for turn in turns} == {4}
    without = run(LocalEngine(given.shards()), given._replace(turns=turns).settings(rank), ROUNDS)
    near(history[-1].V, without.broadcast.V, 1e-5, "V")
    assert history[-1].V.tobytes() != without.broadcast.V.tobytes()
    assert history[-1].diagnostics.objective == pytest.approx(
        Oracle(given.C, given.owner, without.broadcast.V, USUAL).best_objective(without.broadcast.V), rel=1e-6
    )


def test_secure_sums_never_drift():
    given = problem(13, clients=4)
    engine = LocalEngine(given.shards())
    settings = given.settings(3, active=4, sampler="passes", privacy="secagg", min_cohort=3)
    last = run(engine, settings, 60)
    whole, rows = sum(state.whole for state in engine.states) * 2.0**-SUM_BITS, last.server.S
    assert (whole[: rows[:-1].size] == rows[:-1].ravel()).all()
    assert (whole[rows[:-1].size :] == rows[-1, :7]).all()


@pytest.mark.parametrize("privacy", ["dp", "dp+secagg"])
def test_differential_privacy_is_refused_with_the_reason(privacy):
    for preset, more in (("implicit", {}), ("bayes", {"algorithm": "ials"})):
        with pytest.raises(InputError, match=r"what one user adds to the sums is not bounded; use .*secagg"):
            Settings.preset(preset, rank=2, privacy=privacy, **more)
