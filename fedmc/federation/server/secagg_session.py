"""The server's way through a session of secure aggregation: five questions to the nodes, and in the end their sum.

Who does not answer, or answers what cannot be right, is a drop-out of the session; the sum is that of the nodes whose
words arrived. Too many drop-outs, and nothing is unmasked.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedmc.algorithms.messages import CHANGING, Broadcast, Sums
from fedmc.errors import DataError, TooFewError
from fedmc.federation import secagg_messages
from fedmc.federation.secagg_messages import Arrays, Stage, encode_stage, read_stage
from fedmc.federation.wire import OK, STATUS, Invitation, decode_reply, from_bytes
from fedmc.privacy.secagg.protocol import AbortedError, Advert, Collector, threshold_of
from fedmc.training.fixed_point import to_sums

if TYPE_CHECKING:
    from fedmc.federation.server.engine import FederatedEngine

T = TypeVar("T")

SESSIONS = 12  # tries at a round: a node that dies within a session takes its keys with it
SMALL = 100_000  # bytes, and some for each member: of every message but the masked words


def collect(engine: FederatedEngine, cast: Broadcast, asked: list[int]) -> Sums:
    """One session; AbortedError where too few were left."""
    return _Session(engine, cast, asked).run()


class _Session:
    def __init__(self, engine: FederatedEngine, cast: Broadcast, asked: list[int]) -> None:
        # All at the start: a sum once seen is asked for among the same again, so that two cannot be subtracted.
        all_of_them = cast.round == 0 or not engine.joined
        quorum = len(asked) if all_of_them else min(engine.quorum, len(asked))
        self.engine, self.cast, self.asked = engine, cast, asked
        self.needed, self.sent, self.diverged = max(quorum, threshold_of(len(asked))), 0, 0
        self.invitation = Invitation(secrets.token_hex(16), tuple(asked), self.needed)
        session = secagg_messages.session_of(engine.asking(asked[0], cast, self.invitation), engine.items)
        self.collector = Collector(session, engine.pinned)

    def run(self) -> Sums:
        collector = self.collector
        adverts = collector.take_adverts(self._invite())
        sealed = collector.take_sealed(
            self._ask(
                "share",
                dict.fromkeys(collector.adverts, secagg_messages.from_adverts(adverts)),
                _table(secagg_messages.SEALED),
            )
        )
        for_masks = {
            member: secagg_messages.from_table(shares, secagg_messages.SEALED) for member, shares in sealed.items()
        }
        survivors = collector.take_hidden(self._ask("mask", for_masks, lambda member, arrays: arrays["words"]))
        listed = dict.fromkeys(survivors, secagg_messages.from_members(survivors))
        signatures = collector.take_signatures(
            self._ask("confirm", listed, lambda member, arrays: secagg_messages.to_signature(arrays))
        )
        proof = dict.fromkeys(signatures, secagg_messages.from_table(signatures, secagg_messages.SIGNATURE))
        revealed = self._ask("reveal", proof, secagg_messages.to_revealed)
        try:
            total = collector.unmask(revealed)
            sums = to_sums(total.view(np.int64), self.cast, self.engine.items, self.sent)
            return self._checked(sums, survivors)
        except DataError as error:  # somebody lied, and one cannot say who
            raise AbortedError(str(error)) from None

    def _invite(self) -> dict[int, Advert]:
        contents = {k: self.engine.request(k, self.cast, self.invitation) for k in self.asked}
        answers = self.engine.transport.exchange(contents, SMALL, self.needed)
        found = self._valid("advertise", answers, self.asked, _advert, self._check_advert)
        self.engine.stop_if_diverged(self.diverged, self.asked, self.cast)
        if len(found) < self.needed:  # asking again would not help: they were waited for
            missing = self.engine.reasons(len(self.asked) - len(found))
            there = f"{len(found)} of {len(self.asked)} nodes take part, {self.needed} must"
            raise TooFewError(f"round {self.cast.round}: {there} ({missing})")
        return found

    def _check_advert(self, member: int, advert: Advert) -> None:
        self.collector.check_advert(member, advert)
        if advert.new != (self.cast.task in CHANGING and member not in self.engine.joined):
            raise DataError("it joins twice" if advert.new else "it never joined")

    def _ask(self, stage: str, arrays: Mapping[int, Arrays], read: Callable[[int, Arrays], T]) -> dict[int, T]:
        """One stage: ask these members, and keep the answers that are right."""
        token = self.invitation.token
        contents = {k: encode_stage(Stage(token, k, stage, part)) for k, part in arrays.items()}
        words = 8 * self.collector.session.length if stage == "mask" else 0
        answers = self.engine.transport.exchange(contents, SMALL + 200 * len(arrays) + words, self.needed)
        checks: dict[str, Callable[[int, Any], None]] = {
            "share": self.collector.check_sealed, "mask": self.collector.check_hidden,
            "confirm": self.collector.check_signature, "reveal": self.collector.check_revealed,
        }  # fmt: skip
        return self._valid(stage, answers, list(arrays), read, checks[stage])

    def _valid(
        self,
        stage: str,
        answers: Mapping[int, bytes],
        asked: list[int],
        read: Callable[[int, Arrays], T],
        check: Callable[[int, Any], None],
    ) -> dict[int, T]:
        found: dict[int, T] = {}
        for member in asked:
            if member not in answers:
                self.engine.leave_out(member, self.cast, f"no answer to {stage} in time")
                continue
            self.sent += len(answers[member])
            try:
                value = read(member, self._arrays(stage, member, answers[member]))
                check(member, value)
                found[member] = value
            except Exception as error:  # whatever a stranger's bytes can bring about
                self.engine.leave_out(member, self.cast, f"{stage}: {error}")
        return found

    def _arrays(self, stage: str, member: int, content: bytes) -> Arrays:
        arrays, words = from_bytes(content)
        if "stage" not in words:
            status = decode_reply(arrays, words).status
            self.diverged += status == "diverged"
            raise DataError(STATUS.get(status, "an unknown status"))
        said = read_stage(content)
        if said.status != OK:
            raise DataError(STATUS.get(said.status, "an unknown status"))
        if (said.token, said.client, said.stage) != (self.invitation.token, member, stage):
            raise DataError("an answer to another question")
        return said.arrays

    def _checked(self, sums: Sums, survivors: tuple[int, ...]) -> Sums:
        if "joined" in sums.parts:
            expected = sum(member not in self.engine.joined for member in survivors)
            if sums.number("joined") != expected:
                raise DataError(f"{sums.number('joined'):g} nodes say that they are new, {expected} are")
        return Sums(sums.parts, sums.sent, survivors)


def _advert(member: int, arrays: Arrays) -> Advert:
    (advert,) = secagg_messages.to_adverts(arrays)
    return advert


def _table(size: int) -> Callable[[int, Arrays], dict[int, bytes]]:
    return lambda member, arrays: secagg_messages.to_table(arrays, size)
