"""Threads, memory and precision: what must not change when a run gets large."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc.algorithms import curvature
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Federation, make_shards, together
from fedmc.errors import DataError, InputError
from fedmc.kernels import reference, solves, steps, threads
from fedmc.training import members, memory
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.simulation import measure_interval, train
from fedmc.training.spill import SpilledStates
from fedmc.training.stopping import Stop
from tests.conftest import examples, local_engine, planted

KINDS = {
    "paper": Settings.preset("paper", rank=3, beta=0.5, active=3),
    "exact": Settings.preset("fast", rank=3, update="exact", active=3),
    "curvature": Settings.preset("fast", rank=3, active=3),
}


def last_V(engine, settings, number=8):
    for round in rounds(engine, settings):
        if round.number == number:
            return round.V
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", ["equal", "one huge client"])
def test_the_number_of_threads_changes_no_bit(kind, spread, monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 0)  # share whatever can be shared
    monkeypatch.setattr(threads, "SHARED", 0)
    ratings = planted(users=300, items=60)
    owner = np.arange(300) % 10 if spread == "equal" else np.maximum(np.arange(300) - 290, 0)
    found = []
    for count in (1, 2, 5):
        with threads.limited(count):
            found.append(last_V(LocalEngine(make_shards(ratings, owner, "float64")), KINDS[kind]))
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@pytest.mark.parametrize("users", ["l2:2", "non-negative+l2:2", "l1:0.1"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_turns_taken_together_change_no_bit(users, dtype, monkeypatch):
    """Newcomers beside clients that had a turn before, clients of one user and of many, long rows and short ones."""
    settings = Settings.preset("fast", rank=3, active=9, penalty_users=users, entry_penalty=0.5, dtype=dtype)
    shards = make_shards(planted(users=300, items=60), np.minimum(np.arange(300) // 2, 20), dtype)
    met = []
    monkeypatch.setattr(curvature, "together", lambda shards: met.append(len(shards)) or together(shards))
    found = []
    for ratings in (0, 100, 10**6):
        monkeypatch.setattr(members, "BATCH", ratings)
        found.append(last_V(LocalEngine(shards), settings))
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    assert len(set(met)) > 2  # one by one, some, and most of them


@given(efforts=st.lists(st.integers(0, 10**7), max_size=60), count=st.integers(1, 4))
@examples(100)
def test_results_come_in_order_whoever_made_them(efforts, count):
    items = range(len(efforts))
    with threads.limited(count):
        assert list(threads.in_order(lambda k: 3 * k, items, efforts)) == [3 * k for k in items]


def test_an_error_in_a_thread_is_the_callers_and_the_threads_go_on():
    def fail(k):
        if k == 7:
            raise DataError("seven")
        return k

    with threads.limited(3):
        with pytest.raises(DataError, match="seven"):
            list(threads.in_order(fail, range(20), [10**6] * 20))
        assert list(threads.in_order(lambda k: k, range(20), [10**6] * 20)) == list(range(20))


def test_threads_by_the_environment(monkeypatch):
    threads._by_default.cache_clear()
    monkeypatch.setenv(threads.VARIABLE, "3")
    assert threads.available() == 3
    for wrong in ("0", "two"):
        threads._by_default.cache_clear()
        monkeypatch.setenv(threads.VARIABLE, wrong)
        with pytest.raises(InputError, match=threads.VARIABLE):
            threads.available()
    threads._by_default.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_states_on_disk_change_no_bit(kind, tmp_path):
    ratings = planted(users=60, items=20)
    owner = np.arange(60) % 6
    shards = make_shards(ratings, owner, "float64")
    spilled = LocalEngine(shards, tmp_path)
    assert isinstance(spilled.states, SpilledStates)
    assert last_V(spilled, KINDS[kind]).tobytes() == last_V(LocalEngine(shards), KINDS[kind]).tobytes()
    assert len(list(tmp_path.glob("*/client-*.npz"))) == 6
    del spilled
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_the_same_with_states_on_disk(tmp_path):
    ratings = planted(users=60, items=20)
    federation = Federation(make_shards(ratings, np.arange(60) % 6, "float64"), ratings.users, ratings.items)
    models = [train(federation, KINDS["paper"], Stop(5), spill=folder).model for folder in (None, tmp_path)]
    assert models[0].U.tobytes() == models[1].U.tobytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_under_the_states_is_an_error_that_says_so(tmp_path, monkeypatch):
    states = SpilledStates(tmp_path, 2)
    monkeypatch.setattr(SpilledStates, "_path", lambda self, client: "/dev/full")
    engine = local_engine(planted(), 2)
    last_V(engine, KINDS["curvature"].replace(active=2), 1)
    with pytest.raises(DataError, match="cannot write the state of client 0"):
        states[0] = engine.states[0]


@pytest.mark.parametrize("kind", KINDS)
def test_predicted_memory_covers_what_the_states_take(kind):
    engine = local_engine(planted(users=200, items=100, density=0.1), 20)
    settings = KINDS[kind].replace(active=20)
    last_V(engine, settings, 2)
    taken = sum(
        sum(part.nbytes for name, part in s._asdict().items() if name not in ("V", "rated")) for s in engine.states
    )
    predicted = memory.needed(engine.shards, settings, 2)["clients"]
    assert taken <= predicted <= 1.3 * taken + 10_000


def test_clients_that_rated_little_remember_little():
    """With exact solves p x n x r does not bound the number of clients."""
    ratings = planted(users=100, items=1000, density=0.005)
    engine = LocalEngine(make_shards(ratings, np.arange(100), "float64"))
    last_V(engine, KINDS["exact"].replace(active=100), 2)
    W = sum(state.W_rated.size for state in engine.states)
    assert sum(len(shard.rated) for shard in engine.shards) * 5 == W
    assert W < 0.03 * 100 * 1000 * 5


def test_what_cannot_fit_is_refused_with_the_cure(monkeypatch):
    shards = local_engine(planted(users=100, items=50), 50).shards
    monkeypatch.setattr(memory, "available", lambda: 100_000)
    with pytest.raises(InputError, match=r"needs about .* for the clients.*spill="):
        memory.check(shards, KINDS["paper"].replace(rank=50), 1)
    monkeypatch.setattr(memory, "available", lambda: 10**12)
    assert memory.check(shards, KINDS["paper"], 1) is None
    monkeypatch.setattr(memory, "WORTH_SAYING", 10)
    assert "GB of memory of 1000.0 GB free" in memory.check(shards, KINDS["paper"], 1)


def test_memory_that_is_free_is_known_here():
    assert memory.available() > 10**7


@pytest.mark.parametrize("kind", KINDS)
def test_float32_ends_where_float64_does(kind):
    ends = []
    for dtype in ("float32", "float64"):
        engine = local_engine(planted(users=150, items=40), 5, dtype)
        for round in rounds(engine, KINDS[kind].replace(dtype=dtype)):
            if round.number == 60:
                ends.append(round.diagnostics.objective)
                break
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)
    assert ends[0] != ends[1]


@pytest.mark.parametrize("width", [12, 16, 17, 33, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernels_at_other_widths(width, dtype):
    """Loops that are compiled for their width, and those that take any."""
    rng = np.random.default_rng(width)
    mask = rng.random((30, 90)) < rng.random((30, 1))
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int32)
    ratings = indptr, np.nonzero(mask)[1].astype(np.int32), rng.random(indptr[-1]).astype(dtype), dtype(0.5), dtype(2)
    F, X, anchor = (rng.normal(size=(n, width)).astype(dtype) / 4 for n in (90, 30, 30))
    rho, numbers = np.full((1, width), dtype(0.7)), [np.full(width, v, dtype) for v in (0, 0.3, -np.inf, np.inf)]
    L, free = dtype(np.linalg.norm(F.T @ F)), np.arange(width - 2)
    fixed = np.concatenate([np.zeros(width - 2), [0.5, 1]]).astype(dtype)
    calls = {
        "prox_steps": (*ratings, F, X, rho, anchor, *numbers, L, 7, False),
        "exact_rows": (*ratings, F, X, rho, anchor, *(n[:-2] for n in numbers), free, True),
        "packed_grams": (*ratings, F, fixed, free),
        "squared_errors": (*ratings, F, X),
        "gradient_rows": (*ratings, F, X),
    }
    tolerance = {np.float32: 2e-3, np.float64: 1e-10}[dtype]
    for name, arguments in calls.items():
        fast = getattr(solves if hasattr(solves, name) else steps, name)(*arguments)
        slow = getattr(reference, name)(*arguments)
        np.testing.assert_allclose(fast, slow, rtol=tolerance, atol=tolerance, err_msg=name)
    assert steps.frobenius(F) == pytest.approx(np.linalg.norm(F.T @ F), rel=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("per_entry", [False, True])
def test_dual_step_and_sums_of_rows(dtype, per_entry):
    rng = np.random.default_rng(1)
    V, W_old, Y_old, W = rng.normal(size=(4, 7, 3)).astype(dtype)
    beta = rng.random((7, 3)).astype(dtype) + 0.1 if per_entry else 0.3
    Y, change, finite = steps.dual_step(V, W_old, Y_old, W, beta, 1.5)
    expected = Y_old + 1.5 * beta * (W - V)
    np.testing.assert_allclose(Y, expected, rtol=1e-5)
    np.testing.assert_allclose(change, beta * W + expected - (beta * W_old + Y_old), rtol=1e-4, atol=1e-5)
    assert finite
    np.testing.assert_allclose(steps.anchors(V, Y_old, beta), V - Y_old / beta, rtol=1e-5)
    for place in (0, 20):  # in a pack, and behind the last whole one
        broken = W.copy()
        broken.flat[place] = np.inf
        with np.errstate(all="ignore"):
            assert not steps.dual_step(V, W_old, Y_old, broken, beta, 1.5)[2]
    total = np.ones((9, 3))
    steps.add_rows(total, np.array([0, 2, 3, 4, 5, 6, 8], np.int32), V)
    again = np.zeros((9, 3))
    steps.add_rows(again, np.array([4, 4, 4, 4, 4, 4, 4], np.int32), V)  # in this order
    np.testing.assert_array_equal(again[4], np.cumsum(V, axis=0, dtype=np.float64)[-1])
    assert (total[[1, 7]] == 1).all()
    np.testing.assert_array_equal(total[[0, 2, 3, 4, 5, 6, 8]], 1 + V.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("per_entry", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_the_item_half_in_one_go(dtype, per_entry, count, monkeypatch):
    """Against its parts: anchors, steps and the dual step one after the other, whoever does which rows."""
    monkeypatch.setattr(threads, "WORTH", 0)
    rng = np.random.default_rng(3)
    mask = rng.random((40, 25)) < rng.random((40, 1)) * 0.5
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int32)
    ratings = indptr, np.nonzero(mask)[1].astype(np.int32), rng.random(indptr[-1]).astype(dtype), dtype(0.5), dtype(2)
    U, (W, V, Y) = rng.normal(size=(25, 3)).astype(dtype), rng.normal(size=(3, 40, 3)).astype(dtype)
    beta = (rng.random((40 if per_entry else 1, 3)) + 0.1).astype(dtype)
    beta = beta if per_entry else np.repeat(beta[:, :1], 3, axis=1)
    numbers, L = [np.full(3, value, dtype) for value in (0, 0, -np.inf, np.inf)], dtype(np.linalg.norm(U.T @ U))
    lines = steps.Lines.of(*numbers)
    with threads.limited(count):
        found = steps.item_steps(ratings, U, W, V, Y, beta, 7, lines, L, 4, False, 1.5)
        broken = steps.item_steps(ratings, U, W, V, np.where(Y[-1] == Y, np.inf, Y), beta, 7, lines, L, 4, False, 1.5)
    tolerance = {np.float32: 1e-4, np.float64: 1e-11}[dtype]
    new = reference.prox_steps(*ratings, U, W, 7 * beta, V - Y / beta, *numbers, L, 4, False)
    dual = Y + 1.5 * beta * (new - V)
    for ours, expected in zip(found, (new, dual, beta * new + dual - beta * W - Y), strict=False):
        np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)
    assert found[3] is True
    assert broken[3] is False


def test_packed_grams_less_others():
    rng = np.random.default_rng(0)
    ratings = np.array([0, 2, 3], np.int32), np.array([0, 1, 1], np.int32), rng.random(3), 0.0, 1.0
    F, old = rng.random((2, 2, 4))
    both = [solves.packed_grams(*ratings, factors, np.zeros(4), np.arange(4)) for factors in (F, old)]
    np.testing.assert_allclose(
        solves.packed_grams(*ratings, F, np.zeros(4), np.arange(4), old), both[0] - both[1], atol=1e-12
    )


@pytest.mark.parametrize(("clients", "active"), [(100, 10), (10, 10), (10_000, 100), (3, 1)])
@pytest.mark.parametrize("number", [1, 30, 100, 1000])
def test_measurements_stay_within_their_share(clients, active, number):
    """A measurement of all clients costs half a round of all; the first and the last are always taken."""
    settings = KINDS["curvature"].replace(active=active)
    every = measure_interval(settings, clients, number)
    taken = 2 + (number - 1) // every  # the first, every so many, the last
    assert taken <= 2 or (taken - 1) * 0.5 * clients / active <= 0.15 * number


def test_help_loads_nothing_heavy():
    code = "import sys; import fedmc.cli; print([m for m in ('numba', 'scipy', 'rich', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
