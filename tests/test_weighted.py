"""Weighted least squares of events: every kernel against dense numpy, and the same bits whatever the other rows are."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc.kernels import threads, weighted
from fedmc.kernels.gram import BLOCK, WHOLE
from tests.conftest import examples
from tests.test_kernels import several_threads, unchanged

SEEDS = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from([np.float32, np.float64])
SIZES = st.integers(1, 12) | st.integers(1, 40)
TOLERANCE = {np.float32: 1e-3, np.float64: 1e-9}
ROUNDING = {np.float32: 1e-5, np.float64: 1e-13}


class Events(NamedTuple):
    """Rows of events as the kernels take them."""

    indptr: np.ndarray
    indices: np.ndarray
    roots: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.indptr)

    def some(self, rows) -> Events:
        """The same events with these rows only."""
        parts = [slice(self.indptr[row], self.indptr[row + 1]) for row in rows]
        indices, roots = (np.concatenate([all[part] for part in parts] or [all[:0]]) for all in self[1:])
        return Events(np.cumsum([0, *self.counts[rows]]).astype(np.int32), indices, roots)


def events_of(rng, counts, columns, dtype) -> Events:
    """So many events in each row, with weights from 0.001 to 1000; columns are an int, or those of each row."""
    of_rows = [np.arange(columns)] * len(counts) if isinstance(columns, int) else columns
    picked = [np.sort(rng.choice(some, count, replace=False)) for some, count in zip(of_rows, counts, strict=True)]
    indices = np.concatenate([*picked, np.empty(0)]).astype(np.int32)
    roots = np.sqrt(10 ** rng.uniform(-3, 3, len(indices))).astype(dtype)
    return Events(np.cumsum([0, *counts]).astype(np.int32), indices, roots)


def bits(*arrays) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def near(found, expected, tolerance) -> None:
    """Equal, row by row, relative to the row's largest number."""
    assert found.shape == expected.shape
    size = np.abs(expected).max(axis=-1, initial=1e-300, keepdims=True)
    np.testing.assert_allclose(found / size, expected / size, rtol=0, atol=tolerance, equal_nan=False)


# --- the solve of a row of events


def dense_rows(events, F, shift, ridge):
    """(diag(shift) + ridge + sum c f f')^-1 sum c f, row by row."""
    found = np.zeros((len(events.counts), F.shape[1]))
    for row, (a, b) in enumerate(pairwise(events.indptr)):
        f, c = F[events.indices[a:b]].astype(float), events.roots[a:b].astype(float) ** 2
        found[row] = np.linalg.solve(np.diag(shift + ridge[row]) + (f.T * c) @ f, f.T @ c)
    return found


def systems(seed, size, dtype, rows=9):
    """Rows of no, few and many events: n = d - 1, d, d + 1 and around a block among them."""
    rng = np.random.default_rng(seed)
    usual = [0, 1, size - 1, size, size + 1, 2 * size, BLOCK, BLOCK + 1, 2 * BLOCK + 3]
    counts = rng.choice(usual, rows) if rows != len(usual) else np.array(usual)
    events = events_of(rng, counts, 2 * max(usual), dtype)
    F = (rng.normal(size=(2 * max(usual), size)) / np.sqrt(size)).astype(dtype)
    shift, ridge = rng.exponential(size=size).astype(dtype), (0.3 + rng.exponential(size=rows)).astype(dtype)
    return events, F, shift, ridge


@given(SEEDS, SIZES, DTYPES)
@examples(60)
def test_rows_of_few_many_and_no_events(seed, size, dtype):
    events, F, shift, ridge = systems(seed, size, dtype)
    found = unchanged(weighted.solve_events, *events, F, shift, ridge)
    assert found.dtype == dtype
    assert not found[events.counts == 0].any()
    near(found, dense_rows(events, F, shift, ridge), TOLERANCE[dtype])


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 7, 64, 128, 129, 256])
def test_rows_of_many_sizes(size, dtype):
    for seed in range(20):
        events, F, shift, ridge = systems(seed, size, dtype)
        found = weighted.solve_events(*events, F, shift, ridge)
        near(found, dense_rows(events, F, shift, ridge), TOLERANCE[dtype])


@pytest.mark.parametrize("size", [2, 5, 16, 33])
def test_few_and_many_events_meet(size):
    """An event of weight 0 changes only the way of solving: by Woodbury below d events, by Cholesky from d on."""
    rng = np.random.default_rng(size)
    F, ridge = rng.normal(size=(size, size)), np.ones(1)
    roots = np.append(rng.exponential(size=size - 1), 0.0)
    indices, shift = np.arange(size, dtype=np.int32), rng.exponential(size=size)
    few, many = (
        weighted.solve_events(np.array([0, n], np.int32), indices[:n], roots[:n], F, shift, ridge)
        for n in (size - 1, size)
    )
    near(few, many, 1e-12)


@given(SEEDS, st.integers(1, 20), DTYPES)
@examples(15)
def test_a_row_has_the_same_bits_alone(seed, size, dtype):
    events, F, shift, ridge = systems(seed, size, dtype, rows=30)
    whole = weighted.solve_events(*events, F, shift, ridge)
    rng = np.random.default_rng(seed)
    for rows in (rng.permutation(30)[: rng.integers(0, 30)], [int(rng.integers(30))]):
        some = weighted.solve_events(*events.some(rows), F, shift, ridge[rows])
        assert bits(some) == bits(whole[rows])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_that_overflows_leaves_the_others_alone(dtype):
    events, F, shift, ridge = systems(3, 6, dtype, rows=20)
    expected = weighted.solve_events(*events, F, shift, ridge)
    for row in np.flatnonzero(events.counts):
        spoilt = events.roots.copy()
        spoilt[events.indptr[row]] = np.nan
        found = weighted.solve_events(events.indptr, events.indices, spoilt, F, shift, ridge)
        assert np.isnan(found[row]).any()
        assert bits(np.delete(found, row, 0)) == bits(np.delete(expected, row, 0))


def test_solutions_go_where_they_are_wanted():
    events, F, shift, ridge = systems(1, 4, np.float64)
    out = np.full((9, 4), np.nan)
    assert weighted.solve_events(*events, F, shift, ridge, out) is out
    assert bits(out) == bits(weighted.solve_events(*events, F, shift, ridge))


# --- the sums of clients over their users


class Clients(NamedTuple):
    """Rows of events of several clients, one after the other: targets repeat over clients."""

    targets: np.ndarray
    events: Events
    F: np.ndarray
    previous: np.ndarray
    known: np.ndarray  # by user
    row_of: np.ndarray  # each row's client

    def add(self, sums, rows=slice(None)) -> np.ndarray:
        """The sums with these rows added."""
        found = sums.copy()
        rows = np.arange(len(self.targets))[rows]
        users = self.F, self.previous, self.known
        unchanged(
            lambda *given: weighted.add_event_sums(found, *given), self.targets[rows], *self.events.some(rows), *users
        )
        return found


def clients_of(seed, size, dtype, number=4, items=7, users=2 * BLOCK, least=1) -> Clients:
    rng = np.random.default_rng(seed)
    rated = [np.sort(rng.permutation(items)[: rng.integers(1, items + 1)]) for _ in range(number)]
    row_of = np.repeat(np.arange(number), list(map(len, rated)))
    counts = rng.choice([least, 1, 2, WHOLE - 1, WHOLE, BLOCK, BLOCK + 1, users], len(row_of))
    events = events_of(rng, counts, [np.arange(users) + users * client for client in row_of], dtype)
    F, previous = (rng.normal(size=(number * users, size)).astype(dtype) for _ in range(2))
    known = np.repeat(rng.random(number) < 0.5, users)
    return Clients(np.concatenate(rated).astype(np.int32), events, F, previous, known, row_of)


def dense_sums(given: Clients, sums) -> tuple[np.ndarray, np.ndarray]:
    """What to expect, and the sizes of the numbers that were added up."""
    found, sizes, lower = sums.copy(), np.abs(sums), np.tril_indices(given.F.shape[1])

    def part(F, a, b, absolute):
        f, c = F[given.events.indices[a:b]].astype(float), given.events.roots[a:b].astype(float) ** 2
        f = np.abs(f) if absolute else f
        return np.concatenate([((f.T * c) @ f)[lower], f.T @ c])

    for row, (a, b) in enumerate(pairwise(given.events.indptr)):
        target, known = given.targets[row], a < b and given.known[given.events.indices[a]]
        found[target, :-1] += part(given.F, a, b, False) - known * part(given.previous, a, b, False)
        found[target, -1] += 0 if known else b - a
        sizes[target, :-1] += part(given.F, a, b, True) + known * part(given.previous, a, b, True)
    return found, sizes


def line(size):
    return size * (size + 1) // 2 + size + 1


@given(SEEDS, SIZES, DTYPES, st.booleans())
@examples(60)
def test_sums_with_and_without_a_previous_part(seed, size, dtype, fresh):
    given, rng = clients_of(seed, size, dtype), np.random.default_rng(seed)
    sums = np.zeros((8, line(size))) if fresh else rng.normal(size=(8, line(size)))
    sums[:, -1] = rng.integers(0, 9, 8)
    found = given.add(sums)
    expected, sizes = dense_sums(given, sums)
    assert (found[:, -1] == expected[:, -1]).all()  # counts are exact
    assert (found[7] == sums[7]).all()  # an item that no client has
    assert (np.abs(found - expected) <= ROUNDING[dtype] * (sizes + 1e-300)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unchanged_factors_add_nothing(dtype):
    given = clients_of(5, 9, dtype)
    given = given._replace(previous=given.F, known=np.ones_like(given.known))
    found = given.add(np.zeros((7, line(9))))
    assert not found[:, -1].any()
    size = np.abs(given._replace(known=~given.known).add(np.zeros((7, line(9))))).max()
    assert np.abs(found).max() <= ROUNDING[dtype] * size


def test_a_row_without_events_adds_nothing():
    """It follows rows with events, whose sums must not be added again."""
    given = clients_of(6, 5, np.float64, least=0)
    assert (given.events.counts == 0).any()
    sums = np.zeros((7, line(5)))
    expected, sizes = dense_sums(given, sums)
    assert (np.abs(given.add(sums) - expected) <= 1e-13 * (sizes + 1e-300)).all()


@given(SEEDS, st.integers(1, 20), DTYPES)
@examples(15)
def test_clients_together_add_the_bits_of_one_after_the_other(seed, size, dtype):
    given = clients_of(seed, size, dtype)
    sums = np.random.default_rng(seed).normal(size=(8, line(size)))
    one_by_one = sums
    for client in range(4):
        one_by_one = given.add(one_by_one, given.row_of == client)
    assert bits(given.add(sums)) == bits(one_by_one)


# --- the server's solve


def packed_systems(rng, rows, size, events=3, scale=1.0):
    f = scale * rng.normal(size=(rows, events, size))
    G = np.swapaxes(f, 1, 2) @ f
    sums = np.concatenate([G[:, *np.tril_indices(size)], f.sum(axis=1), np.full((rows, 1), events)], axis=1)
    root = rng.normal(size=(size, size)) / np.sqrt(size)
    return sums, G, f.sum(axis=1), root @ root.T


@given(SEEDS, SIZES, st.integers(0, 9), st.sampled_from([0, 1, 30]), st.sampled_from([1e-3, 1.0, 1e3]))
@examples(60)
def test_items_from_sums(seed, size, rows, events, scale):
    rng = np.random.default_rng(seed)
    sums, G, b, common = packed_systems(rng, rows, size, events, np.sqrt(scale))
    ridge = 0.1 * scale * (1 + rng.exponential(size=rows))
    found = unchanged(weighted.solve_event_sums, sums, scale * common, ridge)
    assert found.dtype == np.float64
    A = G + scale * common + ridge[:, None, None] * np.eye(size)
    near(found, np.linalg.solve(A, b[..., None])[..., 0], 1e-9)
    if events == 0:
        assert not found.any()
    for row in range(rows):
        assert bits(weighted.solve_event_sums(sums[[row]], scale * common, ridge[[row]])) == bits(found[[row]])


@pytest.mark.parametrize("size", [2, 3, 8, 17])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_many_items_from_sums_of_any_size(size, scale):
    """What a row leaves in the working space must not grow from row to row."""
    sums, G, b, common = packed_systems(np.random.default_rng(size), 3_000, size, 2, np.sqrt(scale))
    A = G + 1e-3 * scale * (common + np.eye(size))
    with threads.limited(1):
        found = weighted.solve_event_sums(sums, 1e-3 * scale * common, np.full(3_000, 1e-3 * scale))
    near(found, np.linalg.solve(A, b[..., None])[..., 0], 1e-9)


def test_a_direction_that_nothing_determines_is_left_out():
    sums = np.array([[1.0, 0.0, 0.0, 2.0, 0.0, 1.0]])  # two coordinates, one event that sees the first
    assert weighted.solve_event_sums(sums, np.zeros((2, 2)), np.zeros(1)).tolist() == [[2.0, 0.0]]


# --- products


@given(SEEDS, st.integers(0, 20), SIZES, SIZES, DTYPES)
@examples(60)
def test_products(seed, rows, inner, size, dtype):
    rng = np.random.default_rng(seed)
    X, B = rng.normal(size=(rows, inner)).astype(dtype), rng.normal(size=(inner, size)).astype(dtype)
    found = unchanged(weighted.times, X, B)
    assert found.dtype == dtype
    wide = X.astype(float), B.astype(float)
    assert (np.abs(found - wide[0] @ wide[1]) <= ROUNDING[dtype] * (np.abs(wide[0]) @ np.abs(wide[1]))).all()
    some = rng.permutation(rows)[: rng.integers(0, rows + 1)]
    assert bits(weighted.times(X[some], B)) == bits(found[some])
    assert bits(weighted.times(np.asfortranarray(X), np.asfortranarray(B))) == bits(found)


@given(SEEDS, st.sampled_from([0, 1, BLOCK, 2047, 2048, 2049, 4100]), SIZES, DTYPES)
@examples(40)
def test_grams(seed, rows, size, dtype):
    X = np.random.default_rng(seed).normal(size=(rows, size)).astype(dtype)
    found = unchanged(weighted.gram_of, X)
    wide = X.astype(float)
    assert found.dtype == np.float64  # also of float32
    assert found.shape == (size, size)
    assert (found == found.T).all()
    rounding = {np.float32: 1e-5, np.float64: 1e-13}[dtype]  # parts are summed in the type of X
    assert (np.abs(found - wide.T @ wide) <= rounding * (np.abs(wide).T @ np.abs(wide))).all()
    assert bits(weighted.gram_of(np.asfortranarray(X))) == bits(found)


# --- threads


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3, 40])
def test_no_kernel_depends_on_the_number_of_threads(size, dtype, monkeypatch):
    rng = np.random.default_rng(size)
    monkeypatch.setattr(threads, "WORTH", 1_000)
    events, F, shift, ridge = systems(0, size, dtype, rows=200)
    clients, sums = clients_of(0, size, dtype, items=40), rng.normal(size=(41, line(size)))
    packed, _, _, common = packed_systems(rng, 300, size)
    X = rng.normal(size=(10_000, size)).astype(dtype)
    kernels = {
        "rows": lambda: weighted.solve_events(*events, F, shift, ridge),
        "sums": lambda: clients.add(sums),
        "items": lambda: weighted.solve_event_sums(packed, common, np.ones(300)),
        "product": lambda: weighted.times(X, X[:size]),
        "gram": lambda: weighted.gram_of(X),
    }
    shared = several_threads(monkeypatch)
    for name, kernel in kernels.items():
        with threads.limited(1):
            alone = kernel()
        assert shared == []
        for number in (2, 3, 7):
            with threads.limited(number):
                assert bits(kernel()) == bits(alone), name
        assert shared
        assert all(pieces > 1 for pieces, _ in shared), name
        shared.clear()


def test_grams_do_not_depend_on_the_environment(monkeypatch):
    X, found = np.random.default_rng(0).normal(size=(20_000, 12)), []
    try:
        for number in ("1", "2", "5"):
            monkeypatch.setenv(threads.VARIABLE, number)
            threads._by_default.cache_clear()
            assert threads.available() == int(number)
            found.append(weighted.gram_of(X).tobytes())
    finally:
        monkeypatch.undo()
        threads._by_default.cache_clear()
    assert len(set(found)) == 1
