"""How a reply leaves a node: a noised one is a release, which the ledger records, repeats or refuses."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import InputError
from fedmc.federation.logs import with_fields
from fedmc.federation.node.guard import Guard, LedgerMismatchError
from fedmc.federation.node.refusals import RefusedError, log
from fedmc.federation.node.replies import about, fields_of
from fedmc.federation.node.store import Store, StoreError
from fedmc.federation.wire import Request
from fedmc.privacy.dp.bounds import check_multiplier
from fedmc.privacy.dp.ledger import Ledger, LedgerError, LostReleaseError, OverBudgetError
from fedmc.training.aggregation import aggregation_of
from fedmc.training.fixed_point import flat

Work = Callable[[Shard], tuple[State | None, bytes]]


def in_whole_steps(request: Request, before: State | None, own: Callable[[Broadcast], Broadcast]) -> Work:
    """The work for a masked reply: integers, in which numbers that do not fit are cut, since a failure would tell."""
    broadcast = request.broadcast

    def on_cut(why: str) -> None:
        log.error("%s of run %s: numbers were cut, the sum is useless: %s", broadcast.task, request.run, why)

    def work(shard: Shard) -> tuple[State | None, bytes]:
        aggregation = aggregation_of(broadcast.settings.privacy).quietly(on_cut)
        with np.errstate(all="ignore"):  # a warning that is turned into an error would tell something
            state, sums = aggregation.reply(shard, before, own(broadcast))
        return state, flat(sums, schema_of(broadcast, len(broadcast.V))).tobytes()

    return work


def released(
    request: Request, shard: Shard, work: Work, store: Store, ledger: Ledger | None
) -> tuple[State | None, bytes]:
    """The new state and the reply of a request; of a round, a line in the node's own log."""
    began = time.perf_counter()
    state, content = _released(request, shard, work, store, ledger)
    if request.broadcast.task in STATEFUL_TASKS:
        seconds, size = round(time.perf_counter() - began, 2), round(len(content) / 1e6, 3)
        fields = fields_of(request) | {"seconds": seconds, "megabytes": size}
        log.info("%s: %.2f s, a reply of %.3f MB", about(request), seconds, size, extra=with_fields(**fields))
    return state, content


def _released(
    request: Request, shard: Shard, work: Work, store: Store, ledger: Ledger | None
) -> tuple[State | None, bytes]:
    broadcast = request.broadcast
    multiplier = broadcast.settings.make_algorithm().noise_multiplier(broadcast)
    if multiplier is None:
        return work(shard)
    check_noise(multiplier)
    if ledger is None:
        raise RefusedError("over-budget", "config.toml sets no epsilon, so nothing may be spent")
    done: list[tuple[State | None, bytes]] = []

    def make() -> bytes:
        done.append(work(shard))
        return done[0][1]

    try:
        content = Guard(store, ledger).release(request.release, multiplier, make, request.witnessed)
    except OverBudgetError as error:
        raise RefusedError("over-budget", str(error)) from None
    except LedgerMismatchError as error:
        raise RefusedError("ledger-behind", str(error)) from None
    except LedgerError as error:
        raise StoreError(str(error)) from None
    except LostReleaseError as error:
        raise RefusedError("lost-state", f"{error}: ask for a new run") from None
    state = (done or [work(shard)])[0][0]  # a repeated release: only the state is used, not the noise
    return state, content


def check_noise(multiplier: float) -> None:
    """Refuse noise out of bounds before the ledger is asked."""
    if multiplier == 0:
        raise RefusedError("wrong-settings", "epsilon=inf adds no noise: it is for simulations, no node releases that")
    try:
        check_multiplier(multiplier)
    except InputError as error:
        raise RefusedError("wrong-settings", str(error)) from None
