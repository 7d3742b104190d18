"""A node's seat in one session of secure aggregation: its keys live here, in memory, for as long as the session.

Asked the same twice, it says the same bytes; asked anything else twice, or out of turn, it refuses. A node that was
killed has lost its seat, and the server begins a new session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedmc.errors import DataError
from fedmc.federation import secagg_messages
from fedmc.federation.secagg_messages import Arrays, Stage, encode_stage
from fedmc.federation.wire import Request
from fedmc.privacy.secagg.protocol import Member
from fedmc.types import Array


class Identity(NamedTuple):
    """Who a node is among whom: its key, everybody's public keys by their numbers, and how many it wants to be."""

    number: int
    key: Ed25519PrivateKey
    pinned: Mapping[int, Ed25519PublicKey]
    min_cohort: int

    def __repr__(self) -> str:
        return f"Identity({self.number} of {len(self.pinned)})"


class Seat:
    """`on_list` hears the list of survivors before it is confirmed, `on_reveal` before the reply leaves."""

    def __init__(
        self,
        identity: Identity,
        request: Request,
        words: Array,
        new: bool,
        on_list: Callable[[tuple[int, ...]], None],
        on_reveal: Callable[[tuple[int, ...]], None],
    ) -> None:
        assert request.invitation is not None
        session = secagg_messages.session_of(request, len(request.cast.V))
        self.token, self.number, self.asked = request.invitation.token, identity.number, request.hash()
        self._member = Member(identity.number, identity.key, identity.pinned, session, identity.min_cohort, new)
        self._words, self._on_list, self._on_reveal = words.view(np.uint64), on_list, on_reveal
        self._survivors: tuple[int, ...] = ()
        self._said: dict[str, tuple[bytes, bytes]] = {}  # by stage: what was asked, what was answered
        self.advert = self._encoded("advertise", secagg_messages.from_adverts([self._member.advertise()]))

    def answer(self, stage: Stage) -> bytes:
        """The reply to a stage after the first; DataError or AbortedError where it is refused."""
        asked = hashlib.sha256(encode_stage(stage)).digest()
        if stage.stage in self._said:
            before, reply = self._said[stage.stage]
            if before != asked:
                raise DataError(f"stage {stage.stage} was asked for twice, differently")
            return reply
        if stage.stage not in secagg_messages.FOLLOWING:
            raise DataError(f"there is no stage {stage.stage!r}")
        reply = self._encoded(stage.stage, getattr(self, f"_{stage.stage}")(stage.arrays))
        self._said[stage.stage] = asked, reply
        return reply

    def _share(self, arrays: Arrays) -> Arrays:
        return secagg_messages.from_table(
            self._member.share(secagg_messages.to_adverts(arrays)), secagg_messages.SEALED
        )

    def _mask(self, arrays: Arrays) -> Arrays:
        return {"words": self._member.mask(secagg_messages.to_table(arrays, secagg_messages.SEALED), self._words)}

    def _confirm(self, arrays: Arrays) -> Arrays:
        survivors = tuple(sorted(secagg_messages.to_members(arrays)))
        self._on_list(survivors)
        self._survivors = survivors
        return secagg_messages.from_signature(self._member.confirm(survivors))

    def _reveal(self, arrays: Arrays) -> Arrays:
        revealed = self._member.reveal(secagg_messages.to_table(arrays, secagg_messages.SIGNATURE))
        self._on_reveal(self._survivors)
        return secagg_messages.from_revealed(revealed)

    def _encoded(self, stage: str, arrays: Arrays) -> bytes:
        return encode_stage(Stage(self.token, self.number, stage, arrays))
