"""Who is who in secure aggregation: keys of one's own, and one list for all."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.errors import DataError
from fedmc.federation.setup import founding, identities, members
from fedmc.federation.setup.identities import identity_of, load_key

NAMES = ["north", "south", "east"]


def identity_in(folder, name):
    return identity_of(members.load(folder), name, load_key(folder), 3)


class TestIdentities:
    @pytest.fixture
    def folder(self, tmp_path):
        founding.init(tmp_path / "f", NAMES, founding.Address("localhost"))
        return tmp_path / "f"

    def test_each_has_its_own_secret_and_all_have_one_list(self, folder):
        found = members.load(folder / "server")
        assert found.names == NAMES
        assert not (folder / "server" / identities.KEY).exists()
        for number, name in enumerate(NAMES):
            assert members.load(folder / name) == found
            assert (folder / name / identities.KEY).stat().st_mode & 0o777 == 0o600
            assert identity_in(folder / name, name).number == number
        assert 'accept = ["secagg"]' in (folder / "north" / "config.toml").read_text()

    def test_a_key_of_ones_own(self, folder):
        """Made by the organisation itself, and taken in by the others."""
        old = members.load(folder / "south").entry("north").identity
        public = identities.make(folder / "north")
        with pytest.raises(DataError, match="has another key for north"):
            identity_in(folder / "north", "north")
        for name in ("server", *NAMES):
            members.save(folder / name, members.load(folder / name).pinned("north", public))
        assert public != old
        assert identity_in(folder / "north", "north").number == 0
        assert len({members.load(folder / name).hash for name in ("server", *NAMES)}) == 1

    def test_what_is_wrong_is_said(self, folder):
        listed, place = members.load(folder / "north"), folder / "north" / members.LIST
        with pytest.raises(DataError, match="'west' is no member: the members are north, south, east"):
            listed.pinned("west", "00" * 32)
        with pytest.raises(DataError, match="64 hexadecimal digits"):
            listed.pinned("north", "nothing")
        with pytest.raises(DataError, match="twice"):
            listed.pinned("east", listed.identities[0])
        place.write_text("[]}")
        with pytest.raises(DataError, match="not a list of members"):
            members.load(folder / "north")
        place.unlink()
        with pytest.raises(DataError, match="there is no"):
            members.load(folder / "north")
        (folder / "north" / identities.KEY).chmod(0o644)
        with pytest.raises(DataError, match="can be read by others"):
            load_key(folder / "north")

    def test_a_list_of_an_earlier_version_is_read(self, folder):
        """`identities.json` has names and keys only; its hash is that of the list which has more."""
        found, place = members.load(folder / "north"), folder / "north"
        pairs = [[one.name, one.identity] for one in found.entries]
        (place / members.LIST).unlink()
        (place / members.EARLIER).write_text(json.dumps(pairs))
        assert members.load(place).hash == found.hash
        assert identity_in(place, "north").number == 0
