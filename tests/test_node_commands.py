"""`fedmc federation init` and what `fedmc node` checks before anything is sent; no server needed."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc.cli.federation_demo import NAMES, set_up
from fedmc.data.catalogue import Catalogue
from fedmc.data.prepared import open_prepared
from fedmc.federation.setup import keys, layout
from tests.command import fedmc
from tests.conftest import planted


@pytest.fixture
def made(tmp_path):
    set_up(tmp_path / "made", planted())
    return tmp_path / "made"


def refused(done, *said):
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in done.stderr


def test_who_gets_what(tmp_path):
    done = fedmc("federation", "init", tmp_path / "made", "--organisations", "a,b", "--host", "fed.example.org")
    assert done.returncode == 0, done.stderr
    assert "still missing: the agreed items" in done.stdout
    made = tmp_path / "made"
    secrets = {path for path in made.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()}
    assert secrets == {made / "authority/ca.key", made / "server/server.key", made / "server/request.key"} | {
        made / name / key for name in ("a", "b") for key in ("node.key", "identity.key")
    }
    assert len({(made / name / "server.pub").read_bytes() for name in ("server", "a", "b")}) == 1
    for path in [*secrets, made / "a/config.toml"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in ("", "authority", "server", "a", "b"):
        assert stat.S_IMODE((made / folder).stat().st_mode) == 0o700
    for name in ("README.md", "fedmc-node.service", "Containerfile", "ca.crt"):
        assert (made / "a" / name).is_file()
    assert "fed.example.org" in (made / "a" / "README.md").read_text()
    assert "$" not in (made / "a" / "fedmc-node.service").read_text()
    assert layout.load_server(made / "server").organisations == ("a", "b")


@pytest.mark.parametrize(
    ("names", "host", "said"),
    [
        ("a,a", "h", "each organisation has its own name"),
        ("a,server", "h", "the name of another folder"),
        ("A b", "h", "small letters, digits and dashes"),
        ("../x", "h", "small letters, digits and dashes"),
        ("a", "no host", "not the name or address of a machine"),
    ],
)
def test_init_refuses(tmp_path, names, host, said):
    refused(fedmc("federation", "init", tmp_path / "made", "--organisations", names, "--host", host), said)
    assert not (tmp_path / "made").exists()


def test_init_overwrites_nothing(made):
    before = (made / "north" / "node.key").read_bytes()
    refused(fedmc("federation", "init", made, "--organisations", "north", "--host", "h"), "choose a new folder")
    assert (made / "north" / "node.key").read_bytes() == before


def test_renew(made):
    before = (made / "server" / "server.pem").read_bytes()
    done = fedmc("federation", "renew", made / "authority", made / "server", "--days", 40)
    assert done.returncode == 0, done.stderr
    assert (made / "server" / "server.pem").read_bytes() != before
    assert keys.check_certificate(made / "server" / "server.pem") is None
    refused(fedmc("federation", "renew", made / "north", made / "server"), "not an authority's folder")


@pytest.mark.slow
def test_check_reads_every_kind_of_source(made):
    sources = {name: next((made / name).glob("ratings.*")).suffix for name in NAMES}
    assert set(sources.values()) == {".csv", ".parquet", ".tsv"}
    for name in NAMES:
        done = fedmc("node", "check", made / name)
        assert done.returncode == 0, done.stderr
        assert f"{name}: " in done.stderr
        assert "no server answers" in done.stdout


def set_source(folder: Path, source: str, *more: str) -> None:
    path = folder / "config.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("source")]
    path.write_text("\n".join([*lines, f'source = "{source}"', *more]))


def test_a_database_is_a_source_too(made, tmp_path):
    pytest.importorskip("adbc_driver_sqlite", reason="needs the extra `postgres`")
    with sqlite3.connect(tmp_path / "ratings.db") as database:
        database.execute("CREATE TABLE r (u INTEGER, i INTEGER, x REAL)")
        database.executemany("INSERT INTO r VALUES (?, ?, ?)", [(k, k % 5, 1 + k % 4) for k in range(40)])
    database.close()
    set_source(
        made / "north", str(tmp_path / "ratings.db"), 'query = "SELECT u AS user, i AS item, x AS rating FROM r"'
    )
    done = fedmc("node", "check", made / "north")
    assert done.returncode == 0, done.stderr
    assert "of 40 users" in done.stderr


@pytest.mark.parametrize("share", ["random:0.1", "0.1"])
def test_a_nodes_config_takes_both_spellings_of_a_split(made, share):
    config = made / "north" / "config.toml"
    config.write_text(config.read_text().replace('test = "random:0.2"', f'test = "{share}"'))
    assert fedmc("node", "check", made / "north").returncode == 0
    shard = open_prepared(made / "north" / "shard").shards[0]
    assert shard.test.nnz == round(0.1 * (shard.test.nnz + shard.by_user.nnz))


@pytest.mark.slow
def test_what_a_node_refuses_before_it_connects(made, tmp_path):
    north, command = made / "north", ("node", "start", made / "north")
    (north / "node.key").chmod(0o644)
    refused(fedmc(*command), "can be read by others", "chmod 600")
    (north / "node.key").chmod(0o600)
    (north / "catalogue.json").rename(tmp_path / "catalogue.json")
    refused(fedmc(*command), "there is no catalogue", "fedmc catalogue make")
    Catalogue.of(["another"]).save(north / "catalogue.json")
    refused(fedmc(*command), "outside of the catalogue")
    (tmp_path / "catalogue.json").rename(north / "catalogue.json")
    assert fedmc("node", "check", north).returncode == 0
    Catalogue.of(["another"]).save(north / "catalogue.json")
    refused(fedmc(*command), "prepared with another catalogue")
    set_source(north, "")
    refused(fedmc(*command), "say where the ratings are")
    (north / "config.toml").write_text("organisation = ")
    refused(fedmc(*command), "config.toml")
    refused(fedmc("node", "start", tmp_path), "there is no config.toml")
    refused(fedmc("node", "recommend", made / "south", "1"), "there is no model")


@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_a_damaged_shard_stops_the_node(made, place):
    assert fedmc("node", "check", made / "north").returncode == 0
    shard = next((made / "north" / "shard").glob("*.shard"))
    content = bytearray(shard.read_bytes())
    content[int(place * len(content))] ^= 1
    shard.write_bytes(content)
    refused(fedmc("node", "start", made / "north"), "is damaged: prepare the shards again")


def test_a_damaged_or_unusable_state_stops_the_node(made):
    (made / "north" / "state").mkdir()
    (made / "north" / "state" / "state.sqlite").write_bytes(b"not a database, whatever it says" * 100)
    refused(fedmc("node", "start", made / "north"), "cannot be used", "restore the state folder")
    (made / "south" / "state").write_text("a file where the folder should be")
    refused(fedmc("node", "start", made / "south"), "cannot use the state folder")


def test_a_server_that_is_not_there_is_said(made):
    for command in (("train",), ("resume",), ("stop",)):
        done = fedmc("federation", *command, made / "server")
        refused(done, "server start" if command == ("train",) else "there is no run")
    done = fedmc("federation", "status", made / "server")
    assert done.returncode == 0
    assert "is not running" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rounds", "0"), "--rounds must be at least 1"),
        (("--quorum", "7"), "--quorum must be from 1 to 3"),
        (("--patience", "0"), "--patience must be above 0"),
        (("--active", "9"), "9"),
        (("--penalty-users", "auto"), "fedmc tune"),
        (("--privacy", "much"), "'much' is not one of"),
        (("--beta", "much"), "beta must be a number above 0 or 'auto', got 'much'"),
        (("--inner-steps", "0"), "inner_steps must be at least 1, got 0"),
        (("--loss", "mse"), "unknown loss 'mse'"),
        (("--sampler", "dice"), "unknown sampler 'dice'"),
        (("--method", "fedmagic"), "unknown method 'fedmagic'"),
        (("--normalise", "much"), "'much' is not one of"),
    ],
)
def test_train_refuses(made, options, said):
    refused(fedmc("federation", "train", made / "server", *options), said)
    assert not any((made / "server" / "runs").iterdir())
