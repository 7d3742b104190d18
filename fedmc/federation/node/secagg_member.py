"""A node's part in one session of secure aggregation. Its session keys are kept in memory only.

The node answers a repeated stage message with the same bytes. It refuses a second, different message for a stage, and
stages out of order. A node that was killed has lost its session, and the server starts a new one.
"""

from __future__ import annotations

import numpy as np

from fedmc.errors import DataError, quoted
from fedmc.federation import secagg_messages as messages
from fedmc.federation.node.final import OnceAmong
from fedmc.federation.secagg_messages import Arrays, Stage, encode_stage
from fedmc.federation.setup.identities import Identity
from fedmc.federation.wire import Request
from fedmc.privacy.secagg.member import Member
from fedmc.privacy.secagg.serial import digest
from fedmc.types import Array


class SecAggMember:
    """One session: the reply to mask, and the answers given so far."""

    def __init__(self, identity: Identity, request: Request, reply: Array, new: bool, once: OnceAmong) -> None:
        assert request.invitation is not None
        session = messages.session_of(request, len(request.broadcast.V))
        self.token, self.number, self.asked = request.invitation.token, identity.number, request.hash()
        self.about = f"{request.broadcast.task} {request.broadcast.round} of run {request.run}"  # for the log
        self._member = Member(identity.number, identity.key, identity.pinned, session, identity.min_cohort, new)
        self._reply, self._once = reply.view(np.uint64), once
        self._survivors: tuple[int, ...] = ()
        self._answered: dict[str, tuple[bytes, bytes]] = {}  # by stage: hash of the message, answer
        self.advert = self._encoded("advertise", messages.from_adverts([self._member.advertise()]))

    def answer(self, stage: Stage) -> bytes:
        """The answer to a stage after the first; DataError or AbortedError if it is refused."""
        asked = digest(*stage)
        if stage.stage in self._answered:
            before, reply = self._answered[stage.stage]
            if before != asked:
                raise DataError(f"stage {stage.stage} was asked for twice, differently")
            return reply
        if stage.stage not in messages.FOLLOWING:
            raise DataError(f"there is no stage {quoted(stage.stage)}")
        reply = self._encoded(stage.stage, getattr(self, f"_{stage.stage}")(stage.arrays))
        self._answered[stage.stage] = asked, reply
        return reply

    def _share(self, arrays: Arrays) -> Arrays:
        return messages.from_table(self._member.share(messages.to_adverts(arrays)), messages.SEALED)

    def _mask(self, arrays: Arrays) -> Arrays:
        return {"words": self._member.mask(messages.to_table(arrays, messages.SEALED), self._reply)}

    def _confirm(self, arrays: Arrays) -> Arrays:
        survivors = tuple(sorted(messages.to_members(arrays)))
        self._once.before_confirm(survivors)
        self._survivors = survivors
        return messages.from_signature(self._member.confirm(survivors))

    def _reveal(self, arrays: Arrays) -> Arrays:
        revealed = self._member.reveal(messages.to_table(arrays, messages.SIGNATURE))
        self._once.before_reveal(self._survivors)
        return messages.from_revealed(revealed)

    def _encoded(self, stage: str, arrays: Arrays) -> bytes:
        return encode_stage(Stage(self.token, self.number, stage, arrays))
