"""Tuning of a model of events: which events it validates on, and how it climbs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms.event_sums import default_weights
from fedmc.algorithms.settings import Settings
from fedmc.data.matrices import narrow
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.training import event_tuning
from fedmc.training.event_tuning import EventTrial, Point, best, choose, tuned, validating
from fedmc.training.tuning import Budget

USERS, ITEMS = 60, 40
SETTINGS = Settings.preset("implicit", rank=4, active=3, seed=2)


def table(matrix) -> Ratings:
    return Ratings(np.arange(USERS), np.arange(ITEMS), narrow(sparse.csr_array(matrix)))


@pytest.fixture(scope="module")
def parts():
    """Events of two kinds of users, and one more event of each user to validate on."""
    rng = np.random.default_rng(5)
    mine = (np.arange(USERS)[:, None] % 2) == (np.arange(ITEMS) % 2)
    taken = rng.random((USERS, ITEMS)) < np.where(mine, 0.4, 0.05)
    aside = np.zeros_like(taken)
    aside[np.arange(USERS), [rng.choice(np.flatnonzero(row)) for row in taken]] = True
    return table(np.where(taken & ~aside, 1.0, 0.0)), table(np.where(aside, 1.0, 0.0))


def shards_of(train, validation=None):
    return make_shards(train, np.arange(USERS) % 3, "float64", None, validation)


def test_given_validation_events_are_used(parts):
    given = shards_of(*parts)
    assert validating(given, 0.1, 0) == given
    kept = validating(shards_of(parts[0]), 0.2, 0)
    for shard, whole in zip(kept, shards_of(parts[0]), strict=True):
        assert shard.validation.nnz == int(0.2 * whole.by_user.nnz)
        assert shard.by_user.nnz + shard.validation.nnz == whole.by_user.nnz


def test_trials_are_measured_on_the_given_events(parts):
    one, other = (
        choose(shards, SETTINGS, Budget(1), ranks=(4,))[0] for shards in (shards_of(*parts), shards_of(parts[0]))
    )
    assert one.rank == other.rank == 4
    assert one.validation_ndcg != other.validation_ndcg
    nothing = parts[1].with_entries(np.zeros(len(parts[1]), bool))
    again = choose(shards_of(parts[0], nothing), SETTINGS, Budget(1), ranks=(4,))[0]
    assert again.validation_ndcg == other.validation_ndcg  # no event is given: a share is held out


def test_the_search_starts_from_the_defaults_and_stays_within_its_budget(parts):
    trials = choose(shards_of(*parts), SETTINGS, Budget(7), ranks=(2, 4))
    assert 1 < len(trials) <= 7
    alpha0, weight = default_weights(USERS, ITEMS, len(parts[0]))
    assert (trials[0].alpha0, trials[0].weight) == (float(f"{alpha0:.3g}"), float(f"{weight:.3g}"))
    top = best(trials)
    assert top.validation_ndcg == max(trial.validation_ndcg for trial in trials)
    chosen = tuned(SETTINGS, top)
    assert chosen.rank == top.rank
    assert chosen.make_algorithm().weights == (top.alpha0, top.weight)


@pytest.mark.parametrize("optimum", [-3, -1, 0, 2, 4])
def test_climbing_finds_the_top_of_a_hill(optimum):
    def attempt(point: Point) -> EventTrial:
        return EventTrial(*point, 1, -abs(np.log2(point.weight) - optimum), 0, 0.0)

    found = event_tuning._climb(attempt, Point(4, 1.0, 1.0), "weight")
    assert np.log2(found.weight) == pytest.approx(optimum, abs=0.01)
    assert found.alpha0 == 1.0
