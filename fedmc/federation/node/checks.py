"""What a node refuses before it reads any rating, and the status that it sends to the server.

`statuses.STATUS` explains every status; the reason behind it goes to the node's own log, never to the server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.messages import TASKS, Broadcast
from fedmc.algorithms.objectives import OwnObjective
from fedmc.data.partition import Shard
from fedmc.errors import InputError, quoted
from fedmc.federation.node.limits import check_limits, check_settings
from fedmc.federation.node.memberships import Memberships
from fedmc.federation.node.policy import check_policy
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.node.sizes import check_sizes
from fedmc.federation.node.store import Store
from fedmc.federation.setup.policy import Policy
from fedmc.federation.statuses import WRONG_CATALOGUE
from fedmc.federation.wire import RUN, Request, hash_of
from fedmc.training.aggregation import aggregation_of
from fedmc.types import MAX_NUMBER, MIN_POSITIVE

EVERYBODY = ("moments", "scale", "pattern")  # statistics: a sum over some could be subtracted


class Terms(NamedTuple):
    """What a node checks requests against: its data, its identity, and what its organisation agreed to."""

    shard: Shard
    catalogue: str  # hash
    ratings: str  # hash of the shard's content
    policy: Policy
    memberships: Memberships
    store: Store
    now: Callable[[], float] = time.time
    own: OwnObjective | None = None  # the organisation's own penalty and loss

    def with_own_objective(self, broadcast: Broadcast) -> Broadcast:
        """A broadcast as this node answers it, with the organisation's own penalty and loss."""
        return broadcast if self.own is None else self.own.of(broadcast)


def check(terms: Terms, request: Request) -> None:
    """Refuse a request that does not fit; the cheapest checks come first."""
    check_form(terms, request)
    check_leaving(terms, request)
    check_numbers(request.broadcast)
    check_privacy(terms, request)
    check_feedback(terms.policy, request.broadcast)
    check_policy(terms.policy, terms.store.journal, request, terms.now())
    check_objective(terms, request.broadcast)
    try:
        request.broadcast.settings.make_algorithm().check_broadcast(request.broadcast)
        check_sizes(terms.shard, request)
    except InputError as error:
        raise RefusedError("wrong-settings", str(error)) from None
    if request.broadcast.settings.privacy.failures_tell:
        check_limits(request.broadcast)
    check_run(terms, request)


def check_objective(terms: Terms, broadcast: Broadcast) -> None:
    """Refuse a run in which the organisation's own penalty and loss have no meaning, or do not hold what they must."""
    try:
        own = terms.with_own_objective(broadcast)
        if terms.own is not None and broadcast.settings.privacy.failures_tell:
            check_settings(own.settings)
    except InputError as error:
        cure = "leave [objective] out of config.toml and restart the node, or ask for a run that has it"
        raise RefusedError("wrong-settings", f"[objective] of config.toml: {error}", cure) from None


def check_form(terms: Terms, request: Request) -> None:
    """Check catalogue, shapes and names. What is taken out of a sum is of the catalogue that the run had."""
    broadcast, leaving = request.broadcast, bool(request.leaving)
    items = len(broadcast.V) if leaving else terms.shard.by_user.shape[1]
    if leaving and (broadcast.task != "round" or request.invitation is None or broadcast.measured):
        raise RefusedError("malformed", f"{broadcast.task} came with members that leave, which only secure rounds have")
    if leaving and not broadcast.settings.make_algorithm().cumulative:
        raise RefusedError("wrong-settings", "the run's algorithm keeps no sum that a part could be taken out of")
    if request.catalogue != terms.catalogue and not leaving:
        hashes = f"the server's catalogue has the hash {request.catalogue[:12]!r}, this node's {terms.catalogue[:12]}"
        cure = "put the server's catalogue.json here, then `fedmc node start --reread`"
        raise RefusedError(WRONG_CATALOGUE, f"{hashes}: {cure}")
    _, width = broadcast.settings.make_algorithm().columns(broadcast.settings, items)
    if broadcast.V.shape != (items, width):
        expected = f"{items} items by {width} columns"
        raise RefusedError("malformed", f"V has the shape {broadcast.V.shape}, expected {expected}")
    if broadcast.task not in TASKS:
        raise RefusedError("malformed", f"there is no task {quoted(broadcast.task)}")
    if broadcast.measured and (broadcast.task != "round" or request.invitation is None):
        raise RefusedError("malformed", f"{broadcast.task} came with a measurement, which only secure rounds have")
    if not 0 <= request.client < broadcast.clients:
        raise RefusedError("wrong-member", f"this node cannot be number {request.client} of {broadcast.clients}")
    check_name(request.run)


def check_leaving(terms: Terms, request: Request) -> None:
    """Refuse further contributions of an organisation that leaves; it may still take its part out."""
    own = terms.memberships.own
    if own is not None and own.departure is not None and not request.leaving:
        raise RefusedError("leaving", "this organisation leaves the federation (leave.json)")


def check_name(run: str) -> None:
    """Check the name of a run, which names a file here."""
    if not re.fullmatch(RUN, run):
        raise RefusedError("malformed", f"{quoted(run)} is not the name of a run")


def check_numbers(broadcast: Broadcast) -> None:
    """Refuse numbers under which a failure would depend on the ratings. This check reads no rating."""
    for name, array in {"V": broadcast.V, **broadcast.shared.arrays}.items():
        if array.dtype not in (np.float32, np.float64):
            raise RefusedError("malformed", f"{name} is of type {array.dtype}, expected floating-point numbers")
        if not np.isfinite(array).all() or np.abs(array).max(initial=0.0) > MAX_NUMBER:
            raise RefusedError("diverged", f"{name} holds numbers that are not finite, or beyond {MAX_NUMBER:g}")
    mean, scale = broadcast.scaling
    if not (abs(mean) <= MAX_NUMBER and MIN_POSITIVE <= scale <= MAX_NUMBER):
        raise RefusedError("malformed", f"ratings cannot be scaled by {broadcast.scaling}")


def check_privacy(terms: Terms, request: Request) -> None:
    """Require an accepted privacy mode, and a secure-aggregation session exactly for the tasks that it masks."""
    broadcast, invitation = request.broadcast, request.invitation
    privacy = broadcast.settings.privacy
    if privacy.mode not in terms.policy.accept:  # mode: the organisation's policy names modes
        raise RefusedError(
            "wrong-privacy", f"this organisation accepts {list(terms.policy.accept)}, not {privacy.mode}"
        )
    if broadcast.task not in privacy.tasks:  # mode: the mode says what it answers
        answered = ", ".join(sorted(privacy.tasks))
        raise RefusedError("wrong-privacy", f"{privacy.mode} answers {answered}, not {broadcast.task}")
    algorithm = broadcast.settings.make_algorithm()
    if broadcast.task not in algorithm.tasks:  # it would compute a round's update again, and a second sum of it
        raise RefusedError("wrong-privacy", f"{algorithm} has no task {broadcast.task}")
    secure = aggregation_of(privacy).needs_session(broadcast.task)
    if secure != (invitation is not None):  # mode: as the server must ask
        came = "without" if invitation is None else "with"
        raise RefusedError("wrong-privacy", f"{broadcast.task} came {came} an invitation, not so under {privacy.mode}")
    held_out = terms.shard.test is not None or terms.shard.validation is not None
    if held_out and not privacy.held_out_allowed:
        raise RefusedError(
            "wrong-privacy", "held-out ratings depend on other users: leave `test` out of config.toml for dp"
        )
    if invitation is not None and privacy.everybody_needed and len(invitation.members) not in (0, broadcast.clients):
        raise RefusedError("not-hidden", "each client adds its share of the noise, so all of them must take part")
    if invitation is not None:
        check_member(terms, request)


def check_feedback(policy: Policy, broadcast: Broadcast) -> None:
    """Require an algorithm that learns from what this node has: ratings, or events."""
    algorithm = broadcast.settings.make_algorithm()
    if policy.feedback in ("", algorithm.feedback):
        return
    needs, has = ("events", "ratings") if algorithm.of_events else ("ratings", "events")
    entry = f'set feedback = "{algorithm.feedback}" under [ratings] of config.toml, then `fedmc node start --reread`'
    reason = f"the run's algorithm {algorithm} learns from {needs}, and this node's data were read as {has}"
    raise RefusedError("wrong-feedback", reason, f"if they are {needs}, {entry}; else ask for a run on {has}")


def check_member(terms: Terms, request: Request) -> None:
    """Check an invitation to a secure-aggregation session against this node's identity and its list of members."""
    identity = terms.memberships.of(request)
    if identity is None:
        raise RefusedError("wrong-member", "this node has no identity")
    if request.broadcast.full:
        raise RefusedError("wrong-privacy", "full diagnostics show more than sums")
    known = identity.number, len(identity.pinned)
    if (request.client, request.broadcast.clients) != known:
        asked = f"{request.client} of {request.broadcast.clients}"
        raise RefusedError("wrong-member", f"the server says {asked}, members.json says {known[0]} of {known[1]}")
    members = request.invitation.members if request.invitation is not None else ()
    if request.broadcast.task in EVERYBODY and members and len(members) != request.broadcast.clients:
        raise RefusedError("not-hidden", f"{request.broadcast.task} needs all members, not {len(members)} of them")


def check_run(terms: Terms, request: Request) -> None:
    """Require the settings and ratings that the run began with at this node, and refuse a run that ended here."""
    settings = hash_of(request.broadcast.settings)
    terms.memberships.bind(request)
    ratings, began_with = terms.store.begun_with(request.run, terms.ratings, settings)
    if began_with != settings:
        raise RefusedError("wrong-settings", "the settings are not those that the run began with")
    if ratings != terms.ratings and not request.leaving:
        hashes = f"the ratings have the hash {terms.ratings[:12]}, the run began with {ratings[:12]}"
        cure = "restore ratings, features and events and `fedmc node start --reread`, or wait for a new run"
        raise RefusedError("changed-ratings", f"{hashes}: {cure}")
    if request.invitation is None and not ends_quietly(request):  # in a session it goes on with nothing but failures
        check_not_ended(terms.store, request.run)


def ends_quietly(request: Request) -> bool:
    """Whether this is the end of a run in which failures tell something: its answer must not name who failed."""
    return request.broadcast.task == "finish" and request.broadcast.settings.privacy.failures_tell


def check_not_ended(store: Store, run: str) -> None:
    """Refuse a run that has ended at this node."""
    ended = store.ended(run)
    if ended is not None:
        raise RefusedError(ended.status, f"the run has ended at this node for good: {ended.reason}")
