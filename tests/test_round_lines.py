"""A line a round, at the node and at the server, with nothing that the privacy mode hides."""

from __future__ import annotations

import json
import logging

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.federation.server.round_words import in_words
from fedmc.federation.server.running import RunFolder, _record
from fedmc.training.rounds import rounds
from tests.world import KINDS, NODES, World, engine_on


@pytest.mark.parametrize("kind", ["curvature", "secagg"])
def test_a_node_logs_each_round_once(kind, tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedmc")
    World(tmp_path).finish(KINDS[kind], 2)
    lines = [one.getMessage() for one in caplog.records if "a reply of" in one.getMessage()]
    for number in (1, 2):
        assert 0 < len([line for line in lines if line.startswith(f"round {number} of run")]) <= NODES
    assert all(" s, a reply of " in line and line.endswith(" MB") for line in lines)


def test_the_server_logs_what_history_holds(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedmc")
    folder = RunFolder(tmp_path)
    running = rounds(engine_on(World(tmp_path / "world")), KINDS["secagg"].replace(active=NODES), last=2)
    _record(folder, running, 2)
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    said = [one.getMessage() for one in caplog.records if one.name == "fedmc.server" and " of 2: " in one.getMessage()]
    assert said == [in_words(line, 2) for line in history]
    assert [line.partition(":")[0] for line in said] == ["round 0 of 2", "round 1 of 2", "round 2 of 2"]
