"""The ServerApp: reads from a folder what the run is about, runs it, and keeps a checkpoint before each next round."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmc.engines.flower.transport import FlowerTransport
from fedmc.federation.running import RunFolder, conduct

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder = RunFolder(Path(str(context.run_config["folder"])))
    plan = folder.plan()
    transport = FlowerTransport(grid, plan.nodes, plan.patience, on_look=folder.on_look)
    conduct(folder, transport)
