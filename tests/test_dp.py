"""Differential privacy: nobody weighs more than 1, noise is everywhere, and the ledger holds through anything."""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats

from tests.conftest import examples, local_engine, planted

pytest.importorskip("dp_accounting", reason="needs the extra `dp`")

from fedmc.algorithms import denoise, private
from fedmc.algorithms.messages import Broadcast, Shared
from fedmc.algorithms.private import POSTERIOR, Private, multiplier, own_noise
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard
from fedmc.errors import InputError
from fedmc.privacy.dp import mechanism
from fedmc.privacy.dp.ledger import Ledger, OverBudgetError
from fedmc.privacy.modes import DP, DPSecAgg
from fedmc.training.rounds import rounds

ITEMS, RANK = 6, 2
DELTA = 1e-5


def shard_of(table) -> Shard:
    """Of rows of ratings, 0 for none."""
    matrix = sparse.csr_array(np.asarray(table, float))
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return Shard.of(0, np.arange(len(table)), matrix)


def broadcast_of(privacy, number, V=None, counts=None, clients=1):
    chosen = Settings.preset("fast", rank=RANK, privacy=privacy, penalty_users="l2:1", penalty_items="none")
    rng = np.random.default_rng(0)
    V = denoise.without_factors(rng.normal(size=(ITEMS, RANK + 2))) if V is None else V
    counts = rng.uniform(1, 50, ITEMS) if counts is None else counts
    posterior = denoise.Posterior(counts, 100.0, 3.0, 1, np.zeros((ITEMS, RANK + 1)), np.eye(RANK + 1)).packed()
    scaling = chosen.make_algorithm().scaling(chosen)
    return Broadcast("round", number, clients, chosen, V, scaling, Shared({POSTERIOR: posterior}))


def exact(table, broadcast):
    """What a client of these ratings would release without noise."""
    shard = shard_of(table)
    if broadcast.round == 1:
        return private.counts(shard)
    return private.slopes(shard, private.users(shard, broadcast), broadcast, Private().free(RANK))


ratings = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 5.0, -1e6, 1e12]), min_size=ITEMS, max_size=ITEMS)


@examples(100)
@given(
    one=ratings,
    others=st.lists(ratings, min_size=1, max_size=3),
    number=st.integers(1, 5),
    size=st.sampled_from([0.0, 1e-12, 0.3, 1e3, 1e150, 1e300, math.nan]),
    counts=st.lists(st.sampled_from([2.0, 60.0, 1e9, math.nan]), min_size=ITEMS, max_size=ITEMS),
)
def test_no_user_moves_a_release_by_more_than_one(one, others, number, size, counts):
    """Whatever the user rates, and whatever V and counts a server sends."""
    privacy = DP(1.0, DELTA, 5)
    V = np.random.default_rng(number).normal(size=(ITEMS, RANK + 2)) * size
    broadcast = broadcast_of(privacy, number, V, np.array(counts))
    change = exact([*others, one], broadcast) - exact(others, broadcast)
    assert np.isfinite(change).all()
    assert np.linalg.norm(change) <= 1 + 1e-9


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_user_may_move_it_by_one(number):
    """The bound is reached: by everybody in round 1, later by who leaves hardly anything to explain."""
    privacy = DP(1.0, DELTA, 5)
    broadcast = broadcast_of(privacy, number)
    others = [[1, 0, 3, 0, 5, 2]]
    nearly = 1e-3 * np.array([1, -1, 1, -1, 1, -1]) + 3.0
    change = exact([*others, nearly], broadcast) - exact(others, broadcast)
    assert np.linalg.norm(change) == pytest.approx(1, abs=1e-9)


def test_users_count_alike():
    """One rating or all of them: the same norm."""
    privacy = DP(1.0, DELTA, 5)
    broadcast = broadcast_of(privacy, 3, np.random.default_rng(1).normal(size=(ITEMS, RANK + 2)))
    for table in ([[5, 0, 0, 0, 0, 0]], [[5, 1, 4, 2, 5, 1]]):
        slopes = exact(table, broadcast)[:ITEMS]
        assert np.linalg.norm(slopes) == pytest.approx(private.ITEMS)


@pytest.mark.parametrize(("number", "kind"), [(1, DP), (2, DP), (3, DPSecAgg)])
def test_noise_is_on_every_number_and_as_large_as_it_must_be(number, kind):
    """Also on items that nobody rated, also on the pooled numbers."""
    privacy, method = kind(1.0, DELTA, 5), Private()
    broadcast = broadcast_of(privacy, number, clients=10)
    shard, draws = shard_of([[5, 0, 0, 0, 0, 1], [4, 0, 0, 0, 0, 0]]), 2000
    released = np.array([method.client_update(shard, None, broadcast)[1]["release"] for _ in range(draws)])
    assert released.shape[1:] == method.schema(broadcast, ITEMS)["release"].shape
    sharers = 7 if kind is DPSecAgg else 1  # 7 of 10 are more than two thirds
    expected = multiplier(privacy, number) / math.sqrt(sharers)
    assert np.abs(released.std(axis=0) / expected - 1).max() < 6 / math.sqrt(2 * draws)
    exactly = exact([[5, 0, 0, 0, 0, 1], [4, 0, 0, 0, 0, 0]], broadcast)
    assert np.abs(released.mean(axis=0) - exactly).max() < 6 * expected / math.sqrt(draws)


def test_noise_is_gaussian_in_whole_steps_and_never_the_same():
    one, other = mechanism.gaussian_steps((50_001,), 1.5), mechanism.gaussian_steps((50_001,), 1.5)
    assert one.dtype == np.int64
    assert np.abs(np.corrcoef(one, other)[0, 1]) < 0.03
    for half in (one[:25_000], one[25_001:]):
        assert stats.kstest(half * 2.0**-mechanism.BITS / 1.5, "norm").pvalue > 1e-7
    released = mechanism.noised(np.array([0.1, 0.2]), 1.0) * 2.0**mechanism.BITS
    np.testing.assert_array_equal(released, np.rint(released))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 10.0])
def test_a_plan_spends_its_budget_and_the_accountant_agrees(epsilon):
    """Within 1e-3 of privacy loss distributions, which know nothing of how Gaussians compose."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    plan = [multiplier(DP(epsilon, DELTA, 8), number) for number in range(1, 9)]
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for noise in plan:
        accountant.compose(GaussianDpEvent(noise))
    assert mechanism.spent(plan, DELTA) == pytest.approx(epsilon, abs=1e-6)
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon, abs=1e-3)
    assert mechanism.spent([mechanism.calibrate(epsilon, DELTA, 8)] * 8, DELTA) == pytest.approx(epsilon, abs=1e-6)


def test_what_no_noise_and_no_release_cost():
    assert mechanism.spent([], DELTA) == 0
    assert mechanism.spent([1.0, 0.0], DELTA) == math.inf
    assert mechanism.calibrate(math.inf, DELTA, 5) == 0


# --- the ledger


def test_the_ledger_counts_releases_and_not_questions(tmp_path):
    with Ledger(tmp_path / "ledger", 3.0, DELTA) as ledger:
        assert ledger.spent() == 0
        assert ledger.release("run/1", 4.0, lambda: b"one") == b"one"
        assert ledger.release("run/1", 4.0, lambda: b"another") == b"one"
        assert ledger.multipliers() == [4.0]
        assert ledger.release("other/1", 4.0, lambda: b"two") == b"two"
        assert ledger.spent() == pytest.approx(mechanism.spent([4.0, 4.0], DELTA), abs=1e-12)
    assert (tmp_path / "ledger").stat().st_mode & 0o077 == 0


def test_a_plan_fits_its_own_budget_and_not_one_release_more(tmp_path):
    privacy = DP(1.0, DELTA, 4)
    with Ledger(tmp_path / "ledger", 1.0, DELTA) as ledger:
        for number in range(1, 5):
            ledger.release(f"run/{number}", multiplier(privacy, number), lambda: b"noised")
        assert ledger.spent() == pytest.approx(1.0, abs=1e-6)
        with pytest.raises(OverBudgetError, match=r"bring epsilon to 1\.\d+, the bound is 1 .* raise the bound"):
            ledger.release("other run/1", 30.0, lambda: b"more")
        assert ledger.release("run/2", multiplier(privacy, 2), lambda: b"more") == b"noised"
    with Ledger(tmp_path / "ledger", 1.0, DELTA) as again, pytest.raises(OverBudgetError):
        again.release("other run/1", 30.0, lambda: b"more")
    with Ledger(tmp_path / "ledger", 1.0, DELTA) as again, pytest.raises(InputError, match="multiplier must lie"):
        again.release("no noise", 0.0, lambda: b"more")


def test_what_cannot_be_made_costs_nothing(tmp_path):
    def fails() -> bytes:
        raise InputError("no")

    with Ledger(tmp_path / "ledger", 1.0, DELTA) as ledger:
        with pytest.raises(InputError):
            ledger.release("run/1", 10.0, fails)
        assert ledger.multipliers() == []


RELEASING = """
import os, sys
from fedmc.privacy.dp.ledger import Ledger
ledger = Ledger(sys.argv[1], 3.0, 1e-5)
for number in range(1000):
    content = ledger.release(f"run/{number}", 9.0, lambda: os.urandom(8))
    print(number, content.hex(), flush=True)
"""


def test_a_killed_process_has_spent_what_it_released(tmp_path):
    """SIGKILL, again and again: what was seen outside is in the ledger, with its bytes, and the bound holds."""
    seen: dict[str, str] = {}
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", RELEASING, tmp_path / "ledger"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in itertools.islice(process.stdout, len(seen) + 6):
            number, content = line.split()
            assert seen.setdefault(number, content) == content
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with Ledger(tmp_path / "ledger", 3.0, DELTA) as ledger:
        assert len(ledger.multipliers()) >= len(seen) >= 18
        for number, content in seen.items():
            assert ledger.release(f"run/{number}", 9.0, lambda: b"new").hex() == content
        with pytest.raises(OverBudgetError):
            for number in range(1000):
                ledger.release(f"another/{number}", 9.0, lambda: b"new")
        assert 2.9 < ledger.spent() <= 3.0


# --- what an attacker can make of it


def advantages(epsilon, delta, turned_down=1.0, runs=40_000):
    """Of the best test for one user, over all releases of a run: P(found | in) - e^epsilon P(found | out), and -."""
    privacy = DP(epsilon, delta, 4)
    rng = np.random.default_rng(5)
    others, canary = [[5, 0, 3, 0, 1, 4]], 3 + 1e-3 * rng.choice([-1, 1], ITEMS)
    scores = np.zeros((2, runs))
    for number in range(1, 5):
        broadcast = broadcast_of(privacy, number)
        without, with_it = exact(others, broadcast), exact([*others, canary], broadcast)
        direction, noise = (with_it - without).ravel(), multiplier(privacy, number)
        for inside, values in enumerate((without, with_it)):
            released = mechanism.noised(np.tile(values.ravel(), (runs, 1)), noise / turned_down)
            scores[inside] += (released - without.ravel()) @ direction / noise**2
    bounds = np.quantile(scores, np.linspace(0.01, 0.999, 100))
    found = (scores[:, :, None] > bounds).mean(axis=1)
    return (found[1] - math.exp(epsilon) * found[0]).max(), (found[1] - found[0]).max()


def test_a_canary_is_found_no_better_than_epsilon_says_and_better_with_less_noise():
    epsilon, delta = 1.0, 0.02
    bound = delta + 0.01  # and what chance does to 40,000 runs
    most = (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)
    excess, advantage = advantages(epsilon, delta)
    assert excess <= bound
    assert advantage <= most + 0.01
    assert excess > 0.3 * delta  # the user is as conspicuous as can be, so the noise is not wasted either
    assert advantages(epsilon, delta, turned_down=2.0)[0] > 3 * bound


# --- training


class Listening:
    """An engine that remembers what clients were asked."""

    def __init__(self, engine):
        self.engine, self.asked = engine, []

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def ask(self, broadcast, clients):
        self.asked.append(broadcast.task)
        return self.engine.ask(broadcast, clients)


def trained(privacy, ratings, clients=3, **given):
    engine = Listening(local_engine(ratings, clients))
    chosen = Settings.preset(
        "fast",
        **{"rank": 2, "penalty_users": "l2:1", "penalty_items": "none", "active": clients, "privacy": privacy} | given,
    )
    running = list(itertools.islice(rounds(engine, chosen, last=privacy.rounds), privacy.rounds + 1))
    return running[-1], engine


@pytest.mark.parametrize("kind", [DP, partial(DPSecAgg, min_cohort=3)])
def test_training_learns_factors_where_noise_is_small(kind):
    table = planted(users=1500, items=20, density=0.6)
    biases, _ = trained(kind(100.0, DELTA, 6, (-2.0, 8.0)), table, algorithm=Private(factors=0))
    factors, engine = trained(kind(100.0, DELTA, 16, (-2.0, 8.0)), table)
    assert factors.diagnostics.train_rmse < 0.75 * biases.diagnostics.train_rmse
    assert set(engine.asked) == {"round", "measure"}  # no moments, no scale
    assert factors.scaling == (3.0, 2.5)


def test_factors_that_would_drown_in_noise_are_left_out():
    table = planted(users=300, items=20)
    for epsilon, wanted in ((0.5, False), (1000.0, True)):
        last, _ = trained(DP(epsilon, DELTA, 6, (-2.0, 8.0)), table)
        assert last.V[:, :2].any() == wanted
        assert np.ptp(last.V[:, 2]) > 0


@pytest.mark.parametrize("clients", [3, 4, 5, 6, 7, 10, 12, 50, 1000])
def test_shares_of_noise_are_for_the_fewest_that_are_kept_secret(clients):
    """All clients are in every sum: what the honest ones add is the full noise, as is what two thirds and one add."""
    rules = pytest.importorskip("fedmc.privacy.secagg.rules", reason="needs the extra `flower`")
    assert DPSecAgg(1.0, DELTA).everybody_needed
    alone, shared = (own_noise(broadcast_of(kind(1.0, DELTA), 2, clients=clients)) for kind in (DP, DPSecAgg))
    assert shared * math.sqrt(clients - rules.colluders(clients)) >= alone * (1 - 1e-12)
    assert shared * math.sqrt(2 * clients // 3 + 1) == pytest.approx(alone)


def test_a_budget_is_for_so_many_rounds():
    privacy = DP(5.0, DELTA, 3)
    with pytest.raises(InputError, match="divided among 3 rounds, this is 4"):
        multiplier(privacy, 4)
    with pytest.raises(InputError, match="dp_rounds must lie between 2 and 1000, got 1"):
        DP(5.0, DELTA, 1)
    with pytest.raises(InputError, match=r"epsilon must lie between 0\.01 and 1000, got 0"):
        DP(0.0, DELTA)
    with pytest.raises(InputError, match=r"delta must lie between 1e-12 and 0\.1, got 0"):
        DP(1.0, 0.0)
    with pytest.raises(InputError, match="range of ratings"):
        DP(1.0, DELTA, rating_range=(5.0, 1.0))


def test_users_must_not_depend_on_each_other():
    with pytest.raises(InputError, match="separable penalty of the users"):
        trained(DP(5.0, DELTA, 3), planted(), penalty_users="group-l2:1")
    with pytest.raises(InputError, match="biases=True"):
        trained(DP(5.0, DELTA, 3), planted(), biases=False)


def test_what_the_server_knows_survives_as_one_array():
    rng = np.random.default_rng(0)
    known = denoise.Posterior(rng.random(7), 12.0, 3.0, 4, rng.random((7, 3)), rng.random((3, 3)))
    for before, after in zip(known, denoise.Posterior.unpacked(known.packed()), strict=True):
        np.testing.assert_array_equal(before, after)


def test_without_the_accountant_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    private._plan.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'fedmc\[dp\]'"):
        multiplier(DP(1.0, DELTA), 1)
