"""The O(1/K) theorem as a tool: its constant, the measured rate, and a beta that it certifies."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from scipy import sparse

from fedmc import FedMC
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.theory import Point, _sizes_at
from fedmc.data.ratings import Ratings
from fedmc.problem import subproblem
from fedmc.problem.losses import Huber, Logistic, Square
from fedmc.problem.scaling import Scaling
from fedmc.problem.subproblem import Problem
from fedmc.training.diagnostics import Certificate
from fedmc.training.rate import Progress, constant, decreases, slope, suggested
from fedmc.training.rounds import rounds
from tests.conftest import local_engine, planted
from tests.test_cli import run
from tests.test_theory import item_iterates, user_iterates

CLIENTS, ROUNDS = 4, 1800
BETA = {4: 2200.0, 3: 3000.0}  # a little above the threshold, by how many of the four take part


def small() -> Ratings:
    """Rank 1, complete and alike at all clients: a certified run passes its slow start in about 1,000 rounds."""
    rng = np.random.default_rng(0)
    full = np.outer(rng.uniform(0.5, 1, 40), rng.uniform(0.5, 1, 4)) + 0.05 * rng.normal(size=(40, 4))
    rows, columns = np.indices(full.shape)
    return Ratings.from_arrays(rows.ravel(), columns.ravel(), full.ravel())


def settings(active=CLIENTS, beta=1.0, **changes):
    usual = {
        "rank": 1, "inner_steps": 1, "penalty_users": "l2:0.1", "penalty_items": "l2:0.1", "ranking": False,
    }  # fmt: skip
    return Settings.preset("paper", **(usual | {"active": active, "beta": beta} | changes))


def history(number, chosen, ratings=None):
    run = rounds(local_engine(ratings or small(), CLIENTS), chosen, full=True)
    return [round.diagnostics for round in itertools.islice(run, number + 1)]


def test_the_measured_minimum_lies_below_the_bound_and_falls_faster_than_1_over_K():
    """Everybody in every round: nothing is random, so the theorem holds for the run itself."""
    seen = history(ROUNDS, settings(beta=BETA[4]))
    assert all(d.certified for d in seen)
    smallest = np.array([d.min_dist2 for d in seen[1:]])
    assert np.array_equal(smallest, np.minimum.accumulate([d.stationarity**2 for d in seen[1:]]))
    assert (smallest < [d.dist2_bound for d in seen[1:]]).all()
    assert smallest[-1] < smallest[0] / 20
    assert -2.5 < seen[-1].dist2_slope < -1  # a sum over all rounds that is finite: steeper than 1/K in the end


def test_the_mean_over_seeds_lies_below_the_bound():
    """Three of four clients a round: the theorem is about the expectation."""
    runs = [history(500, settings(active=3, beta=BETA[3], seed=seed)) for seed in range(3)]
    assert all(d.certified for d in itertools.chain(*runs))
    mean = np.mean([[d.min_dist2 for d in seen[1:]] for seen in runs], axis=0)
    bound = np.max([[d.dist2_bound for d in seen[1:]] for seen in runs], axis=0)
    assert (mean < bound).all()
    assert mean[-1] < mean[0]


def measured(engine, round):
    """The sums of the theory's quantities after a round."""
    return engine.ask(round.broadcast._replace(task="measure", full=True), range(engine.clients))


def test_every_step_from_the_Lagrangian_to_the_bound_holds():
    """The sums over all rounds and clients that the proof bounds: (1128a), (1126c), (1216t), and the theorem."""
    N, p, beta = 2, CLIENTS, 2e4
    chosen = settings(beta=beta, inner_steps=N)
    engine = local_engine(small(), p)
    running, certificate = rounds(engine, chosen, full=True), Certificate(chosen, p)
    opening = next(running)
    certificate.update(measured(engine, opening))
    begun, old, V = opening.diagnostics.lagrangian, list(engine.states), opening.V
    sums = dict.fromkeys(("U", "W", "V", "apart", "ahead", "dist"), 0.0)
    for round in itertools.islice(running, 100):
        certificate.update(measured(engine, round))
        for shard, before, after in zip(engine.shards, old, engine.states, strict=True):
            Us, Ws = user_iterates(shard, before, chosen), item_iterates(shard, before, after.U, V, chosen)
            sums["U"] += sum(np.sum((b - a) ** 2) for a, b in itertools.pairwise(Us))
            sums["W"] += sum(np.sum((b - a) ** 2) for a, b in itertools.pairwise(Ws))
            sums["ahead"] += np.sum((Us[1] - Us[0]) ** 2)
            sums["apart"] += np.sum((before.W - V) ** 2)
        sums["V"] += np.sum((round.V - V) ** 2)
        sums["dist"] += round.diagnostics.stationarity**2
        old, V = list(engine.states), round.V
    last, known, run = round.diagnostics, certificate.constants(), certificate.setting
    users, items = decreases(known, run)
    assert last.certified
    used, fell = users * sums["U"] + items * sums["W"] + p * beta / 2 * sums["V"], begun - last.lagrangian
    assert fell / 10 < used <= fell
    from_W = (2 * N * (p * beta) ** 2 + 8 * (8 + N) * known.L_U[1] ** 2) * sums["W"]
    assert (p * beta) ** 2 * sums["apart"] <= from_W + 8 * N * known.L**2 * sums["U"]
    assert sums["ahead"] <= sums["U"]
    assert sums["dist"] <= constant(known, run) * begun == pytest.approx(last.dist2_bound * 100)
    assert last.lagrangian >= last.objective >= 0  # so that 0 serves as alpha


def dense_problem(loss, scores, seed=0):
    """One client of rank 1 whose ratings are all known; U_bar, W and V are such that nothing is left at (U_bar, V)."""
    rng = np.random.default_rng(seed)
    U, V = rng.uniform(0.5, 1, (6, 1)), rng.uniform(0.5, 1, (4, 1))
    return Problem(sparse.csr_array(scores(U @ V.T)), loss, Scaling()), U, V


def test_the_constants_at_V_are_attained():
    """Square loss, rank 1, no residual: with V along W and U_bar along U both hold with equality."""
    problem, U_bar, V = dense_problem(Square(), lambda x: x)
    by_item = problem._replace(matrix=problem.matrix.T.tocsr())
    U, W = 1.3 * U_bar, 0.8 * V
    sizes = _sizes_at(problem, Point(U, W, W - V), U_bar, V)
    of_V = subproblem.gradient(by_item, U_bar, V) - subproblem.gradient(by_item, U, V)
    of_U = subproblem.gradient(problem, V, U_bar) - subproblem.gradient(problem, W, U_bar)
    assert np.linalg.norm(of_V) == pytest.approx(sizes["L_bar"] * np.linalg.norm(U_bar - U))
    assert np.linalg.norm(of_U) == pytest.approx(sizes["kappa"] * np.linalg.norm(V - W))


@pytest.mark.parametrize("loss", [Square(), Huber(0.3), Logistic()])
def test_the_constants_at_V_hold(loss):
    rng = np.random.default_rng(0)
    problem, *_ = dense_problem(loss, lambda x: (x > 0.5) * 1.0)
    by_item = problem._replace(matrix=problem.matrix.T.tocsr())
    for size in np.geomspace(1e-3, 10, 30):
        U, W = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
        U_bar, V = (X + size * rng.normal(size=X.shape) for X in (U, W))
        sizes = _sizes_at(problem, Point(U, W, W - V), U_bar, V)
        of_V = subproblem.gradient(by_item, U_bar, V) - subproblem.gradient(by_item, U, V)
        of_U = subproblem.gradient(problem, V, U_bar) - subproblem.gradient(problem, W, U_bar)
        assert np.linalg.norm(of_V) <= sizes["L_bar"] * np.linalg.norm(U_bar - U)
        assert np.linalg.norm(of_U) <= sizes["kappa"] * np.linalg.norm(V - W)


@pytest.mark.parametrize(("again", "changes"), [
    (1, {"active": 2}), (1, {"rank": 2, "inner_steps": 10}), (1, {"sampler": "coins:0.2,0.9,0.5x2"}),
    (2, {"loss": "huber:0.5", "penalty_users": "l1:0.1"}), (2, {"normalise": "standard"}),
])  # fmt: skip
def test_a_run_with_the_suggested_beta_is_certified(again, changes):
    """From a beta of practical size, on ratings of another scale than the start; at times a second suggestion."""
    beta, seen = 1.0, []
    for _ in range(again + 1):
        seen.append(history(60, settings(**({"rank": 3} | changes | {"beta": beta})), planted())[-1])
        beta = seen[-1].beta_suggested
    assert [d.certified for d in seen] == [False] * again + [True]
    assert seen[-1].min_dist2 < seen[-1].dist2_bound
    assert all(d.dist2_bound is None for d in seen[:-1])


def test_nothing_is_suggested_or_bounded_where_the_theorem_says_nothing():
    for changes in ({"update": "exact"}, {"sampler": "passes"}, {"biases": True}, {"entry": "first-turn"}):
        last = history(12, settings(beta=1e6, **changes))[-1]
        assert last.certified is False
        assert last.beta_suggested is last.dist2_bound is None
        assert last.min_dist2 > 0
        assert isinstance(last.dist2_slope, float)


@pytest.mark.parametrize("power", [-0.5, -1.0, -2.0])
def test_the_slope_is_that_of_the_last_decade(power):
    numbers = list(range(1, 501))
    values = [7.0 if k < 50 else 3.0 * k**power for k in numbers]
    assert slope(numbers, values) == pytest.approx(power)
    assert slope(numbers[:9], values[:9]) is None
    assert slope(numbers, [*values[:-1], 0.0]) is None


def test_a_suggestion_has_two_digits_and_a_margin():
    assert suggested(1234.0) == 2500.0
    assert suggested(0.5) == 1.0
    assert suggested(np.inf) is None


def test_K_counts_the_measured_rounds():
    """Of a sum over all rounds, a part of them is bounded by the same number: the smallest of n by C / n."""
    progress = Progress()
    progress.add(0, 2.0, None, 5.0)
    progress.add(10, 1.9, 0.5, 5.0)
    seen = progress.add(20, 1.8, 0.7, 5.0)
    assert seen.dist2_bound == 5.0 * 2.0 / 2
    assert seen.min_dist2 == 0.25
    progress.add(0, np.inf, None, 5.0)  # a start outside of a constraint set
    assert progress.add(30, 1.7, 0.6, 5.0).dist2_bound is None
    assert Progress().add(7, 1.0, 0.5, 5.0).dist2_bound is None  # a resumed run does not know its start


def test_python_has_the_rate():
    words = {"rank": 1, "clients": CLIENTS, "rounds": 12, "preset": "paper", "inner_steps": 1, "random_state": 0}
    table = small()
    fitted = FedMC(**words, full_diagnostics=True).fit(table)
    last = fitted.rounds_[-1].diagnostics
    assert last.beta_suggested > last.beta_needed
    assert last.min_dist2 == min(round.diagnostics.stationarity for round in fitted.rounds_[1:]) ** 2
    plain = FedMC(**words).fit(table).rounds_[-1].diagnostics
    assert plain.min_dist2 is plain.beta_suggested is plain.dist2_slope is None


def test_train_prints_the_rate_and_the_report_draws_it(tmp_path):
    """The printed beta goes into a second run, which is certified and has a figure with both curves."""
    table = small()
    full = table.matrix.toarray()
    lines = [f"u{user},i{item},{value}" for (user, item), value in np.ndenumerate(full)]
    (tmp_path / "small.csv").write_text("\n".join(["user,item,rating", *lines]))
    words = "train small.csv --preset paper --rank 1 --clients 4 --inner-steps 1 --rounds 30 --test 0 --json"
    first = run(*words.split(), "--out", "first", "--diagnostics", cwd=tmp_path).stdout
    beta = str(json.loads(first.splitlines()[-1])["beta_suggested"])
    assert f"try --beta {float(beta):g}." in first
    second = run(*words.split(), "--out", "second", "--diagnostics", "--report", "--beta", beta, cwd=tmp_path).stdout
    summary = json.loads(second.splitlines()[-1])
    assert summary["certified"]
    assert f"The theorem bounds its expectation by C (L^0 - alpha)/K = {summary['dist2_bound']:.3g}." in second
    page = (tmp_path / "second" / "report.html").read_text()
    for words in ("slope over the last decade", "the theorem's bound C", "is certified", "smallest so far"):
        assert words in page
    assert (tmp_path / "second" / "figures" / "rate.pdf").is_file()
