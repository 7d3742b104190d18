"""Who is who in secure aggregation: keys of one's own, and one list for all."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.errors import DataError
from fedmc.federation.setup import identities, layout
from fedmc.federation.setup.identities import identity_of


class TestIdentities:
    @pytest.fixture
    def folder(self, tmp_path):
        layout.init(tmp_path / "f", ["north", "south", "east"], layout.Address("localhost"))
        return tmp_path / "f"

    def test_each_has_its_own_secret_and_all_have_one_list(self, folder):
        found = identities.load(folder / "server" / identities.LIST)
        assert [name for name, _ in found] == ["north", "south", "east"]
        assert not (folder / "server" / identities.KEY).exists()
        for number, name in enumerate(("north", "south", "east")):
            assert identities.load(folder / name / identities.LIST) == found
            assert (folder / name / identities.KEY).stat().st_mode & 0o777 == 0o600
            assert identity_of(folder / name, name, 3).number == number
        assert 'accept = ["secagg"]' in (folder / "north" / "config.toml").read_text()

    def test_a_key_of_ones_own(self, folder):
        """Made by the organisation itself, and taken in by the others."""
        old = dict(identities.load(folder / "south" / identities.LIST))["north"]
        public = identities.make(folder / "north")
        with pytest.raises(DataError, match="has another key for north"):
            identity_of(folder / "north", "north", 3)
        for name in ("server", "north", "south", "east"):
            identities.pin(folder / name / identities.LIST, "north", public)
        assert public != old
        assert identity_of(folder / "north", "north", 3).number == 0

    def test_what_is_wrong_is_said(self, folder):
        listed = folder / "north" / identities.LIST
        with pytest.raises(DataError, match="does not name west: it names north, south, east"):
            identities.pin(listed, "west", "00" * 32)
        with pytest.raises(DataError, match="64 hexadecimal digits"):
            identities.pin(listed, "north", "nothing")
        found = identities.load(listed)
        identities.save(listed, [*found[:2], ("east", found[0][1])])
        with pytest.raises(DataError, match="twice"):
            identities.load(listed)
        listed.write_text("[]}")
        with pytest.raises(DataError, match="not a list of identities"):
            identities.load(listed)
        listed.unlink()
        with pytest.raises(DataError, match="there is no"):
            identities.load(listed)
        (folder / "north" / identities.KEY).chmod(0o644)
        with pytest.raises(DataError, match="can be read by others"):
            identities.load_key(folder / "north")
