"""The ServerApp: reads from a folder what the run is about, runs it, and keeps a checkpoint before each next round."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmc.engines.flower.transport import FlowerTransport
from fedmc.federation import checkpoint
from fedmc.federation.checkpoint import Checkpoint
from fedmc.federation.engine import FederatedEngine
from fedmc.server import Begun, rounds
from fedmc.settings import Settings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    run(grid, Path(str(context.run_config["folder"])))


def run(grid: Grid, folder: Path) -> None:
    """From the folder's checkpoint if there is one; history.jsonl gets a line a round."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    settings, names, catalogue = Settings(**plan["settings"]), plan["organisations"], plan["catalogue"]
    transport = FlowerTransport(grid, names, plan["patience"])
    engine = FederatedEngine(transport, plan["run"], len(names), plan["items"], catalogue, plan["quorum"])
    saved, begun = folder / "server.npz", None
    if saved.exists():
        found = checkpoint.load(saved)
        engine.counted = dict(found.counted)
        begun = Begun(found.number, found.cast, found.state, found.opening)
    number = int(plan["rounds"])

    def on_state(now: Begun) -> None:
        state = Checkpoint(plan["run"], now.number, now.cast, now.state, engine.counted, catalogue, now.opening)
        checkpoint.save(saved, state)

    if begun is not None and begun.number >= number:
        return
    transport.meet(len(names))
    with open(folder / "history.jsonl", "a", encoding="utf-8") as history:
        every = int(plan["measure_every"])
        for round in rounds(engine, settings, measure_every=every, last=number, begun=begun, on_state=on_state):
            history.write(json.dumps(round.record()) + "\n")
            history.flush()
            if round.number >= number:
                return
