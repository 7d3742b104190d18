"""The gateway alone, in a process of its own: python gateway_process.py SERVER_FOLDER CONTROL_PORT LIMITS_AS_JSON"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path

from fedmc.federation.flower.gateway.limits import Limits
from fedmc.federation.flower.gateway.server import serve
from fedmc.federation.setup.layout import load_server

folder, port, limits = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
logging.basicConfig(level=logging.WARNING)
nodes = json.loads((folder / "nodes.json").read_text())
serve(load_server(folder), nodes, port, threading.Event().wait, lambda: print("ready", flush=True), Limits(**limits))
