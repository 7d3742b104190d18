"""States of nodes and checkpoints of a server in the middle of a run, as an earlier version wrote them, for
tests/test_protocols.py. Run it in the tree of that version:

    git archive 95a571b | tar -x -C FOLDER && cd FOLDER && PYTHONPATH=. python .../make_states.py OUT
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

from tests.world import HIDDEN, KINDS, NODES, RecordedWorld


def main(out: Path) -> None:
    for kind, settings in {"clipped": KINDS["clipped"].replace(active=NODES), "secagg": HIDDEN}.items():
        with tempfile.TemporaryDirectory() as folder:
            world = RecordedWorld(Path(folder), NODES, measure_every=2)
            world.finish(settings, 3)
            shutil.copytree(world.snapshots[2].folder, out / kind, ignore=shutil.ignore_patterns("ledger-*"))
        for path in (out / kind).rglob("*.sqlite"):
            database = sqlite3.connect(path, isolation_level=None)
            for order in ("PRAGMA journal_mode = DELETE", "PRAGMA page_size = 512", "VACUUM"):
                database.execute(order)
            database.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
