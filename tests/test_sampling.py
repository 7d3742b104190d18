"""Samplers: who takes part, how often, and the same again for the same seed."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest

from fedmc.algorithms.protocol import Sampler
from fedmc.algorithms.settings import Settings
from fedmc.errors import InputError
from fedmc.problem.rng import client_rng, server_rng
from fedmc.training.rounds import rounds
from fedmc.training.sampling import CoinFlips, DoublyUniform, Groups, Passes, Uniform, parse
from tests.conftest import local_engine, planted

SAMPLERS = [Uniform(3), CoinFlips(0.3), CoinFlips(tuple(np.linspace(0.1, 0.9, 10))), Groups(3), Passes(3)]
SAMPLERS.append(DoublyUniform(((0, 0.2), (1, 0.3), (7, 0.5))))
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


def test_doubly_uniform_draws_sets_of_one_size_alike():
    sampler, drawn = DoublyUniform(((0, 0.25), (2, 0.75))), collections.Counter()
    for round in range(1, 4001):
        drawn[tuple(sampler.draw(round, 4, 0).tolist())] += 1
    assert set(drawn) == {(), *itertools.combinations(range(4), 2)}
    assert abs(drawn.pop(()) / 4000 - 0.25) < 0.04
    assert max(drawn.values()) < 1.25 * min(drawn.values())


def test_specs_with_numbers():
    assert parse("coins:0.1", 1, 5) == CoinFlips(0.1)
    assert parse("coins:0.5x2,0.1,0.25x2", 1, 5) == CoinFlips((0.5, 0.5, 0.1, 0.25, 0.25))
    assert parse("doubly-uniform:0=0.1,3=0.9", 1, 5) == DoublyUniform(((0, 0.1), (3, 0.9)))
    for sampler in (CoinFlips(0.1), CoinFlips((0.5, 1e-3)), DoublyUniform(((1, 0.3), (2, 0.7)))):
        assert parse(str(sampler), 1, 2) == sampler
    settings = Settings.preset("paper", sampler=CoinFlips((0.5, 1e-3)))
    assert Settings.from_dict(settings.to_dict()).sampler == "coins:0.5,0.001"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("coins:", "a number from 0 to 1, got ''"), ("coins:a", "a number from 0 to 1, got 'a'"),
        ("coins:1.5", "probability must .*1, got 1.5"), ("coins:0.1,0.2", r"one chance per client \(5\), got 2"),
        ("coins:nan", "probability must"), ("coins:0.1x99999999999", "number of clients"),
        ("coins:0", "above 0"), ("coins:0.1x-1", "whole number, got '-1'"),
        ("doubly-uniform", "whole number, got ''"), ("doubly-uniform:3", "a number from 0 to 1, got ''"),
        ("doubly-uniform:6=1", "a round of 6 needs as many clients, got 5"),
        ("doubly-uniform:1=0.5", "add up to 1, got 0.5"), ("doubly-uniform:0=1", "nobody would take part"),
        ("doubly-uniform:1=0.5,1=0.5", "each size once"), ("uniform:3", "unknown sampler 'uniform:3'"),
    ],
)  # fmt: skip
def test_bad_specs_are_refused(spec, words):
    with pytest.raises(InputError, match=words):
        parse(spec, 1, 5)


def test_skipped_empty_rounds_change_nothing():
    engine = local_engine(planted(), 4)
    settings = Settings.preset("paper", rank=2, sampler=CoinFlips(0.02), empty_rounds="skip")
    run = list(itertools.islice(rounds(engine, settings), 10))
    empty = [k for k in range(1, 10) if not run[k].participants]
    assert empty
    for k in empty:
        assert np.array_equal(run[k].V, run[k - 1].V)
        assert run[k].bytes_up == run[k].bytes_down == 0


def test_generators_differ():
    draws = [rng.random() for rng in (server_rng(0), client_rng(0, 0), client_rng(0, 1), client_rng(1, 0))]
    assert len(set(draws)) == 4


def test_empty_rounds_run_the_papers_server_step():
    """V <- prox(S / (p beta)) also if nobody takes part: the first such round changes V, a later one no bit."""
    engine = local_engine(planted(), 4)
    settings = Settings.preset("paper", rank=2, sampler=CoinFlips(0.02), penalty_items="l2:0.5", beta=0.7)
    opening, first, second = itertools.islice(rounds(engine, settings), 3)
    assert not first.participants
    assert not second.participants
    S = sum(0.7 * state.W + state.Y for state in engine.states)
    np.testing.assert_allclose(first.V, S / (4 * 0.7 + 0.5), rtol=1e-12)
    assert np.linalg.norm(first.V - opening.V) > 0.01 * np.linalg.norm(opening.V)
    assert first.V.tobytes() == second.V.tobytes()
    assert first.bytes_up == first.bytes_down == 0


def test_clients_that_join_at_their_first_update_leave_nothing_to_step_with():
    engine = local_engine(planted(), 4)
    settings = Settings.preset("paper", rank=2, sampler=CoinFlips(0.02), entry="first-turn")
    opening, first = itertools.islice(rounds(engine, settings), 2)
    assert not first.participants
    assert first.V.tobytes() == opening.V.tobytes()
