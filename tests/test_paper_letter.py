"""Fifty rounds of FedMC-ADMM against the dense oracle: every iterate and every reported diagnostic, to 1e-9.

The problem has clients of 1 to 12 users, an item that nobody rated and items that most clients did not rate.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard, narrow
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.sampling import sampler_of
from tests import paper_oracle as oracle

SIZES, ITEMS, RANK, ROUNDS = (1, 2, 3, 5, 12), 14, 3, 50
CLIENTS = len(SIZES)
USERS_ROWS, ITEMS_COLUMNS = 1, 0  # what a group is, on either side


class Case(NamedTuple):
    """A spec of fedmc, and the same in the oracle's formulas."""

    loss: tuple[str, oracle.Loss]
    users: tuple[str, oracle.Penalty]
    items: tuple[str, oracle.Penalty]
    update: str = "linearised"
    sampler: str = "uniform"
    N: int = 5
    beta: float = 0.5
    own: dict[int, tuple[Objective, oracle.Penalty | None, oracle.Loss | None]] = {}


SQUARE, LOGISTIC = ("square", oracle.SQUARE), ("logistic", oracle.LOGISTIC)
HUBER = ("huber:0.4", oracle.huber(0.4))
CERTIFIED = 6000.0
EMPTY = "coins:0.01,0.02,0.03,0.05,0.1"  # the first rounds, and most others, are empty with seed 0
CASES = {
    "squared l2, as in the first experiment": Case(
        SQUARE, ("l2:0.3", oracle.l2(0.3)), ("l2:0.1", oracle.l2(0.1)), N=10
    ),
    "l1, as in the second": Case(
        SQUARE, ("l1:0.2", oracle.elastic_net(0.2, 0)), ("l1:0.3", oracle.elastic_net(0.3, 0)), sampler="groups"
    ),
    "elastic net and a box, exact W": Case(
        SQUARE, ("elastic-net:0.4,0.2", oracle.elastic_net(0.4, 0.2)), ("box:0.2,1.1", oracle.box(0.2, 1.1)), "exact",
        "coins:0.9,0.1,0.5x3",
    ),
    "groups of users, elastic net of items, exact W": Case(
        SQUARE, ("group-l2:1.5", oracle.group(1.5, USERS_ROWS)),
        ("elastic-net:0.05,0.1", oracle.elastic_net(0.05, 0.1)), "exact", "doubly-uniform:0=0.3,1=0.3,4=0.4",
    ),
    "Huber, a box and groups of items, empty rounds": Case(
        HUBER, ("box:-0.5,0.9", oracle.box(-0.5, 0.9)), ("group-l2:0.2", oracle.group(0.2, ITEMS_COLUMNS)),
        sampler=EMPTY,
    ),
    "logistic, l2 and a box": Case(
        LOGISTIC, ("l2:0.1", oracle.l2(0.1)), ("box:-0.7,0.8", oracle.box(-0.7, 0.8)), sampler="coins:0.3"
    ),
    "logistic, elastic net and groups of items": Case(
        LOGISTIC, ("elastic-net:0.1,0.05", oracle.elastic_net(0.1, 0.05)),
        ("group-l2:0.3", oracle.group(0.3, ITEMS_COLUMNS)), sampler="doubly-uniform:2=0.5,5=0.5", N=1,
    ),
    "Huber, groups of users, explicit W": Case(
        HUBER, ("group-l2:0.3", oracle.group(0.3, USERS_ROWS)), ("l2:0.1", oracle.l2(0.1)), "explicit", beta=4.0
    ),
    "R_i and sets that differ by client": Case(
        SQUARE, ("l2:0.3", oracle.l2(0.3)), ("l2:0.1", oracle.l2(0.1)), sampler="coins:0.2,0.9,0.5x3", own={
            0: (Objective("box:0.1,0.9"), oracle.box(0.1, 0.9), None),
            2: (Objective("group-l2:0.8"), oracle.group(0.8, USERS_ROWS), None),
            3: (Objective("elastic-net:0.3,0.1"), oracle.elastic_net(0.3, 0.1), None),
            4: (Objective("none"), oracle.NONE, None),
        },
    ),
    "f_i and R_i that differ by client, groups of items": Case(
        HUBER, ("l2:0.2", oracle.l2(0.2)), ("group-l2:0.3", oracle.group(0.3, ITEMS_COLUMNS)), sampler=EMPTY, own={
            1: (Objective(loss="square"), None, oracle.SQUARE),
            3: (Objective("box:-0.2,0.8", "huber:0.1"), oracle.box(-0.2, 0.8), oracle.huber(0.1)),
            4: (Objective("l1:0.4", "square"), oracle.elastic_net(0.4, 0), oracle.SQUARE),
        },
    ),
    "R_i that differ by client, exact W": Case(
        SQUARE, ("elastic-net:0.1,0.2", oracle.elastic_net(0.1, 0.2)), ("box:0.2,1.1", oracle.box(0.2, 1.1)), "exact",
        "doubly-uniform:1=0.5,3=0.5",
        own={4: (Objective("group-l2:1.5"), oracle.group(1.5, USERS_ROWS), None)},
    ),
    "a beta that the theorem certifies": Case(
        SQUARE, ("l2:0.3", oracle.l2(0.3)), ("none", oracle.NONE), sampler="coins:0.8", N=2, beta=CERTIFIED
    ),
}  # fmt: skip


def tables(case, seed=0):
    """Dense ratings of each client: M, P of the ratings and T, Q of those held out."""
    rng, made = np.random.default_rng(seed), []
    V = rng.random((RANK, ITEMS))
    for users in SIZES:
        full = rng.random((users, RANK)) @ V + 0.1 * rng.normal(size=(users, ITEMS))
        full = (full > 0.8) * 1.0 if case.loss is LOGISTIC else full
        place = rng.random((users, ITEMS))
        P, Q = (place < 0.4) * 1.0, (place > 0.85) * 1.0
        P[:, 0], Q[:, 0] = 0, 1  # nobody rated the first item
        P[:, 1 : CLIENTS + 1] *= rng.random(CLIENTS) < 0.5
        P[0, 6], Q[0, 6] = 1, 0
        made.append((full * P, P, full * Q, Q))
    return made


def stored(values, mask):
    """A sparse matrix of the masked entries, stored zeros included."""
    rows, columns = np.nonzero(mask)
    return narrow(sparse.csr_array((values[rows, columns], (rows, columns)), shape=values.shape))


def engine_of(parts, case):
    starts = np.cumsum((0, *SIZES))
    shards = [
        Shard.of(i, np.arange(starts[i], starts[i + 1]), stored(M, P), stored(T, Q))
        for i, (M, P, T, Q) in enumerate(parts)
    ]
    return LocalEngine(shards, objectives={client: own for client, (own, _, _) in case.own.items()})  # fmt: skip


def settings_of(case):
    return Settings.preset(
        "paper", rank=RANK, loss=case.loss[0], penalty_users=case.users[0], penalty_items=case.items[0],
        algorithm=case.update, inner_steps=case.N, beta=case.beta, sampler=case.sampler, active=2, ranking=False,
    )  # fmt: skip


def oracle_of(case, parts, states, V, settings):
    chances = sampler_of(settings, CLIENTS).probabilities(CLIENTS)
    clients = []
    for i, (part, state) in enumerate(zip(parts, states, strict=True)):
        _, R, loss = case.own.get(i, (None, None, None))
        both = loss or case.loss[1], R or case.users[1]
        clients.append(oracle.Client(*part, *both, state.U.copy(), V.T.copy(), CLIENTS))
    return oracle.Run(
        clients, V.T.copy(), case.items[1], case.beta, case.N, case.update, chances, case.update == "linearised"
    )


def check(engine, round, run):
    """Every iterate, and every diagnostic that the run reports, None included."""
    assert_close(round.V.T, run.V)
    for state, client in zip(engine.states, run.clients, strict=True):
        assert_close(state.U, client.U)
        assert_close(state.W.T, client.W)
        assert_close(state.Y.T, client.Y)
    reported = {name: value for name, value in round.diagnostics._asdict().items() if value is not None}
    expected = run.report()
    assert reported.keys() == expected.keys()
    for name, value in expected.items():
        assert reported[name] == pytest.approx(value, rel=1e-9), name


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= 1e-9 * max(np.linalg.norm(expected), 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_fifty_rounds_are_those_of_the_paper(name):
    case = CASES[name]
    settings, parts = settings_of(case), tables(case)
    engine = engine_of(parts, case)
    run = rounds(engine, settings, full=True)
    opening = next(run)
    dense, drawn, certified = oracle_of(case, parts, engine.states, opening.V, settings), [], []
    check(engine, opening, dense)
    for round in itertools.islice(run, ROUNDS):
        dense.round(round.participants)
        check(engine, round, dense)
        drawn.append(round.participants)
        certified.append(round.diagnostics.certified)
    assert (
        (not drawn[0] and drawn.count(()) > 20) if case.sampler == EMPTY else len({*itertools.chain(*drawn)}) == CLIENTS
    )
    assert all(certified) == any(certified) == (case.beta == CERTIFIED)


def test_the_problem_is_what_it_says():
    for case in CASES.values():
        parts = tables(case)
        raters = np.array([P.sum(axis=0) > 0 for _, P, _, _ in parts]).sum(axis=0)
        assert raters[0] == 0  # by nobody, but held out by everybody
        assert 1 in raters
        assert all(0 < (P.sum(axis=0) > 0).sum() < ITEMS - 1 for _, P, _, _ in parts)
        assert all(P.any() and Q[:, 0].all() and not (P * Q).any() for _, P, _, Q in parts)
