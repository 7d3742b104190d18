"""Secure aggregation in two exchanges: exact sums, drop-outs and restarts, misdealing, and members that refuse."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedmc.errors import DataError, InputError
from fedmc.privacy.secagg import crypto, fixed, misdealing, rules, whole_sums
from fedmc.privacy.secagg.aggregator import Aggregator, MisdealtError
from fedmc.privacy.secagg.member import SnapshotError, reply
from fedmc.privacy.secagg.rules import Rules
from fedmc.privacy.secagg.session import (
    EXTRA,
    AbortedError,
    Masked,
    Proof,
    box_key,
    box_label,
    boxes_hash,
    commitment_to,
    open_content,
    signed_keys,
)  # fmt: skip
from tests.conftest import examples
from tests.secagg_world import (
    AFTER,
    AWAY,
    BEFORE,
    RUN,
    Died,
    Node,
    Server,
    ServerDied,
    all_opened,
    all_replied,
    identity_of,
    light,
    nodes_of,
    pinned,
    session_of,
    total_of,
)  # fmt: skip

NIGHTLY = pytest.mark.nightly


@pytest.fixture
def lightly():
    with light():
        yield


def check_sum(server: Server, found) -> None:
    """The exact sum over the cohort that was opened, and everybody agrees who is counted."""
    one = found.certificate
    np.testing.assert_array_equal(found.words, total_of(one.members, one.number, len(found.words)))
    assert not found.failed
    one.check(pinned(len(server.nodes)))
    for k, node in server.nodes.items():
        replied = node.disk.state.replied
        node.learn(server.certificates)
        if replied is not None and replied.session.number == one.number:
            assert node.counted[one.number] == (k in one.members)
        node.check_kept_to_the_rules()


# --- sums


@given(st.integers(3, 14), st.integers(1, 3))
@examples(8)
def test_sums_in_a_row_are_exact(members, sums):
    server = Server(nodes_of(members))
    for number in range(1, sums + 1):
        found = server.sum(range(members))
        assert found.certificate.members == tuple(range(members))
        assert found.certificate.number == number
        check_sum(server, found)
    assert {node.disk.state.base for node in server.nodes.values()} == {sums}


@pytest.mark.parametrize("members", [50])
def test_the_sum_of_many_is_exact(members):
    server = Server(nodes_of(members, 8))
    check_sum(server, server.sum(range(members)))


@given(st.integers(3, 50))
@examples(12)
def test_light_sums_are_exact(members):
    """So that tests with light cryptography test the protocol."""
    with light():
        server = Server(nodes_of(members))
        for _ in range(2):
            check_sum(server, server.sum(range(members)))


def test_a_sum_that_is_not_kept_leaves_bases_alone():
    nodes = nodes_of(4)
    made = all_opened(nodes, all_replied(nodes, session_of(nodes, kept=False)))
    for node in nodes.values():
        node.learn([made.unmask().certificate])
        assert (node.disk.state.certified, node.disk.state.base) == (1, 0)


def test_one_upload_looks_like_noise():
    nodes = nodes_of(8)
    session = session_of(nodes, length=40_000)
    made = Aggregator(session, pinned())
    for k, node in nodes.items():
        made.take_masked(k, node.ask(session))
    for masked in made.masked.values():
        counts = np.bincount(masked.words.view(np.uint8), minlength=256)
        chance = ((counts - counts.mean()) ** 2 / counts.mean()).sum()  # chi-squared, 255 degrees of freedom
        assert 150 < chance < 400


def test_no_key_share_or_mask_comes_twice():
    """Over sums, and over two sessions of the same sum with the same inputs."""
    nodes, seen = nodes_of(4), []
    for number, opens in ((1, False), (1, True), (2, True)):
        made = all_replied(nodes, session_of(nodes, attempt=int(opens)))
        assert made.session.number == number
        seen += [key for keys in made.session.keys.values() for key in (keys.mask, keys.seal)]
        for masked in made.masked.values():
            head = masked.head
            seen += [head.ephemeral, head.commitment, head.input, head.signature, *masked.boxes.values()]
            seen += [word.tobytes() for word in masked.words]
        if opens:
            seen += [one.seal for one in all_opened(nodes, made).opened.values()]
            for node in nodes.values():
                node.learn([made.unmask().certificate])
    assert len(set(seen)) == len(seen)


def test_secrets_are_not_in_words():
    nodes = nodes_of(4)
    all_replied(nodes, session_of(nodes))
    state = nodes[0].disk.state
    said = repr(state) + str(state) + repr(nodes[0].member)
    for secret in (state.keys.mask, state.keys.seal, state.replied.seal, identity_of(0).private_bytes_raw()):
        assert secret.hex() not in said
        assert repr(secret)[2:-1] not in said


def test_secrets_are_not_in_refusals():
    nodes = nodes_of(4)
    made = all_replied(nodes, session_of(nodes))
    state = nodes[0].disk.state
    with pytest.raises(DataError) as caught:
        nodes[0].open(made.session.hash, made.heads()[1:])
    with pytest.raises(DataError) as other:
        nodes[0].ask(session_of(nodes, (0, 1, 2), number=7))
    for error in (caught, other):
        for secret in (state.keys.mask, state.keys.seal, state.replied.seal):
            assert repr(secret)[2:-1] not in str(error.value)
            assert secret.hex() not in str(error.value)


# --- drop-outs


def outcome(server: Server, wanted):
    """The sum, or None if the server must wait for somebody."""
    try:
        found = server.sum(wanted)
    except AbortedError:
        return None
    check_sum(server, found)
    return found


def drop_outs(members: int, lost: dict[str, set[int]]) -> None:
    """The sum of who replied, if the rules allow; else the server waits, and forms it once they are back."""
    server = Server(nodes_of(members), lambda event: AWAY if event.member in lost[event.stage] else None, 0)
    there = tuple(k for k in range(members) if k not in lost["mask"])
    losses = rules.losses_of(len(there))
    try:
        Rules(3, rules.colluders(members)).check(len(there), losses)
        enough = len(lost["open"]) <= losses
    except DataError:
        there, enough = tuple(range(members)), False
    found = outcome(server, range(members))
    assert (found is not None) == enough
    if found is None:
        server.fate = lambda event: None
        found = outcome(server, range(members))
    assert found is not None
    assert found.certificate.members == there
    check_one_sum_each(server)
    again = outcome(server, there)
    assert again is not None
    assert again.certificate.members == there


def check_one_sum_each(server: Server) -> None:
    """No session but the one that was certified could be unmasked: too few opened any other."""
    certified = {one.session for one in server.certificates}
    for session in server.sessions:
        openers = {k for k, node in server.nodes.items() for one, _ in node.opens if one.hash == session.hash}
        assert session.hash in certified or not openers


@pytest.mark.parametrize("members", [3, 4, 5, 6])
def test_every_set_of_drop_outs(members, lightly):
    for when in itertools.product(("mask", "open", "never"), repeat=members):
        lost = {stage: {k for k in range(members) if when[k] == stage} for stage in ("hello", "mask", "open")}
        drop_outs(members, lost)


@pytest.mark.parametrize("members", [3, 4])
def test_drop_outs_with_the_real_cryptography(members):
    for gone in range(members):
        for stage in ("mask", "open"):
            drop_outs(members, {"hello": set(), "mask": set(), "open": set()} | {stage: {gone}})


def by_chance(seed: int, share: float):
    chance = np.random.default_rng(seed)
    return lambda event: str(chance.choice([AWAY, BEFORE, AFTER])) if chance.random() < share else None


@given(st.integers(3, 50), st.integers(0, 10**6), st.sampled_from([0.02, 0.1, 0.4]), st.integers(0, 2))
@examples(30)
def test_drop_outs_and_restarts_by_chance(members, seed, share, patience):
    """Members vanish, or are killed, at any step, over several sums; in the end nothing is lost."""
    with light():
        server = Server(nodes_of(members), by_chance(seed, share), patience)
        wanted = range(members)
        for number in range(1, 4):
            server.fate = by_chance(seed + number, share)
            found = None
            for _ in range(3):
                found = found or outcome(server, wanted)
            if found is None:
                server.fate = lambda event: None
                found = outcome(server, wanted)
            assert found is not None
            wanted = found.certificate.members
        check_one_sum_each(server)


def test_members_come_back_together():
    """Four that missed a sum hide among each other; before, each alone refuses."""
    server = Server(nodes_of(9), lambda event: AWAY if event.member > 4 else None, 0)
    assert outcome(server, range(9)).certificate.members == tuple(range(5))
    server.fate = lambda event: None
    for newcomers in ((8,), (7, 8), (6, 7, 8)):  # of three, one may be a colluder
        with pytest.raises(DataError, match=f"joins with {len(newcomers) - 1} others"):
            server.nodes[8].ask(session_of(server.nodes, (0, 1, 2, 3, 4, *newcomers)), server.certificates)
    server.keys.clear()
    assert outcome(server, range(9)).certificate.members == tuple(range(9))
    assert {node.disk.state.base for node in server.nodes.values()} == {2}


# --- restarts

KILLS = [None, *itertools.product(("hello", "mask", "open"), (BEFORE, AFTER))]


def killed(when: dict[int, tuple[str, str] | None]):
    def fate(event):
        kill = when[event.member]
        return kill[1] if kill and event.turn == 0 and event.number == 1 and kill[0] == event.stage else None

    return fate


@pytest.mark.parametrize("members", [3, pytest.param(4, marks=NIGHTLY)])
@pytest.mark.parametrize("patience", [0, 1])
def test_members_killed_at_every_step(members, patience, lightly):
    """Before or after the state was on disk. They come back, and the sum is that of all if the server waits."""
    for kills in itertools.product(KILLS, repeat=members):
        server = Server(nodes_of(members), killed(dict(enumerate(kills))), patience)
        found = None
        for _ in range(3):
            found = found or outcome(server, range(members))
            server.fate = lambda event: None
        assert found is not None
        assert not patience or found.certificate.members == tuple(range(members))
        check_one_sum_each(server)


@pytest.mark.parametrize("moment", [BEFORE, AFTER])
@pytest.mark.parametrize("members", [3, 5])
def test_the_server_killed_at_every_write(members, moment, lightly):
    def server_of():
        return Server(nodes_of(members), lambda event: AWAY if event.stage == "mask" and event.member == 4 else None, 0)

    whole = server_of()
    assert outcome(whole, range(members)) is not None
    for write in range(whole.writes):
        server = server_of()
        server.die_at = (write, moment)
        with pytest.raises(ServerDied):
            server.sum(range(members))
        server.die_at = None
        found = server.sums[0] if server.sums else outcome(server, range(members))
        assert found is not None
        check_sum(server, found)
        assert found.certificate.members == tuple(range(min(members, 4)))
        assert outcome(server, found.certificate.members).certificate.number == 2


def test_the_same_bytes_for_the_same_session():
    nodes = nodes_of(3)
    session = session_of(nodes)
    with pytest.raises(Died):
        nodes[0].ask(session, kill=AFTER)
    first, second = nodes[0].ask(session), nodes[0].ask(session)
    assert first is second
    made = Aggregator(session, pinned())
    for k, node in nodes.items():
        made.take_masked(k, node.ask(session))
    with pytest.raises(Died):
        nodes[0].open(session.hash, made.heads(), kill=AFTER)
    assert nodes[0].open(session.hash, made.heads()) == nodes[0].open(session.hash, made.heads())
    assert nodes[0].open(session.hash, []) == nodes[0].open(session.hash, made.heads())  # it has checked them


def test_a_member_that_never_replied_does_not_open():
    nodes = nodes_of(3)
    session = session_of(nodes)
    with pytest.raises(Died):
        nodes[0].ask(session, kill=BEFORE)
    heads = [nodes[k].ask(session).head for k in (1, 2)]
    with pytest.raises(DataError, match="another session than the last one"):
        nodes[0].open(session.hash, heads)
    for k in (1, 2):
        with pytest.raises(DataError, match="2 heads came, 3 members must"):
            nodes[k].open(session.hash, heads)


class TestSnapshots:
    """A member whose disk was put back to what it was some messages ago."""

    def test_it_stops_when_it_sees_its_newer_keys(self):
        nodes = nodes_of(4)
        old = nodes[0].disk
        all_replied(nodes, session_of(nodes))
        newer = session_of(nodes, attempt=1)
        nodes[0].disk = old
        with pytest.raises(SnapshotError, match="signed keys 3, its state knows keys up to 0"):
            nodes[0].ask(newer)

    def test_it_stops_when_it_is_counted_without_knowing(self):
        nodes = nodes_of(4)
        old = nodes[0].disk
        made = all_opened(nodes, all_replied(nodes, session_of(nodes)))
        nodes[0].disk = old
        with pytest.raises(SnapshotError, match="by a session that it does not know of"):
            nodes[0].learn([made.unmask().certificate])

    def test_its_peers_refuse_the_keys_that_it_used(self):
        nodes = nodes_of(4)
        session = session_of(nodes)
        old = nodes[0].disk
        all_replied(nodes, session)
        nodes[0].disk = old
        fresh = session_of(nodes, (1, 2, 3), attempt=1)
        again = replace(fresh, invited=(session.invited[0], *fresh.invited))
        nodes[0].ask(again)  # it does not know better
        for k in (1, 2, 3):
            with pytest.raises(DataError, match="keys 1 of member 0 have been used"):
                nodes[k].ask(again)


# --- failures


def test_who_failed_is_not_shown():
    """Random words: the server learns that somebody failed. It does not get the others' sum."""
    words = set()
    for failing in (0, 2):
        nodes = nodes_of(4)
        nodes[failing].fails = True
        made = all_opened(nodes, all_replied(nodes, session_of(nodes)))
        found = made.unmask()
        assert found.failed
        assert not (found.words == total_of(set(nodes) - {failing}, 1, 3)).any()
        words.add(tuple(len(masked.words) for masked in made.masked.values()))
    assert words == {(3 + EXTRA,) * 4}


def test_two_failures_are_one_too():
    nodes = nodes_of(4)
    nodes[0].fails = nodes[3].fails = True
    found = all_opened(nodes, all_replied(nodes, session_of(nodes))).unmask()
    assert found.failed
    assert not (found.words == total_of((1, 2), 1, 3)).any()


def test_the_failure_word_is_never_zero(monkeypatch):
    for drawn in (0, 2**64 - 2):
        monkeypatch.setattr(crypto.secrets, "randbelow", lambda below, drawn=drawn: drawn)
        assert crypto.random_word() == (drawn + 1).to_bytes(8)
    monkeypatch.undo()
    assert len({crypto.random_word() for _ in range(100)}) == 100


# --- misdealing


class Misdealer(Node):
    """Deals wrongly, and opens nevertheless."""

    kind = "box"

    def ask(self, session, certificates=(), proofs=(), kill=None):
        masked = super().ask(session, certificates, proofs, kill)
        return SPOILT[self.kind](self.member.number, session, masked)

    def open(self, session, heads, kill=None):
        replied = self.disk.state.replied
        made = super().open(session, [*heads, *(head for _, head in self.heads[-1:])], kill)
        assert replied is not None
        return made


def signed(member: int, session, sent: Masked, **changes) -> Masked:
    """The reply with these changes, signed by the member."""
    boxes = changes.pop("dealt", sent.boxes)
    head = sent.head._replace(**{"boxes": boxes_hash(boxes)} | changes)
    head = head._replace(signature=crypto.sign(identity_of(member), head.content(session.hash)))
    return Masked(head, boxes, sent.words)


def dealt_anew(member: int, session, masked: Masked, spoil, commitment: bytes | None = None) -> Masked:
    """Boxes with the shares of another secret, some of them spoilt."""
    secret, (private, public) = crypto.new_secret(), crypto.new_pair()
    peers = [k for k in session.members if k != member]
    shares = spoil(crypto.share(secret, peers, session.threshold))
    boxes = {
        k: crypto.seal(
            box_key(private, session.keys[k].seal, member, k, session.hash), share, box_label(member, k, session.hash)
        )
        for k, share in shares.items()
    }
    return signed(
        member, session, masked, dealt=boxes, ephemeral=public, commitment=commitment or commitment_to(secret)
    )


def first_share(change):
    return lambda shares: (
        {min(shares): change(shares[min(shares)])} | {k: share for k, share in shares.items() if k != min(shares)}
    )


SPOILT = {
    "box": lambda k, session, masked: signed(k, session, masked, dealt=dict.fromkeys(masked.boxes, bytes(48))),
    "short box": lambda k, session, masked: signed(k, session, masked, dealt=dict.fromkeys(masked.boxes, b"")),
    "one box": lambda k, session, masked: signed(
        k, session, masked, dealt=masked.boxes | {min(masked.boxes): bytes(48)}
    ),
    "commitment": lambda k, session, masked: signed(k, session, masked, commitment=commitment_to(bytes(32))),
    "ephemeral": lambda k, session, masked: signed(k, session, masked, ephemeral=bytes(32)),
    "short ephemeral": lambda k, session, masked: signed(k, session, masked, ephemeral=b"short"),
    "shares": lambda k, session, masked: dealt_anew(k, session, masked, first_share(lambda share: crypto.new_secret())),
    "short share": lambda k, session, masked: dealt_anew(k, session, masked, first_share(lambda share: share[1:])),
    "long share": lambda k, session, masked: dealt_anew(k, session, masked, first_share(lambda share: b"\0" + share)),
    "other secret": lambda k, session, masked: dealt_anew(
        k, session, masked, lambda shares: shares, masked.head.commitment
    ),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_misdealer_is_named_and_the_others_go_on(kind):
    nodes = nodes_of(5)
    nodes[2] = Misdealer(2, Rules(3, 1), 5)
    nodes[2].kind = kind
    server = Server(nodes, lambda event: AWAY if event.stage == "open" and event.member == 4 else None)
    found = server.sum(range(5))
    assert found.certificate.members == (0, 1, 3, 4)
    np.testing.assert_array_equal(found.words, total_of((0, 1, 3, 4), 1, 3))
    first, second = server.sessions
    assert second.instead_of == first.hash
    for k in (0, 1, 3, 4):
        nodes[k].learn(server.certificates)
        nodes[k].check_kept_to_the_rules()
        assert nodes[k].counted[1]


def test_two_misdealers_are_named_at_once():
    nodes = nodes_of(7)
    for k in (2, 5):
        nodes[k] = Misdealer(k, Rules(3, 1), 7)
    server = Server(nodes)
    found = server.sum(range(7))
    assert found.certificate.members == (0, 1, 3, 4, 6)
    np.testing.assert_array_equal(found.words, total_of((0, 1, 3, 4, 6), 1, 3))
    assert len(server.sessions) == 2


def test_a_second_misdealer_in_the_replacement():
    nodes = nodes_of(7)
    nodes[2], nodes[5] = Misdealer(2, Rules(3, 1), 7), Misdealer(5, Rules(3, 1), 7)
    late = nodes[5]
    late.ask = lambda session, *given: (Misdealer if session.attempt else Node).ask(late, session, *given)
    server = Server(nodes)
    found = server.sum(range(7))
    assert found.certificate.members == (0, 1, 3, 4, 6)
    np.testing.assert_array_equal(found.words, total_of((0, 1, 3, 4, 6), 1, 3))
    assert [len(session.members) for session in server.sessions] == [7, 6, 5]


def test_who_masks_wrongly_spoils_the_sum_and_nothing_more():
    """Consistent shares of another secret than the one of its mask."""
    nodes = nodes_of(4)
    session = session_of(nodes)
    made = Aggregator(session, pinned())
    for k, node in nodes.items():
        masked = node.ask(session)
        made.take_masked(k, dealt_anew(2, session, masked, lambda shares: shares) if k == 2 else masked)
    for k in (0, 1, 3):
        made.take_opened(k, nodes[k].open(session.hash, made.heads()))
    with pytest.raises(DataError, match="somebody masked wrongly"):
        made.unmask()


class TestNobodyIsFramed:
    """A proof against an honest dealer convinces nobody, however it is altered."""

    @pytest.fixture
    def opened(self):
        nodes = nodes_of(5)
        return nodes, all_opened(nodes, all_replied(nodes, session_of(nodes)))

    def proof(self, made: Aggregator, dealer: int = 2) -> Proof:
        masked = made.masked[dealer]
        seals = tuple((k, one.seal) for k, one in sorted(made.opened.items()) if k != dealer)
        return Proof(masked.head, tuple(sorted(masked.boxes.items())), seals)

    def refused(self, nodes, made, proof: Proof, match: str) -> None:
        with pytest.raises(DataError, match=match):
            misdealing.check(proof, made.session, pinned())
        left = [k for k in made.session.members if k != proof.head.member]
        session = session_of(nodes, left, attempt=1, instead_of=made.session.hash)
        for k in left:
            with pytest.raises(DataError):
                nodes[k].ask(session, (), (proof,))

    def test_whose_shares_are_right(self, opened):
        nodes, made = opened
        for dealer in nodes:
            self.refused(nodes, made, self.proof(made, dealer), "whose shares are right")

    def test_by_other_boxes(self, opened):
        nodes, made = opened
        proof = self.proof(made)
        for boxes in (
            tuple((k, bytes(48)) for k, _ in proof.boxes),
            proof.boxes[1:],
            (*proof.boxes, (2, bytes(48))),
            tuple(zip((k for k, _ in proof.boxes), (box for _, box in reversed(proof.boxes)), strict=True)),
        ):
            self.refused(nodes, made, proof._replace(boxes=boxes), "other boxes than it signed")

    def test_by_other_seal_keys(self, opened):
        nodes, made = opened
        proof = self.proof(made)
        (holder, seal), *rest = proof.seals
        flipped = bytes([seal[0] ^ 8, *seal[1:]])  # the three bits below are not used
        for wrong in (crypto.new_pair()[0], flipped, proof.seals[1][1]):
            self.refused(nodes, made, proof._replace(seals=((holder, wrong), *rest)), "seal key that is not 0's")
        self.refused(nodes, made, proof._replace(seals=((holder, b"short"), *rest)), "private key is not valid")
        self.refused(nodes, made, proof._replace(seals=((17, seal), *rest)), "seal key that is not 17's")

    def test_by_a_seal_key_with_other_unused_bits(self, opened):
        """X25519 ignores some bits of a private key: such a key is the same one."""
        nodes, made = opened
        proof = self.proof(made)
        same = tuple((k, bytes([seal[0] ^ 1, *seal[1:]])) for k, seal in proof.seals)
        self.refused(nodes, made, proof._replace(seals=same), "whose shares are right")

    def test_by_too_few_seal_keys(self, opened):
        nodes, made = opened
        proof = self.proof(made)
        for seals in ((), proof.seals[: made.session.threshold - 1]):
            self.refused(nodes, made, proof._replace(seals=seals), "too few seal keys")
        own = ((2, made.opened[2].seal), *proof.seals[: made.session.threshold - 1])
        self.refused(nodes, made, proof._replace(seals=own), "too few seal keys")

    def test_by_another_head_or_session(self, opened):
        nodes, made = opened
        proof = self.proof(made)
        for change in ({"commitment": bytes(32)}, {"ephemeral": crypto.new_pair()[1]}, {"member": 3}):
            self.refused(nodes, made, proof._replace(head=proof.head._replace(**change)), "signature does not fit")
        with pytest.raises(DataError, match="signature does not fit"):
            misdealing.check(proof, replace(made.session, attempt=9), pinned())
        with pytest.raises(DataError, match="not in the session"):
            misdealing.check(proof._replace(head=proof.head._replace(member=9)), made.session, pinned())


# --- refusals


class TestMembersRefuse:
    @pytest.fixture
    def nodes(self):
        return nodes_of(6)

    def refused(self, node: Node, session, match: str, **given) -> None:
        before = node.disk
        with pytest.raises(DataError, match=match):
            node.ask(session, **given)
        assert node.disk.sent == before.sent
        assert node.disk.state.seq == before.state.seq

    def test_odd_cohorts(self, nodes):
        session = session_of(nodes)
        first, *rest = session.invited
        stranger = first._replace(keys=first.keys._replace(member=40))
        for invited in ((first, first, *rest), (*rest, first), (first, *rest, stranger)):
            self.refused(nodes[0], replace(session, invited=tuple(invited)), "twice or out of order")
        self.refused(nodes[0], session_of(nodes, range(1, 6)), "or not this one")

    @pytest.mark.parametrize(("members", "losses"), [(6, 3), (6, -1), (3, 2), (2, 0), (1, 0)])
    def test_cohorts_that_do_not_hide(self, nodes, members, losses):
        self.refused(nodes[0], session_of(nodes, range(members), losses=losses), "honest ones: at least")

    def test_another_run_number_or_past(self, nodes):
        session = session_of(nodes)
        for change in ({"number": 2}, {"number": 0}, {"previous": bytes(32)}, {"run": "b-run"}):
            self.refused(nodes[0], replace(session, **change), "this member knows of sum 0|signature does not fit")

    def test_keys_that_others_made(self, nodes):
        session = session_of(nodes)
        first, second, *rest = session.invited
        forged = second._replace(keys=second.keys._replace(mask=crypto.new_pair()[1]))
        self.refused(nodes[0], replace(session, invited=(first, forged, *rest)), "signature does not fit")
        other = signed_keys(identity_of(1), "another run", second.keys)
        moved = second._replace(keys=other)
        self.refused(nodes[0], replace(session, invited=(first, moved, *rest)), "signature does not fit")
        copied = signed_keys(identity_of(1), RUN, second.keys._replace(mask=first.keys.mask))
        self.refused(nodes[0], replace(session, invited=(first, second._replace(keys=copied), *rest)), "the same key")

    def test_keys_that_are_no_keys(self, nodes):
        session = session_of(nodes)
        first, second, *rest = session.invited
        for key in (bytes(32), b"short"):
            weak = signed_keys(identity_of(1), RUN, second.keys._replace(mask=key))
            self.refused(nodes[0], replace(session, invited=(first, second._replace(keys=weak), *rest)), "not valid")
            with pytest.raises(DataError, match="not valid"):
                weak.check_usable()
        with pytest.raises(DataError, match="one key for two uses"):
            first.keys._replace(mask=first.keys.seal).check_usable()

    def test_keys_that_were_used(self, nodes):
        session = session_of(nodes)
        all_replied(nodes, session)
        self.refused(nodes[0], replace(session, attempt=1), "this member's keys 1 have been used")
        fresh = session_of(nodes, attempt=1)
        old = (fresh.invited[0], session.invited[1], *fresh.invited[2:])
        self.refused(nodes[0], replace(fresh, invited=old), "keys 1 of member 1 have been used")

    @pytest.mark.parametrize("change", [{"content": b"other"}, {"kept": False}, {"length": 4}])
    def test_another_request_for_the_same_sum(self, nodes, change):
        all_replied(nodes, session_of(nodes))
        self.refused(nodes[0], session_of(nodes, attempt=1, **change), "with another request")

    def test_more_members_for_the_same_sum(self, nodes):
        all_replied(nodes, session_of(nodes, range(5)))
        self.refused(nodes[0], session_of(nodes, attempt=1), "not in its first cohort")

    def test_another_session_once_one_is_opened(self, nodes):
        all_opened(nodes, all_replied(nodes, session_of(nodes)))
        for members in (range(6), range(5)):
            self.refused(nodes[0], session_of(nodes, members, attempt=1), "was opened for another session")

    def test_a_replacement_of_what_it_never_saw(self, nodes):
        self.refused(nodes[0], session_of(nodes, instead_of=bytes(32)), "did not reply to")
        all_replied(nodes, session_of(nodes))
        self.refused(nodes[0], session_of(nodes, attempt=1, instead_of=bytes(32)), "did not reply to last")

    @pytest.mark.parametrize("words", [np.zeros(2, np.uint64), np.zeros(3, np.int64), np.zeros((3, 1), np.uint64)])
    def test_an_input_of_another_shape(self, nodes, words):
        session = session_of(nodes)
        with pytest.raises(DataError, match="expected 3 words of 64 bits"):
            reply(nodes[0].member, nodes[0].disk.state, session, words, False)

    def test_a_wrong_base_and_lone_newcomers(self, nodes):
        server = Server(nodes, lambda event: AWAY if event.member == 5 else None, 0)
        server.sum(range(6))
        for node in nodes.values():
            node.learn(server.certificates)
        session = session_of(nodes)
        self.refused(nodes[5], session, "joins with 0 others")
        lies = tuple(one._replace(base=1) for one in session.invited)
        self.refused(nodes[5], replace(session, invited=lies), "sum 1 of this member is said to be counted, 0 is")
        nodes[5].member = nodes[5].member._replace(rules=Rules(3, 1, alone=True))
        assert nodes[5].hello().alone
        nodes[5].ask(session_of(nodes))

    def test_heads_that_do_not_fit(self, nodes):
        made = all_replied(nodes, session_of(nodes))
        H, heads = made.session.hash, made.heads()
        older = all_replied(nodes, session_of(nodes, attempt=1)).heads()
        newest = session_of(nodes, attempt=2)
        made = all_replied(nodes, newest)
        for shown, match in (
            (made.heads()[1:], "5 heads came"),
            ([*made.heads()[1:], older[0]], "signature does not fit"),
            ([*made.heads()[:-1], heads[-1]], "signature does not fit"),
            ([*made.heads()[:-1], made.heads()[-1]._replace(input=bytes(32))], "signature does not fit"),
        ):
            with pytest.raises(DataError, match=match):
                nodes[0].open(newest.hash, shown)
        with pytest.raises(DataError, match="another session than the last one"):
            nodes[0].open(H, heads)
        other = signed(0, newest, made.masked[0], input=bytes(32))
        with pytest.raises(DataError, match="this member signed another head"):
            nodes[0].open(newest.hash, [other.head, *made.heads()[1:]])


class TestCertificates:
    @pytest.fixture
    def certified(self):
        nodes = nodes_of(5)
        made = all_opened(nodes, all_replied(nodes, session_of(nodes)), but=(4,))
        return nodes, made.unmask().certificate

    def test_forgeries(self, certified):
        nodes, one = certified
        signatures = one.signatures
        mine = [(k, crypto.sign(identity_of(k), open_content(one.session))) for k in range(6)]
        for forged, match in (
            (one._replace(signatures=signatures[1:]), "3 signatures of 5 members: too few"),
            (one._replace(signatures=(signatures[0], *signatures[:3])), "signed twice"),
            (one._replace(signatures=(*signatures[:3], mine[5])), "by others than its members"),
            (one._replace(signatures=(*signatures[:3], (3, signatures[2][1]))), "signature does not fit"),
            (one._replace(losses=2), "at least 5 are needed"),
            (one._replace(losses=0), "too few"),
            (one._replace(number=2), "is missing"),
            (one._replace(kept=False), "signature does not fit"),
            (one._replace(members=(0, 1, 2, 3)), "signature does not fit"),
            (one._replace(members=(0, 1, 2, 3, 3)), "names a member twice"),
            (one._replace(run="b-run"), "of run b-run"),
        ):
            with pytest.raises(DataError, match=match):
                nodes[4].learn([forged])
        nodes[4].learn([one])
        assert nodes[4].counted == {1: True}

    def test_whoever_signed_it_is_the_same(self, certified):
        _, one = certified
        assert one.hash == one._replace(signatures=one.signatures[1:]).hash
        assert one.hash != one._replace(number=2).hash

    def test_a_member_that_missed_sums_needs_the_newest_only(self):
        server = Server(nodes_of(6), lambda event: AWAY if event.member == 5 else None, 0)
        server.sum(range(6))
        for _ in range(2):
            server.sum(range(5))
        server.nodes[5].learn(server.certificates[-1:])
        assert server.nodes[5].disk.state.certified == 3
        assert server.nodes[5].disk.state.base == 0

    def test_a_member_that_replied_needs_that_one(self):
        server = Server(nodes_of(6), lambda event: AFTER if (event.member, event.stage) == (5, "mask") else None, 0)
        server.sum(range(6))
        server.sum(range(5))
        with pytest.raises(DataError, match="sum 1 is missing"):
            server.nodes[5].learn(server.certificates[-1:])
        server.nodes[5].learn(reversed(server.certificates))
        assert server.nodes[5].counted == {1: False}
        assert server.nodes[5].disk.state.certified == 2


class TestTheServerRefuses:
    @pytest.fixture
    def made(self):
        nodes = nodes_of(4)
        session = session_of(nodes)
        return nodes, Aggregator(session, pinned()), {k: node.ask(session) for k, node in nodes.items()}

    def test_replies_that_do_not_fit(self, made):
        _, aggregator, replies = made
        session, masked = aggregator.session, replies[0]
        keys = masked.head.next
        for member, wrong in (
            (1, masked),
            (0, masked._replace(head=masked.head._replace(commitment=bytes(32)))),
            (0, masked._replace(boxes=masked.boxes | {1: bytes(48)})),
            (0, masked._replace(words=masked.words + np.uint64(1))),
            (0, signed(0, session, masked, dealt={1: bytes(48)})),
            (0, signed(0, session, masked, next=session.keys[0])),
            (0, signed(0, session, masked, next=replies[1].head.next)),
            (0, signed(0, session, masked, next=keys._replace(seq=9))),
            (0, signed(0, session, masked, next=signed_keys(identity_of(0), RUN, keys._replace(seal=bytes(32))))),
        ):
            with pytest.raises(DataError):
                aggregator.take_masked(member, wrong)
        assert not aggregator.masked

    def test_answers_that_do_not_fit(self, made):
        nodes, aggregator, replies = made
        with pytest.raises(AbortedError, match="did not reply"):
            aggregator.heads()
        for k, masked in replies.items():
            aggregator.take_masked(k, masked)
        opened = nodes[0].open(aggregator.session.hash, aggregator.heads())
        for member, wrong in (
            (1, opened),
            (0, opened._replace(signature=bytes(64))),
            (0, opened._replace(signature=b"")),
            (0, opened._replace(seal=crypto.new_pair()[0])),
            (0, opened._replace(seal=b"short")),
            (99, opened._replace(member=99)),
        ):
            with pytest.raises(DataError):
                aggregator.take_opened(member, wrong)
        aggregator.take_opened(0, opened)
        with pytest.raises(AbortedError, match="1 of 4 members opened, 3 must"):
            aggregator.unmask()

    def test_misdealers_are_in_the_message_their_shares_are_not(self):
        nodes = nodes_of(4)
        nodes[2] = Misdealer(2, Rules(3, 1), 4)
        made = all_opened(nodes, all_replied(nodes, session_of(nodes)))
        with pytest.raises(MisdealtError, match=r"^members 2 dealt wrong shares$"):
            made.unmask()


# --- rules and whole sums


@given(st.integers(1, 200), st.integers(3, 12))
@examples(60)
def test_rules_keep_the_promise(members, least):
    losses = rules.losses_of(members)
    honest = members - rules.colluders(members)
    if honest >= max(least, 2 * losses + 1):
        Rules(least, rules.colluders(members)).check(members, losses)
        assert honest - losses > losses  # an honest majority opens
    else:
        with pytest.raises(DataError):
            Rules(least, rules.colluders(members)).check(members, losses)


SETS = st.lists(st.sets(st.integers(0, 7), min_size=1).map(lambda one: tuple(sorted(one))), min_size=1, max_size=5)


@given(SETS)
@examples(60)
def test_atoms_divide_the_members(sets):
    atoms = whole_sums.atoms(sets)
    everybody = sorted({member for one in sets for member in one})
    assert sorted(member for atom in atoms for member in atom) == everybody
    for first, second in itertools.product(everybody, repeat=2):
        together = all((first in one) == (second in one) for one in sets)
        assert together == any(first in atom and second in atom for atom in atoms)


@given(SETS, st.integers(2, 4))
@examples(80)
def test_no_combination_of_accepted_sums_shows_a_few(sets, least):
    """Whatever multiples of the sums are added: the sum over fewer than `least` members does not come out."""
    taken: list[tuple[int, ...]] = []
    for one in sets:
        try:
            whole_sums.check(taken, one, least)
        except DataError:
            atoms = whole_sums.atoms([*taken, one])
            assert min(map(len, atoms)) < least
        else:
            taken.append(one)
            whole_sums.check(taken, one, least)  # the same again is nothing new
    shown = np.array([[member in one for member in range(8)] for one in taken], float).reshape(-1, 8)
    rank = np.linalg.matrix_rank(shown) if len(shown) else 0
    for few in itertools.chain.from_iterable(itertools.combinations(range(8), size) for size in range(1, least)):
        target = np.isin(np.arange(8), few).astype(float)
        assert np.linalg.matrix_rank(np.vstack([shown, target])) == rank + 1


def test_the_sum_over_all_less_the_sum_over_all_but_one():
    with pytest.raises(DataError, match=r"show the sum of \(3,\) alone"):
        whole_sums.check([(0, 1, 2, 3)], (0, 1, 2), 3)


def test_members_check_only_the_sums_that_they_were_in():
    """The limit of this: nobody is in all of these four sums, and together they show member 9's part."""
    a, b, c, lone = (0, 1, 2), (3, 4, 5), (6, 7, 8), (9,)
    sums = [a + b + lone, a + c, b + c, c]
    for member in range(10):
        mine: list[tuple[int, ...]] = []
        for one in sums:
            if member in one:
                whole_sums.check(mine, one, 3)
                mine.append(one)
    parts = {member: 10.0**member for member in range(10)}
    first, second, third, fourth = (sum(parts[k] for k in one) for one in sums)
    assert first - second - third + 2 * fourth == parts[9]


# --- known answers


def test_hkdf_known_answer():
    """RFC 5869, test case 3 (SHA-256, no salt, no info), its first 32 bytes."""
    found = crypto.derive(bytes([0x0B]) * 22, b"")
    assert found.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_aes_ctr_known_answer():
    """NIST SP 800-38A's key of F.5.5; the first block of its stream from counter 0 is AES of a block of zeros."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = b"".join(k.to_bytes(16) for k in range(4))
    assert crypto.mask(key, 8, np.uint64).tobytes() == block.update(counters)
    assert block.update(bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")).hex() == "f3eed1bdb5d2a03c064b5a7e3db181f8"


def test_x25519_known_answer():
    """RFC 7748, 6.1; and a key for each use."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    agreed = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert crypto.public_of(alice).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert crypto.agree(alice, bob, b"use") == crypto.derive(agreed, b"use")
    a, b = crypto.new_pair(), crypto.new_pair()
    shared = X25519PrivateKey.from_private_bytes(a[0]).exchange(X25519PrivateKey.from_private_bytes(b[0]).public_key())
    assert crypto.agree(a[0], b[1], b"x") == crypto.agree(b[0], a[1], b"x") == crypto.derive(shared, b"x")
    assert crypto.agree(a[0], b[1], b"x") != crypto.agree(a[0], b[1], b"y")


def test_keys_that_differ_in_a_bit_give_different_masks():
    key = bytes(range(32))
    for place in range(0, 256, 37):
        other = bytearray(key)
        other[place // 8] ^= 1 << place % 8
        first, second = (crypto.mask(bytes(k), 1000, np.uint64) for k in (key, other))
        assert (first != second).all()


@given(secret=st.integers(0, crypto.PRIME - 1), holders=st.integers(1, 12), data=st.data())
@examples(40)
def test_shares(secret, holders, data):
    """Any `threshold` shares give the secret; fewer fit any secret equally well."""
    threshold = data.draw(st.integers(1, holders))
    hidden = secret.to_bytes(crypto.SECRET)
    shares = crypto.share(hidden, list(range(holders)), threshold)
    some = data.draw(st.permutations(range(holders)))
    assert crypto.combine({k: shares[k] for k in some[:threshold]}) == hidden
    assert all(int.from_bytes(share) < crypto.PRIME for share in shares.values())
    if threshold > 1:
        assert crypto.combine({k: shares[k] for k in some[: threshold - 1]}) != hidden


def test_secrets_are_elements_of_the_field():
    drawn = {crypto.new_secret() for _ in range(100)}
    assert len(drawn) == 100
    assert all(len(secret) == crypto.SECRET and int.from_bytes(secret) < crypto.PRIME for secret in drawn)


# --- fixed point


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20), st.integers(8, 40))
def test_fixed_point_is_within_half_a_step(values, bits):
    words = fixed.to_fixed(np.array(values), bits, 1e6)
    assert np.abs(fixed.from_fixed(words, bits) - values).max() <= 2.0**-bits / 2 * (1 + 1e-9) + 1e-13


def test_no_drift_over_rounds():
    """What was sent is kept as integers: after 1,000 changes the sum is still within half a step."""
    rng = np.random.default_rng(0)
    sent, total = np.zeros(5, np.int64), np.zeros(5, np.int64)
    for _ in range(1000):
        values = rng.normal(size=5)
        now = fixed.to_fixed(values, 20, fixed.limit_of(10, 20))
        total, sent = total + (now - sent), now
    assert np.abs(fixed.from_fixed(total, 20) - values).max() <= 2.0**-21


@pytest.mark.parametrize("value", [1e9, np.inf, np.nan])
def test_overflow_is_refused(value):
    with pytest.raises(InputError, match="beyond what secure sums carry"):
        fixed.to_fixed(np.array([0.0, value]), 40, fixed.limit_of(100, 40))


@given(st.integers(0, 2 * crypto.PIECE + 3), st.lists(st.sampled_from([1, -1]), max_size=3), st.sampled_from([32, 64]))
@examples(20)
def test_masks_in_pieces_are_the_masks(length, signs, bits):
    dtype = {32: np.uint32, 64: np.uint64}[bits]
    words = np.arange(length, dtype=dtype)
    keys = [(hashlib.sha256(bytes([k])).digest(), sign) for k, sign in enumerate(signs)]
    expected = words.copy()
    for key, sign in keys:
        mask = crypto.mask(key, length, dtype)
        expected = expected + mask if sign > 0 else expected - mask
    np.testing.assert_array_equal(crypto.add_masks(words, keys), expected)
