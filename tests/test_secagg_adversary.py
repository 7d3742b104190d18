"""Secure aggregation against a server that sends anything to anybody, with members that collude.

Searches over all short strategies and over random ones; each is shown to find the break where a check is taken out.
"""

from __future__ import annotations

import random
from unittest import mock

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from hypothesis import given
from hypothesis import strategies as st

from fedmc.privacy.secagg import member
from fedmc.privacy.secagg.rules import Rules, cohort_for, losses_of
from tests.conftest import examples
from tests.secagg_adversary import Broken, Gambler, Spec, World, check_known_sums, explore, world_of
from tests.secagg_world import assuming, light

NIGHTLY = pytest.mark.nightly
WITHOUT = {  # a check is taken out
    "repeats are not checked": lambda: mock.patch.object(member, "_check_repeat"),
    "repeats may be small": lambda: mock.patch.object(Rules, "honest", lambda self, members: members),
    "a replacement is not binding": lambda: mock.patch.object(
        member.Replied, "bound", property(lambda replied: replied.opened is not None)
    ),
}


def first_session(world: World, losses: int, openers: int):
    """All reply, some open."""
    session = world.propose(Spec(world.cast.everybody, losses))
    for k in sorted(world.honest(session)):
        assert world.show(k, session)
    for k in sorted(world.honest(session))[:openers]:
        assert world.open(k, session)
    return session


class TestAllStrategies:
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize(
        ("members", "colluding", "sessions", "losses"),
        [
            (3, 0, 3, 1),
            (4, 0, 2, 1),
            (4, 1, 3, 1),
            (5, 1, 2, 2),
            (3, 1, 4, 1),
            pytest.param(5, 2, 3, 1, marks=NIGHTLY),
            pytest.param(5, 1, 3, 1, marks=NIGHTLY),
            pytest.param(6, 1, 2, 2, marks=NIGHTLY),
        ],
    )
    def test_none_breaks_the_promise(self, members, colluding, sessions, losses):
        with light(), assuming(colluding):
            world = world_of(members, range(members - colluding, members), 2)
            found: list[int] = []
            tried = explore(world, sessions, losses, seen=lambda now: found.append(len(now.known())))
        assert tried == len(found) > 100
        assert 1 in found  # sums do become known

    def test_none_breaks_it_with_other_requests(self):
        with light(), assuming(1):
            assert explore(world_of(4, (3,), 2), 2, 1, lies=True) > 500

    def test_what_is_said_to_be_known_can_be_computed(self):
        """With the real cryptography: the model of what the server knows is not too strict."""
        with assuming(1):
            explore(world_of(3, (2,), 2), 2, 0, seen=check_known_sums)
        with assuming(0):
            explore(world_of(3, (), 2), 1, 1, seen=check_known_sums)

    @pytest.mark.parametrize(
        ("without", "members", "sessions", "losses"),
        [
            ("repeats are not checked", 4, 2, 0),
            ("a replacement is not binding", 4, 3, 0),
            pytest.param("repeats may be small", 6, 2, 2, marks=NIGHTLY),
        ],
    )
    def test_the_search_finds_a_missing_check(self, without, members, sessions, losses):
        with light(), assuming(1), WITHOUT[without](), pytest.raises(Broken):
            explore(world_of(members, (members - 1,), 2), sessions, losses)


def play(seed: int, steps: int = 10) -> int:
    chance = random.Random(seed)
    members = chance.randint(4, 9)
    colluding = chance.randint(0, min(2, members - 3))
    with light(), assuming(colluding):
        world = world_of(members, range(members - colluding, members), chance.choice([2, 2, 3]))
        return len(Gambler(world, seed).play(steps).known())


class TestRandomStrategies:
    def test_none_breaks_the_promise(self):
        assert sum(play(seed) for seed in range(500)) > 250

    def test_none_breaks_it_with_the_rules_as_they_are(self):
        """One colluder, and the default size of a cohort, from 5 members on (below: `test_three_members...`)."""
        known = 0
        for seed in range(200):
            members = 5 + seed % 8
            with light():
                world = world_of(members, (members - 1,), cohort_for(members))
                known += len(Gambler(world, seed).play(10).known())
        assert known > 50

    @NIGHTLY
    def test_none_of_many_breaks_the_promise(self):
        assert sum(play(seed, 8 + seed % 60) for seed in range(1000, 6000)) > 2500

    @given(st.integers(10**6, 10**9))
    @examples(20)
    def test_none_breaks_it_by_chance(self, seed):
        play(seed, 30)

    @pytest.mark.parametrize("without", WITHOUT)
    def test_chance_finds_a_missing_check(self, without):
        with WITHOUT[without](), pytest.raises(Broken):
            for seed in range(2000):
                play(seed)


class TestOneMore:
    """The bounds are where the promise ends: one colluder or one loss more, and it is broken."""

    @pytest.mark.parametrize("assumed", [1, 2])
    def test_one_colluder_more_than_assumed(self, assumed):
        """Two colluders hold enough shares of everything: one session over all, and one over the victim and them."""
        with light(), assuming(assumed):
            world = world_of(4, (2, 3), 2)
            session = world.propose(Spec((0, 1, 2, 3), 1))
            taken = [world.show(k, session) for k in (0, 1)]
            alone = world.propose(Spec((0, 2, 3), 0))
            taken.append(world.show(0, alone))
            if assumed == 2:
                assert not any(taken)
                world.check_promise()
            else:
                assert all(taken)
                assert {world.honest(one) for one in world.known()} == {frozenset({0, 1}), frozenset({0})}
                with pytest.raises(Broken):
                    world.check_promise()
                check_known_sums(world)

    @pytest.mark.parametrize("more", [0, 1])
    def test_one_loss_more_than_a_repeat_may_have(self, more):
        """Those that an opened session can do without form a cohort of their own."""
        members = mock.patch.object(Rules, "honest", lambda self, members: members - 1 + more)
        with light(), assuming(1), members:
            world = world_of(6, (5,), 2)
            first_session(world, 2, 3)
            second = world.propose(Spec((3, 4, 5), 0))
            assert [world.show(k, second) for k in (3, 4)] == [bool(more)] * 2
            assert [world.open(k, second) for k in (3, 4)] == [bool(more)] * 2
            if more:
                with pytest.raises(Broken, match="different honest members"):
                    world.check_promise()
            else:
                world.check_promise()

    @pytest.mark.parametrize("more", [0, 1])
    def test_one_loss_more_than_a_cohort_may_have(self, more):
        """A single colluder opens what nobody else opened."""
        with light(), assuming(1):
            world = world_of(3, (2,), 2)
            session = world.propose(Spec((0, 1, 2), more))
            assert [world.show(k, session) for k in (0, 1)] == [not more] * 2
            world.check_promise()
            with mock.patch.object(Rules, "check"):
                session = world.propose(Spec((0, 1, 2), 1))
                assert all(world.show(k, session) for k in (0, 1))
            with pytest.raises(Broken, match="nobody opened"):
                world.check_promise()

    def test_large_cohorts_with_the_default_losses(self):
        """50 members may lose 5, and 5 members and a colluder are a cohort if 4 are demanded: refused."""
        with light():
            world = world_of(50, (49,), 4)
            assert losses_of(50) == 5
            first_session(world, 5, 44)
            second = world.propose(Spec((44, 45, 46, 47, 48, 49), 1))
            assert not any(world.show(k, second) for k in range(44, 49))
            assert len(world.known()) == 1
            world.check_promise()


def test_three_members_trust_each_other():
    """In a federation of three, nobody is assumed to collude; what is left of a larger one is no such federation."""
    with light():
        world = world_of(4, (3,), 3)
        session = world.propose(Spec((0, 1, 3), 1))
        assert not any(world.show(k, session) for k in (0, 1))
        world = world_of(3, (2,), 3)
        session = world.propose(Spec((0, 1, 2), 1))
        assert all(world.show(k, session) for k in (0, 1))
        with pytest.raises(Broken, match="too few honest"):
            world.check_promise()


class TestNamedAttacks:
    """Strategies that were thought of, each in a few lines."""

    @pytest.fixture(autouse=True)
    def light(self):
        with light(), assuming(1):
            yield

    def test_different_first_sessions_for_different_members(self):
        """Members 0 and 1 hear of one cohort, 2 and 3 of another: neither has all heads."""
        world = world_of(5, (4,), 2)
        one, two = (world.propose(Spec((0, 1, 2, 3, 4), 1, attempt=attempt), False) for attempt in (0, 1))
        assert all(world.show(k, one) for k in (0, 1))
        assert all(world.show(k, two) for k in (2, 3))
        assert not any(world.open(k, session) for k in range(4) for session in (one, two))
        assert not world.known()

    def test_heads_of_another_session_do_not_open_this_one(self):
        world = world_of(5, (4,), 2)
        one, two = (world.propose(Spec((0, 1, 2, 3, 4), 1, attempt=attempt), False) for attempt in (0, 1))
        assert all(world.show(k, one) for k in (0, 1))
        assert all(world.show(k, two) for k in (2, 3))
        assert not any(world.open(k, one, [*world.heads(two), *world.heads(one)]) for k in range(4))

    def test_a_session_is_not_opened_by_members_that_moved_on(self):
        world = world_of(5, (4,), 2)
        first = first_session(world, 1, 0)
        second = world.propose(Spec((0, 1, 2, 4), 0))
        assert all(world.show(k, second) for k in (0, 1, 2))
        assert not any(world.open(k, first) for k in (0, 1, 2))
        assert world.open(3, first)
        assert not world.knows(first)
        assert all(world.open(k, second) for k in (0, 1, 2))
        assert world.knows(second)
        world.check_promise()

    def test_seal_keys_of_one_session_do_not_open_another(self):
        """Member 0's keys are in two sessions; it answers one. The other has its boxes, but not its masked input."""
        world = world_of(5, (4,), 2)
        other = world.propose(Spec((0, 1, 2, 3, 4), 1, attempt=1))
        session = world.propose(Spec((0, 1, 2, 4), 0), False)
        assert world.show(3, other)
        assert all(world.show(k, session) for k in (0, 1, 2))
        assert all(world.open(k, session) for k in (0, 1, 2))
        assert len(world.seals(other)) == 4
        assert [one.hash for one in world.known()] == [session.hash]

    def test_a_repeat_after_a_replacement_has_the_same_members(self):
        """A colluder misdeals, so that an opened session is replaced; the replacement may not lose anybody."""
        world = world_of(5, (4,), 2)
        first = first_session(world, 1, 4)
        replacing = world.propose(Spec((0, 1, 2, 3), 1, instead_of=first.hash))
        assert not world.show(0, replacing)
        assert all(world.show(k, replacing, (), world.proofs(first)) for k in range(4))
        for instead_of in (b"", first.hash, replacing.hash):
            for cohort in ((0, 1, 2), (0, 1, 2, 4)):
                fewer = world.propose(Spec(cohort, 0, instead_of=instead_of))
                assert not any(world.show(k, fewer, (), world.proofs(first)) for k in (0, 1, 2))
        again = world.propose(Spec((0, 1, 2, 3), 1, instead_of=first.hash, attempt=1))
        assert all(world.show(k, again) for k in range(4))
        assert all(world.open(k, again) for k in range(4))
        world.check_promise()
        assert {world.honest(one) for one in world.known()} == {frozenset(range(4))}

    def test_a_replacement_without_more_than_the_guilty(self):
        world = world_of(6, (5,), 2)
        first = first_session(world, 1, 4)
        for cohort in ((0, 1, 2, 3), (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 5)):
            session = world.propose(Spec(cohort, 1, instead_of=first.hash))
            assert not any(world.show(k, session, (), world.proofs(first)) for k in range(4))
        exact = world.propose(Spec((0, 1, 2, 3, 4), 1, instead_of=first.hash))
        assert all(world.show(k, exact, (), world.proofs(first)) for k in range(5))

    def test_who_opened_does_not_believe_another_certificate(self):
        """Also not after it replied to a session that replaces the one that it opened."""
        world = world_of(9, (8,), 2)
        first = world.propose(Spec((0, 1, 2, 3, 8), 1))
        other = world.propose(Spec((4, 5, 6, 7, 8), 1))
        for session in (first, other):
            assert all(world.show(k, session) for k in world.honest(session))
            assert all(world.open(k, session) for k in sorted(world.honest(session))[:3])
        assert not world.learn(0, (world.certificate(other),))
        replacing = world.propose(Spec((0, 1, 2, 3), 1, instead_of=first.hash))
        assert all(world.show(k, replacing, (), world.proofs(first)) for k in range(4))
        assert not world.learn(0, (world.certificate(other),))
        assert not world.learn(0, (world.certificate(first),))

    def test_a_certificate_that_was_hidden(self):
        """Member 3 opened nothing, and does not hear that the sum was opened: it joins no other session of it."""
        world = world_of(5, (4,), 2)
        first = first_session(world, 1, 3)
        for cohort in ((3, 4), (2, 3, 4), (0, 1, 2, 3, 4)):
            session = world.propose(Spec(cohort, 0))
            for k in sorted(world.honest(session)):
                world.show(k, session)
                world.open(k, session)
        assert [one.hash for one in world.known()] == [first.hash]
        second = world.propose(Spec((0, 1, 2, 3, 4), 1, first.hash))
        assert not world.show(3, second)
        world.check_promise()

    def test_a_certificate_with_too_few_signatures(self):
        world = world_of(5, (4,), 2)
        first = first_session(world, 1, 2)
        assert not any(world.learn(k, (world.certificate(first),)) for k in range(4))
        assert world.open(2, first)
        assert all(world.learn(k, (world.certificate(first),)) for k in range(4))

    def test_numbers_cannot_be_skipped_or_repeated(self):
        world = world_of(5, (4,), 2)
        first = first_session(world, 1, 4)
        shown = (world.certificate(first),)
        early = world.propose(Spec((0, 1, 2, 3, 4), 1, first.hash, bases=tuple((k, 1) for k in range(5))))
        assert not world.show(0, early)  # without the certificate
        assert world.show(0, early, shown)
        again = world.propose(Spec((0, 1, 2, 3, 4), 1))
        assert not any(world.show(k, again, shown) for k in range(4))

    def test_lies_about_what_is_counted(self):
        world = world_of(5, (4,), 2)
        first = first_session(world, 1, 4)
        shown = (world.certificate(first),)
        lie = world.propose(Spec((0, 1, 2, 3, 4), 1, first.hash, bases=tuple((k, 0) for k in range(5))))
        assert not any(world.show(k, lie, shown) for k in range(4))
        assert all(world.learn(k, shown) for k in range(4))
        true = world.propose(Spec((0, 1, 2, 3, 4), 1, first.hash))
        assert all(world.show(k, true) for k in range(4))

    @pytest.mark.parametrize("lie", [0, 1])
    def test_a_colluder_hides_nobody(self, lie):
        """Two members come back, and a colluder says that it does too: three are demanded, colluders not counted."""
        world = world_of(9, (8,), 3)
        regular = world.propose(Spec((0, 1, 2, 3, 4, 8), 1))
        assert all(world.show(k, regular) for k in range(5))
        assert all(world.open(k, regular) for k in range(5))
        shown = (world.certificate(regular),)
        for k in range(8):
            assert world.learn(k, shown)
        for newcomers in ((5,), (5, 6)):
            cohort = (0, 1, 2, 3, 4, *newcomers, 8)
            session = world.propose(Spec(cohort, 1, regular.hash, bases=((8, lie),)))
            assert not any(world.show(k, session) for k in newcomers)
        session = world.propose(Spec(tuple(range(9)), 1, regular.hash, bases=((8, lie),)))
        assert [world.show(k, session) for k in (5, 6, 7)] == [not lie] * 3  # one of three may be a colluder
