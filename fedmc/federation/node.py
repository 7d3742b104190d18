"""One organisation's side: a shard, a store, and answers that count once.

    asked for a round that is pending      the stored reply, the same bytes
    asked for an earlier one               nothing is touched: a question that came late
    asked for a later one                  the pending state is committed if the server counted it, else dropped;
                                           then the work is done, state and reply are written, and the reply leaves
    told that the run is over              the organisation's own model is written, of V and its own users
    asked for anything else                done from what is committed; nothing is written

Every error ends here, in the node's own log: the server gets a status word.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from fedmc import __version__
from fedmc.client import respond, users_at
from fedmc.errors import DataError, Diverged
from fedmc.federation.store import Entry, Store
from fedmc.federation.wire import (
    NEVER,
    OK,
    RUN,
    Reply,
    Request,
    decode,
    encode_reply,
    from_bytes,
    hash_of,
    to_bytes,
)
from fedmc.messages import CHANGING, Broadcast, Sums
from fedmc.partition import Shard

Array = NDArray[Any]
log = logging.getLogger("fedmc.node")

TASKS = ("moments", "scale", "start", "round", "measure", "finish")


class Node:
    """`ratings` names the shard's content; `on_finish` hears of the last V, and of this node's users fitted to it."""

    def __init__(
        self,
        shard: Shard,
        catalogue: str,
        store: Store,
        ratings: str = "",
        on_finish: Callable[[Request, Array], None] = lambda request, U: None,
    ) -> None:
        self.shard, self.catalogue, self.store, self.ratings, self.on_finish = (
            shard, catalogue, store, ratings, on_finish,
        )  # fmt: skip
        self._said: tuple[tuple[str, int] | None, bytes] = None, b""

    def answer_bytes(self, content: bytes) -> bytes:
        """As `answer`, of a request's bytes; bytes that are none get a status word."""
        try:
            arrays, words = from_bytes(content)
            if words.get("version") != __version__:
                log.warning("refused a message of version %s, this is %s", words.get("version"), __version__)
                return to_bytes(*encode_reply(_nobody("wrong-version", words)))
            request = decode(arrays, words)
        except DataError as error:
            log.warning("refused a message: %s", error)
            return to_bytes(*encode_reply(_nobody("wrong-settings", {})))
        return self.answer(request)

    def answer(self, request: Request) -> bytes:
        """The reply's bytes. An error in the store or the shard is raised: the node must stop, and sends nothing."""
        cast = request.cast
        status = self._refusal(request)
        if status is not None:
            log.warning("refused round %s of run %s: %s", cast.round, request.run, status)
            return _bytes(request, status)
        pending = self.store.get(request.run, "pending")
        if cast.task in CHANGING and pending.round == cast.round and pending.key == request.key:
            assert pending.reply is not None
            return pending.reply
        if self._stale(request, pending):
            return _bytes(request, "wrong-round")
        if self._said[0] == (request.key, request.counted):
            return self._said[1]
        committed = self._settle(request, pending)
        if cast.task in CHANGING and committed.round >= cast.round:
            return _bytes(request, "wrong-round")
        shard = self._numbered(request)
        try:
            if cast.task == "finish":
                self.on_finish(request, users_at(shard, committed.state, cast))
                state, sums = committed.state, Sums.of()
            else:
                state, sums = respond(shard, committed.state, cast)
        except Diverged as error:
            log.error("round %s of run %s: %s", cast.round, request.run, error)
            return _bytes(request, "diverged")
        reply = _bytes(request, OK, sums)
        if cast.task in CHANGING:
            self.store.hold(request.run, Entry(cast.round, state, request.key, reply))
        else:
            self._said = (request.key, request.counted), reply  # asked twice, it is not worked out twice
        return reply

    def _refusal(self, request: Request) -> str | None:
        """Why a request is not even looked at, in a word."""
        cast: Broadcast = request.cast
        if request.version != __version__:
            return "wrong-version"
        n = self.shard.by_user.shape[1]
        if cast.V.ndim != 2:
            return "wrong-settings"
        if request.catalogue != self.catalogue or cast.V.shape[0] != n:
            return "wrong-catalogue"
        if cast.task not in TASKS or cast.V.shape[1] != cast.settings.width or not 0 <= request.client < cast.clients:
            return "wrong-settings"
        if not re.fullmatch(RUN, request.run):  # it names a file here
            return "wrong-settings"
        ratings, settings = self.store.begun_with(request.run, self.ratings, hash_of(cast.settings))
        if settings != hash_of(cast.settings):
            return "wrong-settings"
        return None if ratings == self.ratings else "changed-ratings"

    def _stale(self, request: Request, pending: Entry) -> bool:
        """Whether a request is older than what the server has said since: asked twice, the second came late."""
        committed = self.store.get(request.run, "committed").round
        changing = request.cast.task in CHANGING and request.cast.round <= max(committed, pending.round - 1)
        return request.counted < committed or changing

    def _settle(self, request: Request, pending: Entry) -> Entry:
        """What is committed, by the server's word on what it counted."""
        if pending.state is not None and request.counted >= pending.round:
            self.store.promote(request.run)
        elif pending.state is not None and request.cast.task in CHANGING:
            self.store.drop(request.run)
        committed = self.store.get(request.run, "committed")
        if committed.round != request.counted:
            raise DataError(
                f"the server counted round {request.counted} of this node in run {request.run}, but its own state is "
                f"of round {committed.round}: it was lost, or is another's. Restore it, or leave the run and join anew"
            )
        return committed

    def _numbered(self, request: Request) -> Shard:
        """The shard under the number that the server knows this node by: its start is drawn from that."""
        if self.shard.client != request.client:
            self.shard = Shard(
                request.client, self.shard.users, self.shard.by_user, self.shard.rated, self.shard.by_rated,
                self.shard.test, self.shard.validation,
            )  # fmt: skip
        return self.shard


def _nobody(status: str, words: dict[str, Any]) -> Reply:
    """To a message that could not be read as a request."""
    try:
        return Reply(str(words["run"]), int(words["client"]), int(words["round"]), str(words["task"]), status)
    except (KeyError, TypeError, ValueError):
        return Reply("", NEVER, NEVER, "", status)


def _bytes(request: Request, status: str, sums: Sums | None = None) -> bytes:
    cast = request.cast
    return to_bytes(*encode_reply(Reply(request.run, request.client, cast.round, cast.task, status, sums)))
