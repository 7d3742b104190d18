"""The ServerApp: conducts what its folder describes: a run, the taking out of members' parts, or an announcement."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid.http_grid import HttpGrid

from fedmc.federation.flower.notices import Notices
from fedmc.federation.flower.post import FlowerPost
from fedmc.federation.flower.transport import FlowerTransport, OnLook
from fedmc.federation.server import announcing, taking_out
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.server.running import conduct
from fedmc.federation.server.signing import Counter, Signer
from fedmc.federation.setup import request_key
from fedmc.federation.setup.layout import load_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    if not isinstance(grid, HttpGrid):  # its calls are used one by one, see `post.py`
        raise TypeError(
            f"expected Flower's HttpGrid, got {type(grid).__name__}: install a version of flwr that was tried"
        )
    path = Path(str(context.run_config["folder"]))
    server = path.parents[1]
    signer = Signer(request_key.load(server), Counter(server / request_key.ISSUED))
    if (path / announcing.PLAN).exists():
        plan = announcing.load(path)
        announcing.announce(path, plan, _transport(grid, plan.nodes, plan.patience), signer)
        return
    folder = RunFolder(path)
    folder.log_to_file(load_server(server).log_format)
    run = folder.plan()
    transport = _transport(grid, run.nodes, run.patience, folder.on_look)
    if taking_out.asked(path):
        taking_out.take_out(folder, run, transport, signer)
    else:
        conduct(folder, transport, signer, server / "catalogue.json")


def _transport(
    grid: HttpGrid, nodes: list[int], patience: float, on_look: OnLook = lambda online, waiting: None
) -> FlowerTransport:
    notices = Notices()
    return FlowerTransport(FlowerPost(grid, notices, patience), notices, nodes, patience, on_look=on_look)
