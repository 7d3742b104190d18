"""Variational Bayes by sums: the posteriors of a slow and dense version, its bound, and the same bits every way."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms import bayes, bayes_client, bayes_server, gaussians, home, incidence, posterior, side
from fedmc.algorithms.bayes import Bayes, BayesState
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Shared, length
from fedmc.algorithms.posterior import prior_row
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Federation, Shard, make_shards, narrow
from fedmc.errors import InputError
from fedmc.kernels import moments, threads
from fedmc.training import members, memory
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Checkpoint, Round, rounds
from fedmc.training.simulation import train
from fedmc.training.spill import SpilledStates
from fedmc.training.stopping import Stop
from tests.bayes_oracle import NOTHING, Gauss, Home, Hyper, Oracle, Prior, Side
from tests.conftest import planted

ROUNDS = 20


# --- runs, and the oracle beside them


@dataclass(frozen=True)
class Scripted:
    """A sampler that follows a list: the participants of rounds 1, 2, ..."""

    turns: tuple[tuple[int, ...], ...]
    independent = False

    def draw(self, round: int, clients: int, seed: int) -> np.ndarray:
        return np.array(self.turns[round - 1], np.int64)

    def probabilities(self, clients: int) -> np.ndarray:
        return np.ones(clients)


class Problem(NamedTuple):
    """Ratings (NaN: none), each user's client, who takes part when, and what is known besides ratings."""

    M: np.ndarray
    owner: np.ndarray
    turns: tuple[tuple[int, ...], ...]
    side: Side = NOTHING

    def shards(self, dtype: str = "float64") -> list[Shard]:
        """Unlike `make_shards`, also of clients and users without ratings."""
        made = []
        for client in range(int(self.owner.max()) + 1):
            users = np.flatnonzero(self.owner == client)
            mine = self.M[users]
            place = np.nonzero(~np.isnan(mine))
            matrix = sparse.csr_array((mine[place].astype(dtype), place), shape=mine.shape)
            own, seen = self.side.user_features, self.side.also_seen
            features = None if own is None or client in self.side.without_features else own[users]
            events = None if seen is None else narrow(sparse.csr_array(seen[users].astype(np.int8)))
            made.append(Shard.of(client, users, narrow(matrix), features=features, also_seen=events))
        return made

    def engine(self) -> LocalEngine:
        return LocalEngine(self.shards(), item_features=self.side.item_features)

    def settings(self, rank: int, active: int, **changes: object) -> Settings:
        given = {"dtype": "float64", "sampler": Scripted(self.turns), "implicit": self.side.implicit}
        return Settings.preset("bayes", rank=rank, active=active, seed=self.side.seed, **given | changes)


def problem(seed: int, users: int = 24, items: int = 9, clients: int = 5, number: int = ROUNDS) -> Problem:
    """Clients of unequal sizes that join at different rounds and then take part at random, some rounds without any."""
    rng = np.random.default_rng(seed)
    M = 3.5 + rng.normal(size=(users, 2)) @ rng.normal(size=(2, items)) + 0.3 * rng.normal(size=(users, items))
    M[rng.random(M.shape) > 0.45] = np.nan
    M[rng.integers(users)] = np.nan  # somebody without ratings
    owner = np.concatenate([np.arange(clients), rng.choice(clients, users - clients, p=rng.dirichlet([2.0] * clients))])
    joins = rng.integers(1, 1 + number // 2, size=clients)
    joins[rng.integers(clients)] = 1
    takes_part = rng.random((number, clients)) < 0.5
    for client, first in enumerate(joins):
        takes_part[: first - 1, client], takes_part[first - 1, client] = False, True
    takes_part[number // 3] = False
    return Problem(M, owner, tuple(tuple(np.flatnonzero(row).tolist()) for row in takes_part))


SIDES = {  # what is known besides ratings: implicit terms, events, features of items, of users, of only some users
    "implicit": "i", "implicit and events": "ie", "everything": "ietu", "features": "tu", "users' features": "iU",
    "items' features": "t",
}  # fmt: skip


def with_side(given: Problem, kinds: str, seed: int = 0) -> Problem:
    """The problem with side information that has something to do with the ratings, and an item that nobody rated."""
    given.M[:, 5] = np.nan
    rng, (users, items) = np.random.default_rng([seed, 99]), given.M.shape
    filled = np.where(np.isnan(given.M), 3.5, given.M)
    of_items = np.column_stack([filled.mean(axis=0), rng.normal(size=items), rng.normal(size=items)])
    of_users = np.column_stack([filled.mean(axis=1), rng.normal(size=users)])
    scaled = [(X - X.mean(axis=0)) / X.std(axis=0) for X in (of_items, of_users)]
    known = Side(
        implicit="i" in kinds,
        also_seen=rng.random(given.M.shape) < 0.15 if "e" in kinds else None,
        item_features=scaled[0] if "t" in kinds else None,
        user_features=scaled[1] if "u" in kinds.lower() else None,
        without_features=(1, 3) if "U" in kinds else (),
        seed=seed,
    )
    return given._replace(side=known)


def full(packed: np.ndarray, size: int) -> np.ndarray:
    """A symmetric matrix from its packed lower triangle."""
    found = np.zeros((size, size))
    found[np.tril_indices(size)] = packed
    return found + np.tril(found, -1).T


def items_of(broadcast: Broadcast) -> list[Gauss]:
    """The items' posteriors that clients are sent."""
    known, size = bayes_server.posterior_of(broadcast), broadcast.settings.rank + 1
    pairs = zip(known.item_means, known.item_covariances, strict=True)
    return [Gauss(mean, full(packed, size)) for mean, packed in pairs]


def hyper_of(broadcast: Broadcast) -> Hyper:
    noise, users, items = bayes_server.posterior_of(broadcast).hyper
    return Hyper(noise, Prior(*users), Prior(*items))


def hyper_at(last: Checkpoint) -> Hyper:
    """Noise and priors that the server keeps, with weights and ridges; clients are sent the same."""
    noise, users, items = bayes_server.sums_of(last.server, last.broadcast.settings).hyper
    sent = hyper_of(last.broadcast)
    assert sent.noise == noise
    for one, other in ((sent.users, users), (sent.items, items)):
        assert (one.mean == other.mean).all()
        assert (one.precision == other.precision).all()
    assert (sent.users.weights == users.weights).all()
    return Hyper(noise, Prior(*users), Prior(*items))


def homes_of(engine: LocalEngine) -> dict[int, Home]:
    """Of each client that has joined: the weights of its users' own features, and their ridge."""
    joined = [(client, state) for client, state in enumerate(engine.states) if state is not None]
    return {client: Home(state.home, float(state.ridge[0])) for client, state in joined}


def users_of(engine: LocalEngine) -> dict[int, Gauss]:
    """The posteriors behind the contributions of all clients that have joined, by user."""
    found = {}
    for shard, state in zip(engine.shards, engine.states, strict=True):
        if state is not None:
            size = state.Z.shape[1]
            for user, mean, packed in zip(shard.users.tolist(), state.Z, state.covariances, strict=True):
                found[user] = Gauss(mean, full(packed, size))
    return found


def near(found: Any, expected: Any, tolerance: float, what: str) -> None:
    """Equal, relative to the largest number."""
    size = np.abs(expected).max(initial=1e-300) if np.ndim(expected) else abs(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size, err_msg=what, equal_nan=False)


def compare(oracle: Oracle, round: Round, engine: LocalEngine, last: Checkpoint, tolerance: float = 1e-9) -> None:
    """Posteriors of users and items, noise and priors are the oracle's, and so are weights and ridges."""
    found, items = users_of(engine), items_of(round.broadcast)
    assert found.keys() == oracle.users.keys()
    for what, pairs in (
        *([("users", [(found[i], oracle.users[i]) for i in found])] if found else []),
        ("items", list(zip(items, oracle.items, strict=True))),
    ):
        means, covariances = (np.array([[one[k], other[k]] for one, other in pairs]) for k in (0, 1))
        near(means[:, 0], means[:, 1], tolerance, f"means of {what}, round {round.number}")
        near(covariances[:, 0], covariances[:, 1], tolerance, f"covariances of {what}, round {round.number}")
    for shard, state in zip(engine.shards, engine.states, strict=True):
        if state is not None and len(shard.users):
            expected = np.array([oracle.means[i] for i in shard.users.tolist()])
            near(np.delete(state.U, -2, axis=1), expected, tolerance, "user means without extrapolation")
            log_dets = [np.linalg.slogdet(oracle.users[i].cov)[1] for i in shard.users.tolist()]
            near(state.log_dets, np.array(log_dets), tolerance, "log determinants")
            near(state.regressors, oracle.a_users[shard.users, :-1], tolerance, "regressors of users")
    hyper, homes = hyper_at(last), homes_of(engine)
    near(hyper.noise, oracle.hyper.noise, tolerance, "noise")
    for rows in ("users", "items"):
        for name in ("mean", "precision", "weights", "ridge"):
            expected = getattr(getattr(oracle.hyper, rows), name)
            size = max(np.abs(expected).max(initial=0), 1e-3)  # a prior mean may be next to nothing
            near(
                getattr(getattr(hyper, rows), name) / size, expected / size, tolerance, f"{name} of the prior of {rows}"
            )
    assert homes.keys() == oracle.homes.keys()
    for client, home_weights in homes.items():
        near(home_weights.ridge, oracle.homes[client].ridge, tolerance, f"ridge of users at client {client}")
        size = max(np.abs(oracle.homes[client].H).max(initial=0), 1e-3)
        near(home_weights.H / size, oracle.homes[client].H / size, tolerance, f"weights of users at client {client}")


def compare_run(given: Problem, rank: int, active: int, extrapolation: float, tolerance: float = 1e-9) -> None:
    """A run and the oracle, side by side: posteriors in every round, and the bound of the server's sums."""
    settings = given.settings(rank, active, extrapolation=extrapolation)
    engine, kept = given.engine(), list[Checkpoint]()
    oracle = None
    for round in islice(rounds(engine, settings, on_checkpoint=kept.append), len(given.turns) + 1):
        if oracle is None:
            oracle = Oracle(given.M, given.owner, round.V, active, extrapolation, given.side)
            found = bayes_server.sums_of(kept[-1].server, settings).side.regressors()
            oracle.turn(found)
            near(found, oracle.a_items[:, :-1], tolerance, "regressors of items")
            near(tuple(round.scaling), (oracle.mean, oracle.scale), 1e-12, "scaling")
            assert round.diagnostics.bound is None
            continue
        assert round.participants == given.turns[round.number - 1]
        oracle.round(round.number, round.participants)
        compare(oracle, round, engine, kept[-1], tolerance)
        if not oracle.joined:
            assert round.diagnostics.bound is None
            continue
        near(round.diagnostics.bound, oracle.bound().total(), tolerance, f"the bound, round {round.number}")
    assert oracle is not None
    assert oracle.joined == set(range(oracle.clients))
    assert oracle.warm_rounds < ROUNDS - 5  # both phases


CASES = [  # seed, rank, active, extrapolation
    (0, 3, 2, 0.0), (1, 3, 2, 0.5), (2, 1, 5, 0.0), (3, 1, 3, 0.5), (4, 5, 5, 0.5), (5, 8, 2, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "rank", "active", "extrapolation"), CASES)
def test_posteriors_and_the_bound_are_those_of_the_definition(seed, rank, active, extrapolation):
    compare_run(problem(seed), rank, active, extrapolation)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
def test_posteriors_and_the_bound_are_those_of_the_definition_many_times(seed):
    compare_run(problem(seed, users=40, items=15, clients=7), 1 + seed % 9, 1 + seed % 7, 0.5 * (seed % 2))


@pytest.mark.parametrize("extrapolation", [0.0, 0.5])
@pytest.mark.parametrize("kinds", SIDES.values(), ids=SIDES)
def test_prior_means_are_those_of_the_definition(kinds, extrapolation):
    """With 18 items there are four directions; clients join late and take part at random."""
    given = with_side(problem(40, items=18), kinds)
    compare_run(given, 3, 3, extrapolation)
    if "i" in kinds:
        assert given.engine().items // 4 == 4


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", SIDES.values(), ids=SIDES)
@pytest.mark.parametrize("seed", range(140, 148))
def test_prior_means_are_those_of_the_definition_many_times(seed, kinds):
    given = with_side(problem(seed, users=40, items=30, clients=7), kinds, seed)
    compare_run(given, 1 + seed % 6, 2 + seed % 6, 0.5 * (seed % 2))


# --- mutations that the comparison must notice


def without_covariances(means, covariances, honest=moments.moment_lines):
    """E[w w'] = E[w] E[w]', E[w c] = E[w] E[c]."""
    return honest(means, np.zeros_like(covariances))


def without_bias_covariances(means, covariances, honest=moments.moment_lines):
    """E[w c] = E[w] E[c]: Cov(w, c) left out."""
    kept, size = covariances.copy(), means.shape[1]
    kept[:, -size:-1] = 0
    return honest(means, kept)


def as_if_new(part, now, before):
    """A client that sends its whole contribution again."""
    return part(now)


def stale(part, now, before):
    """A client whose changes never arrive."""
    return part(now) if before is None else 0 * part(now)


def without_second(means, covariances, log_dets, regressors=None, squares=True, honest=gaussians.summed):
    return honest(means, np.zeros_like(covariances), log_dets, regressors, squares)


MUTATIONS = {
    "no covariances": (moments, "moment_lines", without_covariances),
    "no Cov(w, c)": (moments, "moment_lines", without_bias_covariances),
    "counted twice": (bayes_client, "change", as_if_new),
    "never again": (bayes_client, "change", stale),
    "priors of means": (gaussians, "summed", without_second),
    "mean weight": (gaussians, "MEAN_WEIGHT", 1.01),
    "prior weight": (gaussians, "PRIOR_WEIGHT", 0.401),
    "noise weight": (gaussians, "NOISE_WEIGHT", 2.01),
    "warm-up": (bayes_client, "WARM_PASSES", 3),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_comparison_notices(name, monkeypatch):
    where, what, wrong = MUTATIONS[name]
    monkeypatch.setattr(where, what, wrong)
    with pytest.raises(AssertionError, match=r"users|items|noise|prior|determinants|bound|joined"):
        compare_run(problem(0), 3, 2, 0.0, tolerance=1e-6)


def without_regressors(means, covariances, log_dets, regressors=None, squares=True, honest=gaussians.summed):
    return honest(means, covariances, log_dets, np.zeros_like(regressors), squares)


def certain(prior, covariance, groups, honest=gaussians.learned_ridge):
    """A ridge from the expected weights alone, as if they were known exactly."""
    return honest(prior, np.zeros_like(covariance), groups)


def at_the_mean(self, seen, features=None):
    """Users whose prior mean does not depend on what they rated."""
    return np.tile(self.hyper.users.mean, (seen.shape[0], 1))


def at_first(sums, honest=bayes_server.learned):
    """Weights that are never learned."""
    found = honest(sums)
    return found._replace(items=found.items._replace(weights=np.zeros_like(found.items.weights)))


def as_if_rated(prior, side, raters, honest=side.unrated):
    """Items without ratings whose covariance does not know that their raters are unknown."""
    _, root = honest(prior._replace(weights=0 * prior.weights), side, raters)
    return honest(prior, side, raters)[0], root


SIDE_MUTATIONS = {
    "no sums with regressors": (gaussians, "summed", without_regressors),
    "weights known exactly": (gaussians, "learned_ridge", certain),
    "no regressors at clients": (posterior.Posterior, "prior_means", at_the_mean),
    "no weights of items": (bayes, "learned", at_first),
    "events left out": (Shard, "incidence", property(lambda self: self.by_user)),
    "features left in the sums": (home, "offsets", lambda shard, own: np.zeros((len(shard.users), 4))),
    "no penalty of the users' weights": (home, "counted", lambda rows, shard, own: rows),
    "users' weights never learned": (home, "fitted", lambda shard, own, unexplained, precision: own),
    "weight of the hyperprior": (gaussians, "PRIOR_WEIGHT", 0.401),
    "weight of ridges": (gaussians, "RIDGE_WEIGHT", 0.101),
    "guess of the implicit ridge": (side, "IMPLICIT_RIDGE", 10.1),
    "guess of the items' ridge": (side, "FEATURE_RIDGE", 30.1),
    "ridge of items without ratings": (side, "UNRATED_RIDGE", 10.1),
    "items without ratings at their prior": (bayes_server, "unrated", as_if_rated),
    "guess of the users' ridge": (home, "RIDGE", 30.1),
    "a step less": (incidence, "STEPS", 4),
    "a direction less": (incidence, "DIRECTIONS", 3),
    "other first directions": (incidence, "directions_rng", lambda seed: np.random.default_rng(7)),
}


@pytest.mark.parametrize("name", SIDE_MUTATIONS)
def test_the_comparison_of_prior_means_notices(name, monkeypatch):
    where, what, wrong = SIDE_MUTATIONS[name]
    monkeypatch.setattr(where, what, wrong)
    with pytest.raises(AssertionError, match=r"users|items|noise|prior|bound|shapes"):
        compare_run(with_side(problem(40, items=18), "ietu"), 3, 3, 0.0, tolerance=1e-6)


@pytest.mark.parametrize("name", ["lines", "user_sums"])
def test_the_comparison_notices_extrapolation_that_is_left_out(name, monkeypatch):
    """Sums made of the means themselves, not of what lies beyond them."""
    honest = getattr(bayes_client, name)

    def at_the_means(*arguments):
        with_state = [
            one._replace(Z=np.ascontiguousarray(np.delete(one.U, -2, axis=1))) if isinstance(one, BayesState) else one
            for one in arguments
        ]
        return honest(*with_state)

    monkeypatch.setattr(bayes_client, name, at_the_means)
    with pytest.raises(AssertionError, match=r"items|noise|prior|bound"):
        compare_run(problem(1), 3, 2, 0.5, tolerance=1e-6)


# --- the same bits every way


def run(engine: LocalEngine, settings: Settings, number: int, checkpoint: Checkpoint | None = None) -> Checkpoint:
    """The state after round `number`, from the start or from a checkpoint."""
    kept: list[Checkpoint] = []
    for round in rounds(engine, settings, checkpoint=checkpoint, on_checkpoint=kept.append, measure_every=100):
        if round.number == number:
            return kept[-1]
    raise AssertionError


def bits(engine: LocalEngine, last: Checkpoint) -> dict[str, bytes]:
    """Everything that the server and the clients keep."""
    arrays = {"V": last.broadcast.V, "S": last.server.S, "server V": last.server.V, "seen": np.array(last.server.seen)}
    arrays |= last.broadcast.shared.arrays
    for client, state in enumerate(engine.states):
        if state is not None:
            arrays |= {f"{name} of client {client}": value for name, value in state._asdict().items()}
    return {name: np.asarray(value).tobytes() for name, value in arrays.items()}


def many_clients(dtype: str = "float64") -> list[Shard]:
    return make_shards(planted(users=120, items=40), np.minimum(np.arange(120) // 2, 20), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_of_clients_change_no_bit(dtype, monkeypatch):
    settings = Settings.preset("bayes", rank=4, active=11, dtype=dtype)
    met: list[int] = []
    honest = bayes.together
    monkeypatch.setattr(bayes, "together", lambda shards: met.append(len(shards)) or honest(shards))
    found = []
    for ratings in (0, 100, 10**6):
        monkeypatch.setattr(members, "BATCH", ratings)
        engine = LocalEngine(many_clients(dtype))
        found.append(bits(engine, run(engine, settings, 7)))
    assert found[0] == found[1] == found[2]
    assert len(set(met)) > 2  # one by one, some, and all of a round


@pytest.mark.parametrize("batch", [0, 10**6])
def test_the_number_of_threads_changes_no_bit(batch, monkeypatch):
    """Over the clients, and over the rows of a batch."""
    settings = Settings.preset("bayes", rank=4, active=11)
    monkeypatch.setattr(members, "BATCH", batch)
    monkeypatch.setattr(threads, "WORTH", 1)
    monkeypatch.setattr(threads, "SHARED", 0)
    shared: list[int] = []
    honest = threads._share

    def share(function, tasks, count):
        shared.append(len(tasks))
        return honest(function, tasks, count)

    monkeypatch.setattr(threads, "_share", share)
    found = []
    for count in (1, 2, 3):
        engine = LocalEngine(many_clients())
        shared.clear()  # also in making the shards
        with threads.limited(count):
            found.append(bits(engine, run(engine, settings, 6)))
        assert bool(shared) == (count > 1)
    assert found[0] == found[1] == found[2]
    assert max(shared) > 1


@pytest.mark.parametrize("stopped", [1, 4, 6])  # in the first pass, at the end of the warm-up, and after it
def test_a_run_resumed_from_a_checkpoint_gives_the_same_bits(stopped, tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.federation.server import checkpoint
    from fedmc.federation.server.checkpoint import SavedRun

    settings = Settings.preset("bayes", rank=3, active=3)
    straight, engine = (LocalEngine(make_shards(planted(), np.arange(40) % 6, "float64")) for _ in range(2))
    expected = bits(straight, run(straight, settings, 9))
    checkpoint.save(tmp_path / "run", SavedRun("a-run", run(engine, settings, stopped), {}, "a-hash"))
    last = checkpoint.load(tmp_path / "run").checkpoint
    assert last.number == stopped
    assert bits(engine, run(engine, settings, 9, last)) == expected


def test_states_on_disk_change_no_bit(tmp_path):
    settings, shards = Settings.preset("bayes", rank=3, active=3), many_clients()
    engines = LocalEngine(shards), LocalEngine(shards, tmp_path)
    assert isinstance(engines[1].states, SpilledStates)
    kept, spilled = (bits(engine, run(engine, settings, 16)) for engine in engines)
    assert kept == spilled
    assert len(kept) > 4 * len(shards)


def test_a_model_is_the_same_with_states_on_disk(tmp_path):
    ratings = planted()
    federation = Federation(make_shards(ratings, np.arange(40) % 6, "float64"), ratings.users, ratings.items)
    settings = Settings.preset("bayes", rank=3, active=3)
    models = [train(federation, settings, Stop(6), spill=folder).model for folder in (None, tmp_path)]
    assert models[0].U.tobytes() == models[1].U.tobytes()
    assert models[0].V.tobytes() == models[1].V.tobytes()
    one, other = (model.posterior for model in models)
    assert one.user_covariances.tobytes() == other.user_covariances.tobytes()
    assert one.item_covariances.tobytes() == other.item_covariances.tobytes()


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_round_that_was_rolled_back_never_was(number, spilled, tmp_path):
    """Who joined in it is new again, and the same round gives the same bits."""
    settings = Settings.preset("bayes", rank=3, active=3)
    shards = make_shards(planted(), np.arange(40) % 6, "float64")
    engine = LocalEngine(shards, tmp_path if spilled else None)
    last = run(engine, settings, number)
    before, joined = bits(engine, last), set(engine.joined)
    after = bits(engine, run(engine, settings, number + 1, last))
    assert after != before
    engine.rollback()
    assert bits(engine, last) == before
    assert engine.joined == joined
    assert bits(engine, run(engine, settings, number + 1, last)) == after


MODES = {
    "plain": {"active": 2},
    "secagg": {"active": 3, "privacy": "secagg", "min_cohort": 3},
    "clipped": {"active": 3, "clip": 1.0},
}


@pytest.mark.parametrize("mode", MODES)
def test_the_same_bits_in_a_federation(mode, tmp_path):
    """To the round after the warm-up and beyond: noise and priors are learned from the nodes' sums."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from tests import world
    from tests.test_every_algorithm import check_same

    settings = Settings.preset("bayes", rank=3, **MODES[mode])
    assert bayes_client.warm_rounds(settings, world.NODES) == 4
    expected = world.local(settings, 6)[1]
    assert expected.broadcast.shared.arrays["noise"] != gaussians.WARM_NOISE
    nodes = world.World(tmp_path)
    check_same(nodes.finish(settings, 6), expected)
    nodes.close()


@pytest.mark.parametrize("mode", ["secagg", "clipped"])
def test_fixed_point_sums_never_drift(mode):
    """After many rounds the server's sums are those of what clients know to be counted, to the last step."""
    settings = Settings.preset("bayes", rank=3, **MODES[mode])
    engine = LocalEngine(make_shards(planted(), np.arange(40) % 4, "float64"))
    last = run(engine, settings, 60)
    sums = bayes_server.sums_of(last.server, settings)
    whole = sum(state.whole for state in engine.states)
    assert (whole[: sums.items.size] * 2.0**-SUM_BITS == sums.items.ravel()).all()
    assert (whole[sums.items.size :] * 2.0**-20 == sums.users).all()
    if mode == "secagg":
        exact = [
            settings.make_algorithm().contribution(shard, state.inner, last.broadcast)
            for shard, state in zip(engine.shards, engine.states, strict=True)
        ]
        for name, found, bit in (("S", sums.items, SUM_BITS), ("users", sums.users, 20)):
            assert np.abs(found - sum(one[name] for one in exact)).max() <= 4 * 2.0 ** -(bit + 1)


def test_secure_sums_give_the_model_of_plain_ones():
    plain, hidden = (
        Settings.preset("bayes", rank=3, active=4, **more) for more in ({}, {"privacy": "secagg", "min_cohort": 3})
    )
    found = [run(LocalEngine(make_shards(planted(), np.arange(40) % 4, "float64")), one, 12) for one in (plain, hidden)]
    near(found[1].broadcast.V, found[0].broadcast.V, 1e-4, "V")
    near(found[1].broadcast.shared.arrays["noise"], found[0].broadcast.shared.arrays["noise"], 1e-4, "noise")
    assert found[0].broadcast.V.tobytes() != found[1].broadcast.V.tobytes()


# --- precision, scales, and what is missing


def last_of(given: Problem, rank: int, active: int, dtype: str = "float64", **changes: object) -> Round:
    engine = LocalEngine(given.shards(dtype))
    *_, last = islice(rounds(engine, given.settings(rank, active, dtype=dtype, **changes)), len(given.turns) + 1)
    return last


def check_models(one: Round, other: Round, tolerance: float) -> None:
    found, expected = items_of(one.broadcast), items_of(other.broadcast)
    near([item.mean for item in found], np.array([item.mean for item in expected]), tolerance, "means")
    near([item.cov for item in found], np.array([item.cov for item in expected]), tolerance, "covariances")
    one_hyper, other_hyper = hyper_of(one.broadcast), hyper_of(other.broadcast)
    near(one_hyper.noise, other_hyper.noise, tolerance, "noise")
    near(one_hyper.items.precision, other_hyper.items.precision, tolerance, "precision of items")
    near(one_hyper.users.precision, other_hyper.users.precision, tolerance, "precision of users")


@pytest.mark.parametrize("extrapolation", [0.0, 0.5])
def test_float32_is_close_to_float64(extrapolation):
    given = problem(6)
    short, long = (last_of(given, 4, 3, dtype, extrapolation=extrapolation) for dtype in ("float32", "float64"))
    assert short.V.dtype == np.float32
    assert short.broadcast.shared.arrays["item_roots"].dtype == np.float32
    check_models(short, long, 1e-3)
    assert short.diagnostics.bound == pytest.approx(long.diagnostics.bound, rel=1e-4)
    assert short.diagnostics.train_rmse == pytest.approx(long.diagnostics.train_rmse, rel=1e-4)


def test_ratings_on_another_scale_give_the_same_model():
    given = problem(7)
    one, other = last_of(given, 3, 2), last_of(given._replace(M=20 * given.M + 7), 3, 2)
    check_models(other, one, 1e-9)
    near(other.V, one.V, 1e-9, "V")
    assert other.scaling == pytest.approx((20 * one.scaling.mean + 7, 20 * one.scaling.scale), rel=1e-12)
    assert other.diagnostics.bound == pytest.approx(one.diagnostics.bound, rel=1e-9)
    assert other.diagnostics.train_rmse == pytest.approx(20 * one.diagnostics.train_rmse, rel=1e-9)


@pytest.mark.parametrize("number", [3, ROUNDS])  # in the warm-up, and after it
def test_an_item_that_nobody_rated_has_its_prior(number):
    given = problem(8)
    given.M[:, 4] = np.nan
    given = given._replace(turns=given.turns[:number])
    last = last_of(given, 3, 2)
    known = bayes_server.posterior_of(last.broadcast)
    assert (known.hyper.noise != gaussians.WARM_NOISE) == (number == ROUNDS)
    mean, covariance = prior_row(known.hyper.items, np.dtype(np.float64))
    np.testing.assert_allclose(known.item_means[4], mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(known.item_covariances[4], covariance, rtol=0, atol=1e-14)
    assert np.abs(known.item_covariances - covariance).max(axis=1)[[0, 1, 2, 3, 5, 6, 7, 8]].min() > 1e-4
    # Nor has it a part in what is learned: without it all others are the same.
    engine = LocalEngine(given._replace(M=np.delete(given.M, 4, axis=1)).shards())
    settings = given.settings(3, 2)
    start = next(rounds(LocalEngine(given.shards()), settings)).V
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedmc.training.rounds.start_items", lambda items, settings: np.delete(start, 4, axis=0))
        *_, without = islice(rounds(engine, settings), number + 1)
    near(without.V, np.delete(last.V, 4, axis=0), 1e-11, "V of the others")
    assert without.diagnostics.bound == pytest.approx(last.diagnostics.bound, rel=1e-11)


def test_a_client_without_users_changes_no_bit():
    given = problem(9)
    shards, everybody = given.shards(), 8 * ((0, 1, 2, 3, 4),)
    settings = given.settings(3, 5, sampler=Scripted(everybody))
    alone = LocalEngine(shards)
    expected = bits(alone, run(alone, settings, 8))
    nobody = Shard.of(5, np.empty(0, np.int64), narrow(sparse.csr_array((0, given.M.shape[1]))))
    engine = LocalEngine([*shards, nobody])
    with_nobody = settings.replace(active=6, sampler=Scripted(8 * ((0, 1, 2, 3, 4, 5),)))
    found = bits(engine, run(engine, with_nobody, 8))
    for name in expected.keys() - {"seen"}:
        assert found[name] == expected[name], name


def test_users_without_ratings_have_their_prior():
    """All users of client 2: they count as users, and nothing fails; the oracle counts them too."""
    given = problem(10)
    given.M[given.owner == 2] = np.nan
    compare_run(given, 3, 2, 0.5)
    engine = LocalEngine(given.shards())
    last = run(engine, given.settings(3, 2), ROUNDS)
    hyper, found = hyper_of(last.broadcast), bayes.Bayes().users_at(engine.shards[2], None, last.broadcast)
    near(np.delete(found, -2, axis=1), np.tile(hyper.users.mean, (len(found), 1)), 1e-12, "users")


def test_clients_without_ratings_may_join_first_also_after_the_warm_up():
    """Nothing is learned before there is a rating."""
    given = problem(11)
    given.M[given.owner == 2] = np.nan
    given = given._replace(turns=(*3 * ((),), *3 * ((2,),), *14 * ((0, 1, 2, 3, 4),)))
    compare_run(given, 3, 5, 0.0)


# --- what a node accepts


@pytest.fixture(scope="module")
def honest() -> Broadcast:
    """A broadcast of the learned phase."""
    engine = LocalEngine(make_shards(planted(), np.arange(40) % 4, "float64"))
    return run(engine, Settings.preset("bayes", rank=3, active=2), 7).broadcast._replace(task="round")


def changed(array: np.ndarray, place: object, value: float) -> np.ndarray:
    found = array.copy()
    found[place] = value
    return found


def scaled_eigenvalue(precision: np.ndarray, value: float) -> np.ndarray:
    """The same precision with another smallest eigenvalue."""
    values, vectors = np.linalg.eigh(precision)
    found = (vectors * np.append(value, values[1:])) @ vectors.T
    return (found + found.T) / 2


NAMES = ("item_roots", "noise", "user_mean", "user_precision", "item_mean", "item_precision")
REFUSED: list[tuple[str, str, Any, str]] = [
    *((name, "missing", lambda array: None, "missing") for name in NAMES),
    *((name, "longer", lambda array: np.concatenate([array, array]), "another shape") for name in NAMES),
    *((name, "another axis", lambda array: array[..., None], "another shape") for name in NAMES),
    *((name, "empty", lambda array: array[:0], "another shape") for name in NAMES),
    *((name, "NaN", lambda array: changed(array, -1, np.nan), "not finite") for name in NAMES),
    *((name, "infinite", lambda array: changed(array, -1, -np.inf), "not finite") for name in NAMES),
    *((name, "1e300", lambda array: changed(array, -1, 1e300), "too large") for name in NAMES),
    *(
        ("noise", str(value), lambda array, value=value: np.array([value]), "noise must be")
        for value in (0.0, -1, 1e-9)
    ),
    ("item_roots", "huge", lambda array: changed(array, (2, 3), 2e6), "item_roots has numbers beyond"),
    *(
        (name, kind, change, "no precision")
        for name in ("user_precision", "item_precision")
        for kind, change in {
            "indefinite": lambda array: scaled_eigenvalue(array, -0.5),
            "singular": lambda array: scaled_eigenvalue(array, 0.0),
            "zero": np.zeros_like,
            "negative": lambda array: -array,
            "asymmetric": lambda array: array + np.triu(np.full_like(array, 1e-3), 1),
            "huge": lambda array: np.full_like(array, 9e8) + np.eye(len(array)),
        }.items()
    ),
]


def test_an_honest_broadcast_is_accepted(honest):
    Bayes().check_broadcast(honest)
    Bayes().check_broadcast(honest._replace(task="measure"))
    Bayes().check_broadcast(honest._replace(task="moments", shared=Shared()))  # at the start there is nothing yet


@pytest.mark.parametrize(("name", "kind", "change", "message"), REFUSED, ids=[f"{one[0]}-{one[1]}" for one in REFUSED])
def test_what_no_honest_server_sends_is_refused(name, kind, change, message, honest):
    arrays = dict(honest.shared.arrays)
    wrong = change(arrays.pop(name))
    if wrong is not None:
        arrays[name] = wrong
    with pytest.raises(InputError, match=message):
        Bayes().check_broadcast(honest._replace(shared=Shared(arrays)))


@pytest.mark.parametrize("noise", [1.2, 1e9])
def test_no_posterior_fails_at_what_is_accepted(noise, honest):
    """Refused, or harmless: users' posteriors are finite, whatever a server sends."""
    rng, shard = np.random.default_rng(0), make_shards(planted(), np.zeros(40, np.int64), "float64")[0]
    for _ in range(20):
        roots = np.zeros_like(honest.shared.arrays["item_roots"])
        roots[:, -4:] = rng.uniform(3e5, 1e6, size=4)  # the last line of R: a covariance R'R of rank one
        wide = {"item_roots": roots, "noise": np.array([noise]), "user_precision": 2e-3 * np.eye(4)}
        V = np.tile([0.0, 0.0, 0.0, 0.0, 1.0], (len(roots), 1))
        broadcast = honest._replace(V=V, shared=Shared({**honest.shared.arrays, **wide}))
        try:
            Bayes().check_broadcast(broadcast)
        except InputError:
            continue
        with np.errstate(all="ignore"):
            assert np.isfinite(Bayes().users_at(shard, None, broadcast)).all()


@pytest.mark.parametrize("task", ["round", "measure", "finish"])
def test_every_task_after_the_start_is_checked(task, honest):
    with pytest.raises(InputError, match="missing"):
        Bayes().check_broadcast(honest._replace(task=task, shared=Shared()))


def test_a_node_refuses_it_before_it_reads_a_rating(honest, tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from tests import world

    nodes = world.World(tmp_path)
    asked = honest._replace(round=1)
    assert world.refused(nodes, asked, invitation=None).status == "ok"
    for name, value in (("noise", np.zeros(1)), ("user_precision", -np.eye(4))):
        wrong = asked._replace(round=2, shared=Shared({**honest.shared.arrays, name: value}))
        found = world.refused(nodes, wrong, invitation=None)
        assert (found.status, found.sums) == ("wrong-settings", None)
    nodes.close()


# --- messages and memory


def test_messages_hold_the_parts_of_the_schema():
    settings = Settings.preset("bayes", rank=3, active=2, dtype="float64")
    engine = LocalEngine(make_shards(planted(), np.arange(40) % 6, "float64"))
    history = list(islice(rounds(engine, settings), 7))
    q, items, ones = 4, 15, 1 + 3  # regressors: three, and the one
    line, of_users = q * (q + 3) // 2, ones * (ones + 1) // 2 + ones * q + q * (q + 1) // 2 + 3
    broadcast = history[-1].broadcast._replace(task="round", round=7)
    schema = schema_of(broadcast, items)
    assert {name: part.shape for name, part in schema.items()} == {
        "S": (items, line), "users": (1, of_users), "joined": (),
    }  # fmt: skip
    assert {name for name, part in schema.items() if part.cumulative} == {"S", "users"}
    assert length(schema) == items * line + of_users + 1
    for shard, state in zip(engine.shards, engine.states, strict=True):
        _, reply = Bayes().client_update(shard, state, broadcast)
        assert reply.parts.keys() == schema.keys()
        assert {name: value.shape for name, value in reply.parts.items()} == {
            name: part.shape for name, part in schema.items()
        }
        assert reply.parts["S"].values.shape == (len(shard.rated), line)
        assert reply.sent == len(shard.rated) * (8 * line + 4) + 8 * of_users + 8
        whole = Bayes().contribution(shard, state, broadcast)
        assert {name: value.shape for name, value in whole.items()} == {"S": (items, line), "users": (1, of_users)}
    numbers = items * (q + 1) + items * q * (q + 1) // 2 + 1 + 2 * (q + q * q)  # V, roots, noise, priors
    numbers += 3 * (items + q)  # directions, and their weights
    assert {round.bytes_down for round in history[1:]} == {2 * 8 * numbers}


@pytest.mark.parametrize(
    "batch",
    [
        0,
        10**6,
    ],
)
def test_bytes_are_those_of_single_clients_also_in_batches(batch, monkeypatch):
    monkeypatch.setattr(members, "BATCH", batch)
    settings = Settings.preset("bayes", rank=3, active=2, dtype="float64")
    engine = LocalEngine(make_shards(planted(density=0.1), np.arange(40) % 6, "float64"))
    for round in islice(rounds(engine, settings), 7):
        if round.number:
            rated = sum(len(engine.shards[k].rated) for k in round.participants)
            assert round.bytes_up == rated * (8 * 14 + 4) + 2 * (8 * 39 + 8)


def test_a_secure_message_has_one_length_whatever_was_rated():
    settings = Settings.preset("bayes", rank=3, **MODES["secagg"])
    engine = LocalEngine(make_shards(planted(), np.arange(40) % 4, "float64"))
    found = list(islice(rounds(engine, settings), 5))
    assert {round.bytes_up for round in found[1:]} == {4 * 8 * (15 * 14 + 39 + 1)}  # one group of all four


def test_the_contribution_is_the_sum_of_the_changes():
    """What a client sent so far, added up, is its whole contribution now."""
    shard = make_shards(planted(), np.zeros(40, np.int64), "float64")[0]
    settings = Settings.preset("bayes", rank=3, active=1)
    engine, sent = LocalEngine([shard]), []
    honest = Bayes.batch_update

    def batch_update(self, shards, states, broadcast):
        after, sums = honest(self, shards, states, broadcast)
        sent.append(sums)
        return after, sums

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Bayes, "batch_update", batch_update)
        last = run(engine, settings, 8)
    assert len(sent) == 8
    whole = Bayes().contribution(shard, engine.states[0], last.broadcast)
    S, users = sum(one.parts["S"].values for one in sent), sum(one["users"] for one in sent)
    near(S, whole["S"][shard.rated], 1e-12, "S")
    near(users, whole["users"], 1e-12, "users")
    assert [one.number("joined") for one in sent] == [1, *7 * [0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predicted_memory_covers_what_the_states_take(dtype):
    settings = Settings.preset("bayes", rank=6, active=20, dtype=dtype)
    shards = make_shards(planted(users=200, items=100, density=0.1), np.arange(200) % 20, dtype)
    engine = LocalEngine(shards)
    run(engine, settings, 2)
    taken = sum(part.nbytes for state in engine.states for part in state)
    predicted = memory.needed(shards, settings, 2)["clients"]
    assert taken <= predicted + 8 * 200  # log determinants are float64
    assert predicted <= 1.1 * taken


def test_memory_grows_with_the_covariances():
    shards = make_shards(planted(), np.arange(40) % 4, "float64")
    found = {rank: memory.needed(shards, Settings.preset("bayes", rank=rank, active=4), 5) for rank in (5, 10, 20)}
    fast = {rank: memory.needed(shards, Settings.preset("fast", rank=rank, active=4), 5) for rank in (5, 10, 20)}
    for rank, needed in found.items():
        q = rank + 1
        number = np.dtype(Settings.preset("bayes", rank=rank).dtype).itemsize
        # U, Z, covariances, log determinants and three regressors of each user, a ridge of each client
        assert needed["clients"] == 40 * number * (q + 1 + q + q * (q + 1) // 2 + 1 + 3) + 4 * number
        assert needed["clients"] > fast[rank]["clients"] - 4 * 15 * (rank + 2) * number
    spare = 40 * 3 * number  # regressors do not grow
    assert found[20]["clients"] - spare > 3 * (
        found[10]["clients"] - spare
    )  # quadratic, while factors alone would double
    assert found[20]["messages"] > 3 * found[10]["messages"]
    assert found[20]["server"] > 3 * found[10]["server"]


# --- presets


def test_the_default_preset_is_bayes():
    assert Settings.preset().algorithm == "bayes"
    assert Settings.preset() == Settings.preset("bayes")
    assert Settings.preset().preset_name == "bayes"


FALLBACKS: dict[str, dict[str, object]] = {
    "loss": {"loss": "huber"},
    "penalty_users": {"penalty_users": "l2:3"},
    "penalty_items": {"penalty_items": "l2:3"},
    "beta": {"beta": 0.5},
    "update": {"update": "exact"},
    "normalise": {"normalise": "none"},
    "biases": {"biases": False},
    "dual_step": {"dual_step": 1.0},
    "algorithm": {"algorithm": "curvature"},
    "method": {"method": "fedavg"},
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_settings_that_bayes_does_not_have_choose_fast_and_say_so(name, caplog):
    with caplog.at_level(logging.DEBUG, "fedmc"):
        found = Settings.preset("bayes", rank=3, **FALLBACKS[name])
    assert found.preset_name == "fast"
    assert found == Settings.preset("fast", rank=3, **FALLBACKS[name])
    assert [(record.levelname, name in record.getMessage()) for record in caplog.records] == [("WARNING", True)]
    assert "'fast'" in caplog.text


def test_one_line_names_one_setting_of_several(caplog):
    with caplog.at_level(logging.DEBUG, "fedmc"):
        Settings.preset(rank=3, loss="huber", beta=0.5, penalty_users="l2:1")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "words",
    [
        {}, {"algorithm": "bayes"}, {"method": "fedmc"}, {"loss": "square"}, {"biases": True}, {"extrapolation": 0.0},
        {"normalise": "standard"}, {"privacy": "secagg"}, {"clip": 1.0}, {"sampler": "uniform"}, {"beta": None},
        {"dtype": "float32"},
    ],
)  # fmt: skip
def test_settings_that_bayes_has_keep_it(words, caplog):
    with caplog.at_level(logging.DEBUG, "fedmc"):
        assert Settings.preset("bayes", rank=3, **words).algorithm == "bayes"
    assert caplog.records == []


@pytest.mark.parametrize("privacy", ["dp", "dp+secagg"])
def test_differential_privacy_keeps_its_own_algorithm_and_says_nothing(privacy, caplog):
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    with caplog.at_level(logging.DEBUG, "fedmc"):
        found = Settings.preset("bayes", rank=3, privacy=privacy, epsilon=5, dp_rounds=3)
    assert found.algorithm == "dp"
    assert caplog.records == []


def test_what_bayes_cannot_run_with_is_refused_by_name():
    settings = Settings.preset("bayes", rank=3)
    for change, message in (
        ({"loss": "huber"}, "square loss"), ({"biases": False}, "biases=True"), ({"normalise": "mean"}, "normalise"),
        ({"fold_in": False}, "fold_in"), ({"entry": "all"}, "first-turn"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            settings.replace(**change)
