"""The evidence bound of variational Bayes never falls: whoever takes part, whoever joins, whatever the clients hold.

Let J be the clients that have joined, and F(J; q_U, q_V, h) the bound over them: the expected log likelihoods of their
ratings and minus the divergences of their users, minus the divergences of the items that any of them rated and of the
weights of regressors and prior means, plus the log densities of the hyperpriors. The last two depend on J too: the
weight of a hyperprior is 0.4 times the number of rows, its guess of the variances follows from the numbers of ratings,
and the weights' covariance from the regressors. A round with participants P leads from (J, q_U, q_V, h) to
(J' = J + P, q_U', q_V', h'). With extrapolation 0,

    clients   F(J; q_U', q_V, h)    >=  F(J; q_U, q_V, h)       the part of the clients already counted, at J's own
              and term by term: the part of no single client falls, and of one that does not take part nothing changes
    server    F(J'; q_U', q_V', h') >=  F(J'; q_U', q_V, h)     over all clients, newcomers included, at J's new numbers

Items that J had not rated count in F(J') only, at first at the posteriors that J's server sent of them.
Without a join J' = J, and both together say: the bound never falls. With a join, F(J') and F(J) are bounds on different
data, and nothing is said about which is larger. Before the first round q_V has no covariances: F is minus infinity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc.algorithms import bayes_client, bayes_server, gaussians
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.state import ServerState
from fedmc.kernels import moments
from fedmc.training.rounds import Checkpoint, rounds
from tests.bayes_oracle import Bound, Gauss, Home, Hyper, Oracle
from tests.conftest import examples
from tests.test_bayes import Problem, homes_of, hyper_at, items_of, problem, users_of

ROUNDING = 1e-10  # times the sum of the absolute values of the terms


class Moment(NamedTuple):
    """What the model knows between two rounds: the joined clients, users, items, noise and priors, users' features."""

    joined: frozenset[int]
    users: dict[int, Gauss]
    items: list[Gauss]
    hyper: Hyper
    homes: dict[int, Home]
    server: ServerState
    broadcast: Broadcast

    def own_bound(self) -> tuple[float, float]:
        """The bound that the server computes from its sums, and the size of its terms."""
        sums = bayes_server.sums_of(self.server, self.broadcast.settings)
        terms = gaussians.bound_terms(*bayes_server.bound_parts(sums))
        found = self.broadcast.settings.make_algorithm().bound(self.server, self.broadcast)
        assert found == pytest.approx(sum(terms), rel=1e-12)
        return found, sum(map(abs, terms))


def moments_of(given: Problem, rank: int, active: int, extrapolation: float = 0.0) -> Iterator[tuple[Oracle, Moment]]:
    """The states of a run between its rounds, from the start on, and an oracle to judge them."""
    settings = given.settings(rank, active, extrapolation=extrapolation)
    engine, kept = given.engine(), list[Checkpoint]()
    oracle = None
    running = rounds(engine, settings, on_checkpoint=kept.append, measure_every=10**6)
    for round in itertools.islice(running, len(given.turns) + 1):
        if oracle is None:
            oracle = Oracle(given.M, given.owner, round.V, active, side=given.side)
            oracle.turn(bayes_server.sums_of(kept[-1].server, settings).side.regressors())
        settings.make_algorithm().check_broadcast(round.broadcast)  # an honest server is never refused
        found = users_of(engine), items_of(round.broadcast), hyper_at(kept[-1]), homes_of(engine)
        yield oracle, Moment(frozenset(engine.joined), *found, kept[-1].server, round.broadcast)


def check_no_fall(before: float, after: float, size: float, what: str) -> None:
    assert after >= before - ROUNDING * size, f"{what} fell from {before!r} by {before - after:.3g}"


def check_round(oracle: Oracle, old: Moment, new: Moment, participants: tuple[int, ...]) -> None:
    """The statements at the top of this file, for one round."""
    at_first = not old.joined

    def bound(joined, of_clients: Moment, at: Moment) -> Bound:
        return oracle.bound_of(joined, of_clients.users, at.items, at.hyper, of_clients.homes)

    if not at_first:
        start, moved = bound(old.joined, old, old), bound(old.joined, new, old)
        check_no_fall(start.total(), moved.total(), start.size(), "the part of the clients already counted")
        for client in old.joined:
            one, other = start.clients[client], moved.clients[client]
            if client in participants:
                size = math.fsum(map(abs, one))
                check_no_fall(math.fsum(one), math.fsum(other), size, f"the part of client {client}")
            else:
                assert one == other
        fitted, after = bound(new.joined, new, old), bound(new.joined, new, new)
        check_no_fall(fitted.total(), after.total(), after.size(), "the bound over all clients, at the server")
    if new.joined:
        found, size = new.own_bound()
        after = bound(new.joined, new, new)
        assert abs(found - after.total()) <= ROUNDING * max(size, after.size())
        if new.joined == old.joined:
            before, _ = old.own_bound()
            check_no_fall(before, found, size, "the bound that the server reports")


def check_run(given: Problem, rank: int, active: int, extrapolation: float = 0.0) -> None:
    for ((oracle, old), (_, new)), participants in zip(
        itertools.pairwise(moments_of(given, rank, active, extrapolation)), given.turns, strict=True
    ):
        check_round(oracle, old, new, participants)


@st.composite
def problems(draw, least=1, most=8) -> Problem:
    """Few or many users of each client, with few or many ratings or none; noise large or small; any participation."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    items, number = draw(st.integers(least, most)), draw(st.integers(2, 8))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    users, true = len(owner), draw(st.integers(1, 3))
    M = rng.normal(size=(users, true)) @ rng.normal(size=(true, items)) + rng.normal(size=(users, 1))
    M += draw(st.sampled_from([0.01, 0.5, 3.0])) * rng.normal(size=M.shape)
    M[rng.random(M.shape) > draw(st.sampled_from([0.2, 0.6, 1.0]))] = np.nan
    turn = st.sets(st.sampled_from(range(len(sizes)))).map(lambda found: tuple(sorted(found)))
    turns = draw(st.lists(turn, min_size=number, max_size=number))
    first = next((turn[0] for turn in turns if turn), 0)
    M[np.flatnonzero(owner == first)[0], 0] = 1.0  # there is a rating: see test_bayes on clients without any
    return Problem(M, owner, tuple(turns))


@given(drawn=problems(), rank=st.integers(1, 6), active=st.integers(1, 5))
@examples(60)
def test_the_bound_never_falls(drawn, rank, active):
    """`active` decides when the warm-up ends: after 2 ceil(clients / active) rounds, so in or after these runs."""
    check_run(drawn, rank, min(active, int(drawn.owner.max()) + 1))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_never_falls_in_a_longer_run(seed):
    """Joins early and late, some of them after the warm-up; most rounds are without one."""
    given = problem(20 + seed, number=30)
    check_run(given, 4, 5)
    joins = [next(k for k, turn in enumerate(given.turns, 1) if client in turn) for client in range(5)]
    assert max(joins) > 2  # the warm-up


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(30))
def test_the_bound_never_falls_in_longer_runs(seed):
    given = problem(100 + seed, users=40, items=15, clients=6, number=60)
    check_run(given, 1 + seed % 8, 1 + seed % 6)


def test_the_bound_settles_whoever_takes_part():
    """It rises by less and less: the end is a stationary point."""
    given = problem(30)
    turns = tuple((k % 5, (k + 2) % 5) for k in range(400))
    found = [new.own_bound()[0] for _, new in moments_of(given._replace(turns=turns), 3, 2) if new.joined]
    gains = np.diff(found[10:])
    assert gains.min() > -1e-9
    assert gains[-50:].max() < 1e-3 * gains[:50].max()


# --- the property can fail


def wrong_noise(ratings, honest=gaussians.learned_noise):
    """A little too much noise."""
    return 0.8 * honest(ratings)


def wrong_prior(rows, variances, before, groups=(), honest=gaussians.learned_prior):
    """Precisions from means alone, as if covariances were 0."""
    kept = rows._replace(second=gaussians.packed(np.outer(rows.mean, rows.mean) / max(rows.number, 1)))
    return honest(kept, variances, before, groups)


def without_covariances(means, covariances, honest=moments.moment_lines):
    return honest(means, np.zeros_like(covariances))


def as_if_new(part, now, before):
    """A client that sends its whole contribution again and again."""
    return part(now)


MUTATIONS = {
    "noise": (gaussians, "learned_noise", wrong_noise),
    "prior": (gaussians, "learned_prior", wrong_prior),
    "no covariances": (moments, "moment_lines", without_covariances),
    "counted twice": (bayes_client, "change", as_if_new),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_updates_are_noticed(name, monkeypatch):
    where, what, wrong = MUTATIONS[name]
    monkeypatch.setattr(where, what, wrong)
    with pytest.raises(AssertionError):
        check_run(problem(20, number=30), 4, 5)


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_updates_lower_the_definitions_bound(name, monkeypatch):
    """Not only do the server's bound and the definition's differ: the latter falls in some round."""
    where, what, wrong = MUTATIONS[name]
    monkeypatch.setattr(where, what, wrong)
    monkeypatch.setattr(Moment, "own_bound", lambda self: (0.0, math.inf))
    with pytest.raises(AssertionError, match="fell from"):
        check_run(problem(20, number=30), 4, 5)


def test_extrapolation_may_lower_it():
    """So that the property is one of extrapolation 0, and the test above it would notice."""
    with pytest.raises(AssertionError, match="fell from"):
        check_run(problem(20, number=30), 4, 5, extrapolation=0.9)
