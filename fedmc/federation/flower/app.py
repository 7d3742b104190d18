"""The ServerApp: reads a run's plan from its folder, conducts the run, and writes a checkpoint before each round."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid.http_grid import HttpGrid

from fedmc.federation.flower.notices import Notices
from fedmc.federation.flower.post import FlowerPost
from fedmc.federation.flower.transport import FlowerTransport
from fedmc.federation.server.running import RunFolder, conduct
from fedmc.federation.server.signing import Counter, Signer
from fedmc.federation.setup import request_key
from fedmc.federation.setup.layout import load_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder = RunFolder(Path(str(context.run_config["folder"])))
    server = folder.path.parents[1]
    folder.log_to_file(load_server(server).log_format)
    plan = folder.plan()
    if not isinstance(grid, HttpGrid):  # its calls are used one by one, see `post.py`
        raise TypeError(
            f"expected Flower's HttpGrid, got {type(grid).__name__}: install a version of flwr that was tried"
        )
    notices = Notices()
    post = FlowerPost(grid, notices, plan.patience)
    transport = FlowerTransport(post, notices, plan.nodes, plan.patience, on_look=folder.on_look)
    signer = Signer(request_key.load(server), Counter(server / request_key.ISSUED))
    conduct(folder, transport, signer, server / "catalogue.json")
