"""A ledger and a state of commit 95a571b, for `tests/test_attacks_dp.py`. Runs in that commit's tree:

git archive 95a571b | tar -x -C FOLDER
cd FOLDER && PYTHONPATH=FOLDER python HERE/make_ledgers.py tests/fixtures/ledgers
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from fedmc.training.rounds import rounds
from tests.world import KINDS, World, backup, engine_on, refused


def main(target: str) -> None:
    """Node 0 after two of three rounds, and its ledger after a release whose noise had overflowed."""
    out = Path(target).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder, closing(World(Path(folder) / "world")) as world:
        asked = [one.broadcast for one in itertools.islice(rounds(engine_on(world), KINDS["dp"]), 3)]
        (out / "node-0").mkdir()
        backup(world.folder, out, "node-0/state.sqlite")
        backup(world.folder, out, "ledger-0")
        tiny = KINDS["dp"].replace(epsilon=1e-30, delta=1e-30)
        request = asked[0]._replace(task="round", round=1, settings=tiny)
        assert refused(world, request, run="an-attack", invitation=None).status == "ok"
        assert world.nodes[0].ledger.multipliers()[-1] > 1e10
        shutil.copy(world.folder / "ledger-0", out / "overflowed")


if __name__ == "__main__":
    main(sys.argv[1])
