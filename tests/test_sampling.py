"""Samplers: who takes part, how often, and the same again for the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmc.algorithms.protocol import Sampler
from fedmc.algorithms.settings import Settings
from fedmc.errors import InputError
from fedmc.problem.rng import client_rng, server_rng
from fedmc.training.rounds import rounds
from fedmc.training.sampling import CoinFlips, Groups, Passes, Uniform, parse
from tests.conftest import local_engine, planted

SAMPLERS = [Uniform(3), CoinFlips(0.3), CoinFlips(tuple(np.linspace(0.1, 0.9, 10))), Groups(3), Passes(3)]
every = pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: str(s)[:20])


@every
def test_draws_are_sorted_valid_and_repeat_with_the_seed(sampler):
    assert isinstance(sampler, Sampler)
    for round in range(1, 30):
        drawn = sampler.draw(round, 10, seed=5)
        assert np.array_equal(drawn, np.unique(drawn))
        assert len(drawn) == 0 or (drawn.min() >= 0 and drawn.max() < 10)
        assert np.array_equal(drawn, sampler.draw(round, 10, seed=5))
    assert any(not np.array_equal(sampler.draw(k, 10, 5), sampler.draw(k, 10, 6)) for k in range(1, 30))


@every
def test_each_client_has_its_stated_chance(sampler):
    K = 4000
    counts = sum(np.bincount(sampler.draw(round, 10, seed=1), minlength=10) for round in range(1, K + 1))
    chance = sampler.probabilities(10)
    deviation = np.sqrt(chance * (1 - chance) / K)
    assert (np.abs(counts / K - chance) <= 5 * deviation + 1e-3).all()


def test_uniform_draws_exactly_s():
    assert {len(Uniform(4).draw(k, 9, 0)) for k in range(1, 50)} == {4}


def test_groups_do_not_overlap():
    seen = {tuple(Groups(3).draw(k, 10, 0).tolist()) for k in range(1, 200)}
    assert sorted(itertools.chain(*seen)) == list(range(10))


@pytest.mark.parametrize("clients", [9, 10, 11])
def test_passes_visit_everybody_once(clients):
    length = -(-clients // 3)
    for start in (1, 1 + length, 1 + 5 * length):
        visited = [i for k in range(start, start + length) for i in Passes(3).draw(k, clients, 0)]
        assert sorted(visited) == list(range(clients))


def test_words_and_bounds():
    assert parse("coins", 3, 10) == CoinFlips(0.3)
    with pytest.raises(InputError, match="unknown sampler"):
        parse("lottery", 3, 10)
    for name in ("uniform", "coins", "groups", "passes"):
        with pytest.raises(InputError, match=r"active must lie in 1\.\.10.*got 11"):
            parse(name, 11, 10)
    with pytest.raises(InputError, match="above 0"):
        CoinFlips(0.0).probabilities(3)
    with pytest.raises(InputError, match="one chance per client"):
        CoinFlips((0.5, 0.5)).probabilities(3)


def test_a_round_that_nobody_joins_changes_nothing():
    engine = local_engine(planted(), 4)
    settings = Settings.preset("paper", rank=2, sampler=CoinFlips(0.02))
    run = list(itertools.islice(rounds(engine, settings), 10))
    empty = [k for k in range(1, 10) if not run[k].participants]
    assert empty
    for k in empty:
        assert np.array_equal(run[k].V, run[k - 1].V)
        assert run[k].bytes_up == run[k].bytes_down == 0


def test_generators_differ():
    draws = [rng.random() for rng in (server_rng(0), client_rng(0, 0), client_rng(0, 1), client_rng(1, 0))]
    assert len(set(draws)) == 4
