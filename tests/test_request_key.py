"""The key that signs a server's requests: made, handed over, pinned, lost, stolen; and folders that have none yet."""

from __future__ import annotations

import stat

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc.cli.federation_demo import set_up
from fedmc.errors import DataError, InputError
from fedmc.federation.envelope import open_, seal
from fedmc.federation.node.organisation import open_folder
from fedmc.federation.setup import keys, layout, request_key
from tests.command import fedmc
from tests.conftest import planted

NAMES = ("north", "south", "east")
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n"


@pytest.fixture
def made(tmp_path):
    set_up(tmp_path / "made", planted())
    return tmp_path / "made"


@pytest.fixture
def old(made):
    """The folders as fedmc 0.2 made them: nothing signs, nothing is pinned."""
    for path in (made / "server" / "request.key", *made.glob("*/server.pub")):
        path.unlink()
    config = made / "server" / "config.toml"
    lines = config.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("oldest_protocol")]
    assert len(kept) == len(lines) - 1
    config.write_text("\n".join(kept))
    return made


def refused(done, *said):
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in done.stderr


def fine(done):
    assert done.returncode == 0, done.stderr
    return done


def test_every_folder_pins_the_one_key(made):
    assert stat.S_IMODE((made / "server" / "request.key").stat().st_mode) == 0o600
    key = request_key.load(made / "server")
    for name in NAMES:
        opened = open_folder(layout.load_node(made / name))
        assert opened.trust.name == name
        assert open_(seal(b"x", key, name, 1), opened.trust.server, name).content == b"x"
        assert not (made / name / "request.key").exists()


def test_a_fingerprint_is_that_of_ssh(tmp_path):
    (tmp_path / "server.pub").write_text(PUBLIC)
    expected = "SHA256:ZkAslGjFiUHdGf/WUL8rQvkib4PTvQatUV0OUQSncCA"  # ssh-keygen -lf
    assert request_key.fingerprint(request_key.read_public(tmp_path / "server.pub")) == expected


def test_folders_of_the_version_before(old, tmp_path, monkeypatch):
    """The server's start makes its key; a node refuses until it is pinned, and says how."""

    def no_link(config):
        raise InputError("no SuperLink in this test")

    assert layout.load_server(old / "server").oldest_protocol == 1
    cure = "there is no", "server.pub", "`fedmc federation sign-key` makes it", f"fedmc node trust {old / 'north'}"
    for command in ("check", "start"):
        refused(fedmc("node", command, old / "north"), *cure)
    monkeypatch.setattr("fedmc.cli.server.Link", no_link)
    for new in (True, False):
        done = fedmc("server", "start", old / "server")
        refused(done, "no SuperLink in this test")
        assert ("Hand" in done.stderr and "to north, south, east" in done.stderr) == new
    said = fine(fedmc("federation", "sign-key", old / "server")).stdout.split()[-1]
    assert said.startswith("SHA256:")
    assert said in fine(fedmc("node", "trust", old / "north", old / "server" / "server.pub")).stdout
    assert f"obeys requests signed by the key {said}" in fine(fedmc("node", "check", old / "north")).stdout


def test_another_key_is_pinned_only_on_demand(made, tmp_path):
    before = (made / "north" / "server.pub").read_bytes()
    fine(fedmc("node", "trust", made / "north", made / "server" / "server.pub"))
    assert (made / "north" / "server.pub").read_bytes() == before
    fine(fedmc("federation", "sign-key", made / "server", "--renew"))
    new = made / "server" / "server.pub"
    refused(fedmc("node", "trust", made / "north", new), "already pins another key, SHA256:", "--replace")
    assert (made / "north" / "server.pub").read_bytes() == before
    fine(fedmc("node", "trust", made / "north", new, "--replace"))
    assert (made / "north" / "server.pub").read_bytes() == new.read_bytes() != before
    refused(fedmc("node", "trust", tmp_path, new), "is not an organisation's folder")
    refused(fedmc("node", "trust", made / "north", made / "north" / "config.toml"), "is not a public key")
    refused(fedmc("node", "trust", made / "north", made / "server" / "nodes" / "north.pub"), "is not an Ed25519 key")


def test_a_lost_key_is_not_replaced_in_silence(made):
    (made / "server" / "request.key").unlink()
    cure = "restore it from a backup", "--renew"
    refused(fedmc("server", "start", made / "server"), *cure)
    refused(fedmc("federation", "sign-key", made / "server"), *cure)
    said = fine(fedmc("federation", "sign-key", made / "server", "--renew"))
    assert "(with --replace, if it had another)" in said.stderr


def test_a_key_that_others_can_read_or_that_is_none(made):
    path = made / "server" / "request.key"
    path.chmod(0o644)
    with pytest.raises(DataError, match="can be read by others"):
        request_key.load(made / "server")
    path.unlink()
    with pytest.raises(DataError, match="sign-key"):
        request_key.load(made / "server")
    keys.write_private(path, keys.make_node_keys()[0])
    with pytest.raises(DataError, match="not an Ed25519 key"):
        request_key.load(made / "server")
    (made / "north" / "server.pub").write_text("ssh-ed25519 nothing")
    with pytest.raises(DataError, match="not a public key"):
        request_key.load_public(made / "north")


@pytest.mark.parametrize("value", ["0", "3", '"2"', "1.5"])
def test_protocols_that_are_not_served(made, value):
    config = made / "server" / "config.toml"
    assert layout.load_server(made / "server").oldest_protocol == 2
    config.write_text(config.read_text().replace("oldest_protocol = 2", f"oldest_protocol = {value}"))
    with pytest.raises(DataError, match="oldest_protocol must be from 1 to 2, got"):
        layout.load_server(made / "server")
