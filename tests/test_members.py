"""Who is a member: signed lists that follow each other, and nodes that take them in while they run."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from hypothesis import given
from hypothesis import strategies as st

from fedmc.data.catalogue import Catalogue, align, load
from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, InputError, TooFewError
from fedmc.federation.news import News, encode_news
from fedmc.federation.node import consents, withdrawing
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.server.telling import status_of
from fedmc.federation.setup import founding, identities, joining, layout, member_keys, members, statements, succession
from fedmc.federation.setup.members import Entry
from fedmc.privacy.secagg import whole_sums
from tests.conftest import examples
from tests.living import Living, settings_of, tables

NAMES = ["north", "south", "east"]
EXACT = settings_of("exact")


@pytest.fixture
def made(tmp_path):
    founding.init(tmp_path / "made", NAMES, founding.Address("localhost"))
    return tmp_path / "made"


@pytest.fixture
def living(tmp_path):
    found = Living(tmp_path, dict(zip(NAMES, tables(3), strict=True)))
    yield found
    found.close()


def federation_of(made):
    return joining.open_(made / "authority", made / "server")


def authority_of(made):
    return succession.authority_of(made / "north")


class TestLists:
    def test_a_newcomer_has_the_next_place_and_a_leaver_keeps_its_own(self, made):
        old, federation = members.load(made / "north"), federation_of(made)
        new = joining.add(federation, "west", made / "west")
        succession.check_list(old, new, authority_of(made))
        joining.put_into_use(federation.server, new)
        later = joining.remove(federation, {"south": None})
        succession.check_list(new, later, authority_of(made))
        succession.check_list(old, later, authority_of(made))  # who was away meanwhile
        assert (later.version, later.names, later.active) == (3, ["north", "east", "west"], (0, 2, 3))
        assert later.departed == {1}
        assert later.visible == frozenset()
        assert members.parsed(members.to_bytes(later)) == later
        assert layout.load_server(made / "server").organisations == ("north", "south", "east", "west")

    def test_what_does_not_follow_is_refused(self, made):
        old, federation = members.load(made / "north"), federation_of(made)
        sign, key = federation.sign, authority_of(made)
        entries, strange = old.entries, Entry("west", "07" * 32)
        stolen = entries[0]._replace(identity="07" * 32)
        wrong = {
            "not signed by": replace(old, version=2, entries=(*entries, strange)),
            "not newer": old,
            "names 2 members": sign(replace(old, version=2, entries=entries[:2])),
            "in the place of": sign(replace(old, version=2, entries=(entries[1], entries[0], entries[2]))),
            "did not sign": sign(replace(old, version=2, entries=(stolen, *entries[1:]))),
        }
        for why, new in wrong.items():
            with pytest.raises(DataError, match=why):
                succession.check_list(old, new, key)
        gone = joining.remove(federation, {"east": None})
        back = sign(replace(gone, version=3, entries=entries))
        with pytest.raises(DataError, match="how east left"):
            succession.check_list(gone, back, key)
        signed_by_another = joining.open_(other_authority(made), made / "server").sign(wrong["not signed by"])
        with pytest.raises(DataError, match="not signed by the federation's authority"):
            succession.check_list(old, signed_by_another, key)

    def test_commands_that_make_no_sense_are_refused(self, made):
        federation = federation_of(made)
        for what, error in (
            (lambda: joining.add(federation, "north", made / "x"), "a member already"),
            (lambda: joining.add(federation, "Nörth", made / "x"), "small letters"),
            (lambda: joining.add(federation, "west", made / "north"), "not empty"),
            (lambda: joining.remove(federation, {"west": None}), "no member: the members are north, south, east"),
            (lambda: joining.remove(federation, dict.fromkeys(NAMES)), "the only member left"),
            (lambda: joining.renew(federation, made / "nothing"), "`fedmc node keys` makes it"),
        ):
            with pytest.raises((InputError, DataError), match=error):
                what()
        assert members.load(made / "server").version == 1
        assert not (made / "x").exists()

    def test_a_statement_to_leave_is_the_member_s_own(self, made):
        federation, entry = federation_of(made), members.load(made / "north").entry("east")
        own = statements.leaves("east", identities.load_key(made / "east"), False, True)
        forged = statements.leaves("east", identities.load_key(made / "north"), False, True)
        with pytest.raises(DataError, match="not signed by its identity"):
            joining.remove(federation, {"east": forged})
        with pytest.raises(DataError, match="not signed by its identity"):
            joining.remove(federation, {"east": own._replace(take_out=True)})
        assert joining.remove(federation, {"east": own}).visible == {2}
        coordinator = entry._replace(left=own._replace(proof=""))
        assert not coordinator.visible  # the coordinator cannot consent in its place

    @given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
    @examples(100)
    def test_bytes_that_are_no_list(self, content):
        with pytest.raises(DataError):
            members.parsed(content)


def other_authority(made):
    founding.init(made / "other", ["x"], founding.Address("localhost"))
    return made / "other" / "authority"


class TestKeys:
    def test_a_member_replaces_its_keys_and_the_others_follow(self, made):
        old, north = members.load(made / "south"), made / "north"
        halves = member_keys.make(north, "north")
        assert member_keys.pending(north)
        assert halves.identity != old.entry("north").identity
        new = joining.renew(federation_of(made), north / member_keys.FILE)
        succession.check_list(old, new, authority_of(made))
        assert not member_keys.promote(north, old, "north")  # not before the list names them
        assert member_keys.promote(north, new, "north")
        assert identities.public_hex(identities.load_key(north)) == new.entry("north").identity
        assert not member_keys.pending(north)
        assert not member_keys.promote(north, new, "north")
        joining.put_into_use(federation_of(made).server, new)
        member_keys.make(north, "north")
        third = joining.renew(federation_of(made), north / member_keys.FILE)
        succession.check_list(old, third, authority_of(made))  # two renewals at once
        assert (made / "server" / "nodes" / "north.pub").read_text().strip() == new.entry("north").node

    def test_keys_of_its_own_for_a_new_organisation(self, made, tmp_path):
        halves = member_keys.make(tmp_path / "own", "west")
        with pytest.raises(DataError, match="keys of west, not of east2"):
            joining.add(federation_of(made), "east2", made / "east2", tmp_path / "own" / member_keys.FILE)
        new = joining.add(federation_of(made), "west", made / "west", tmp_path / "own" / member_keys.FILE)
        assert new.entry("west").identity == halves.identity
        assert not (made / "west" / identities.KEY).exists()
        assert not (made / "west" / member_keys.NODE).exists()

    def test_new_keys_that_the_old_one_did_not_sign(self, made):
        north = made / "north"
        member_keys.make(north, "north")
        found = json.loads((north / member_keys.FILE).read_text())
        for change in ({"replaces": None}, {"replaces": [found["replaces"][0], "00" * 64]}, {"identity": "09" * 32}):
            (north / "forged.json").write_text(json.dumps(found | change))
            with pytest.raises(DataError, match=r"not signed by its identity|has not signed this"):
                joining.renew(federation_of(made), north / "forged.json")

    def test_killed_while_new_keys_come_into_use(self, made, monkeypatch):
        north = made / "north"
        member_keys.make(north, "north")
        new = joining.renew(federation_of(made), north / member_keys.FILE)
        (north / member_keys.NEXT / member_keys.NODE).rename(north / member_keys.NODE)  # and then it died
        assert member_keys.promote(north, new, "north")
        assert identities.public_hex(identities.load_key(north)) == new.entry("north").identity


class TestJoining:
    def test_a_lone_newcomer_takes_part_only_with_its_own_consent(self, living):
        living.train("first", EXACT, 2)
        living.add("west", tables(4)[3])
        began = [id(node) for node in living.nodes.values()]
        refused = living.plan("refused", EXACT, 2, "first")
        with pytest.raises(TooFewError, match="without its consent"):
            living.conduct(refused)
        config = layout.load_node(living.made / "west")
        consents.record(config, True)
        assert consents.alone_since(config) is not None
        last = living.conduct(refused)  # as `resume` does
        assert last.checkpoint.server.seen == 4
        assert RunFolder(refused.path).status()["visible"] == ["west"]
        assert began == [id(node) for node in living.nodes.values()]  # nobody was started anew
        consents.record(config, False)
        assert consents.alone_since(config) is None

    def test_enough_newcomers_hide_each_other(self, living):
        living.train("first", EXACT, 2)
        for name, table in zip(["a", "b", "c", "d"], tables(7)[3:], strict=True):
            living.add(name, table)
        last = living.train("second", settings_of("exact"), 2, "first")
        assert last.checkpoint.server.seen == 7

    def test_a_run_goes_on_among_its_own_members(self, living):
        """West joins between two rounds; the run that goes on does not notice."""
        folder = living.plan("first", EXACT, 4)
        wire = living.wire(NAMES)
        stop = itertools.count()

        def exchange(contents, max_bytes, needed):
            if next(stop) == 8:
                living.add("west", tables(4)[3])
                assert living.announce() == dict.fromkeys([*NAMES, "west"], "ok")
            return wire.exchange(contents, max_bytes, needed)

        living.wire = lambda names: (
            type("", (), {"exchange": staticmethod(exchange)})() if names == NAMES else wired(living, names)
        )
        last = living.conduct(folder)
        assert last.checkpoint.server.seen == 3
        assert members.load(living.made / "north").names == [*NAMES, "west"]

    def test_what_a_server_cannot_make_a_node_take_in(self, living):
        node, listed = living.nodes["north"], members.load(living.server)
        forged = replace(listed, version=2, entries=(*listed.entries, Entry("west", "07" * 32)))
        grown = living.federation.server.catalogue().grown([77])
        moved = Catalogue(grown.items[::-1].copy())
        for news in (
            News(members.to_bytes(forged)),
            News(b"nothing"),
            News(catalogue=b"{}"),
            News(catalogue=saved(grown, living)),
            News(catalogue=saved(replace(moved, signature=joining.sign_catalogue(living.authority, moved)), living)),
        ):
            sealed = living.signer.seal(encode_news(news), "north")
            assert status_of(node.answer_bytes(sealed)) == "not-a-successor"
        assert members.load(living.made / "north") == listed
        assert len(layout.load_node(living.made / "north").catalogue()) == len(grown) - 1


def wired(living, names):
    return Living.wire(living, names)


def saved(catalogue, living):
    catalogue.save(living.root / "some.json")
    return (living.root / "some.json").read_bytes()


class TestLeaving:
    def test_by_default_the_others_do_not_show_its_part(self, tmp_path):
        living = Living(tmp_path, dict(zip(["a", "b", "c", "d"], tables(4), strict=True)))
        living.train("first", EXACT, 2)
        living.leave("d")
        living.remove(d=None)
        assert living.nodes["d"].has_left
        with pytest.raises(TooFewError, match="not-hidden"):
            living.train("refused", EXACT, 2, "first")
        for name in "abc":  # each of the others decides that it may show
            config = living.made / name / "config.toml"
            config.write_text(config.read_text().replace("# departed_visible = false", "departed_visible = true"))
            living.restart(name)
        assert living.train("second", EXACT, 2, "first").checkpoint.server.seen == 3
        living.close()

    def test_with_its_own_consent_the_others_go_on(self, tmp_path):
        living = Living(tmp_path, dict(zip(["a", "b", "c", "d"], tables(4), strict=True)))
        living.train("first", EXACT, 2)
        left = living.leave("d", visible=True)
        assert living.remove(d=left) == dict.fromkeys("abcd", "ok")
        assert living.train("second", EXACT, 2, "first").checkpoint.server.seen == 3
        living.close()

    def test_a_node_that_leaves_contributes_nothing_new(self, living):
        living.train("first", EXACT, 2)
        living.leave("east")
        with pytest.raises(TooFewError, match="leaves the federation"):
            living.train("second", EXACT, 2, "first")
        (living.made / "east" / withdrawing.FILE).unlink()
        living.train("third", EXACT, 2, "first")


class TestCatalogue:
    def test_new_items_come_last_and_old_ones_keep_their_columns(self, living):
        before = living.federation.server.catalogue()
        grown = before.grown(np.array([-5, 900, int(before.items[0])]))
        grown = replace(grown, signature=joining.sign_catalogue(living.authority, grown))
        living.train("first", EXACT, 2)
        grown.save(living.server / "catalogue.json")
        assert living.announce() == dict.fromkeys(NAMES, "ok")
        assert layout.load_node(living.made / "south").catalogue().items.tolist() == [*before.items.tolist(), -5, 900]
        table = tables(3)[0]
        living.refresh("north", [*table, (0, 900, 4.0), (1, -5, 2.0)])
        last = living.train("second", EXACT, 2, "first")
        assert last.checkpoint.broadcast.V.shape[0] == len(grown)

    def test_ratings_in_the_columns_of_a_grown_catalogue(self, tmp_path):
        """A reading with it and a reading with the sorted one hold the same ratings."""
        items = Catalogue.of([3, 5, 9]).grown([1, 4])
        assert items.items.tolist() == [3, 5, 9, 1, 4]
        assert items.columns_of(np.array([1, 3, 4, 7])).tolist() == [3, 0, 4, -1]
        items.save(tmp_path / "c.json")
        assert (tmp_path / "c.json").read_text().startswith('{\n"format"')
        found = Ratings.from_arrays([1, 1, 2, 2], [4, 5, 1, 9], [1.0, 2.0, 3.0, 4.0], [10, 20, 30, 40])
        aligned, _ = align(found, load(tmp_path / "c.json"))
        assert aligned.matrix.toarray().tolist() == [[0, 2, 0, 0, 1], [0, 0, 4, 3, 0]]
        assert aligned.matrix.has_sorted_indices
        assert aligned.time_table().toarray().tolist() == [[0, 20, 0, 0, 10], [0, 0, 40, 30, 0]]
        assert load(tmp_path / "c.json").hash == items.hash


# --- the rule behind consent


@given(st.data())
@examples(300)
def test_members_that_join_and_leave_never_show_the_part_of_one_that_did_not_accept_it(data):
    """An honest-but-curious server: every sum is over all members of that time; some join, some leave, in any order.

    What it can compute is the span of the sums that were opened, which members did not know of each other.
    """
    least, active, consenting, sums = 3, {0, 1, 2, 3}, set(), []
    known = {}
    following = 4
    for _ in range(data.draw(st.integers(1, 6))):
        joining_now = set(range(following, following + data.draw(st.integers(0, 3))))
        following += len(joining_now)
        leaving = set(data.draw(st.lists(st.sampled_from(sorted(active)), max_size=2, unique=True)))
        now = (active | joining_now) - leaving
        consenting |= {one for one in joining_now | leaving if data.draw(st.booleans())}
        if len(now) < least:
            break
        places = tuple(sorted(now))
        try:
            for member in now:
                whole_sums.check(known.get(member, set()), places, least, consenting, set(places) - {member})
        except DataError:
            break
        active = now
        sums.append(places)
        for member in now:
            known.setdefault(member, set()).add(places)
    for size in range(1, least):
        for few in itertools.combinations(range(following), size):
            if not set(few) <= consenting and computable(sums, few, following):
                raise AssertionError(f"{few} after {sums}, {consenting} accept it")


def computable(sums, few, number):
    rows = np.array([[one in members for one in range(number)] for members in sums], float).reshape(-1, number)
    wanted = np.array([[one in few for one in range(number)]], float)
    return np.linalg.matrix_rank(np.vstack([rows, wanted])) == np.linalg.matrix_rank(rows)


def test_the_search_finds_a_break_without_the_rule():
    """A lone newcomer without consent: the difference is its part."""
    assert computable([(0, 1, 2), (0, 1, 2, 3)], (3,), 4)
    with pytest.raises(DataError, match="the sum of \\(3,\\) alone"):
        whole_sums.check([(0, 1, 2)], (0, 1, 2, 3), 3, (), (0, 1, 2, 3))
    whole_sums.check([(0, 1, 2)], (0, 1, 2, 3), 3, (3,), (0, 1, 2, 3))
    whole_sums.check([(0, 1, 2), (0, 1, 2, 3)], (3,), 3, (3,), (0, 1, 2, 3))  # taken out again
    with pytest.raises(DataError, match="alone"):  # one who is away cannot judge for itself
        whole_sums.check([(0, 1, 2, 3, 4)], (0, 1, 2), 3, (3,), (0, 1, 2))
