"""An organisation's node: a shard, a store, and contributions that count exactly once.

    request for                            answer
    anybody, not signed by the server      refused before it is parsed; so is what comes again
    the pending round                      the stored reply, the same bytes
    an earlier round                       refused as late; nothing is changed
    a later round                          commit the pending state if the server counted it, else roll it back;
                                           compute the update, store state and reply together, then send the reply
    the end of the run                     write the organisation's own model from V and its own users
    any other task                         computed from the committed state; no new state is stored
    a secure-aggregation session           as above, but the answer is an advert and the reply is masked later

Error texts stay in the node's own log: the server gets only a status.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedmc.algorithms.messages import STATEFUL_TASKS, Sums
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.state import State
from fedmc.algorithms.users import users_at
from fedmc.data.partition import Shard
from fedmc.errors import DataError, Diverged, FedmcError
from fedmc.federation.envelope import Opened
from fedmc.federation.node.checks import Terms, check
from fedmc.federation.node.reading import read, read_request, read_stage, refusal
from fedmc.federation.node.refusals import RefusedError, log
from fedmc.federation.node.replays import Replays
from fedmc.federation.node.secagg_member import OnceAmong, SecAggMember
from fedmc.federation.node.store import Ended, Entry, Kind, Store, StoreError
from fedmc.federation.node.trust import NOBODY, Trust
from fedmc.federation.secagg_messages import Stage, encode_stage
from fedmc.federation.statuses import DIVERGED, OK
from fedmc.federation.wire import Header, Reply, Request, encode_reply, to_bytes
from fedmc.privacy.dp.ledger import Ledger, OverBudgetError
from fedmc.privacy.protocol import MODES
from fedmc.training.aggregation import aggregation_of, flat
from fedmc.types import Array

Work = Callable[[Shard], tuple[State | None, bytes]]


class Node:
    """`ratings` is the hash of the shard's content, `accepted` the privacy modes that the organisation agreed to.

    `on_finish` gets the last V, and this node's users fitted to it.
    """

    def __init__(
        self,
        shard: Shard,
        catalogue: str,
        store: Store,
        ratings: str = "",
        on_finish: Callable[[Request, Array], None] = lambda request, U: None,
        *,
        trust: Trust = NOBODY,
        accepted: Sequence[str] = MODES,
        ledger: Ledger | None = None,
    ) -> None:
        self.shard, self.store, self.on_finish, self.ledger = shard, store, on_finish, ledger
        self.trust, self.replays = trust, Replays(store)
        self.terms = Terms(shard, catalogue, ratings, accepted, trust.identity, store)
        self._last: tuple[tuple[str, int] | None, bytes] = None, b""  # the last stateless request, and its reply
        self._member: SecAggMember | None = None

    def answer_bytes(self, sealed: bytes) -> bytes:
        """Answer what the server signed for this node. Any other message is refused before it is parsed.

        Only an error in the store, the ledger or the shard is raised, so no message can end the node.
        """
        try:
            return self.answer_opened(self.trust.open(sealed))
        except RefusedError as refused:
            return refusal(refused, {})
        except StoreError:
            raise
        except Exception as error:
            log.exception("a message of the server failed")
            return refusal(RefusedError("failed", f"{type(error).__name__}: {error}"), {})

    def answer_opened(self, opened: Opened) -> bytes:
        """Answer a message whose signature is valid; one that cannot be read, or is an old one, gets a status."""
        header: Header = {}
        try:
            arrays, header = read(opened.content)
            if "stage" in header:
                return self._answer_stage(read_stage(arrays, header))
            request = read_request(arrays, header)
            self.replays.admit(request.run, opened, request.broadcast.task == "finish")
        except RefusedError as refused:
            return refusal(refused, header)
        return self.answer(request)

    def answer(self, request: Request) -> bytes:
        """The answer to a request of the server. A StoreError is raised: the node must stop, and sends nothing."""
        what = f"{request.broadcast.task} {request.broadcast.round} of run {request.run}"
        try:
            check(self.terms, request)
            return self._answer_directly(request) if request.invitation is None else self._join_session(request)
        except RefusedError as refused:
            refused.log(what)
            return _bytes(request, refused.status)
        except StoreError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()  # a database takes it
            how = Ended(DIVERGED if isinstance(error, Diverged) else "failed", why)
            log.error("%s failed (%s): %s", what, *how, exc_info=how.status != DIVERGED)
            if request.broadcast.settings.privacy.failures_tell:
                log.error("this node takes no further part in run %s: a second failure could tell more", request.run)
                self.store.end(request.run, how)
            return _bytes(request, how.status)

    # --- replies without secure aggregation

    def _answer_directly(self, request: Request) -> bytes:
        broadcast = request.broadcast
        stateful = broadcast.task in STATEFUL_TASKS
        pending = self._entry(request, "pending")
        if stateful and pending.round == broadcast.round and pending.key == request.key:
            assert pending.reply is not None
            return pending.reply
        if not self._stale(request, pending) and self._last[0] == (request.key, request.counted):
            return self._last[1]
        before = self._committed(request, pending).state
        if broadcast.task == "finish":
            return self._finish(request, before)

        def work(shard: Shard) -> tuple[State | None, bytes]:
            state, sums = aggregation_of(broadcast.settings.privacy).reply(shard, before, broadcast)
            return state, _bytes(request, OK, sums)

        state, reply = self._release(request, work)
        if stateful:
            self.store.hold(request.run, Entry(broadcast.round, state, request.key, reply))
        else:
            self._last = (request.key, request.counted), reply  # a repeated request is not computed twice
        return reply

    def _finish(self, request: Request, before: State | None) -> bytes:
        """Write the organisation's model, once: a run that was finished stays finished, with the same model."""
        done = self.replays.finished(request.run)
        if done is None:
            self.on_finish(request, users_at(self._numbered(request), before, request.broadcast))
            self.replays.finish(request.run, request.key)
        elif done != request.key:
            raise RefusedError("wrong-round", "the run has finished here with another model")
        return _bytes(request, OK, Sums.of())

    # --- secure aggregation

    def _join_session(self, request: Request) -> bytes:
        """Compute the reply now and answer with an advert, so that the later stages are quick."""
        assert self.terms.identity is not None
        if self._member is not None and self._member.asked == request.hash():
            return self._member.advert  # a repeated request: the same session, the same keys
        reply, new = self._fixed_point_reply(request)
        try:
            self._member = SecAggMember(self.terms.identity, request, reply, new, OnceAmong(self.store, reply))
        except FedmcError as error:
            raise RefusedError("not-hidden", str(error)) from None
        return self._member.advert

    def _fixed_point_reply(self, request: Request) -> tuple[Array, bool]:
        """The reply as integers, and whether it is this node's first contribution."""
        broadcast = request.broadcast
        stateful = broadcast.task in STATEFUL_TASKS
        pending = self._entry(request, "pending")
        again = pending.round == broadcast.round > request.counted and pending.key == request.key
        if stateful and again:
            committed = self._entry(request, "committed")
            if committed.round != request.counted:
                raise RefusedError("wrong-round", f"round {committed.round} is committed, not {request.counted}")
            return np.frombuffer(pending.reply or b"", np.int64), committed.state is None
        before = self._committed(request, pending).state

        def work(shard: Shard) -> tuple[State | None, bytes]:
            state, sums = aggregation_of(broadcast.settings.privacy).reply(shard, before, broadcast)
            return state, flat(sums, schema_of(broadcast, len(broadcast.V))).tobytes()

        state, content = self._release(request, work)
        if stateful:
            self.store.hold(request.run, Entry(broadcast.round, state, request.key, content))
        return np.frombuffer(content, np.int64), before is None and stateful

    def _answer_stage(self, stage: Stage) -> bytes:
        member, what = self._member, f"stage {stage.stage!r} of session {stage.token[:8]!r}"
        refused = RefusedError("no-session", "there is no such session here: the node restarted, or it was replaced")
        if member is not None and (member.token, member.number) == (stage.token, stage.client):
            what += f" ({member.about})"
            try:
                return member.answer(stage)
            except StoreError:
                raise
            except Exception as error:  # ours, and whatever strange arrays bring about
                refused = RefusedError("not-hidden", str(error))
        refused.log(what)
        return encode_stage(Stage(stage.token, stage.client, stage.stage, {}, refused.status))

    # --- steps that all requests share

    def _release(self, request: Request, work: Work) -> tuple[State | None, bytes]:
        """The new state and the reply. A noised reply is a release: the ledger records, repeats or refuses it."""
        broadcast, shard = request.broadcast, self._numbered(request)
        multiplier = broadcast.settings.make_algorithm().noise_multiplier(broadcast)
        if multiplier is None:
            return work(shard)
        if self.ledger is None:
            raise RefusedError("over-budget", "config.toml sets no epsilon, so nothing may be spent")
        done: list[tuple[State | None, bytes]] = []

        def make() -> bytes:
            done.append(work(shard))
            return done[0][1]

        try:
            content = self.ledger.release(f"{request.run}/{request.key}", multiplier, make)
        except OverBudgetError as error:
            raise RefusedError("over-budget", str(error)) from None
        except DataError as error:  # the ledger's file is damaged, or cannot be written
            raise StoreError(str(error)) from None
        state = (done or [work(shard)])[0][0]  # a repeated release: only the state is used, not the noise
        return state, content

    def _entry(self, request: Request, kind: Kind) -> Entry:
        return self.store.get(request.run, kind, request.broadcast.settings.make_algorithm())

    def _stale(self, request: Request, pending: Entry) -> bool:
        """Whether a newer request has overtaken this one, such as a repetition that arrived late."""
        committed, broadcast = self._entry(request, "committed").round, request.broadcast
        late = broadcast.task in STATEFUL_TASKS and broadcast.round <= max(committed, pending.round - 1)
        return request.counted < committed or late

    def _committed(self, request: Request, pending: Entry) -> Entry:
        """The committed entry, after committing or rolling back the pending one as the request's `counted` says."""
        stateful = request.broadcast.task in STATEFUL_TASKS
        if self._stale(request, pending):
            asked = f"the request is for round {request.broadcast.round} and says that {request.counted} was counted"
            here = f"here round {self._entry(request, 'committed').round} is committed, {pending.round} is pending"
            raise RefusedError("wrong-round", f"{asked}; {here}")
        committed = self._entry(request, "committed")
        if request.counted not in (committed.round, pending.round):
            raise RefusedError(
                "lost-state",
                f"the server counted round {request.counted} of this node, but its own state is of round "
                f"{committed.round}: restore the state folder from a backup, or ask for a new run",
            )
        if stateful and request.counted >= request.broadcast.round:
            raise RefusedError("wrong-round", f"round {request.counted} is committed already")
        if pending.state is not None and request.counted == pending.round:
            aggregation = aggregation_of(request.broadcast.settings.privacy)
            counted = aggregation.commit(pending.state, committed.state, request.factor)
            self.store.promote(request.run, None if counted is pending.state else counted)
        elif pending.state is not None and stateful:
            self.store.drop(request.run)
        return self._entry(request, "committed")

    def _numbered(self, request: Request) -> Shard:
        """The shard under the number that the server gave this node; the number seeds its initial factors."""
        if self.shard.client != request.client:
            self.shard = self.shard.renumbered(request.client)
        return self.shard


def _bytes(request: Request, status: str, sums: Sums | None = None) -> bytes:
    broadcast = request.broadcast
    return to_bytes(*encode_reply(Reply(request.run, request.client, broadcast.round, broadcast.task, status, sums)))
