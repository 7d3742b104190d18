"""A node's part in secure aggregation: each message moves the state of its run (`privacy.secagg.member`).

Everything is on disk before an answer leaves: a node that is killed at any moment comes back with the same bytes, or
refuses. Besides the rules of its run, a node keeps one for all runs with its data: no two sums of whole contributions
may show, subtracted, those of a few (`privacy.secagg.whole_sums`). With a sum over its group it notes the sum over all
members of the run too, if that may be shown: the server has it from all groups together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import DataError
from fedmc.federation import secagg_messages as messages
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.secagg_store import SecAggStore
from fedmc.federation.node.store import Store, StoreError
from fedmc.federation.secagg_messages import Stage, encode_stage, session_of
from fedmc.federation.setup.identities import Identity
from fedmc.federation.wire import Request
from fedmc.privacy.secagg import member as protocol
from fedmc.privacy.secagg import whole_sums
from fedmc.privacy.secagg.member import Member, MemberState, SnapshotError
from fedmc.privacy.secagg.rules import Rules, colluders, smallest_group
from fedmc.privacy.secagg.serial import digest
from fedmc.privacy.secagg.session import NO_SUM, Session
from fedmc.privacy.secagg.whole_sums import Members
from fedmc.training.fixed_point import is_measured
from fedmc.types import Array

ALWAYS = "any data"  # of this organisation


class Input(NamedTuple):
    """What a node adds to a sum; if computing it failed, nothing."""

    words: Array
    failed: bool = False
    first_measured: bool = False  # it holds this node's first measurement of the run: whole statistics, not a change


class SecAggMember:
    """The node as a member; `origins` are hashes of the data that whole contributions are computed from."""

    def __init__(self, store: Store, identity: Identity, alone: bool, origins: list[str]) -> None:
        self.store, self.identity, self.origins = SecAggStore(store), identity, origins
        self.rules = Rules(identity.min_cohort, colluders(len(identity.pinned)), alone)

    def answer(self, request: Request, settle: Callable[[bool], None], compute: Callable[[int], Input]) -> bytes:
        """Answer exchange 1. `settle` is told whether the last contribution is counted, then `compute` the base."""
        run, invitation = request.run, request.invitation
        assert invitation is not None
        state = self.store.load(run)
        if not invitation.invited:
            return self._keys(request.run, state)
        session = session_of(request, len(request.broadcast.V))
        if state.replied is not None and state.replied.session.hash == session.hash:
            again = self.store.reply(run)
            if again is not None:
                return again
            raise RefusedError("lost-state", "this session was answered, and the answer is no longer kept")
        state = self._learn(request, state, settle)
        if state.replied is not None and state.replied.opened is not None and not session.instead_of:
            return self._opened(run, state)
        own = session.keys.get(self.identity.number)
        known = None if state.keys is None else state.keys.public
        if own is not None and own.seq <= state.seq and (own != known or own.alone != self.rules.alone):
            return self._keys(run, state)  # used ones, or of before the organisation changed what it accepts
        self._check(request, state, session)
        words, failed, first_measured = compute(state.base)
        if first_measured:
            with _refusing():
                self._check_whole(session.members, session, ())
        state, masked = protocol.reply(self._member(run), state, session, words.view(np.uint64), failed)
        content = self._encoded(run, "masked", messages.masked_arrays(masked))
        self.store.save(run, state, content, first_measured, request.leaving)
        return content

    def open(self, stage: Stage) -> bytes:
        """The answer in exchange 2; DataError if it is refused."""
        session, heads = messages.heads_of(stage.arrays)
        state = self.store.load(stage.run)
        after, _ = protocol.open_(self._member(stage.run), state, session, heads)
        if after is not state:
            assert after.replied is not None
            opened = after.replied.session
            leaving = self.store.leaving(stage.run)
            first = self.store.first_measured(stage.run)
            among = opened.members if first else whole_among(opened, leaving)
            if self.identity.number in among or leaving:
                judging = () if first else opened.members if leaving else among
                self.store.add_whole_sum(self.origins, self._check_whole(among, opened, judging))
                self._note_everybody()
            self.store.save(stage.run, after)
        return self._opened(stage.run, after)

    def _learn(self, request: Request, state: MemberState, settle: Callable[[bool], None]) -> MemberState:
        assert request.invitation is not None
        with _refusing():
            after, counted = protocol.learn(self._member(request.run), state, request.invitation.certificates)
        if after.certified != state.certified:
            settle(counted is True and state.replied is not None and state.replied.session.kept)
            self.store.save(request.run, after)
        return after

    def _check(self, request: Request, state: MemberState, session: Session) -> None:
        assert request.invitation is not None
        with _refusing():
            protocol.check(self._member(request.run), state, session, request.invitation.proofs)
            among = whole_among(session, request.leaving)
            if self.identity.number in among or request.leaving:
                self._check_whole(among, session, session.members if request.leaving else among)

    def _check_whole(self, among: Members, session: Session, judging: Members) -> Members:
        """Refuse a sum of whole contributions that shows those of a few who do not accept it; returns their places.

        `judging` are the members that check this sum, each for itself.
        """
        place = self.identity.place
        places, known = tuple(map(place, among)), self.store.whole_sums(self.origins)
        visible = {place(number) for number, keys in session.keys.items() if keys.alone} | self.identity.visible
        others = {place(one) for one in judging if one != self.identity.number}
        whole_sums.check(known, places, self._least(among), visible, others)
        return places

    def _note_everybody(self) -> None:
        """Note the sum over all members of the run: not if it would be refused, since nobody has agreed to it yet."""
        everybody, known = tuple(map(self.identity.place, self.identity.pinned)), self.store.whole_sums(self.origins)
        try:
            whole_sums.check(known, everybody, self.rules.smallest, self.identity.visible)
        except DataError:
            return
        self.store.add_whole_sum(self.origins, everybody)

    def _least(self, among: Members) -> int:
        """The smallest set of members that this one accepts to be shown; if others leave, as one of those that stay."""
        if self.identity.number in among:
            return self.rules.smallest
        stay = len(self.identity.pinned) - len(among)
        return smallest_group(stay, self.identity.min_cohort)

    def _member(self, run: str) -> Member:
        return Member(run, self.identity.number, self.identity.key, self.identity.pinned, self.rules)

    def _keys(self, run: str, state: MemberState) -> bytes:
        after, keys = protocol.hello(self._member(run), state)
        if after is not state:
            self.store.save(run, after)
        return self._encoded(run, "keys", messages.keys_arrays(keys, after.certified))

    def _opened(self, run: str, state: MemberState) -> bytes:
        replied = state.replied
        assert replied is not None
        assert replied.opened is not None
        return self._encoded(run, "opened", messages.opened_arrays(replied.session.hash, replied.opened))

    def _encoded(self, run: str, stage: str, arrays: messages.Arrays) -> bytes:
        return encode_stage(Stage(run, self.identity.number, stage, arrays))


@contextmanager
def _refusing() -> Iterator[None]:
    """What the protocol refuses, with its status."""
    try:
        yield
    except StoreError:
        raise
    except SnapshotError as error:
        raise RefusedError("lost-state", f"{error}: restore the newest state folder, or ask for a new run") from None
    except DataError as error:
        raise RefusedError("not-hidden", str(error)) from None


def whole_among(session: Session, leaving: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The members whose input to this sum is whole: statistics of all of them, first contributions, or what is taken
    out."""
    if leaving:
        return tuple(member for member in session.members if member in leaving)
    return tuple(member for member, base in session.bases.items() if not session.kept or base == NO_SUM)


def check_base(task: str, base: int, committed: State | None) -> None:
    """Refuse to add a change to a state that is not of the base: a whole contribution would stand out among changes."""
    if task == "measure" and base == NO_SUM:
        raise RefusedError("wrong-round", "nothing of this node is counted yet, so there is nothing to measure")
    if (base == NO_SUM) != (committed is None):
        here, there = "no contribution" if committed is None else "a contribution", base or "none"
        said = f"the state of this run holds {here}, and the last sum with one of this node is {there}"
        raise RefusedError("lost-state", f"{said}: restore the newest state folder, or ask for a new run")


def measures_first(broadcast: Broadcast, committed: State | None) -> bool:
    """Whether a measurement is asked for, and none of this node is counted in the run."""
    return (broadcast.measured or broadcast.task == "measure") and not is_measured(committed)


def origins_of(ratings: str, shard: Shard) -> list[str]:
    """What whole contributions are computed from: this organisation's data, whenever they were read.

    Any of these binds. New ratings do not free what older ones bind: from one month to the next, most stay the same, so
    that a sum with a newcomer, set against last month's sum, still shows the newcomer. Hashes of the data are kept too,
    as earlier versions did.
    """
    tables = {_origin(matrix) for matrix in (shard.by_user, shard.incidence)}
    return [one for one in (ALWAYS, ratings, *sorted(tables)) if one]


def _origin(matrix: sparse.csr_array) -> str:
    """A hash of who rated what, whatever the number of columns."""
    found = hashlib.sha256(digest(matrix.shape[0]))
    for part in (matrix.indptr, matrix.indices):  # not by `digest`, which would copy them
        found.update(digest(part.dtype.str, part.size))
        found.update(np.ascontiguousarray(part).data)
    return found.hexdigest()
