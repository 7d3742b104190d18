"""One organisation's side: a shard, a store, and answers that count once.

    asked for a round that is pending      the stored reply, the same bytes
    asked for an earlier one               nothing is touched: a question that came late
    asked for a later one                  the pending state is committed if the server counted it, else dropped;
                                           then the work is done, state and reply are written, and the reply leaves
    told that the run is over              the organisation's own model is written, of V and its own users
    asked for anything else                done from what is committed; nothing is written
    invited to a session                   the same, but the answer is an advert, and what was asked for leaves masked

Every error ends here, in the node's own log: the server gets a status word.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmc import __version__
from fedmc.algorithms.client import respond, users_at
from fedmc.algorithms.messages import CHANGING, Broadcast, Sums
from fedmc.algorithms.settings import PRIVACY
from fedmc.data.partition import Shard
from fedmc.errors import DataError, Diverged, FedmcError
from fedmc.federation.node.checks import RefusedError, check
from fedmc.federation.node.store import Entry, Store
from fedmc.federation.wire import NEVER, OK, Reply, Request, decode, encode_reply, from_bytes, to_bytes
from fedmc.privacy.dp.ledger import Ledger, OverBudgetError
from fedmc.training.clipping import settle
from fedmc.training.fixed_point import difference, parts_of, respond_in_words
from fedmc.types import Array

if TYPE_CHECKING:
    from fedmc.federation.node.secagg_member import Identity, Seat

log = logging.getLogger("fedmc.node")


class Node:
    """`ratings` names the shard's content, `accepted` the kinds of privacy that the organisation agreed to.

    `on_finish` hears of the last V, and of this node's users fitted to it.
    """

    def __init__(
        self,
        shard: Shard,
        catalogue: str,
        store: Store,
        ratings: str = "",
        on_finish: Callable[[Request, Array], None] = lambda request, U: None,
        *,
        identity: Identity | None = None,
        accepted: Sequence[str] = PRIVACY,
        ledger: Ledger | None = None,
    ) -> None:
        self.shard, self.catalogue, self.store, self.ratings, self.on_finish = (
            shard, catalogue, store, ratings, on_finish,
        )  # fmt: skip
        self.identity, self.accepted, self.ledger = identity, accepted, ledger
        self._said: tuple[tuple[str, int] | None, bytes] = None, b""
        self._seat: Seat | None = None

    def answer_bytes(self, content: bytes) -> bytes:
        """As `answer`, of a request's bytes; bytes that are none get a status word."""
        try:
            arrays, words = from_bytes(content)
            if "stage" in words:
                return self._answer_stage(arrays, words)
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
        try:
            check(self, request)
            return self._answer_plainly(request) if request.invitation is None else self._take_seat(request)
        except RefusedError as refused:
            log.warning("refused round %s of run %s: %s", request.cast.round, request.run, refused)
            return _bytes(request, str(refused))
        except DataError:
            raise  # the store or the shard is not what it should be
        except Exception as error:
            status = "diverged" if isinstance(error, Diverged) else "failed"
            log.error("round %s of run %s: %s", request.cast.round, request.run, error or type(error).__name__)
            if request.cast.settings.privacy != "plain":
                self.store.end(request.run, status)  # what fails may depend on the ratings: it tells that much, once
            return _bytes(request, status)

    # --- plain

    def _answer_plainly(self, request: Request) -> bytes:
        cast = request.cast
        pending = self.store.get(request.run, "pending")
        if cast.task in CHANGING and pending.round == cast.round and pending.key == request.key:
            assert pending.reply is not None
            return pending.reply
        if not self._stale(request, pending) and self._said[0] == (request.key, request.counted):
            return self._said[1]
        committed = self._settled(request, pending)
        if cast.task == "finish":
            self.on_finish(request, users_at(self._numbered(request), committed.state, cast))
            return _bytes(request, OK, Sums.of())
        state, reply = self._worked(request, lambda shard: _reply(request, _sums(shard, committed.state, cast)))
        if cast.task in CHANGING:
            self.store.hold(request.run, Entry(cast.round, state, request.key, reply))
        else:
            self._said = (request.key, request.counted), reply  # asked twice, it is not worked out twice
        return reply

    # --- secure aggregation

    def _take_seat(self, request: Request) -> bytes:
        """Do the work now, and answer with an advert: what follows is quick, and nobody waits for it."""
        from fedmc.federation.node.secagg_member import Seat

        assert self.identity is not None
        if self._seat is not None and self._seat.asked == request.hash():
            return self._seat.advert  # asked twice: the same seat, the same keys
        words, new = self._in_words(request)
        try:
            self._seat = Seat(self.identity, request, words, new, *self._once_among(words))
        except FedmcError as error:
            log.warning("round %s of run %s: %s", request.cast.round, request.run, error)
            raise RefusedError("not-hidden") from None
        return self._seat.advert

    def _once_among(self, words: Array) -> tuple[Callable[[tuple[int, ...]], None], Callable[[tuple[int, ...]], None]]:
        """(Before it is confirmed, before it is revealed): words are in sums among one list of members only."""
        name, something = hashlib.sha256(words.tobytes()).hexdigest(), bool(words.any())

        def on_list(survivors: tuple[int, ...]) -> None:
            before = self.store.revealed(name)
            if before is not None and before != survivors:
                raise DataError(f"the same words were in a sum of {before}: beside {survivors} they could be told")

        def on_reveal(survivors: tuple[int, ...]) -> None:
            if something:
                self.store.reveal(name, survivors)

        return on_list, on_reveal

    def _in_words(self, request: Request) -> tuple[Array, bool]:
        """What is asked for, as whole numbers, and whether it is this node's first contribution."""
        cast = request.cast
        pending = self.store.get(request.run, "pending")
        again = pending.round == cast.round > request.counted and pending.key == request.key
        if cast.task in CHANGING and again:
            committed = self.store.get(request.run, "committed")
            if committed.round != request.counted:
                raise RefusedError("wrong-round")
            before: Any = committed.state
            now: Any = pending.state
            kept = np.frombuffer(pending.reply or b"", np.int64)  # a release: the same noise again
            return kept if cast.settings.private else difference(now, before), before is None
        before = self._settled(request, pending).state
        state, content = self._worked(request, lambda shard: _words_of(respond_in_words(shard, before, cast)))
        if cast.task in CHANGING:
            release = content if cast.settings.private else b""
            self.store.hold(request.run, Entry(cast.round, state, request.key, release))
        return np.frombuffer(content, np.int64), before is None and cast.task in CHANGING

    def _worked(self, request: Request, work: Callable[[Shard], tuple[Any, bytes]]) -> tuple[Any, bytes]:
        """The new state and what leaves; noised, by the ledger, which refuses, or gives again what it gave before."""
        settings, shard = request.cast.settings, self._numbered(request)
        if not settings.private:
            return work(shard)
        if self.ledger is None:
            raise RefusedError("over-budget")
        method: Any = settings.make_method()
        done: list[Any] = []

        def make() -> bytes:
            done.append(work(shard))
            return bytes(done[0][1])

        try:
            name = f"{request.run}/{request.key}"
            content = self.ledger.release(name, method.multiplier(request.cast.round), make)
        except OverBudgetError as error:
            log.error("round %s of run %s: %s", request.cast.round, request.run, error)
            raise RefusedError("over-budget") from None
        state = (done or [work(shard)])[0][0]  # noise that was drawn for a release made before goes nowhere
        return state, content

    def _answer_stage(self, arrays: dict[str, Array], words: dict[str, Any]) -> bytes:
        from fedmc.federation.secagg_messages import Stage, decode_stage, encode_stage

        stage = decode_stage(arrays, words)
        seat, status = self._seat, "no-session"
        if seat is not None and (seat.token, seat.number) == (stage.token, stage.client):
            try:
                return seat.answer(stage)
            except (ValueError, TypeError, KeyError) as error:  # ours, and whatever a stranger's arrays bring about
                log.warning("refused stage %s of a session: %s", stage.stage, error)
                status = "not-hidden"
        return encode_stage(Stage(stage.token, stage.client, stage.stage, {}, status))

    # --- what every request goes through

    def _stale(self, request: Request, pending: Entry) -> bool:
        """Whether a request is older than what the server has said since: asked twice, the second came late."""
        committed = self.store.get(request.run, "committed").round
        changing = request.cast.task in CHANGING and request.cast.round <= max(committed, pending.round - 1)
        return request.counted < committed or changing

    def _settled(self, request: Request, pending: Entry) -> Entry:
        """What is committed, by the server's word on what it counted."""
        if self._stale(request, pending):
            raise RefusedError("wrong-round")
        if pending.state is not None and request.counted >= pending.round:
            self._promote(request, pending)
        elif pending.state is not None and request.cast.task in CHANGING:
            self.store.drop(request.run)
        committed = self.store.get(request.run, "committed")
        if committed.round != request.counted:
            raise DataError(
                f"the server counted round {request.counted} of this node in run {request.run}, but its own state is "
                f"of round {committed.round}: it was lost, or is another's. Restore it, or leave the run and join anew"
            )
        if request.cast.task in CHANGING and committed.round >= request.cast.round:
            raise RefusedError("wrong-round")
        return committed

    def _promote(self, request: Request, pending: Entry) -> None:
        """The pending state was counted, as much of it as the server says."""
        if request.cast.settings.clip:
            now: Any = pending.state
            before: Any = self.store.get(request.run, "committed").state
            self.store.promote(request.run, settle(now, before, request.factor))
        else:
            self.store.promote(request.run)

    def _numbered(self, request: Request) -> Shard:
        """The shard under the number that the server knows this node by: its start is drawn from that."""
        if self.shard.client != request.client:
            self.shard = Shard(
                request.client, self.shard.users, self.shard.by_user, self.shard.rated, self.shard.by_rated,
                self.shard.test, self.shard.validation,
            )  # fmt: skip
        return self.shard


def _sums(shard: Shard, state: Any, cast: Broadcast) -> tuple[Any, Sums]:
    """A client's turn; where changes are clipped, in whole numbers."""
    if not cast.settings.clip:
        return respond(shard, state, cast)
    after, words = respond_in_words(shard, state, cast)
    return after, Sums.of(**parts_of(words, cast, len(cast.V)))


def _reply(request: Request, turn: tuple[Any, Sums]) -> tuple[Any, bytes]:
    return turn[0], _bytes(request, OK, turn[1])


def _words_of(turn: tuple[Any, Array]) -> tuple[Any, bytes]:
    return turn[0], turn[1].tobytes()


def _nobody(status: str, words: dict[str, Any]) -> Reply:
    """To a message that could not be read as a request."""
    try:
        return Reply(str(words["run"]), int(words["client"]), int(words["round"]), str(words["task"]), status)
    except (KeyError, TypeError, ValueError):
        return Reply("", NEVER, NEVER, "", status)


def _bytes(request: Request, status: str, sums: Sums | None = None) -> bytes:
    cast = request.cast
    return to_bytes(*encode_reply(Reply(request.run, request.client, cast.round, cast.task, status, sums)))
