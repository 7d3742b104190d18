"""An organisation's node: a shard, a store, and contributions that count exactly once.

    request for                            answer
    anybody, not signed by the server      refused before it is parsed; so is what comes again
    the pending round                      the stored reply, the same bytes
    an earlier round                       refused as late; nothing is changed
    a later round                          commit the pending state if the server counted it, else roll it back;
                                           compute the update, store state and reply together, then send the reply
    the end of the run                     write the organisation's own model from V and its own users
    any other task                         computed from the committed state; no new state is stored
    a secure-aggregation session           as above, but the reply is masked, and the certificate of the sum before,
                                           not the server's word, says what was counted

Error texts stay in the node's own log: the server gets only a status.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from fedmc.algorithms.messages import STATEFUL_TASKS, Sums, length
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.errors import Diverged, quoted
from fedmc.federation.envelope import Opened
from fedmc.federation.news import News
from fedmc.federation.node import withdrawing
from fedmc.federation.node.checks import Terms, check, check_not_ended, ends_quietly
from fedmc.federation.node.entries import Entries
from fedmc.federation.node.final import bind
from fedmc.federation.node.guard import Guard
from fedmc.federation.node.memberships import Memberships
from fedmc.federation.node.reading import read, refusal
from fedmc.federation.node.refusals import Refusals, RefusedError, log
from fedmc.federation.node.releases import Work, in_whole_steps, released
from fedmc.federation.node.replays import Replays
from fedmc.federation.node.replies import about, reply_to
from fedmc.federation.node.secagg_member import Input, SecAggMember, check_base, measures_first, origins_of
from fedmc.federation.node.store import Ended, Entry, Store, StoreError, TooLargeError
from fedmc.federation.node.trust import NOBODY, Trust
from fedmc.federation.node.turns import Turns
from fedmc.federation.secagg_messages import Stage, encode_stage, is_kept
from fedmc.federation.setup.identities import Identity
from fedmc.federation.setup.policy import DEFAULT, Policy
from fedmc.federation.statuses import DIVERGED, OK
from fedmc.federation.wire import NEVER, Reply, Request, encode_reply, to_bytes
from fedmc.privacy.dp.ledger import Ledger
from fedmc.training.aggregation import aggregation_of
from fedmc.types import Array


class Node:
    """`ratings` is the hash of the shard's content, `policy` what the organisation agreed to.

    `on_finish` gets the last V, and this node's users fitted to it. A ledger that does not fit the store is refused.
    `on_news`, which may be set, is told what the server says besides requests.
    """

    def __init__(
        self,
        shard: Shard,
        catalogue: str,
        store: Store,
        ratings: str = "",
        on_finish: Callable[[Request, Array, State | None], None] = lambda request, U, state: None,
        *,
        trust: Trust = NOBODY,
        policy: Policy = DEFAULT,
        ledger: Ledger | None = None,
    ) -> None:
        self.shard, self.store, self.on_finish, self.ledger = shard, store, on_finish, ledger
        self.on_news: Callable[[News], None] = lambda news: None
        self.trust, self.replays, self.refusals = trust, Replays(store), Refusals(store.journal)
        self.turns, self.entries = Turns(store), Entries(store)
        memberships = Memberships(store, trust.identity, trust.own)
        self.terms = Terms(shard, catalogue, ratings, policy, memberships, store)
        self._last: tuple[tuple[str, int] | None, bytes] = None, b""  # the last stateless request, and its reply
        if ledger is not None:
            Guard(store, ledger).check()

    def answer_bytes(self, sealed: bytes) -> bytes:
        """Answer what the server signed for this node. Any other message is refused before it is parsed.

        Only an error in the store, the ledger or the shard is raised, so no message can end the node.
        """
        try:
            return self.answer_opened(self.trust.open(sealed))
        except RefusedError as refused:
            return refusal(refused, {}, self.refusals)
        except StoreError:
            raise
        except Exception as error:
            log.exception("a message of the server failed")
            return refusal(RefusedError("failed", f"{type(error).__name__}: {error}"), {}, self.refusals)

    def answer_opened(self, opened: Opened) -> bytes:
        """Answer a message whose signature is valid; one that cannot be read, or is an old one, gets a status."""
        found = read(opened.content, self.refusals)
        if isinstance(found, bytes):
            return found
        if isinstance(found, Stage):
            return self._answer_stage(found)
        if isinstance(found, News):
            return self._take_in(found)
        try:
            self.replays.admit(found.run, opened, found.broadcast.task == "finish")
        except RefusedError as refused:
            return self._refused(found, refused)
        return self.answer(found)

    def answer(self, request: Request) -> bytes:
        """The answer to a request of the server. A StoreError is raised: the node must stop, and sends nothing."""
        try:
            check(self.terms, request)
            if request.invitation is not None:
                return self._join_session(request)
            return self._finish_quietly(request) if ends_quietly(request) else self._answer_directly(request)
        except RefusedError as refused:
            return self._refused(request, refused)
        except StoreError:
            raise
        except Exception as error:
            return reply_to(request, self._end(request, error).status)

    def _take_in(self, news: News) -> bytes:
        """Take in a longer list of members or a larger catalogue; what does not follow the known one is refused."""
        try:
            self.on_news(news)
        except RefusedError as refused:
            return refusal(refused, {}, self.refusals)
        return to_bytes(*encode_reply(Reply("", NEVER, NEVER, "", OK, Sums.of())))

    # --- replies without secure aggregation

    def _answer_directly(self, request: Request) -> bytes:
        broadcast = request.broadcast
        stateful = broadcast.task in STATEFUL_TASKS
        pending = self.entries.entry(request, "pending")
        if stateful and pending.round == broadcast.round and pending.key == request.key:
            assert pending.reply is not None
            return pending.reply
        if not self.entries.is_stale(request, pending) and self._last[0] == (request.key, request.counted):
            return self._last[1]
        if broadcast.task == "finish":
            return self._finish(request, self.entries.counted(request, pending))
        before = self.entries.committed(request, pending).state

        def work(shard: Shard) -> tuple[State | None, bytes]:
            state, sums = aggregation_of(broadcast.settings.privacy).reply(
                shard, before, self.terms.with_own_objective(broadcast)
            )
            return state, reply_to(request, OK, sums)

        state, reply = self._release(request, work)
        if stateful:
            self._hold(request, state, reply)
        else:
            self._last = (request.key, request.counted), reply  # a repeated request is not computed twice
        return reply

    def _finish(self, request: Request, before: State | None) -> bytes:
        """Write the organisation's model, once: a run that was finished stays finished, with the same model."""
        done, known = self.replays.finished(request.run), self.store.journal.known(request.run)
        if done is None and (known is None or known.finished is None):
            own, shard = self.terms.with_own_objective(request.broadcast), self._numbered(request)
            algorithm = own.settings.make_algorithm()
            U = algorithm.users_at(shard, before, own)
            self.on_finish(request._replace(broadcast=own), algorithm.prediction_users(shard, U, own), before)
            self.replays.finish(request.run, request.key)
            self.store.journal.finish(request.run, self.terms.now())
        elif done != request.key:
            raise RefusedError("wrong-round", "the run has finished here with another model")
        return reply_to(request, OK, Sums.of())

    def _finish_quietly(self, request: Request) -> bytes:
        """The end of a run. The answer says only that it came: how it went may tell who failed, or why."""
        try:
            check_not_ended(self.store, request.run)
            self._answer_directly(request)
        except (StoreError, OSError):
            raise
        except RefusedError as refused:
            self.refusals.add(refused, about(request), request.run)
        except Exception:
            log.exception("%s: no model was written", about(request))
        return reply_to(request, OK, Sums.of())

    # --- secure aggregation

    @cached_property
    def _origins(self) -> list[str]:
        return origins_of(self.terms.ratings, self.shard)

    def _member(self, identity: Identity | None) -> SecAggMember:
        """This node as a member of a run."""
        assert identity is not None
        if self.terms.policy.departed_visible:
            identity = identity._replace(visible=identity.departed)
        return SecAggMember(self.store, identity, self.terms.policy.alone_visible, self._origins)

    def _join_session(self, request: Request) -> bytes:
        """The masked reply. What is counted is decided by certificates."""

        def settle(counted: bool) -> None:
            pending = self.entries.entry(request, "pending")
            if pending.state is not None and counted:
                self.store.promote(request.run)
            elif pending.state is not None:
                self.store.drop(request.run)

        member = self._member(self.terms.memberships.of(request))
        return member.answer(request, settle, lambda base: self._input(request, base))

    def _input(self, request: Request, base: int) -> Input:
        """The reply as integers. A failure that may depend on the ratings is not told: it travels inside the sum."""
        bind(self.store, request)
        nothing = Input(np.zeros(length(schema_of(request.broadcast, len(request.broadcast.V))), np.int64), failed=True)
        if self.store.ended(request.run) is not None:
            return nothing
        try:
            known = self.entries.entry(request, "committed").state
            return Input(self._fixed_point_reply(request, base), False, measures_first(request.broadcast, known))
        except (RefusedError, StoreError):
            raise
        except Exception as error:
            self._end(request, error)
            return nothing

    def _fixed_point_reply(self, request: Request, base: int) -> Array:
        """The reply as integers; a repeated session of the same request gets the same ones."""
        kept = is_kept(request)
        pending, before = self.entries.entry(request, "pending"), self.entries.entry(request, "committed").state
        if kept:
            check_base(request.broadcast.task, base, before)
        if kept and pending.reply is not None and pending.key == request.key:
            return np.frombuffer(pending.reply, np.int64)
        withdrawing.check_in(request, before)
        if request.leaving:
            identity, own = self.terms.memberships.of(request), self.trust.own
            left = None if own is None else own.departure
            assert identity is not None
            state, content = withdrawing.reply(request, identity.number, left, before)
        else:
            state, content = self._release(request, in_whole_steps(request, before, self.terms.with_own_objective))
        if kept:
            self._hold(request, state, content)
        return np.frombuffer(content, np.int64)

    def _answer_stage(self, stage: Stage) -> bytes:
        refused = RefusedError("no-session", "there is no such session here")
        identity = self.terms.memberships.of_run(stage.run)
        if identity is not None and (stage.stage, stage.client) == ("open", identity.number):
            try:
                return self._member(identity).open(stage)
            except StoreError:
                raise
            except Exception as error:  # ours, and whatever a stranger's arrays bring about
                refused = RefusedError("not-hidden", str(error))
        self.refusals.add(refused, f"stage {quoted(stage.stage)} of run {quoted(stage.run)}")
        return encode_stage(Stage(stage.run, stage.client, stage.stage, {}, refused.status))

    # --- steps that all requests share

    def _end(self, request: Request, error: Exception) -> Ended:
        """Log a failure; where failures may tell something about the ratings, it is this run's last at this node."""
        why = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()  # a database takes it
        how = Ended(DIVERGED if isinstance(error, Diverged) else "failed", why)
        log.error("%s failed (%s): %s", about(request), *how, exc_info=how.status != DIVERGED)
        if request.broadcast.settings.privacy.failures_tell:
            log.error("this node takes no further part in run %s: a second failure could tell more", request.run)
            self.store.end(request.run, how)
        return how

    def _refused(self, request: Request, refused: RefusedError) -> bytes:
        """Log a refusal; the reply that names its status."""
        self.refusals.add(refused, about(request), request.run)
        return reply_to(request, refused.status)

    def _release(self, request: Request, work: Work) -> tuple[State | None, bytes]:
        if request.broadcast.task in (*STATEFUL_TASKS, "pattern"):
            self.turns.take(request, self.terms.policy.max_rounds)
        return released(request, self._numbered(request), work, self.store, self.ledger)

    def _hold(self, request: Request, state: State | None, reply: bytes) -> None:
        try:
            self.store.hold(request.run, Entry(request.broadcast.round, state, request.key, reply))
        except TooLargeError as error:
            raise RefusedError("wrong-settings", f"{error}: lower the rank, or ask for another algorithm") from None

    def _numbered(self, request: Request) -> Shard:
        """The shard under the number that the server gave this node; the number seeds its initial factors."""
        if self.shard.client != request.client:
            self.shard = self.shard.renumbered(request.client)
        return self.shard
