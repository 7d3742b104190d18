"""Users with few ratings and newcomers: the prior that is learned at home, and intervals of users who are folded in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedmc import FedMC, Ratings, load
from fedmc.algorithms import few, gaussians
from fedmc.algorithms.gaussians import Prior
from fedmc.algorithms.posterior import BLOCK, FEW, fit_at_home, free_part, seen_sums
from fedmc.data.matrices import narrow, random_entries
from fedmc.data.splits import at_random
from fedmc.errors import ModelFileError
from fedmc.problem.losses import Square
from fedmc.problem.subproblem import Problem
from fedmc.training import newcomers
from tests.conftest import planted

USERS, ITEMS, RANK = 400, 80, 3
SIZES = 11, 101, 201  # of factors with a bias


def told_by_lists(seed: int = 0) -> Ratings:
    """Ratings of users whose lists of items tell their taste: two kinds of users, who rate different halves more."""
    rng = np.random.default_rng(seed)
    kind, half = np.arange(USERS) % 2, np.arange(ITEMS) < ITEMS // 2
    likely = np.where(kind[:, None] == half, 0.5, 0.1)
    likely[::20] /= 12  # users with few ratings
    taken = rng.random((USERS, ITEMS)) < likely
    taken[:, 0] = True
    taste = np.where(kind[:, None] == 0, 1.0, -1.0) * np.where(np.arange(ITEMS) % 3 == 0, 1.0, -0.5)
    matrix = sparse.csr_array(np.where(taken, 3 + taste + rng.normal(0, 0.5, taken.shape), 0))
    return Ratings(np.arange(USERS), np.arange(ITEMS), narrow(matrix))


@pytest.fixture(scope="module")
def fitted():
    return FedMC(rank=RANK, clients=4, rounds=15).fit(told_by_lists()).model_


def problem_of(model) -> Problem:
    return Problem(narrow(told_by_lists().matrix.copy()), Square(), model.scaling)


def dense_few(model) -> Prior:
    """`few.learned`, user by user, with dense matrices."""
    known, problem = model.posterior, problem_of(model)
    F = problem.matrix.toarray() != 0
    rows = np.tile(np.flatnonzero(F.sum(axis=1) >= FEW), 2)
    taken = few.cut(narrow(problem.matrix[rows])).toarray() != 0
    weight = 1 / np.sqrt(taken.sum(axis=1) + 20)
    a = np.c_[taken @ known.directions * weight[:, None], np.ones(len(rows))]
    before = known.hyper.users
    B = start = np.r_[before.weights, before.mean[None]]
    S0 = S = np.linalg.inv(before.precision)
    own = (F @ known.directions / np.sqrt(F.sum(axis=1) + 20)[:, None])[rows] @ before.weights + before.mean
    for _ in range(3):
        posteriors = [user_posterior(model, problem, row, mean, S) for row, mean in zip(rows, own, strict=True)]
        Z = np.array([mean for mean, _ in posteriors])
        penalty = np.diag([2 * 2.0] * (len(B) - 1) + [2 * 1.0])
        B = np.linalg.solve(a.T @ a + penalty, a.T @ Z + penalty @ start)
        error = Z - a @ B
        S = (error.T @ error + sum(spread for _, spread in posteriors) + 200 * S0) / (len(rows) + 200)
        own = a @ B
    return Prior(B[-1], np.linalg.inv(S), B[:-1], before.ridge)


def user_posterior(model, problem, row, prior, S):
    known = model.posterior
    some = slice(*problem.matrix.indptr[row : row + 2])
    precision = np.linalg.inv(S)
    A, b = precision.copy(), precision @ prior
    for j, rating in zip(problem.matrix.indices[some], problem.matrix.data[some], strict=True):
        mean, spread = known.item_means[j], gaussians.unpacked(known.item_covariances[j])
        w, C = np.append(mean[:-1], 1), spread.copy()
        cross = np.append(spread[:-1, -1], 0)
        C[-1], C[:, -1] = 0, 0
        A += known.hyper.noise * (np.outer(w, w) + C)
        b += known.hyper.noise * ((rating - model.scaling.mean) / model.scaling.scale * w - w * mean[-1] - cross)
    return np.linalg.solve(A, b), np.linalg.inv(A)


def test_the_prior_is_that_of_the_definition(fitted):
    problem = problem_of(fitted)
    found, expected = few.learned(problem, fitted.posterior, problem.matrix), dense_few(fitted)
    for one, other in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def test_users_with_few_ratings_have_it_and_others_do_not(fitted):
    known, problem = fitted.posterior, problem_of(fitted)
    number = np.diff(problem.matrix.indptr)
    assert 5 < (number < FEW).sum() < 40
    fit = fit_at_home(problem, known, problem.matrix, np.float64)
    plain = fit_at_home(problem, replace(known, few=None), problem.matrix, np.float64)
    np.testing.assert_allclose(free_part(fitted.U), fit.means, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(known.user_covariances, fit.covariances, rtol=1e-9, atol=1e-12)
    same = (fit.means == plain.means).all(axis=1)
    assert (same == (number >= FEW)).all()
    row = int(np.flatnonzero(number < FEW)[0])
    own = known.few
    prior = own.mean + seen_sums(problem.matrix[[row]], known.directions)[0] @ own.weights
    mean, covariance = user_posterior(fitted, problem, row, prior, np.linalg.inv(own.precision))
    np.testing.assert_allclose(fit.means[row], mean, rtol=1e-8)
    np.testing.assert_allclose(gaussians.unpacked(fit.covariances[row]), covariance, rtol=1e-8, atol=1e-12)


def test_it_is_wider_and_folding_in_agrees(fitted):
    known = fitted.posterior
    of_all, of_few = (np.linalg.inv(prior.precision) for prior in (known.hyper.users, known.few))
    assert np.trace(of_few) > np.trace(of_all)  # few items explain less
    ratings = told_by_lists()
    rows = np.flatnonzero(np.diff(ratings.matrix.indptr) < FEW)
    folded = fitted.fold_in(Ratings(ratings.users[rows], ratings.items, ratings.matrix[rows]))
    np.testing.assert_allclose(folded.U, fitted.U[rows], rtol=1e-9, atol=1e-12)
    assert known.for_seen(FEW) is known
    assert known.for_seen(FEW - 1).hyper.users is known.few


def test_an_explanation_of_a_user_with_few_ratings_adds_up(fitted):
    ratings = told_by_lists()
    row = int(np.flatnonzero(np.diff(ratings.matrix.indptr) < FEW)[0])
    effects = fitted.explain(row, 5, ratings=ratings)
    assert not [one for one in effects if one.kind == "rest"]
    score = fitted.U[row] @ fitted.V[5] * fitted.scaling.scale + fitted.scaling.mean
    assert sum(one.effect for one in effects) == pytest.approx(score, rel=1e-9)


def test_too_few_users_with_many_ratings_keep_the_prior_of_all():
    ratings = told_by_lists()
    rows = np.arange(few.MIN_USERS - 20)
    some = Ratings(ratings.users[rows], ratings.items, ratings.matrix[rows])
    assert FedMC(rank=2, clients=3, rounds=6).fit(some).model_.posterior.few is None
    assert FedMC(rank=2, clients=3, rounds=6, implicit=False).fit(ratings).model_.posterior.few is None


def test_large_ranks_take_fewer_users_and_bounded_memory(fitted, monkeypatch):
    many = np.arange(50_000)
    numbers = [len(few.some_of(many, size)) for size in SIZES]
    assert few.MAX_USERS == numbers[0] > numbers[1] > numbers[2] > few.MIN_USERS
    assert all(
        8 * few.CUTS * count * size * (size + 1) // 2 <= BLOCK for count, size in zip(numbers, SIZES, strict=True)
    )
    problem = problem_of(fitted)
    number = np.diff(problem.matrix.indptr)
    most = int(np.median(number))
    monkeypatch.setattr(newcomers, "BLOCK", most * 8 * (RANK + 1) ** 2)
    found = newcomers.left_out(problem, fitted.U, fitted.posterior).standardised
    assert len(found) == (number[(number >= FEW) & (number <= most)] // 5).sum()


def test_it_is_saved(fitted, tmp_path):
    fitted.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz").posterior
    for one, other in zip(again.few[:3], fitted.posterior.few[:3], strict=True):
        assert one.tobytes() == other.tobytes()
    assert again.newcomers.tobytes() == fitted.posterior.newcomers.tobytes()
    content = dict(np.load(tmp_path / "model.npz"))
    for name, change in (
        ("few_precision", lambda x: -x), ("few_weights", lambda x: x[1:]), ("newcomers", lambda x: x[::-1]),
        ("few_mean", lambda x: x * np.nan), ("few_mean", None),
    ):  # fmt: skip
        changed = {key: value for key, value in content.items() if key != name}
        np.savez(tmp_path / "other.npz", **changed, **({name: change(content[name])} if change else {}))
        with pytest.raises(ModelFileError):
            load(tmp_path / "other.npz")
    older = {key: value for key, value in content.items() if not key.startswith(("few", "newcomers"))}
    np.savez(tmp_path / "older.npz", **older)
    known = load(tmp_path / "older.npz").posterior
    assert known.few is None
    assert known.of_newcomers(known.user_covariances).calibration.tobytes() == known.calibration.tobytes()


def test_random_entries_are_as_many_as_asked_for():
    matrix = told_by_lists().matrix
    number = np.diff(matrix.indptr)
    asked = np.arange(USERS) % 12
    mask = random_entries(matrix, asked, seed=3)
    kept = np.bincount(np.repeat(np.arange(USERS), number)[mask], minlength=USERS)
    assert (kept == np.minimum(asked, number)).all()
    assert (random_entries(matrix, asked, seed=4) != mask).any()
    share = np.mean([random_entries(matrix, asked, seed)[matrix.indptr[5]] for seed in range(300)])
    assert share == pytest.approx(5 / number[5], abs=0.1)  # the first entry is as likely as any other


# --- newcomers


def test_an_item_without_a_rating_is_that_of_the_posterior():
    """Items whose posteriors have one rating more: the rank-one formula takes it out again."""
    rng = np.random.default_rng(1)
    q, noise = 4, 1.7
    root = rng.normal(size=(6, q, q))
    precision = root @ np.swapaxes(root, 1, 2) + 3 * np.eye(q)
    before, z = rng.normal(size=(6, q)), rng.normal(size=q)
    w, ratings = np.append(z[:-1], 1), rng.normal(size=6)
    with_it = np.linalg.inv(precision + noise * np.outer(w, w))
    pulls = np.einsum("jab,jb->ja", precision, before) + noise * np.outer(ratings - z[-1], w)
    means = np.einsum("jab,jb->ja", with_it, pulls)
    found = newcomers.without(z, ratings, means, with_it, noise)
    np.testing.assert_allclose(found.means, before, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.covariances, np.linalg.inv(precision), rtol=1e-9, atol=1e-9)


def test_newcomers_have_wider_intervals_than_users_of_the_model(fitted):
    known = fitted.posterior
    problem = problem_of(fitted)
    errors = newcomers.left_out(problem, fitted.U, known)
    number = np.diff(problem.matrix.indptr)
    rows = np.flatnonzero(number - number // 5 >= FEW)
    rows = rows[:: -(-len(rows) // newcomers.MAX_USERS)]
    assert len(errors.standardised) == (np.diff(problem.matrix.indptr)[rows] // 5).sum()
    ratings = told_by_lists()
    folded = fitted.fold_in(ratings)
    assert folded.posterior.calibration[0].tobytes() == known.newcomers.tobytes()
    assert folded.posterior.calibration[1].tobytes() == known.calibration[1].tobytes()
    none = newcomers.left_out(problem._replace(matrix=problem.matrix[:30]), fitted.U[:30], known)
    assert not len(none.standardised)


@pytest.fixture(scope="module")
def left():
    """A model, and users that it has never seen: folded in with a part of their ratings, and the rest."""
    ratings = planted(users=500, items=60, density=0.4, noise=0.6, seed=3)
    train, new = (
        Ratings(ratings.users[some], ratings.items, ratings.matrix[some]) for some in (slice(300), slice(300, 500))
    )
    known, rest = at_random(new, 0.3, 0)
    return FedMC(rank=4, clients=5, rounds=30).fit(train).model_.fold_in(known), rest


def inside(model, test, level):
    found = model.interval(test.users[test.rows()], test.items[test.matrix.indices], level)
    return float(np.mean((found.low <= test.matrix.data) & (test.matrix.data <= found.high)))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_intervals_of_newcomers_hold_what_they_promise(left, level):
    model, rest = left
    assert inside(model, rest, level) == pytest.approx(level, abs=0.03)
    line = model.posterior.calibration * np.append(1.0, np.full(model.posterior.calibration.shape[1] - 1, 0.8))
    narrower = replace(model, posterior=replace(model.posterior, calibration=line))
    assert inside(narrower, rest, level) < level - 0.03
