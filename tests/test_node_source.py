"""New data at a node: noticed at a start, compared by `node check`, taken by `node refresh`."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.cli.federation_demo import NAMES, set_up
from fedmc.federation.node.organisation import open_folder, ratings_hash, read_now
from fedmc.federation.node.source import FILE
from fedmc.federation.node.store import Store
from fedmc.federation.setup.layout import load_node
from tests.command import fedmc
from tests.conftest import planted


@pytest.fixture
def folder(tmp_path):
    set_up(tmp_path / "federation", planted(), ("plain", "secagg"), NAMES)
    found = tmp_path / "federation" / NAMES[0]
    open_folder(load_node(found))
    return found


def add_rating(folder) -> None:
    source = folder / load_node(folder).source
    item = load_node(folder).catalogue().items[0]
    with open(source, "a", encoding="utf-8") as file:
        file.write(f"90000,{item},4.0\n")


def test_an_unchanged_source_is_not_mentioned(folder):
    assert open_folder(load_node(folder)).notes == ()
    assert read_now(load_node(folder)) is None
    assert "other data" not in fedmc("node", "check", folder).stdout


def test_a_changed_file_is_noticed_and_the_old_data_stay_in_use(folder):
    before = ratings_hash(folder / "shard")
    add_rating(folder)
    opened = open_folder(load_node(folder))
    assert "changed since the data were read" in opened.notes[0]
    assert "fedmc node refresh" in opened.notes[0]
    assert opened.ratings == before


def test_a_changed_entry_is_noticed_without_its_value(folder):
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('test = "random:0.2"', 'test = "random:0.3"'))
    notes = open_folder(load_node(folder)).notes
    assert notes[0].startswith("test of config.toml changed")
    assert "random" not in (folder / FILE).read_text()
    assert (folder / FILE).stat().st_mode & 0o077 == 0


def test_check_reads_the_source_and_changes_nothing(folder):
    before = ratings_hash(folder / "shard")
    add_rating(folder)
    done = fedmc("node", "check", folder)
    assert "the source holds other data now" in done.stdout
    assert ratings_hash(folder / "shard") == before
    assert not list(folder.glob("check-*"))


def test_refresh_takes_the_new_data(folder):
    before = open_folder(load_node(folder))
    add_rating(folder)
    done = fedmc("node", "refresh", folder)
    assert done.returncode == 0, done.stderr
    after = open_folder(load_node(folder))
    assert after.notes == ()
    assert len(after.prepared.shards[0].users) == len(before.prepared.shards[0].users) + 1
    assert "other data" not in fedmc("node", "check", folder).stdout


def test_refresh_is_refused_while_the_node_runs(folder):
    before = ratings_hash(folder / "shard")
    add_rating(folder)
    with Store(load_node(folder).path("state")):
        done = fedmc("node", "refresh", folder)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert ratings_hash(folder / "shard") == before


def test_a_source_that_cannot_be_read_loses_nothing(folder):
    before = ratings_hash(folder / "shard")
    source = folder / load_node(folder).source
    with open(source, "a", encoding="utf-8") as file:
        file.write("90000,1,not a number\n")
    done = fedmc("node", "refresh", folder)
    assert done.returncode == 2
    assert ratings_hash(folder / "shard") == before
    assert open_folder(load_node(folder)).ratings == before
