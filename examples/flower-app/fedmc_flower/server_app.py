"""The server: draws clients, sends V, adds up what comes back, and takes the algorithm's server step."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence, Set
from itertools import islice
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedmc import Settings
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.training import tree
from fedmc.training.rounds import rounds

from .task import reply_of, settings_of, to_record

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    engine, last = FlowerEngine(grid, int(config["clients"])), int(config["rounds"])
    found = []
    for round in islice(
        rounds(engine, settings_of(config), measure_every=int(config["measure-every"]), last=last), last + 1
    ):
        told = round.diagnostics
        if told.objective is not None:
            found.append({"round": round.number, "objective": told.objective, "test_rmse": told.test_rmse})
            log.info("round %d: objective %.6g, test RMSE %.4f", round.number, told.objective, told.test_rmse)
    if config["out"]:
        Path(str(config["out"])).write_text(json.dumps(found), encoding="utf-8")


class FlowerEngine:
    """Asks clients through Flower; `fedmc.training.rounds` does the rest, as in the simulation."""

    simulated, item_features = False, None

    def __init__(self, grid: Grid, clients: int) -> None:
        self.grid, self.clients = grid, clients
        while len(nodes := list(grid.get_node_ids())) < clients:
            time.sleep(1)
        replies = self._replies([Message(RecordDict(), node, "query") for node in nodes])
        hellos = {node: record["hello"] for node, record in replies.items()}
        self.nodes = {int(hello["client"]): node for node, hello in hellos.items()}
        if sorted(self.nodes) != list(range(clients)):
            raise RuntimeError(f"expected clients 0 to {clients - 1}, got {sorted(self.nodes)}: set partition-id")
        self.items = int(hellos[self.nodes[0]]["items"])

    @property
    def joined(self) -> Set[int]:
        return set(self.nodes)

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        """The sum of the clients' replies, added in the order of every engine."""
        kind = "evaluate" if broadcast.task == "measure" else "train"
        record, asked = to_record(broadcast), sorted(clients)
        replies = self._replies([Message(record, self.nodes[i], kind) for i in asked])
        return tree.total(tree.pieces(((i, reply_of(replies[self.nodes[i]])) for i in asked), asked))

    def _replies(self, messages: list[Message]) -> dict[int, RecordDict]:
        replies = list(self.grid.send_and_receive(messages))
        failed = [reply.error for reply in replies if reply.has_error()]
        if failed or len(replies) < len(messages):
            raise RuntimeError(f"{len(replies)} of {len(messages)} clients answered: {failed}")
        return {reply.metadata.src_node_id: reply.content for reply in replies}

    def measures_ride(self, settings: Settings) -> bool:
        return False

    def measured_in(self, settings: Settings) -> Sequence[Sequence[int]]:
        return [range(self.clients)]

    def rollback(self) -> None:
        """Clients keep the states of a round that could not be counted: the run ends with an error."""
