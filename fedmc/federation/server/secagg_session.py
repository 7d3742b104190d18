"""The server's side of secure aggregation: two exchanges with the nodes of a cohort, which yield their sum.

A node that does not answer in exchange 1 is left out, and the others are asked again as a smaller cohort, if that hides
them. After exchange 2 has begun, the cohort is final: the session is repeated until enough of its members have opened
it. Nodes answer a repeated message with the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from fedmc.algorithms.messages import Broadcast, Schema, Sums
from fedmc.algorithms.schema import schema_of
from fedmc.errors import DataError, Diverged, TooFewError, UnmeasuredError, reason
from fedmc.federation import secagg_messages as messages
from fedmc.federation.logs import with_fields
from fedmc.federation.secagg_messages import Stage, encode_stage, read_stage, session_of
from fedmc.federation.server.asking import Asking, log
from fedmc.federation.server.cohorts import Cohorts
from fedmc.federation.statuses import DIVERGED, OK, explain
from fedmc.federation.wire import Invitation, decode_reply, from_bytes
from fedmc.privacy.secagg.aggregator import Aggregator, MisdealtError, Unmasked
from fedmc.privacy.secagg.rules import losses_of
from fedmc.privacy.secagg.session import NO_SUM, Invited, Proof, Session
from fedmc.training.fixed_point import decoded

T = TypeVar("T")

SESSIONS = 12  # attempts per sum: each loss in exchange 1 costs one
RENEWALS = 2  # times that a member may send keys instead of a masked input; honest ones do it once for a sum
STARTING = ("moments", "scale", "pattern", "start")  # asked for before the first checkpoint
SMALL = 100_000  # bytes: bound on every message but the masked inputs, plus some for each member


def ask_securely(asking: Asking, broadcast: Broadcast, asked: list[int]) -> Sums:
    """The sum of the nodes' replies."""
    try:
        return SecureAsk(asking, broadcast, asked).run()
    except TooFewError as error:
        if broadcast.task != "measure":
            raise
        log.warning("round %s is not measured: %s", broadcast.round, error, extra=with_fields(round=broadcast.round))
        raise UnmeasuredError(str(error)) from None


class SecureAsk:
    """One sum: sessions with ever smaller cohorts, until one is opened."""

    def __init__(self, asking: Asking, broadcast: Broadcast, asked: list[int]) -> None:
        self.asking, self.broadcast, self.asked = asking, broadcast, asked
        self.record, self.sent, self.diverged = asking.record, 0, 0
        self.renewed = Counter[int]()
        self.kept = broadcast.task in messages.KEPT_TASKS
        measures = broadcast.measured or broadcast.task == "measure"
        self.cohorts = Cohorts(broadcast.settings.privacy, asking.members, asking.record, measures)

    def run(self) -> Sums:
        record, content = self.record, self._content()
        kept = record.kept(content)
        if kept is not None:
            return replace(decoded(kept, self._schema(), 0), clients=tuple(self.asked))
        self._check_record()
        session = self._begun(content) or self._propose(self.asked)
        for _ in range(SESSIONS):
            aggregator = Aggregator(session, self.asking.members.pinned)
            self._mask(session, aggregator)
            if aggregator.missing():
                session = self._again(session, aggregator)
                continue
            record.open()
            try:
                return self._sums(session, self._open(session, aggregator))
            except MisdealtError as error:
                session = self._without(session, error.proofs)
        raise TooFewError(f"round {self.broadcast.round}: {self.broadcast.task} took more than {SESSIONS} attempts")

    # --- which session

    def _check_record(self) -> None:
        """Refuse to go on if nodes have contributed to sums that this server does not know of."""
        if self.asking.counted and not self.record.certified:
            raise DataError(
                f"run {self.asking.run} has no record of its secure sums: its file secagg.json was lost, or an earlier "
                "version began it; start a new run"
            )

    def _begun(self, content: bytes) -> Session | None:
        """The session of this request that an earlier process began, or this one before an error.

        One that nobody can have opened is begun anew instead, with new keys: what a member accepts may have changed.
        """
        session, record = self.record.session, self.record
        if session is None or session.content != content or not set(session.members) <= set(self.asked):
            return None
        return session if record.opening or session.instead_of else None

    def _content(self) -> bytes:
        return bytes.fromhex(self.asking.request(self.asked[0], self.broadcast).common)

    def _propose(self, cohort: Collection[int], instead_of: bytes = b"", proofs: tuple[Proof, ...] = ()) -> Session:
        """A new session over a cohort that hides its members; TooFewError if none does."""
        record = self.record
        if record.opening and not record.done and not instead_of:
            raise TooFewError(
                f"sum {record.certified + 1} of run {self.asking.run} was begun with another request, and may have "
                "been opened: start a new run"
            )
        chosen = self.cohorts.choose(cohort, cohort if instead_of else self.asked, self.kept, self._missing)
        self._get_keys(chosen)
        there = [member for member in chosen if member in record.keys]
        if len(there) < len(chosen):
            chosen = self.cohorts.choose(there, chosen if instead_of else self.asked, self.kept, self._missing)
        invited = tuple(Invited(record.keys[member], record.bases.get(member, NO_SUM)) for member in chosen)
        before = record.session
        attempt = before.attempt + 1 if before is not None and before.number == record.certified + 1 else 1
        previous = record.certificates[record.certified].hash if record.certified else b""
        invitation = Invitation(
            record.certified + 1, attempt, invited, losses_of(len(chosen)), previous, instead_of, (), proofs
        )
        request = self.asking.request(chosen[0], self.broadcast, invitation)
        session = session_of(request, self.asking.members.items)
        record.begin(session, proofs)
        return session

    def _again(self, session: Session, aggregator: Aggregator) -> Session:
        """After losses in exchange 1: the members that have replied, and those that have sent new keys."""
        if self.record.opening:
            missing = ", ".join(map(self.asking.members.name, aggregator.missing()))
            raise TooFewError(f"round {self.broadcast.round}: {missing} must come back: its sum is being unmasked")
        there = [member for member in session.members if member in self.record.keys]
        if session.instead_of and len(there) < len(session.members):
            raise self._missing(len(session.members), len(there))
        return self._propose(there, session.instead_of, self.record.proofs)

    def _without(self, session: Session, proofs: tuple[Proof, ...]) -> Session:
        guilty = {proof.head.member for proof in proofs}
        for member in sorted(guilty):
            self.asking.leave_out(member, self.broadcast, "it dealt wrong shares, by its own signature")
        self.record.misdealt |= guilty
        return self._propose(set(session.members) - guilty, session.hash, proofs)

    def _missing(self, needed: int, there: int) -> TooFewError:
        reasons = self.asking.reasons(len(self.asked))
        said = f"{there} of {len(self.asked)} nodes take part, {needed} must"
        return TooFewError(f"round {self.broadcast.round}: {said} ({reasons})")

    # --- the exchanges

    def _get_keys(self, cohort: Collection[int]) -> None:
        """Ask members for one-time keys if none are known that they have not used."""
        without = [member for member in cohort if member not in self.record.keys]
        if not without:
            return
        contents = {k: self.asking.encoded(k, self.broadcast, Invitation()) for k in without}
        answers = self.asking.exchange(contents, SMALL, len(without))
        self._valid("keys", answers, without, self._take_keys)
        self.asking.stop_if_diverged(self.diverged, self.asked, self.broadcast)

    def _mask(self, session: Session, aggregator: Aggregator) -> None:
        """Exchange 1."""
        record = self.record
        invitation = Invitation(
            session.number, session.attempt, session.invited, session.losses, session.previous, session.instead_of,
            (), record.proofs,
        )  # fmt: skip
        contents = {
            k: self.asking.encoded(k, self.broadcast, invitation._replace(certificates=record.for_member(k)))
            for k in session.members
        }
        most = SMALL + 200 * len(contents) + 9 * session.length
        needed = len(contents) if record.opening else self.cohorts.least(session.members, self.asked, self.kept)

        def take(member: int, stage: Stage) -> None:
            if stage.stage == "masked":
                aggregator.take_masked(member, messages.masked_of(stage.arrays, session.members))
                record.replied(member, aggregator.masked[member].head.next)
            elif stage.stage == "opened":
                raise DataError("it has opened another session of this sum, which this server does not know")
            else:
                self._renew(member, stage)

        answers = self.asking.exchange(contents, most, needed)
        self._valid("masked", answers, list(contents), take)
        self.asking.witness_releases(aggregator.masked, self.broadcast)
        self.asking.stop_if_diverged(self.diverged, self.asked, self.broadcast)

    def _open(self, session: Session, aggregator: Aggregator) -> Unmasked:
        """Exchange 2."""
        arrays = messages.open_arrays(session.hash, aggregator.heads())
        contents = {k: encode_stage(Stage(session.run, k, "open", arrays)) for k in session.members}

        def take(member: int, stage: Stage) -> None:
            which, opened = messages.opened_of(stage.arrays)
            if which != session.hash:
                raise DataError("it has opened another session of this sum, which this server does not know")
            aggregator.take_opened(member, opened)

        answers = self.asking.exchange(contents, SMALL, session.needed)
        self._valid("opened", answers, list(contents), take)
        if len(aggregator.opened) < session.needed:
            raise self._missing(session.needed, len(aggregator.opened))
        try:
            return aggregator.unmask()
        except DataError as error:  # a member lied, and nothing shows which one
            raise Diverged(
                self.broadcast.round, str(error), "start a new run, without organisations that lie"
            ) from None

    def _renew(self, member: int, stage: Stage) -> None:
        """Keys instead of a masked input: the ones in the session were used. Who repeats that would never be done."""
        self.renewed[member] += 1
        if self.renewed[member] > RENEWALS:
            raise DataError(f"it sent new keys {self.renewed[member]} times instead of a masked input")
        self._take_keys(member, stage)

    def _take_keys(self, member: int, stage: Stage) -> None:
        keys, known = messages.keys_of(stage.arrays)
        if keys.member != member:
            raise DataError(f"keys of {keys.member} came from {member}")
        keys.check(self.asking.run, self.asking.members.pinned)
        keys.check_usable()
        self.record.take_keys(keys)
        self.record.knows(member, known)

    def _valid(
        self,
        expected: str,
        answers: Mapping[int, bytes],
        asked: list[int],
        take: Callable[[int, Stage], None],
    ) -> list[int]:
        """The members whose answers were taken; the others are left out, with a line in the log."""
        found = []
        for member in asked:
            if member not in answers:
                self.asking.leave_out(member, self.broadcast, f"no answer ({expected}) in time")
                continue
            self.sent += len(answers[member])
            try:
                take(member, self._stage(member, answers[member]))
                found.append(member)
            except Exception as error:  # malformed bytes can raise anything
                self.asking.leave_out(member, self.broadcast, f"{expected}: {reason(error)}")
        return found

    def _stage(self, member: int, content: bytes) -> Stage:
        arrays, words = from_bytes(content)
        if "stage" not in words:
            reply = decode_reply(arrays, words)
            self.diverged += reply.status == DIVERGED
            raise DataError(self.asking.explain(reply))
        said = read_stage(content)
        if said.status != OK:
            raise DataError(explain(said.status))
        if (said.run, said.client) != (self.asking.run, member):
            raise DataError("an answer to another question")
        return said

    # --- the sum

    def _sums(self, session: Session, unmasked: Unmasked) -> Sums:
        newcomers = sum(session.bases[member] == NO_SUM for member in session.members)
        self.record.measured |= set(session.members) if self.cohorts.measures else set()
        self.record.certify(unmasked.certificate)
        if unmasked.failed:
            cause = "a node could not compute its part; the sum does not say which one: each finds out in its own log"
            raise Diverged(self.broadcast.round, cause, self.broadcast.settings.make_algorithm().remedy)
        words = self.asking.measurements.added(unmasked.words.view(np.int64), self.broadcast, self._schema())
        sums = decoded(words, self._schema(), self.sent)
        newcomers -= len(set(self.asking.leaving) & set(session.members))
        if "joined" in sums.parts and sums.number("joined") != newcomers:
            cause = f"{sums.number('joined'):g} nodes say that they are new, {newcomers} are"
            raise Diverged(self.broadcast.round, cause, "start a new run, without organisations that lie")
        if self.broadcast.task in STARTING:
            self.record.keep(session, words)
        return replace(sums, clients=session.members)

    def _schema(self) -> Schema:
        return schema_of(self.broadcast, self.asking.members.items)
