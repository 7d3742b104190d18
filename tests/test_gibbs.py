"""Gibbs sampling: the distributions that are drawn from, the same bits every way, averages, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
from scipy import sparse, stats

from fedmc.algorithms import bayes_client, gaussians, gibbs_server
from fedmc.algorithms.bayes_server import first_sums
from fedmc.algorithms.gaussians import Hyper, Prior, Ratings, Rows
from fedmc.algorithms.gibbs import BURN_IN, Gibbs
from fedmc.algorithms.gibbs_server import SAMPLE, SAMPLED, Average, chain_of, drawn_prior, drawn_rows
from fedmc.algorithms.messages import Shared
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.side import Side
from fedmc.data.partition import Federation, Shard, make_shards, narrow
from fedmc.data.splits import at_random
from fedmc.errors import InputError
from fedmc.kernels import moments, threads
from fedmc.model.loading import load
from fedmc.training import members
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Checkpoint, rounds
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from tests.conftest import planted

CLIENTS = 6


def settings_of(**changes: object) -> Settings:
    given = {"rank": 3, "active": CLIENTS, "algorithm": "gibbs"} | changes
    return Settings.preset("bayes", **given)


def engine_of(ratings=None, spill=None) -> LocalEngine:
    return LocalEngine(make_shards(ratings or planted(), np.arange(40) % CLIENTS, "float64"), spill)


def within(draws: np.ndarray, expected: np.ndarray, independent: int | None = None) -> None:
    """The mean of the draws (axis 0) is within 5 standard errors, of `independent` batches of them if given."""
    if independent is not None:
        draws = np.array([batch.mean(axis=0) for batch in np.array_split(draws, independent)])
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - expected) <= 5 * error + 1e-12).all()


# --- each draw has the distribution that it should have


def test_rows_have_the_mean_and_covariance_of_their_posteriors():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 4))
    S = np.concatenate([gaussians.packed(X.T @ X), X.T @ rng.normal(size=9)])[None]
    prior = Prior.plain(rng.normal(size=4), np.diag([1.0, 2.0, 3.0, 4.0]) + 0.3)
    means, covariances, _ = moments.posteriors(S, 0.7, prior.precision, prior.pull)
    (mean,), (root,) = moments.posterior_roots(S, 0.7, prior.precision, prior.pull)
    drawn = drawn_rows(np.tile(mean, (20_000, 1)), np.tile(root, (20_000, 1)), rng)
    within(drawn, means[0])
    within(gaussians.second_moments(drawn - means[0], np.zeros(())), covariances[0])
    np.testing.assert_allclose(moments.covariances_of(gaussians.lower_roots(covariances), 4), covariances, rtol=1e-12)


def test_a_client_draws_its_users_given_the_sample():
    """Against the formula, user by user, over the draws of many rounds."""
    settings, engine = settings_of(rank=2), engine_of()
    first = next(rounds(engine, settings)).broadcast
    shard, arrays = engine.shards[1], first.shared.arrays
    noise, mean, precision = (arrays[name] for name in SAMPLED.values())
    drawn = np.array([
        Gibbs().client_update(shard, None, first._replace(task="round", round=number))[0].U for number in range(1, 1000)
    ])  # fmt: skip
    assert (drawn[..., -2] == 1).all()
    for user in range(3):
        mine = shard.by_user[[user]]
        w = np.column_stack([arrays[SAMPLE][mine.indices, :-1], np.ones(mine.nnz)])
        m = (mine.data - first.scaling.mean) / first.scaling.scale - arrays[SAMPLE][mine.indices, -1]
        covariance = np.linalg.inv(precision + noise * w.T @ w)
        center = covariance @ (precision @ mean + noise * w.T @ m)
        own = np.delete(drawn[:, user], -2, axis=1)
        within(own, center)
        within(gaussians.second_moments(own - center, np.zeros(())), gaussians.packed(covariance))


def hyper_problem() -> tuple[Ratings, Rows, Rows, np.ndarray]:
    rng = np.random.default_rng(1)
    sides = [0.5 + rng.normal(size=(number, 3)) @ rng.normal(size=(3, 3)) for number in (7, 12)]
    users, items = (gaussians.summed(Z, np.zeros((len(Z), 6)), np.zeros(len(Z))) for Z in sides)
    return Ratings(30.0, 21.0), users, items, gaussians.guess(3, 20.0)


def wishart(rows: Rows, variances: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Degrees of freedom, scale and the center of the mean, written out as in the module's docstring."""
    weight, n = gaussians.PRIOR_WEIGHT * rows.number, rows.number
    mean = rows.mean / (n + gaussians.MEAN_WEIGHT)
    scatter = gaussians.unpacked(rows.second) - (n + gaussians.MEAN_WEIGHT) * np.outer(mean, mean)
    return n + weight + 3, np.linalg.inv(scatter + weight * np.diag(variances)), mean


def test_the_conditionals_of_noise_and_priors_are_those_of_the_model():
    """Their log densities are the model's log density, `gaussians.bound` at rows without spread, up to a constant."""
    ratings, users, items, variances = hyper_problem()
    rng, apart = np.random.default_rng(2), []
    shape = (ratings.number + gaussians.NOISE_WEIGHT) / 2 + 1
    rate = (ratings.error + gaussians.NOISE_WEIGHT * gaussians.NOISE_VARIANCE) / 2
    for _ in range(20):
        drawn = [(rng.normal(size=3), stats.wishart(5, np.eye(3) / 3).rvs(random_state=rng)) for _ in range(2)]
        priors = [Prior.plain(*one) for one in drawn]
        hyper = Hyper(rng.gamma(3.0), *priors)
        density = stats.gamma(shape, scale=1 / rate).logpdf(hyper.noise)
        for rows, prior in zip((users, items), priors, strict=True):
            freedom, scale, mean = wishart(rows, variances)
            spread = np.linalg.inv((rows.number + gaussians.MEAN_WEIGHT) * prior.precision)
            density += stats.wishart(freedom, scale).logpdf(prior.precision)
            density += stats.multivariate_normal(mean, spread).logpdf(prior.mean)
        apart.append(gaussians.bound(hyper, ratings, users, items, variances) - density)
    np.testing.assert_allclose(apart, apart[0], rtol=1e-9)


def test_a_prior_is_drawn_from_its_conditional():
    _, users, _, variances = hyper_problem()
    freedom, scale, mean = wishart(users, variances)
    rng = np.random.default_rng(3)
    before = gaussians.first_hyper(3).users
    drawn = [drawn_prior(users, before, variances, rng) for _ in range(3000)]
    P, m = (np.array([prior[k] for prior in drawn]) for k in (1, 0))
    within(P, freedom * scale)
    within((P - freedom * scale) ** 2, stats.wishart(freedom, scale).var())
    within(m, mean)
    away = np.einsum("ka,kab,kb->k", m - mean, P, m - mean) * (users.number + gaussians.MEAN_WEIGHT)
    within(away, np.array(3.0))  # chi-square with 3 degrees of freedom
    assert (np.swapaxes(P, 1, 2) == P).all()


def test_the_noise_is_drawn_from_its_conditional(monkeypatch):
    ratings, users, items, variances = hyper_problem()
    monkeypatch.setattr(gibbs_server, "parts_at", lambda *_: (None, ratings, users, items, variances, ((), ())))
    rng, sums = np.random.default_rng(4), first_sums(2, 3, Side.nothing(2))
    noises = np.array([gibbs_server.drawn_hyper(sums, np.zeros((2, 3)), rng).noise for _ in range(1000)])
    expected = stats.gamma((30 + 2) / 2 + 1, scale=2 / (21 + 2 * gaussians.NOISE_VARIANCE))
    within(noises, expected.mean())
    within((noises - expected.mean()) ** 2, expected.var())


# --- the whole chain, where the posterior is known


class OneItem:
    """One item and rank 1: given it, all users can be integrated out, so its posterior is a sum over a grid."""

    ratings = np.array([4.0, 1.0, 3.0, 5.0, 4.5])
    grid = np.linspace(-3, 3, 241)

    def shards(self) -> list[Shard]:
        owner, tables = np.array([0, 0, 1, 1, 1]), []
        for client in range(2):
            mine = self.ratings[owner == client]
            tables.append(Shard.of(client, np.flatnonzero(owner == client), narrow(sparse.csr_array(mine[:, None]))))
        return tables

    def expected(self) -> np.ndarray:
        """Means of v^2, c and c^2 under the first noise and priors."""
        m = (self.ratings - self.ratings.mean()) / self.ratings.std()
        v, c = np.meshgrid(self.grid, self.grid, indexing="ij")
        variance = 1 / gaussians.WARM_NOISE + (v**2 + 1) / gaussians.WARM_PRECISION  # of u v + b + noise
        log = -gaussians.WARM_PRECISION / 2 * (v**2 + c**2)
        log += sum(-((one - c) ** 2) / variance - np.log(variance) for one in m) / 2
        weight = np.exp(log - log.max())
        return np.array([(weight * what).sum() / weight.sum() for what in (v**2, c, c**2)])

    def chain(self, number: int) -> np.ndarray:
        settings = settings_of(rank=1, active=2, seed=3)
        running = rounds(LocalEngine(self.shards()), settings, measure_every=10**6)
        drawn = np.array([round.broadcast.shared.arrays[SAMPLE][0] for round in islice(running, 20, 20 + number)])
        return np.column_stack([drawn[:, 0] ** 2, drawn[:, 1], drawn[:, 1] ** 2])


def test_a_long_run_has_the_posterior_of_the_items(monkeypatch):
    monkeypatch.setattr(bayes_client, "WARM_PASSES", 10**6)  # noise and priors are held
    within(OneItem().chain(800), OneItem().expected(), independent=30)


def test_a_long_run_of_another_sampler_does_not(monkeypatch):
    monkeypatch.setattr(bayes_client, "WARM_PASSES", 10**6)
    honest = gibbs_server.drawn_rows
    monkeypatch.setattr("fedmc.algorithms.gibbs.drawn_rows", lambda mean, root, rng: honest(mean, 1.5 * root, rng))
    with pytest.raises(AssertionError):
        within(OneItem().chain(300), OneItem().expected(), independent=30)


# --- the same bits every way


def run(engine: LocalEngine, settings: Settings, number: int, checkpoint: Checkpoint | None = None) -> Checkpoint:
    kept: list[Checkpoint] = []
    for round in rounds(engine, settings, checkpoint=checkpoint, on_checkpoint=kept.append, measure_every=100):
        if round.number == number:
            return kept[-1]
    raise AssertionError


def bits(engine: LocalEngine, last: Checkpoint) -> dict[str, bytes]:
    """Everything that the server and the clients keep."""
    arrays = {"V": last.broadcast.V, "S": last.server.S, **last.broadcast.shared.arrays}
    arrays |= {f"U of client {client}": np.asarray(state.U) for client, state in enumerate(engine.states)}
    return {name: array.tobytes() for name, array in arrays.items()}


LONG = BURN_IN + 4


def test_batches_and_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 1)
    monkeypatch.setattr(threads, "SHARED", 0)
    found = []
    for batch, count in ((0, 1), (0, 2), (60, 1), (10**6, 2)):
        monkeypatch.setattr(members, "BATCH", batch)
        engine = engine_of()
        with threads.limited(count):
            found.append(bits(engine, run(engine, settings_of(), LONG)))
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("more", [{}, {"privacy": "secagg", "min_cohort": 3}], ids=["plain", "secagg"])
@pytest.mark.parametrize("stopped", [1, BURN_IN, BURN_IN + 2])
def test_a_run_resumed_from_a_checkpoint_gives_the_same_bits(stopped, more, tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.federation.server import checkpoint
    from fedmc.federation.server.checkpoint import SavedRun

    settings, straight, engine = settings_of(**more), engine_of(), engine_of()
    expected = bits(straight, run(straight, settings, LONG))
    checkpoint.save(tmp_path / "run", SavedRun("a-run", run(engine, settings, stopped), {}, "a-hash"))
    assert bits(engine, run(engine, settings, LONG, checkpoint.load(tmp_path / "run").checkpoint)) == expected


def test_the_same_bits_in_a_federation_after_the_burn_in(tmp_path, monkeypatch):
    """Earlier rounds, secure aggregation and kills: `test_every_algorithm`."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from tests import world
    from tests.test_every_algorithm import check_same

    monkeypatch.setattr("fedmc.algorithms.gibbs.BURN_IN", 2)
    settings = settings_of(active=world.NODES)
    nodes = world.World(tmp_path)
    nodes.measure_every = 100
    check_same(nodes.finish(settings, 5), world.local(settings, 5)[1])
    nodes.close()


def test_states_on_disk_change_no_bit(tmp_path):
    engines = engine_of(), engine_of(spill=tmp_path)
    kept, spilled = (bits(engine, run(engine, settings_of(), 5)) for engine in engines)
    assert kept == spilled


@dataclass(frozen=True)
class Missing:
    """Everybody in round 1, later two of the clients fewer each time."""

    independent = False

    def draw(self, round: int, clients: int, seed: int) -> np.ndarray:
        return np.arange(clients) if round == 1 else np.delete(np.arange(clients), [round % clients, 0])

    def probabilities(self, clients: int) -> np.ndarray:
        return np.ones(clients)


def test_the_sums_are_those_of_all_clients_also_of_one_that_missed_rounds():
    settings, engine = settings_of(sampler=Missing()), engine_of()
    last = run(engine, settings, 8)
    found = chain_of(last.server, settings).sums
    parts = [Gibbs().contribution(*pair, last.broadcast) for pair in zip(engine.shards, engine.states, strict=True)]
    np.testing.assert_allclose(found.items, sum(part["S"] for part in parts), atol=1e-10)
    np.testing.assert_allclose(found.users, sum(part["users"][0] for part in parts), atol=1e-10)


# --- averages


def some_average(seed: int) -> Average:
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(30, 10))
    priors = [Prior.plain(rng.normal(size=4), np.diag(1 + rng.random(4)) + 0.2) for _ in range(2)]
    return Average(rng.normal(size=(30, 4)), moments.covariances_of(roots, 4), Hyper(1 + rng.random(), *priors))


def same(found: Average, expected: Average) -> None:
    pairs = [(found.means, expected.means), (found.covariances, expected.covariances)]
    pairs += [(found.hyper.noise, expected.hyper.noise)]
    for one, other in zip(found.hyper[1:], expected.hyper[1:], strict=True):
        pairs += [(one.mean, other.mean), (one.precision, other.precision)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_a_chain_that_turns_does_not_blur_its_average():
    found, Q = some_average(0), np.eye(4)
    Q[:3, :3] = stats.special_ortho_group(3, seed=0).rvs()
    same(found.with_another(found.turned(Q), 0.3), found)
    same(found.turned(Q).turned(Q.T), found)


def test_an_average_is_the_mixture_of_its_rounds(monkeypatch):
    monkeypatch.setattr(gibbs_server, "rotation", lambda means, target: np.eye(4))
    some = [some_average(seed) for seed in range(4)]
    found = some[0]
    for k, one in enumerate(some[1:], 2):
        found = found.with_another(one, 1 / k)
    np.testing.assert_allclose(found.means, np.mean([one.means for one in some], axis=0))
    second = np.mean([gaussians.second_moments(one.means, one.covariances) for one in some], axis=0)
    np.testing.assert_allclose(gaussians.second_moments(found.means, found.covariances), second)
    np.testing.assert_allclose(found.hyper.users.pull, np.mean([one.hyper.users.pull for one in some], axis=0))


def test_a_model_predicts_with_intervals_and_is_saved(tmp_path):
    """As accurate as variational Bayes on ratings that it has not seen."""
    kept, held_out = at_random(planted(users=80, items=30, noise=0.3), 0.2, 0)
    shards = make_shards(kept, np.arange(80) % CLIENTS, "float64", held_out)
    federation = Federation(shards, kept.users, kept.items)
    found, other = (train(federation, settings_of(algorithm=name), Stop(60)) for name in ("gibbs", "bayes"))
    errors = [one.history[-1].diagnostics.test_rmse for one in (found, other)]
    assert errors[0] < 1.05 * errors[1]
    assert found.history[-1].diagnostics.bound is None
    entries = held_out.matrix.tocoo()
    pairs = kept.users[entries.row], kept.items[entries.col]
    interval = found.model.interval(*pairs)
    assert np.mean((interval.low <= entries.data) & (entries.data <= interval.high)) > 0.8
    found.model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    assert again.settings.make_algorithm().name == "gibbs"
    assert (again.interval(*pairs).low == interval.low).all()
    assert np.isfinite(again.predict(-1, kept.items, unknown="prior")).all()


# --- what is refused


def test_it_keeps_the_preset():
    assert settings_of().preset_name == "bayes"
    assert Settings.preset("bayes", method="gibbs").preset_name == "bayes"


def test_all_clients_must_take_part():
    with pytest.raises(InputError, match=r"needs all 6 clients in every round: set active=6 \(it is 5\)"):
        next(rounds(engine_of(), settings_of(active=5)))


@pytest.mark.parametrize(
    ("given", "message"),
    [({"clip": 2.0}, "clip"), ({"extrapolation": 0.3}, "extrapolation has no meaning"), ({"biases": False}, "'gibbs'")],
)
def test_settings_without_a_meaning_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        settings_of(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (SAMPLE, np.full((15, 4), np.nan)), (SAMPLE, np.zeros((15, 3))), (SAMPLE, np.full((15, 4), 1e7)),
        (SAMPLE, None), ("sampled_noise", np.zeros(1)), ("sampled_user_precision", -np.eye(4)),
        ("sampled_user_mean", np.zeros(3)), ("noise", np.zeros(1)),
    ],
)  # fmt: skip
def test_a_node_refuses_what_no_honest_server_sends(name, value):
    broadcast = next(rounds(engine_of(), settings_of())).broadcast._replace(task="round", round=1)
    Gibbs().check_broadcast(broadcast)
    arrays = {**broadcast.shared.arrays, name: value}
    wrong = Shared({key: array for key, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=r"the server's|noise must be"):
        Gibbs().check_broadcast(broadcast._replace(shared=wrong))
