"""The server's side of a secure-aggregation session: five exchanges with the nodes, which yield their sum.

A node that does not answer, or whose answer is refused, is a drop-out of the session. The sum is over the survivors,
whose masked inputs arrived. With too many drop-outs nothing is unmasked.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from fedmc.algorithms.messages import STATEFUL_TASKS, Broadcast, Sums
from fedmc.algorithms.schema import schema_of
from fedmc.errors import DataError, TooFewError, UnmeasuredError, reason
from fedmc.federation import secagg_messages as messages
from fedmc.federation.secagg_messages import Arrays, Stage, encode_stage, read_stage
from fedmc.federation.server.asking import Asking, log
from fedmc.federation.statuses import DIVERGED, OK, explain
from fedmc.federation.wire import Invitation, decode_reply, from_bytes
from fedmc.privacy.secagg.aggregator import Aggregator
from fedmc.privacy.secagg.session import AbortedError, Advert, threshold_of
from fedmc.training.fixed_point import decoded
from fedmc.types import Array

T = TypeVar("T")

SESSIONS = 12  # tries per round: a node that dies within a session loses its session keys
SMALL = 100_000  # bytes: bound on every message but the masked inputs, plus some for each member


def ask_securely(asking: Asking, broadcast: Broadcast, asked: list[int]) -> Sums:
    """The sum of the nodes' replies; a session with too many drop-outs is repeated with new keys."""
    if broadcast.task != "measure":
        return _ask(asking, broadcast, asked)
    try:
        _check_nobody_missing(asking, broadcast.round)
        return _ask(asking, broadcast, asked)
    except TooFewError as error:
        log.warning("round %s is not measured, that takes all nodes: %s", broadcast.round, error)
        raise UnmeasuredError(str(error)) from None


def _check_nobody_missing(asking: Asking, number: int) -> None:
    """Do not wait for a node again that has just been missed in the round."""
    left_out = {one.client for one in asking.absent if one.round == number and asking.counted.get(one.client) != number}
    if left_out:
        names = ", ".join(map(asking.members.name, sorted(left_out)))
        raise TooFewError(f"{names} did not take part in the round")


def _ask(asking: Asking, broadcast: Broadcast, asked: list[int]) -> Sums:
    why = ""
    for _ in range(SESSIONS):
        try:
            return SecAggSession(asking, broadcast, asked).run()
        except AbortedError as error:
            why = str(error)
            log.warning("round %s, %s: %s", broadcast.round, broadcast.task, why)
    raise TooFewError(f"round {broadcast.round}: {why} ({asking.reasons(len(asked))})")


class SecAggSession:
    """One session; AbortedError if too few members are left."""

    def __init__(self, asking: Asking, broadcast: Broadcast, asked: list[int]) -> None:
        # At the start and in measurements all nodes must take part, so that every session has the same members: sums
        # over different members could be subtracted.
        everybody = broadcast.round == 0 or not asking.counted or broadcast.task == "measure"
        quorum = len(asked) if everybody else min(asking.members.quorum, len(asked))
        self.asking, self.broadcast, self.asked = asking, broadcast, asked
        self.needed, self.sent, self.diverged = max(quorum, threshold_of(len(asked))), 0, 0
        self.invitation = Invitation(secrets.token_hex(16), tuple(asked), self.needed)
        request = asking.request(asked[0], broadcast, self.invitation)
        self.aggregator = Aggregator(messages.session_of(request, asking.members.items), asking.members.pinned)

    def run(self) -> Sums:
        aggregator, ask = self.aggregator, self._ask
        adverts = aggregator.take_adverts(self._invite())
        listed = dict.fromkeys(aggregator.adverts, messages.from_adverts(adverts))
        sealed = aggregator.take_sealed(ask("share", listed, _table(messages.SEALED), aggregator.check_sealed))
        for_masks = {member: messages.from_table(shares, messages.SEALED) for member, shares in sealed.items()}
        survivors = aggregator.take_hidden(ask("mask", for_masks, _masked, aggregator.check_hidden))
        alive = dict.fromkeys(survivors, messages.from_members(survivors))
        signatures = aggregator.take_signatures(ask("confirm", alive, _signature, aggregator.check_signature))
        proof = dict.fromkeys(signatures, messages.from_table(signatures, messages.SIGNATURE))
        revealed = ask("reveal", proof, messages.to_revealed, aggregator.check_revealed)
        try:
            total = aggregator.unmask(revealed)
            schema = schema_of(self.broadcast, self.asking.members.items)
            return self._checked(decoded(total.view(np.int64), schema, self.sent), survivors)
        except DataError as error:  # a member lied, and the sum does not show which one
            raise AbortedError(str(error)) from None

    def _invite(self) -> dict[int, Advert]:
        contents = {k: self.asking.encoded(k, self.broadcast, self.invitation) for k in self.asked}
        answers = self.asking.exchange(contents, SMALL, self.needed)
        found = self._valid("advertise", answers, self.asked, _one_advert, self._check_advert)
        self.asking.witness_releases(found, self.broadcast)
        self.asking.stop_if_diverged(self.diverged, self.asked, self.broadcast)
        if len(found) < self.needed:  # a new session would not help: the wait for the others is over
            missing = self.asking.reasons(len(self.asked) - len(found))
            there = f"{len(found)} of {len(self.asked)} nodes take part, {self.needed} must"
            raise TooFewError(f"round {self.broadcast.round}: {there} ({missing})")
        return found

    def _check_advert(self, member: int, advert: Advert) -> None:
        self.aggregator.check_advert(member, advert)
        if advert.new != (self.broadcast.task in STATEFUL_TASKS and member not in self.asking.counted):
            raise DataError("it joins twice" if advert.new else "it never joined")

    def _ask(
        self,
        stage: str,
        arrays: Mapping[int, Arrays],
        read: Callable[[int, Arrays], T],
        check: Callable[[int, T], None],
    ) -> dict[int, T]:
        """One stage: ask these members, and keep the valid answers."""
        token = self.invitation.token
        contents = {k: encode_stage(Stage(token, k, stage, part)) for k, part in arrays.items()}
        masked = 8 * self.aggregator.session.length if stage == "mask" else 0
        answers = self.asking.exchange(contents, SMALL + 200 * len(arrays) + masked, self.needed)
        return self._valid(stage, answers, list(arrays), read, check)

    def _valid(
        self,
        stage: str,
        answers: Mapping[int, bytes],
        asked: list[int],
        read: Callable[[int, Arrays], T],
        check: Callable[[int, T], None],
    ) -> dict[int, T]:
        found: dict[int, T] = {}
        for member in asked:
            if member not in answers:
                self.asking.leave_out(member, self.broadcast, f"no answer to {stage} in time")
                continue
            self.sent += len(answers[member])
            try:
                value = read(member, self._arrays(stage, member, answers[member]))
                check(member, value)
                found[member] = value
            except Exception as error:  # malformed bytes can raise anything
                self.asking.leave_out(member, self.broadcast, f"{stage}: {reason(error)}")
        return found

    def _arrays(self, stage: str, member: int, content: bytes) -> Arrays:
        arrays, words = from_bytes(content)
        if "stage" not in words:
            reply = decode_reply(arrays, words)
            self.diverged += reply.status == DIVERGED
            raise DataError(self.asking.explain(reply))
        said = read_stage(content)
        if said.status != OK:
            raise DataError(explain(said.status))
        if (said.token, said.client, said.stage) != (self.invitation.token, member, stage):
            raise DataError("an answer to another question")
        return said.arrays

    def _checked(self, sums: Sums, survivors: tuple[int, ...]) -> Sums:
        if "joined" in sums.parts:
            expected = sum(member not in self.asking.counted for member in survivors)
            if sums.number("joined") != expected:
                raise DataError(f"{sums.number('joined'):g} nodes say that they are new, {expected} are")
        return replace(sums, clients=survivors)


def _one_advert(member: int, arrays: Arrays) -> Advert:
    (advert,) = messages.to_adverts(arrays)
    return advert


def _table(size: int) -> Callable[[int, Arrays], dict[int, bytes]]:
    return lambda member, arrays: messages.to_table(arrays, size)


def _masked(member: int, arrays: Arrays) -> Array:
    return arrays["words"]


def _signature(member: int, arrays: Arrays) -> bytes:
    return messages.to_signature(arrays)
