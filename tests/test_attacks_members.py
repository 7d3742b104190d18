"""Attacks on who is a member: lists that grow, consent to whole sums, parts that are taken out, hostile files."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.data import catalogue
from fedmc.errors import DataError
from fedmc.federation.flower.gateway import renewals
from fedmc.federation.flower.gateway.stream import server_context
from fedmc.federation.news import News, encode_news
from fedmc.federation.node import live, withdrawing
from fedmc.federation.secagg_messages import (
    Stage,
    encode_stage,
    keys_of,
    masked_of,
    open_arrays,
    opened_of,
    read_stage,
    session_of,
)  # fmt: skip
from fedmc.federation.server.telling import status_of
from fedmc.federation.setup import founding, identities, joining, keys, layout, member_keys, members
from fedmc.federation.setup.members import Entry
from fedmc.federation.setup.statements import Departure
from fedmc.federation.wire import NEVER, Invitation, Request, decode_reply, encode, from_bytes, to_bytes
from fedmc.privacy.secagg.aggregator import Aggregator
from fedmc.privacy.secagg.session import NO_SUM, Invited
from fedmc.problem.scaling import Scaling
from tests.living import Living, settings_of, tables

SETTINGS = settings_of("curvature")
FOUR = list("abcd")


class Rogue:
    """A server that conducts a run of a Living federation by hand, among the members of a list of its choice.

    `said` is the hash of the list that it names, `before_opening` what it does between the two exchanges.
    """

    def __init__(self, living, run, listed, said=None):
        self.living, self.run, self.names = living, run, listed.names
        self.pinned = identities.pinned(listed.identities)
        self.said = listed.hash if said is None else said
        self.keys, self.bases, self.certificates = {}, {}, []
        self.before_opening = lambda: None

    def ask(self, client, content):
        name = self.names[client]
        return self.living.nodes[name].answer_bytes(self.living.signer.seal(content, name))

    def request(self, client, broadcast, invitation, leaving):
        items = self.living.federation.server.catalogue().hash
        return Request(
            self.run, client, broadcast, NEVER, items, invitation=invitation, members=self.said, leaving=leaving
        )

    def send(self, client, broadcast, invitation, leaving=()):
        answer = self.ask(client, to_bytes(*encode(self.request(client, broadcast, invitation, leaving))))
        arrays, words = from_bytes(answer)
        return read_stage(answer) if "stage" in words else decode_reply(arrays, words).status

    def broadcast(self, number=1, **changes):
        count, items = len(self.names), len(self.living.federation.server.catalogue())
        settings = SETTINGS.replace(active=count)
        V = start_items(items, settings)
        return Broadcast("round", number, count, settings, V, Scaling(3.0, 1.0))._replace(**changes)

    def sum(self, broadcast, cohort=None, leaving=()):
        """The words of a sum, or why there is none: the statuses of those that refuse."""
        cohort = tuple(range(len(self.names))) if cohort is None else tuple(cohort)
        for k in cohort:
            if k not in self.keys:
                stage = self.send(k, broadcast, Invitation(certificates=tuple(self.certificates)), leaving)
                if isinstance(stage, str):
                    return {k: stage}
                self.keys[k] = keys_of(stage.arrays)[0]
        last = self.certificates[-1:]
        invited = tuple(Invited(self.keys[k], self.bases.get(k, NO_SUM)) for k in cohort)
        number, previous = (last[0].number + 1, last[0].hash) if last else (1, b"")
        invitation = Invitation(number, 1, invited, 1, previous, certificates=tuple(self.certificates[-2:]))
        session = session_of(self.request(cohort[0], broadcast, invitation, leaving), len(broadcast.V))
        made, refused = Aggregator(session, self.pinned), {}
        for k in cohort:
            said = self.send(k, broadcast, invitation, leaving)
            if isinstance(said, str):
                refused[k] = said
                continue
            made.take_masked(k, masked_of(said.arrays, cohort))
            self.keys[k] = made.masked[k].head.next
        if refused:
            return refused
        self.before_opening()
        for k in cohort:
            said = read_stage(
                self.ask(k, encode_stage(Stage(self.run, k, "open", open_arrays(session.hash, made.heads()))))
            )
            if said.status != "ok":
                refused[k] = said.status
                continue
            made.take_opened(k, opened_of(said.arrays)[1])
        if len(made.opened) < session.needed:
            return refused
        found = made.unmask()
        self.certificates.append(found.certificate)
        self.bases |= dict.fromkeys(cohort, session.number) if session.kept else {}
        return found.words.view(np.int64)


@pytest.fixture
def living(tmp_path):
    found = Living(tmp_path, dict(zip(FOUR, tables(4, users=4), strict=True)))
    yield found
    found.close()


def joined(living, name="e"):
    """A newcomer, which did not accept that sums show its part; the new list, which everybody knows."""
    living.add(name, tables(5, users=4)[4])
    assert set(living.announce().values()) == {"ok"}
    return members.load(living.server)


class TestSums:
    """e joins alone, and did not accept that sums show its part: no sum with it may be set against one without it."""

    def shown(self, living, listed):
        rogue = Rogue(living, "with-e", listed)
        return rogue.sum(rogue.broadcast())

    def test_without_a_trick(self, living):
        old = members.load(living.server)
        rogue = Rogue(living, "first", old)
        assert not isinstance(rogue.sum(rogue.broadcast()), dict)
        assert set(self.shown(living, joined(living)).values()) == {"not-hidden"}

    def test_a_run_in_which_the_newcomer_is_said_to_be_absent(self, living):
        """The nodes note a sum over all members of the run, which the server may have from all groups together."""
        old = members.load(living.server)
        rogue = Rogue(living, "first", old)
        assert not isinstance(rogue.sum(rogue.broadcast()), dict)
        listed = joined(living)
        rogue = Rogue(living, "second", listed)
        rogue.sum(rogue.broadcast(), range(4))
        assert isinstance(self.shown(living, listed), dict)

    def test_a_run_that_names_no_list(self, living):
        """The list grows between the two exchanges of such a run."""
        old = members.load(living.server)
        rogue = Rogue(living, "first", old, said="")
        rogue.before_opening = lambda: joined(living)
        rogue.sum(rogue.broadcast())
        assert isinstance(self.shown(living, members.load(living.server)), dict)

    def test_a_run_that_names_no_list_keeps_the_one_that_it_began_with(self, living):
        old = members.load(living.server)
        rogue = Rogue(living, "first", old, said="")
        assert not isinstance(rogue.sum(rogue.broadcast()), dict)
        listed = joined(living)
        for said in ("", None):
            later = Rogue(living, "first", listed, said=said)
            broadcast = rogue.broadcast(2, clients=5)
            assert later.send(0, broadcast, Invitation()) == "wrong-member"
        assert not isinstance(rogue.sum(rogue.broadcast(2)), dict)


class TestLists:
    def test_whoever_gets_the_name_of_a_member_does_not_pass_for_it(self, living, caplog):
        """The holder of the authority's key marks d as gone, and names itself d."""
        old, sign = members.load(living.server), living.federation.sign
        gone = old.entry("d")._replace(left=Departure(False, False))
        new = sign(replace(old, version=2, entries=(*old.entries[:3], gone, Entry("d", other_key()))))
        told = living.announce(new)
        assert set(told.values()) == {"ok"}
        assert live.changes(old, new) == ["d has left", "d is a new member"]
        assert "signed with its old one" not in caplog.text
        assert [name for name in FOUR if living.nodes[name].has_left] == ["d"]

    def test_a_list_is_in_use_even_if_a_wrong_catalogue_comes_with_it(self, living):
        """Else the node has it on its disk, and goes on with the old one until it is started again."""
        listed = joining.remove(living.federation, {"d": None})
        items = living.federation.server.catalogue().grown(np.array([77_777]))  # not signed
        items.save(living.root / "unsigned.json")
        news = News(members.to_bytes(listed), (living.root / "unsigned.json").read_bytes())
        sealed = living.signer.seal(encode_news(news), "a")
        assert status_of(living.nodes["a"].answer_bytes(sealed)) == "not-a-successor"
        assert living.nodes["a"].node.trust.own.listed == listed

    @pytest.mark.parametrize("moved", [0, 1])
    def test_killed_while_new_keys_are_taken_into_use(self, living, moved):
        folder = living.made / "a"
        member_keys.make(folder, "a")
        listed = joining.renew(living.federation, folder / member_keys.FILE)
        living.stop("a")
        members.save(folder, listed)
        if moved:
            (folder / member_keys.NEXT / member_keys.NODE).replace(folder / member_keys.NODE)
        living.start("a")
        assert identities.public_hex(identities.load_key(folder)) == listed.entry("a").identity
        assert not member_keys.pending(folder)

    def test_one_key_is_not_two(self, living):
        """By another spelling, or as another member's."""
        old, sign = members.load(living.server), living.federation.sign
        first = old.entries[0]
        for strange, why in (
            (Entry("x", first.identity.upper()), "small letters"),
            (Entry("x", f"{first.identity[:2]} {first.identity[2:]}"), "small letters"),
            (Entry("x", other_key(), first.node), "a node's key twice"),
        ):
            with pytest.raises(DataError, match=why):
                members.parsed(members.to_bytes(sign(replace(old, version=2, entries=(*old.entries, strange)))))


def other_key():
    return identities.public_hex(Ed25519PrivateKey.generate())


class TestFiles:
    def test_keys_that_were_changed_on_the_way(self, living, tmp_path):
        """Whoever carries keys.json puts its own node key, or another's, beside the new identity."""
        folder = living.made / "a"
        member_keys.make(folder, "a")
        path = folder / member_keys.FILE
        said, other = json.loads(path.read_text()), members.load(folder).entry("b")
        for changes in ({"node": other.node}, {"identity": other.identity}, {"organisation": "b"}, {"proof": ""}):
            path.write_text(json.dumps(said | changes))
            with pytest.raises(DataError, match="was changed: the identity in it has not signed this"):
                joining.renew(living.federation, path)
        path.write_text(json.dumps(said | {"node": said["node"] + "\n" + other.node}))
        with pytest.raises(DataError, match="not one plain line"):
            joining.renew(living.federation, path)

    def test_deep_ones(self, tmp_path):
        path = tmp_path / "file.json"
        path.write_text("[" * 100_000)
        for load in (member_keys.load, withdrawing.load, catalogue.load):
            with pytest.raises(DataError):
                load(path)
        with pytest.raises(DataError):
            members.parsed(path.read_bytes())

    def test_a_small_catalogue_that_takes_much_memory(self):
        """Each id takes as much as the longest: a thousand times a million characters."""
        items = ["x" * 1_100_000, *map(str, range(1_000))]
        said = {"format": "fedmc-catalogue", "version": 1, "hash": "", "items": items}
        with pytest.raises(DataError, match="would take 44"):
            catalogue.parsed(json.dumps(said).encode(), "it")


class TestTakingOut:
    def test_whose_part_was_taken_out_does_not_come_back_with_all_of_it(self, living):
        """Afterwards its change would be its whole contribution, among the small ones of the others."""
        rogue = Rogue(living, "first", members.load(living.server))
        living.leave("d", take_out=True, visible=True)
        (living.made / "d" / withdrawing.FILE).rename(living.root / "later.json")
        assert not isinstance(rogue.sum(rogue.broadcast()), dict)
        (living.root / "later.json").rename(living.made / "d" / withdrawing.FILE)
        rogue.keys.clear()  # d accepts now that its part shows
        assert not isinstance(rogue.sum(rogue.broadcast(2), leaving=(3,)), dict)
        (living.made / "d" / withdrawing.FILE).unlink()  # `--stay`
        rogue.keys.pop(3)
        said = rogue.sum(rogue.broadcast(3))
        assert isinstance(said, dict)
        assert said == {3: "wrong-round"}

    def test_a_small_message_for_a_huge_reply(self, living):
        """No number of items is expected in such a round; 2 MB would be answered by a gigabyte."""
        rogue = Rogue(living, "first", members.load(living.server))
        given = rogue.broadcast().settings.replace(rank=100)
        broadcast = rogue.broadcast(settings=given, V=np.zeros((11_000, given.width)))
        assert rogue.send(0, broadcast, Invitation(), (3,)) == "wrong-settings"

    def test_of_a_run_without_a_sum(self, living):
        rogue = Rogue(living, "first", members.load(living.server))
        given = Settings.preset("paper", rank=2, active=4, method="fedavg", privacy="secagg", min_cohort=3)
        items = len(rogue.broadcast().V)
        broadcast = rogue.broadcast(settings=given, V=np.ones((items, given.width)))
        assert rogue.send(0, broadcast, Invitation(), (3,)) == "wrong-settings"


class TestGateway:
    """What a running server finds in its folder does not stop it."""

    def watch(self, living, monkeypatch, register, change, done):
        monkeypatch.setattr(renewals, "LOOK", 0.01)
        monkeypatch.setattr(renewals, "AGAIN", 0.02, raising=False)
        config = layout.load_server(living.server)
        context = server_context(config.path("server.pem"), config.path("server.key"))
        admitted = []

        async def run():
            gate = SimpleNamespace(members={}, admit=admitted.append)
            task = asyncio.create_task(renewals.renewals(config, gate, context, register))
            await asyncio.sleep(0.05)
            change()
            async with asyncio.timeout(10):
                while not task.done() and not done(context, admitted):
                    await asyncio.sleep(0.01)
            assert not task.done()
            task.cancel()

        asyncio.run(run())

    def test_a_certificate_without_its_key(self, living, monkeypatch, caplog):
        """Nodes are admitted all the same, by the certificate before; later the key is there."""
        other, folder = living.root / "other", living.server
        other.mkdir()
        founding.write_certificate(other, keys.load_authority(living.authority), ["localhost"], 30)
        seen = []

        def done(context, admitted):
            if "is not taken in" in caplog.text and not seen:
                seen.append(handshake(context, folder / "ca.crt"))
                (other / "server.key").replace(folder / "server.key")
            return (
                seen
                and "new certificate is in use" in caplog.text
                and seen.append(handshake(context, folder / "ca.crt")) is None
            )

        def change():
            (other / "server.pem").replace(folder / "server.pem")

        with caplog.at_level("INFO"):
            self.watch(living, monkeypatch, lambda config: {}, change, done)
        assert seen[0] != seen[1]

    def test_a_list_that_cannot_be_taken_in_at_first(self, living, monkeypatch):
        tries = []

        def register(config):
            tries.append(config)
            if len(tries) < 3:
                raise KeyError("whatever")
            return dict.fromkeys(config.organisations, 1)

        listed = joining.remove(living.federation, {"d": None})
        self.watch(
            living, monkeypatch, register, lambda: members.save(living.server, listed), lambda _, admitted: admitted
        )
        assert len(tries) == 3


def handshake(context, authority):
    """The certificate that a client gets; an SSLError if it gets none."""
    client = ssl.create_default_context(cafile=authority)
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(one, other, server_hostname="localhost"), context.wrap_bio(other, one, server_side=True)
    ]  # fmt: skip
    for _ in range(4):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert(binary_form=True)
