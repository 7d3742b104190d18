"""Secure aggregation: exact sums, drop-outs at every stage, and those who do not keep to the rules."""

from __future__ import annotations

import hashlib
import itertools
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedmc.errors import DataError, InputError
from fedmc.privacy.secagg import crypto, fixed
from fedmc.privacy.secagg.aggregator import Aggregator
from fedmc.privacy.secagg.member import Member
from fedmc.privacy.secagg.session import AbortedError, Session, threshold_of
from tests.conftest import examples

STAGES = ("advertise", "share", "mask", "reveal")
IDENTITIES = [Ed25519PrivateKey.from_private_bytes(hashlib.sha256(bytes([k])).digest()) for k in range(50)]
PINNED = {k: identity.public_key() for k, identity in enumerate(IDENTITIES)}


def session_of(members, length=7, **given):
    cohort = tuple(range(members))
    return Session(
        **{"run": "a-run", "round": 3, "cohort": cohort, "threshold": threshold_of(members), "length": length} | given
    )


def members_of(session, min_cohort=3):
    return {k: Member(k, IDENTITIES[k], PINNED, session, min_cohort) for k in session.cohort}


def words_of(session, seed=0):
    rng = np.random.default_rng(seed)
    high = np.iinfo(session.dtype).max
    return {k: rng.integers(0, high, session.length, session.dtype, endpoint=True) for k in session.cohort}


def run(session, words, lost=None):
    """A whole round; `lost` names who drops out before each stage."""
    lost = lost or {}
    members, aggregator, gone = members_of(session), Aggregator(session, PINNED), set()

    def left(stage, among):
        gone.update(lost.get(stage, ()))
        return [k for k in among if k not in gone]

    adverts = aggregator.take_adverts({k: members[k].advertise() for k in left("advertise", session.cohort)})
    sealed = aggregator.take_sealed({k: members[k].share(adverts) for k in left("share", aggregator.adverts)})
    hidden = {k: members[k].mask(sealed[k], words[k]) for k in left("mask", aggregator.sealed)}
    survivors = aggregator.take_hidden(hidden)
    still = left("reveal", survivors)
    signatures = aggregator.take_signatures({k: members[k].confirm(survivors) for k in still})
    return survivors, aggregator.unmask({k: members[k].reveal(signatures) for k in still}), hidden


def expected(words, survivors):
    return sum((words[k] for k in survivors), np.zeros_like(words[0]))


@pytest.mark.parametrize(("members", "bits"), [(3, 32), (3, 64), (10, 32), (50, 64)])
def test_the_sum_is_exact(members, bits):
    session = session_of(members, bits=bits)
    words = words_of(session)
    survivors, total, _ = run(session, words)
    assert survivors == session.cohort
    np.testing.assert_array_equal(total, expected(words, survivors))


@pytest.mark.parametrize("members", [4, 5, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", STAGES)
def test_every_set_of_drop_outs(members, stage):
    """Up to the threshold the exact sum of who sent words; one more, and nothing is unmasked."""
    session = session_of(members, length=3)
    words = words_of(session)
    for count in range(members - session.threshold + 2):
        for lost in itertools.combinations(session.cohort, count):
            if count > members - session.threshold:
                with pytest.raises(AbortedError):
                    run(session, words, {stage: lost})
                continue
            survivors, total, _ = run(session, words, {stage: lost})
            assert set(survivors) == set(session.cohort) - (set() if stage == "reveal" else set(lost))
            np.testing.assert_array_equal(total, expected(words, survivors))


@given(data=st.data(), members=st.integers(3, 12))
@examples(25)
def test_drop_outs_at_several_stages(data, members):
    session = session_of(members, length=2)
    words = words_of(session, members)
    spare = members - session.threshold
    lost = data.draw(st.lists(st.sampled_from(session.cohort), max_size=spare, unique=True))
    when = {stage: [] for stage in STAGES}
    for member in lost:
        when[data.draw(st.sampled_from(STAGES))].append(member)
    survivors, total, _ = run(session, words, when)
    np.testing.assert_array_equal(total, expected(words, survivors))


def test_one_upload_looks_like_noise():
    session = session_of(10, length=40_000)
    nothing = {k: np.zeros(session.length, session.dtype) for k in session.cohort}
    _, total, hidden = run(session, nothing)
    assert not total.any()
    for words in hidden.values():
        counts = np.bincount(words.view(np.uint8), minlength=256)
        chance = ((counts - counts.mean()) ** 2 / counts.mean()).sum()  # chi-squared, 255 degrees of freedom
        assert 150 < chance < 400
    assert len({words.tobytes() for words in hidden.values()}) == 10


def test_no_key_share_or_mask_comes_twice():
    """Over rounds, and over two tries of the same round."""
    seen: list[bytes] = []
    for number in (1, 1, 2):
        session = session_of(4, length=64, round=number)
        members = members_of(session)
        adverts = [member.advertise() for member in members.values()]
        sealed = {k: member.share(adverts) for k, member in members.items()}
        seen += [key for advert in adverts for key in (advert.seal_key, advert.mask_key)]
        seen += [content for shares in sealed.values() for content in shares.values()]
        zero = np.zeros(64, np.uint64)
        for k, member in members.items():
            own = {sender: shares[k] for sender, shares in sealed.items() if sender != k}
            seen.append(member.mask(own, zero).tobytes())
            seen += [member._b, *(share for pair in member._held.values() for share in pair)]
    assert len(set(seen)) == len(seen)


class TestMembersRefuse:
    def test_small_or_odd_cohorts(self):
        for session, said in (
            (session_of(4), "too small to hide in"),
            (session_of(10, cohort=(0, 1, 2, 3, 4, 5, 6, 7, 8, 8)), "twice"),
            (session_of(10, cohort=(0, *range(41, 50), 99)), "not known"),
            (session_of(10, cohort=tuple(range(1, 11))), "leaves this one out"),
            (session_of(10, threshold=5), "not safe"),
        ):
            with pytest.raises(DataError, match=said):
                Member(0, IDENTITIES[0], PINNED, session, 10)

    def adverts(self, session):
        members = members_of(session)
        return members, [member.advertise() for member in members.values()]

    def test_forged_and_repeated_adverts(self):
        session = session_of(4)
        for spoil in (
            lambda adverts: [*adverts[:3], adverts[3]._replace(mask_key=adverts[2].mask_key)],
            lambda adverts: [*adverts[:3], adverts[3]._replace(mask_key=bytes(range(32)))],
            lambda adverts: [*adverts, adverts[3]],
            lambda adverts: [*adverts[:3], adverts[3]._replace(member=9)],
            lambda adverts: adverts[1:],
        ):
            members, adverts = self.adverts(session)
            with pytest.raises(DataError):
                members[0].share(spoil(adverts))

    def test_adverts_of_another_round(self):
        members, adverts = self.adverts(session_of(4))
        _, others = self.adverts(session_of(4, round=2))
        with pytest.raises(DataError, match="signature"):
            members[0].share([adverts[0], *others[1:]])

    def test_stages_out_of_order_or_twice(self):
        members, adverts = self.adverts(session_of(4))
        with pytest.raises(DataError, match="goes through each once"):
            members[0].advertise()
        with pytest.raises(DataError, match="goes through each once"):
            members[0].reveal({})
        members[0].share(adverts)
        with pytest.raises(DataError, match="goes through each once"):
            members[0].share(adverts)

    def test_sealed_shares_that_were_changed_or_moved(self):
        session = session_of(4)
        for spoil in (
            lambda own: own | {1: own[1][:-1] + bytes([own[1][-1] ^ 1])},
            lambda own: own | {1: own[2], 2: own[1]},
            lambda own: own | {9: own[1]},
        ):
            members, adverts = self.adverts(session)
            sealed = {k: member.share(adverts) for k, member in members.items()}
            own = {sender: shares[0] for sender, shares in sealed.items() if sender != 0}
            with pytest.raises(DataError):
                members[0].mask(spoil(own), np.zeros(7, np.uint64))

    def all_masked(self, session):
        """Members that all sent their words."""
        members, adverts = self.adverts(session)
        aggregator = Aggregator(session, PINNED)
        aggregator.take_adverts({advert.member: advert for advert in adverts})
        sealed = aggregator.take_sealed({k: member.share(adverts) for k, member in members.items()})
        for k, member in members.items():
            member.mask(sealed[k], np.zeros(session.length, session.dtype))
        return members

    @pytest.mark.parametrize(
        ("shown", "error"), [((0, 1), AbortedError), ((0, 1, 2), DataError), ((0, 1, 3), AbortedError)]
    )
    def test_a_collector_that_tells_two_stories(self, shown, error):
        """Some hear that member 3 was lost, some that it was not: too few signed either list, whoever is shown."""
        members = self.all_masked(session_of(4))
        stories = {0: (0, 1, 2), 1: (0, 1, 2), 2: (0, 1, 2, 3), 3: (0, 1, 2, 3)}
        signatures = {k: members[k].confirm(story) for k, story in stories.items()}
        with pytest.raises(error):
            members[0].reveal({k: signatures[k] for k in shown})

    def test_both_shares_of_a_peer_are_never_given(self):
        members = self.all_masked(session_of(4))
        signatures = {k: members[k].confirm((0, 1, 2)) for k in (0, 1, 2)}
        given_away = members[0].reveal(signatures)
        assert set(given_away.of_survivors) == {0, 1, 2}
        assert set(given_away.of_lost) == {3}
        with pytest.raises(DataError):
            members[0].reveal(signatures)


def test_secrets_are_not_in_words():
    member = members_of(session_of(4))[0]
    said = repr(member) + str(member)
    for secret in (member._b, member._seal_private, member._mask_private):
        assert secret.hex() not in said
        assert repr(secret) not in said


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


@given(secret=st.binary(min_size=32, max_size=32), holders=st.integers(1, 12), data=st.data())
@examples(40)
def test_shares(secret, holders, data):
    threshold = data.draw(st.integers(1, holders))
    shares = crypto.share(secret, list(range(holders)), threshold)
    some = data.draw(st.permutations(range(holders)))
    assert crypto.combine({k: shares[k] for k in some[:threshold]}) == secret
    if threshold > 1:
        with suppress(DataError):  # what comes out is hardly ever 32 bytes
            assert crypto.combine({k: shares[k] for k in some[: threshold - 1]}) != secret


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
