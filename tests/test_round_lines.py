"""A line a round, at the node and at the server, with nothing that the privacy mode hides."""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import datetime, timedelta

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.errors import DataError
from fedmc.federation.logs import JsonLine, with_fields
from fedmc.federation.server.round_words import in_words
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.server.running import _record
from fedmc.federation.setup import founding, layout
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


def json_line(record):
    line = JsonLine().format(record)
    assert "\n" not in line
    return json.loads(line)


@pytest.mark.parametrize("kind", ["curvature", "secagg"])
def test_json_says_the_same_in_fields_and_no_more(kind, tmp_path, caplog):
    """At both ends: every field of a line is in its text, so JSON never says more than text."""
    caplog.set_level(logging.INFO, "fedmc")
    folder = RunFolder(tmp_path)
    world = World(tmp_path / "world")
    _record(folder, rounds(engine_on(world), KINDS[kind].replace(active=NODES), last=2), 2)
    lines = [json_line(one) for one in caplog.records]
    server = [line for line in lines if "took_part" in line]
    node = [line for line in lines if "megabytes" in line]
    assert [(line["logger"], line["round"], line["rounds"]) for line in server] == [
        ("fedmc.server", k, 2) for k in range(3)
    ]
    assert all({"rmse", "seconds", "megabytes_up", "megabytes_down"} <= line.keys() for line in server[1:])
    assert {(line["logger"], line["task"], line["round"]) for line in node} >= {("fedmc.node", "round", 2)}
    for line in lines:
        text, at = line["message"], datetime.fromisoformat(line["time"])
        assert at.utcoffset() == timedelta(0)
        assert abs(at.timestamp() - time.time()) < 300
        numbers = {float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", text)}
        for name in line.keys() - {"time", "level", "logger", "message"}:
            found = line[name]
            assert found in text if isinstance(found, str) else found in numbers, (name, line)


def test_a_json_line_is_one_line_whatever_it_says(caplog):
    log = logging.getLogger("fedmc.node")
    try:
        raise ValueError("a\nb\x1b[31m")
    except ValueError:
        log.exception("what\n%s", "came\r\x1b", extra=with_fields(run="x\ny", rmse=float("nan"), message="another"))
    line = json_line(caplog.records[-1])
    assert line["message"] == "what\\ncame\\r\\x1b"
    assert (line["run"], line["rmse"], line["level"]) == ("x\\ny", None, "ERROR")
    assert line["traceback"][-2:] == ["ValueError: a", "b\\x1b[31m"]


@pytest.mark.parametrize(("value", "good"), [('"json"', True), ('"text"', True), ('"xml"', False), ("1", False)])
def test_the_format_is_an_entry_of_both_ends(tmp_path, value, good):
    founding.init(tmp_path / "made", ["north"], founding.Address("127.0.0.1"))
    for folder, load in (("server", layout.load_server), ("north", layout.load_node)):
        path = tmp_path / "made" / folder / "config.toml"
        text = re.sub(r"^#? ?log_format = \S+", f"log_format = {value}", path.read_text(), flags=re.MULTILINE)
        path.write_text(text.replace('source = ""', 'source = "x.csv"'))
        if good:
            assert load(path.parent).log_format == value.strip('"')
        else:
            with pytest.raises(DataError, match="log_format must be one of text, json, got"):
                load(path.parent)
