"""A server that sends anything to anybody, with members that collude: what it can learn, and all short strategies.

What it learns is decided by the cryptography: the sum of a session is known if and only if it has the masked inputs of
all honest members of the cohort (their pairwise masks cancel only together), and for each of them at least `threshold`
seal keys of other holders: those of colluders, and those that honest members opened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np

from fedmc.errors import DataError
from fedmc.privacy.secagg import crypto, member, misdealing, rules
from fedmc.privacy.secagg.member import Member, MemberState
from fedmc.privacy.secagg.rules import Rules
from fedmc.privacy.secagg.serial import digest
from fedmc.privacy.secagg.session import (
    Certificate,
    Head,
    Invited,
    Masked,
    Opened,
    Proof,
    PublicKeys,
    Session,
    boxes_hash,
    commitment_to,
    open_content,
    pair_key,
    self_key,
    signed_keys,
)  # fmt: skip
from tests.secagg_world import REQUEST, RUN, identity_of, pinned, total_of, words_of

LENGTH = 2


class Broken(AssertionError):
    """The promise of `session` does not hold."""


def subsets(of: Iterable[int], least: int = 0) -> Iterator[tuple[int, ...]]:
    found = tuple(of)
    return chain.from_iterable(combinations(found, size) for size in range(least, len(found) + 1))


class Spec(NamedTuple):
    """A session that the server may propose; the rest follows from what it knows."""

    cohort: tuple[int, ...]
    losses: int
    after: bytes = b""  # the session whose certificate it carries
    instead_of: bytes = b""
    content: bytes = REQUEST
    attempt: int = 0
    bases: tuple[tuple[int, int], ...] = ()  # lies


@dataclass
class Cast:
    """Who is who; and every step of a member that was tried, so that equal steps give equal bytes."""

    members: dict[int, Member]
    colluders: frozenset[int]
    least: int
    seals: dict[bytes, bytes] = field(default_factory=dict)  # colluders' private keys, by public ones
    masks: dict[bytes, bytes] = field(default_factory=dict)
    sessions: dict[tuple[object, ...], Session] = field(default_factory=dict)
    steps: dict[tuple[object, ...], object] = field(default_factory=dict)
    alive: list[object] = field(default_factory=list)  # so that no id is used twice
    seq: int = 0

    @property
    def demands(self) -> Rules:
        return next(iter(self.members.values())).rules

    @property
    def everybody(self) -> tuple[int, ...]:
        return tuple(sorted({*self.members, *self.colluders}))

    def keys_of_colluder(self, number: int) -> PublicKeys:
        """Fresh, so that no peer finds them used."""
        self.seq += 1
        (mask_private, mask), (seal_private, seal) = crypto.new_pair(), crypto.new_pair()
        self.masks[mask], self.seals[seal] = mask_private, seal_private
        return signed_keys(identity_of(number), RUN, PublicKeys(number, self.seq, mask, seal))

    def once(self, key: tuple[object, ...], step: Callable[[], object], *alive: object) -> object:
        """The result of a step, or the refusal."""
        if key not in self.steps:
            self.alive += alive
            try:
                self.steps[key] = step()
            except DataError as error:
                self.steps[key] = error
        return self.steps[key]


@dataclass
class World:
    """What happened so far; `fork` makes a copy to go on from."""

    cast: Cast
    states: dict[int, MemberState]
    sessions: dict[bytes, Session] = field(default_factory=dict)
    masked: dict[tuple[bytes, int], Masked] = field(default_factory=dict)
    opened: dict[tuple[bytes, int], Opened] = field(default_factory=dict)
    story: tuple[str, ...] = ()

    def fork(self) -> World:
        return World(
            self.cast, dict(self.states), dict(self.sessions), dict(self.masked), dict(self.opened), self.story
        )

    # --- what the adversary does

    def propose(self, spec: Spec, fresh: bool = True) -> Session:
        """A session with new keys of its members, or with those that they gave last."""
        cohort = sorted(spec.cohort)
        for k in cohort if fresh else ():
            if k in self.states:
                self.hello(k)
        states = [self.states[k] for k in cohort if k in self.states]
        key = (spec, *map(id, states))
        if key not in self.cast.sessions:
            self.cast.alive += states
            self.cast.sessions[key] = self._session(spec, cohort)
        return self.cast.sessions[key]

    def _session(self, spec: Spec, cohort: list[int]) -> Session:
        lies, invited = dict(spec.bases), []
        shared = [self.states[k].base for k in cohort if k in self.states]
        for k in cohort:
            state = self.states.get(k)
            keys = state.keys.public if state and state.keys else self.cast.keys_of_colluder(k)
            base = state.base if state else max(shared, key=shared.count, default=0)
            invited.append(Invited(keys, lies.get(k, base)))
        before = self.sessions.get(spec.after)
        number = before.number + 1 if before else 1
        previous = self.certificate(before).hash if before else b""
        return Session(
            RUN, number, spec.attempt, spec.content, tuple(invited), spec.losses, previous, LENGTH, True,
            spec.instead_of,
        )  # fmt: skip

    def hello(self, k: int) -> None:
        state = self.states[k]
        made = self.cast.once(("hello", k, id(state)), lambda: member.hello(self.cast.members[k], state)[0], state)
        self.states[k] = made

    def show(
        self, k: int, session: Session, certificates: tuple[Certificate, ...] = (), proofs: tuple[Proof, ...] = ()
    ) -> bool:
        """Exchange 1 with one member: whether it replied."""
        cast, state = self.cast, self.states[k]

        def step() -> tuple[MemberState, Masked]:
            learnt, _ = member.learn(cast.members[k], state, certificates)
            member.check(cast.members[k], learnt, session, proofs)
            words = words_of(k, session.number, session.length)
            return member.reply(cast.members[k], learnt, session, words, False)

        found = cast.once(("show", k, id(state), session.hash, certificates, proofs), step, state)
        if isinstance(found, DataError):
            return False
        self.states[k], self.masked[session.hash, k] = found
        self.sessions[session.hash] = session
        self.story += (f"{k} replies to {self.name(session)}",)
        return True

    def learn(self, k: int, certificates: tuple[Certificate, ...]) -> bool:
        try:
            self.states[k], _ = member.learn(self.cast.members[k], self.states[k], certificates)
        except DataError:
            return False
        self.story += (f"{k} learns of sums {[one.number for one in certificates]}",)
        return True

    def open(self, k: int, session: Session, heads: Iterable[Head] | None = None) -> bool:
        """Exchange 2 with one member: whether it opened."""
        state, shown = self.states[k], self.heads(session) if heads is None else list(heads)

        def step() -> tuple[MemberState, Opened]:
            return member.open_(self.cast.members[k], state, session.hash, shown)

        key = ("open", k, id(state), session.hash, tuple(head.signature for head in shown))
        found = self.cast.once(key, step, state)
        if isinstance(found, DataError):
            return False
        self.states[k], self.opened[session.hash, k] = found
        self.story += (f"{k} opens {self.name(session)}",)
        return True

    # --- what it can make of it

    def name(self, session: Session) -> str:
        return f"{session.number}{session.members}d{session.losses}#{list(self.sessions).index(session.hash)}"

    def honest(self, session: Session) -> frozenset[int]:
        return frozenset(session.members) - self.cast.colluders

    def heads(self, session: Session) -> list[Head]:
        """Those of honest members that it has, and forged ones of colluders."""
        mine = [self.junk(k, session).head for k in session.members if k in self.cast.colluders]
        return [*mine, *(one.head for (H, _), one in self.masked.items() if session.hash == H)]

    def junk(self, k: int, session: Session) -> Masked:
        """A colluder's reply: boxes that do not open."""
        made = self.cast.steps.get(("junk", k, session.hash))
        if made is None:
            boxes = {peer: bytes(48) for peer in session.members if peer != k}
            keys = signed_keys(identity_of(k), RUN, session.keys[k]._replace(seq=session.keys[k].seq + 1))
            words = np.zeros(session.length + 2, np.uint64)
            head = Head(k, crypto.new_pair()[1], commitment_to(bytes(32)), boxes_hash(boxes), digest(words), keys)
            head = head._replace(signature=crypto.sign(identity_of(k), head.content(session.hash)))
            made = self.cast.steps["junk", k, session.hash] = Masked(head, boxes, words)
        return made

    def seals(self, session: Session) -> dict[int, bytes]:
        """The private seal keys of its holders that are known, whatever session they were opened for."""
        known = {self.sessions[H].keys[k].seal: one.seal for (H, k), one in self.opened.items()}
        found = {k: known.get(keys.seal) or self.cast.seals.get(keys.seal) for k, keys in session.keys.items()}
        return {k: seal for k, seal in found.items() if seal is not None}

    def knows(self, session: Session) -> bool:
        if any((session.hash, k) not in self.masked for k in self.honest(session)):
            return False
        seals = self.seals(session)
        return all(len(seals.keys() - {k}) >= session.threshold for k in self.honest(session))

    def known(self) -> list[Session]:
        return [session for session in self.sessions.values() if self.knows(session)]

    def certificate(self, session: Session) -> Certificate:
        """With all signatures that it has or forges: enough, or not."""
        H = session.hash
        signed = [(k, one.signature) for (found, k), one in self.opened.items() if found == H]
        forged = [
            (k, crypto.sign(identity_of(k), open_content(H))) for k in session.members if k in self.cast.colluders
        ]
        return Certificate(
            RUN, session.number, session.members, session.losses, session.kept, session.rest,
            tuple(sorted([*signed, *forged])),
        )  # fmt: skip

    def certified(self, session: Session) -> bool:
        signed = sum(k in self.cast.colluders or (session.hash, k) in self.opened for k in session.members)
        return signed >= session.needed

    def proofs(self, session: Session) -> tuple[Proof, ...]:
        """Against all colluders of the session, if enough of it was opened."""
        seals, found = self.seals(session), []
        for k in session.members:
            others = tuple(sorted((holder, seal) for holder, seal in seals.items() if holder != k))
            if k in self.cast.colluders and len(others) >= session.threshold:
                made = self.junk(k, session)
                found.append(Proof(made.head, tuple(sorted(made.boxes.items())), others))
        return tuple(found)

    def unmasked(self, session: Session):
        """The sum of the honest inputs of a session that is known, by the real mathematics."""
        seals, total = self.seals(session), np.zeros(session.length + 2, np.uint64)
        for k in self.honest(session):
            made = self.masked[session.hash, k]
            secret = misdealing.secret_of(session, made.head, made.boxes, seals)
            shared = [
                pair_key(self.cast.masks[keys.mask], peer, k, session.keys[k].mask, session.hash)
                for peer, keys in session.keys.items()
                if peer in self.cast.colluders
            ]
            total = crypto.add_masks(total + made.words, [(self_key(secret, session.hash), -1), *shared])
        return total[: session.length]

    # --- the promise

    def check_promise(self) -> None:
        known = self.known()
        for session in known:
            if len(self.honest(session)) < self.cast.least:
                self._broken("a sum over too few honest members", session)
            if not any((session.hash, k) in self.opened for k in session.members):
                self._broken("a sum that nobody opened", session)
        for first, second in combinations(known, 2):
            if first.number == second.number and self.honest(first) & self.honest(second):
                if self.honest(first) != self.honest(second):
                    self._broken("two sums over different honest members", first, second)
                if (first.content, first.kept) != (second.content, second.kept):
                    self._broken("two sums of different requests", first, second)
        for first, second in combinations([one for one in self.sessions.values() if self.certified(one)], 2):
            replaces = {first.instead_of, second.instead_of} & {first.hash, second.hash}
            shared = self.honest(first) & self.honest(second)
            if first.number == second.number and shared and not replaces and not self._chained(first, second):
                self._broken("two certificates of one sum", first, second)

    def _chained(self, first: Session, second: Session) -> bool:
        """Whether one replaces the other through sessions in between."""

        def replaced(session: Session | None) -> set[bytes]:
            found: set[bytes] = set()
            while session is not None and session.instead_of and session.instead_of not in found:
                found.add(session.instead_of)
                session = self.sessions.get(session.instead_of)
            return found

        return first.hash in replaced(second) or second.hash in replaced(first)

    def _broken(self, what: str, *sessions: Session) -> None:
        raise Broken(f"{what}: {[self.name(one) for one in sessions]} after {'; '.join(self.story)}")


def world_of(members: int, colluders: Iterable[int] = (), least: int = 3) -> World:
    """Honest members with keys, and colluders, who are the last ones unless named."""
    bad, everybody, demands = frozenset(colluders), pinned(members), Rules(least, rules.colluders(members))
    cast = Cast({k: Member(RUN, k, identity_of(k), everybody, demands) for k in everybody if k not in bad}, bad, least)
    return World(cast, {k: member.hello(one, MemberState())[0] for k, one in cast.members.items()})


def accepted(demands: Rules, members: int, losses: int) -> bool:
    try:
        demands.check(members, losses)
    except DataError:
        return False
    return True


def options(world: World, most: int, lies: bool = False) -> Iterator[tuple[Spec, tuple[Proof, ...]]]:
    """The sessions that might be worth a try: every cohort, every number of losses up to `most`."""
    opened = [one for one in world.sessions.values() if any((one.hash, k) in world.opened for k in one.members)]
    ends = [b"", *(one.hash for one in opened if world.certified(one))]
    replaced = [(b"", ()), *((one.hash, proofs) for one in opened if (proofs := world.proofs(one)))]
    for cohort in subsets(world.cast.everybody, 2):
        for losses in range(most + 1):
            if not accepted(world.cast.demands, len(cohort), losses):
                continue
            for after in ends:
                yield Spec(cohort, losses, after), ()
                if lies:
                    yield Spec(cohort, losses, after, content=b"another request"), ()
            for H, proofs in replaced[1:]:
                yield Spec(cohort, losses, b"", H), proofs


def ways(honest: tuple[int, ...], all_of: frozenset[int], first: bool) -> Iterator[tuple[tuple[int, ...], tuple]]:
    """Who replies and who then opens. At first only how many matters: members differ by their numbers alone."""
    for repliers in [honest[:size] for size in range(1, len(honest) + 1)] if first else subsets(honest, 1):
        yield repliers, ()
        if set(repliers) == all_of:
            yield from (
                (repliers, openers)
                for openers in ([honest[:size] for size in range(1, len(honest) + 1)] if first else subsets(honest, 1))
            )


def explore(
    world: World, phases: int, most: int, lies: bool = False, seen: Callable[[World], None] | None = None
) -> int:
    """All strategies of so many sessions; how many there are. Raises Broken.

    Keys are used once, so two sessions that share two honest members were proposed one after the other for both. So
    it is enough to let members reply to a session, and open it, before the next one is proposed.
    """
    count = 0
    for spec, proofs in options(world, most, lies):
        start = world.fork()
        session = start.propose(spec)
        before = world.sessions.get(spec.after)
        certificates = (world.certificate(before),) if before else ()
        trial = start.fork()
        all_of = world.honest(session)
        willing = tuple(k for k in sorted(all_of) if trial.show(k, session, certificates, proofs))
        for repliers, openers in ways(willing, all_of, not world.sessions):
            now = start.fork()
            for k in repliers:
                assert now.show(k, session, certificates, proofs)
            for k in openers:
                now.open(k, session)
            now.check_promise()
            if seen is not None:
                seen(now)
            count += 1
            if phases > 1:
                count += explore(now, phases - 1, most, lies, seen)
    return count


def check_known_sums(world: World) -> None:
    """The model against the mathematics: what is said to be known can be computed."""
    for session in world.known():
        found = total_of(world.honest(session), session.number, session.length)
        np.testing.assert_array_equal(world.unmasked(session), found)


class Gambler:
    """A server that does anything in any order, by chance."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)

    def play(self, steps: int) -> World:
        moves = [self.propose, self.go_on, self.go_on] * 3 + [self.open, self.teach, self.show_old]
        if self.chance(0.5):
            moves = [self.go_on]
        for _ in range(steps):
            self.rng.choice(moves)()
            self.world.check_promise()
        return self.world

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def some(self, of: Iterable[int], share: float) -> tuple[int, ...]:
        return tuple(k for k in of if self.chance(share))

    def session(self) -> Session | None:
        """One of those that it proposed, rather a late one."""
        found = list(self.world.sessions.values())
        return self.rng.choice(found[-3:] if self.chance(0.7) else found) if found else None

    def propose(self) -> None:
        world, last = self.world, self.session()
        everybody = world.cast.everybody
        cohort = self.some(last.members if last and self.chance(0.6) else everybody, self.rng.choice([1, 0.9, 0.6]))
        if last and self.chance(0.4):  # those that an opened session can do without
            cohort = tuple(k for k in last.members if (last.hash, k) not in world.opened)
        allowed = [d for d in range(5) if accepted(world.cast.demands, len(cohort), d)]
        if not allowed:
            return
        spec = Spec(cohort, self.rng.choice(allowed), self.after(), attempt=self.rng.randrange(3))
        proofs: tuple[Proof, ...] = ()
        if last and self.chance(0.3):
            proofs = world.proofs(last) if self.chance(0.9) else ()
            guilty = {proof.head.member for proof in proofs}
            exact = tuple(k for k in last.members if k not in guilty)
            before = world.sessions.get(spec.after)
            if self.chance(0.9) and (before.number + 1 if before else 1) == last.number:
                spec = spec._replace(cohort=exact if self.chance(0.8) else cohort, instead_of=last.hash)
        if self.chance(0.03):
            spec = spec._replace(content=b"another request")
        if self.chance(0.03):
            spec = spec._replace(bases=tuple((k, self.rng.randrange(3)) for k in self.some(everybody, 0.3)))
        session = world.propose(spec, self.chance(0.8))
        for k in self.some(world.honest(session), self.rng.choice([1, 1, 1, 0.7])):
            world.show(k, session, self.certificates(), proofs)
        for k in self.some(world.honest(session), self.rng.choice([0, 0.6, 0.8, 1])):
            world.open(k, session)

    def go_on(self) -> None:
        """Another session of a sum, over fewer members, that all reply to and just enough open."""
        world, last = self.world, self.session()
        after, instead_of, proofs = self.after(), b"", ()
        cohort: Iterable[int] = self.some(world.cast.everybody, self.rng.choice([1, 0.8]))
        if last and self.chance(0.8):
            after = next((H for H, one in world.sessions.items() if self.leads_to(one, last)), b"")
            cohort, instead_of = last.members, last.instead_of
            kind = self.rng.choice(["without", "proof", "some"])
            if kind == "without":
                cohort = [k for k in cohort if (last.hash, k) not in world.opened]
            elif kind == "proof" and (proofs := world.proofs(last)):
                cohort, instead_of = set(cohort) - {proof.head.member for proof in proofs}, last.hash
            elif kind == "some":
                cohort, instead_of = self.some(cohort, 0.7), b""
        allowed = [d for d in range(5) if accepted(world.cast.demands, len(tuple(cohort)), d)]
        if allowed:
            losses = self.rng.choice([allowed[0], allowed[-1], self.rng.choice(allowed)])
            session = world.propose(Spec(tuple(sorted(cohort)), losses, after, instead_of))
            honest = sorted(world.honest(session))
            shown = (world.certificate(world.sessions[after]),) if after else ()
            for k in honest:
                world.show(k, session, shown, proofs)
            for k in self.rng.sample(honest, self.rng.choice([0, len(honest), max(0, len(honest) - losses)])):
                world.open(k, session)

    def leads_to(self, session: Session, later: Session) -> bool:
        return self.world.certificate(session).hash == later.previous

    def after(self) -> bytes:
        """The sum that some member knows of last, rather than any."""
        found = [one for one in self.world.sessions.values() if self.world.certified(one)]
        if self.chance(0.8):
            last = self.rng.choice(list(self.world.states.values())).certificate
            found = [one for one in found if self.world.certificate(one).hash == last]
        return self.rng.choice(found).hash if found else b""

    def certificates(self) -> tuple[Certificate, ...]:
        """Of all that was certified, or of some; sometimes a forged one."""
        world = self.world
        found = [world.certificate(one) for one in world.sessions.values() if world.certified(one)]
        if self.chance(0.4):  # hidden from this member
            found = self.rng.sample(found, self.rng.randint(0, len(found)))
        if self.chance(0.04) and (last := self.session()):
            forged = world.certificate(last)
            cohort = self.some(world.cast.everybody, 0.7)
            found.append(forged if self.chance(0.5) else self.signed(forged._replace(members=cohort)))
        self.rng.shuffle(found)
        return tuple(found)

    def signed(self, forged: Certificate) -> Certificate:
        forged = forged._replace(losses=self.rng.randrange(4), number=forged.number + self.rng.randrange(3))
        content = open_content(forged.session)
        mine = [(k, crypto.sign(identity_of(k), content)) for k in self.world.cast.colluders if k in forged.members]
        return forged._replace(signatures=(*mine, *forged.signatures) if self.chance(0.5) else tuple(mine))

    def open(self) -> None:
        if session := self.session():
            heads = self.world.heads(session)
            if self.chance(0.2):
                heads += [one.head for one in self.world.masked.values()]
                self.rng.shuffle(heads)
            for k in self.some(self.world.honest(session), 0.5):
                self.world.open(k, session, heads)

    def teach(self) -> None:
        for k in self.some(self.world.cast.members, 0.5):
            self.world.learn(k, self.certificates())

    def show_old(self) -> None:
        if session := self.session():
            for k in self.some(self.world.honest(session), 0.5):
                self.world.show(k, session, self.certificates())
