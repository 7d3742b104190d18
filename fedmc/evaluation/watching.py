"""What each client did in a round of a simulation, as plain numbers."""

from __future__ import annotations

from collections.abc import Iterator

from fedmc.algorithms.client import respond
from fedmc.training.diagnostics import from_sums
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Round

MEASURES = ("objective", "train_rmse", "test_rmse")


def clients_of(round: Round, engine: LocalEngine) -> Iterator[dict[str, object]]:
    """For each client of the round: its number, users and ratings, and its own errors after the round.

    Only a simulation can tell: under secure aggregation nobody sees what belongs to a single client.
    """
    for client in round.participants:
        shard = engine.shards[client]
        asked = engine.told(client, round.broadcast._replace(task="measure", full=False))
        found = from_sums(respond(shard, engine.states[client], asked)[1], asked)._asdict()
        numbers = {"round": round.number, "client": client, "users": len(shard.users), "ratings": shard.by_user.nnz}
        yield numbers | {name: found[name] for name in MEASURES if found[name] is not None}
