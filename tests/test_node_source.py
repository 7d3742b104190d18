"""New data at a node: noticed at a start, compared by `node check`, taken by `node refresh`."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.cli.federation_demo import NAMES, set_up
from fedmc.data.catalogue import Catalogue
from fedmc.federation.node.organisation import open_folder, ratings_hash, read_now
from fedmc.federation.node.source import FILE
from fedmc.federation.node.store import Store
from fedmc.federation.setup import founding, layout
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


def test_what_is_held_out_stays_held_out_when_the_source_is_read_again(tmp_path):
    """Otherwise the next model would be tested on what the last one was trained on."""
    made, dice = tmp_path / "made", np.random.default_rng(0)
    Catalogue.of(np.arange(20)).save(tmp_path / "items.json")
    founding.init(made, ["north"], founding.Address("localhost"), items=tmp_path / "items.json", accept=["plain"])
    folder = made / "north"
    pairs = [(user, item) for user in range(30) for item in dice.choice(20, 8, replace=False).tolist()]
    layout.enter_source(folder, "ratings.csv")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('# test = "random:0.1" ', 'test = "random:0.2" '))

    def read(rows, reread=False):
        (folder / "ratings.csv").write_text(
            "user,item,rating\n" + "".join(f"{u},{i},{1 + (u + i) % 5}\n" for u, i in rows)
        )
        found = open_folder(layout.load_node(folder), reread).prepared
        ids, items, shard = found.ids[0], found.catalogue.items, found.shards[0]
        return [
            {(int(ids[u]), int(items[i])) for u, i in zip(*matrix.tocoo().coords, strict=True)}
            for matrix in (shard.by_user, shard.test)
        ]

    train, test = read(pairs)
    assert len(test) == 48
    more = [(user, item) for user in range(100, 140) for item in range(0, 20, 4)]
    now_train, now_test = read(sorted(more + pairs[:-1]), reread=True)
    gone = {pairs[-1]}
    assert train - gone <= now_train
    assert test - gone <= now_test
    assert 20 <= len(now_test - test) <= 60  # of 200 new ones
    config.write_text(config.read_text().replace('test = "random:0.2" ', 'test = "random:0.3" '))
    other_train, _ = read(sorted(more + pairs[:-1]), reread=True)
    assert not train - gone <= other_train  # another split was asked for
