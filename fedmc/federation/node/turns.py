"""How often a node works for a run: `max_rounds` of the policy bounds the number of a round, not how often it is asked.

An honest server that goes on after a crash repeats its last request, and that is one turn. Another V for the same round
is another turn. There is one row for each run that has begun, and `runs_per_day` bounds those.
"""

from __future__ import annotations

from typing import NamedTuple

from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.store import Store
from fedmc.federation.wire import NEVER, Request

SCHEMA = """
CREATE TABLE IF NOT EXISTS turns (
    run TEXT PRIMARY KEY, key TEXT NOT NULL, round INTEGER NOT NULL, times INTEGER NOT NULL, total INTEGER NOT NULL
);
"""
MAX_RELEASES = 20  # different ones that a round may make


class Turn(NamedTuple):
    """The last turn of a run."""

    key: str
    round: int
    times: int  # turns since a round of this number first came
    total: int  # turns of the run


class Turns:
    """Counts the different requests that change the node's state, in its store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.add_tables(SCHEMA)

    def take(self, request: Request, max_rounds: int) -> None:
        """Refuse a turn beyond the bounds, count any other."""
        broadcast = request.broadcast
        with self.store.transaction() as database:
            found = database.execute("SELECT key, round, times, total FROM turns WHERE run = ?", (request.run,))
            last = Turn(*(found.fetchone() or ("", NEVER, 0, 0)))
            if last.key == request.key:
                return
            times = last.times + 1 if broadcast.round <= last.round else 1
            now = Turn(request.key, max(broadcast.round, last.round), times, last.total + 1)
            _check(now, max_rounds)
            if broadcast.settings.make_algorithm().noise_multiplier(broadcast) is not None:
                _check_releases(now)
            database.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?, ?)", (request.run, *now))


def _check(turn: Turn, max_rounds: int) -> None:
    most = 2 * max_rounds + 10
    if turn.total > most:
        reason = f"the run asked for {turn.total} different updates, at most {most} with max_rounds={max_rounds}"
        cure = "raise max_rounds in [policy] of config.toml and restart the node if you agree, or ask for a new run"
        raise RefusedError("wrong-policy", reason, cure)


def _check_releases(turn: Turn) -> None:
    if turn.times > MAX_RELEASES:
        reason = f"round {turn.round} was asked for with {turn.times} different contents, at most {MAX_RELEASES}"
        raise RefusedError("wrong-round", f"{reason} under differential privacy", "ask for a new run")
