"""The ServerApp: reads a run's plan from its folder, conducts the run, and writes a checkpoint before each round."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid

from fedmc.federation.flower.transport import FlowerTransport
from fedmc.federation.server.running import RunFolder, conduct
from fedmc.federation.server.signing import Counter, Signer
from fedmc.federation.setup import request_key

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder = RunFolder(Path(str(context.run_config["folder"])))
    folder.log_to_file()
    plan = folder.plan()
    # Flower waits up to two hours for the rest of a reply whose sender died; asking the node again is quicker.
    quick: dict[str, Any] = {"max_time": max(plan.patience / 3, 1.0), "initial_backoff": 0.1, "backoff_cap": 1.0}
    vars(http_grid)["pull_objects"] = partial(pull_objects, **quick)
    transport = FlowerTransport(grid, plan.nodes, plan.patience, on_look=folder.on_look)
    server = folder.path.parents[1]
    conduct(folder, transport, Signer(request_key.load(server), Counter(server / request_key.ISSUED)))
