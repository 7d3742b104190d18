"""What a node refuses because its organisation's policy says so, before any rating is read.

Settings, round and names are compared with the bounds in every request. A new run must also fit into the day's number
of runs and, if the organisation wants it so, wait until a person approved it. A run that has begun goes on, unless a
person rejects it. Approvals are bound to the run and its settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from fedmc.algorithms import registry
from fedmc.algorithms.beta import ITEMS
from fedmc.algorithms.messages import Broadcast
from fedmc.federation.node.journal import APPROVED, REJECTED, WAITING, Journal, Known
from fedmc.federation.node.limits import beta_range
from fedmc.federation.node.refusals import RefusedError, one_line
from fedmc.federation.setup.policy import Policy
from fedmc.federation.statuses import AWAITING_APPROVAL
from fedmc.federation.wire import Request, hash_of
from fedmc.problem.penalties import Fixed, GroupL2, Penalty, Separable, names_in

DAY = 86400.0  # seconds
HUGE = 1e300  # larger whole numbers cannot be shown as others are
BOX = 1e6  # a box within +-BOX keeps factors finite, whatever the weight of the penalty


class Bounded(NamedTuple):
    """A number of a request, and the entries of [policy] that bound it."""

    what: str
    value: float
    low: str | None
    high: str | None


def check_policy(policy: Policy, journal: Journal, request: Request, now: float) -> None:
    """Refuse a request that is outside of the policy, and a new run that may not begin (yet)."""
    _check_names(policy, request)
    _check_measures(policy, request)
    for number in _numbers(request):
        _check_number(policy, number)
    _admit(policy, journal, request, now)


# --- bounds


def _check_names(policy: Policy, request: Request) -> None:
    settings = request.broadcast.settings
    specs = [one for one in (settings.penalty_users, settings.penalty_items) if one != "auto"]
    named = {
        "algorithms": [registry.name_of(str(settings.algorithm))],
        "losses": [str(settings.loss).partition(":")[0]],
        "penalties": [name for spec in specs for name in names_in(str(spec))],
    }
    for entry, names in named.items():
        accepted = getattr(policy, entry)
        for name in names:
            if name not in accepted:
                reason = f"{name!r} is not one of the {entry} that this organisation accepts, {', '.join(accepted)}"
                raise _outside(reason, f"add it to {entry}")


def _check_measures(policy: Policy, request: Request) -> None:
    if request.broadcast.settings.ranking and not policy.ranking:
        reason = "the run measures how held-out ratings are ranked, which this organisation does not accept"
        raise _outside(reason, "set ranking = true")


def _numbers(request: Request) -> Iterator[Bounded]:
    broadcast, settings = request.broadcast, request.broadcast.settings
    planned = int(settings.to_dict().get("dp_rounds", 0))
    users, items = settings.penalties(broadcast.clients)
    yield Bounded("rank", settings.rank, None, "max_rank")
    yield Bounded("the round", broadcast.round, None, "max_rounds")
    yield Bounded("dp_rounds", planned, None, "max_rounds")
    yield Bounded("inner_steps", settings.inner_steps, None, "max_inner_steps")
    if settings.beta == "auto":
        yield Bounded("beta_scale", settings.beta_scale, "min_beta", "max_beta")
        yield from _auto_beta(broadcast)
    else:
        yield Bounded("beta", settings.beta, "min_beta", "max_beta")
    own = settings.make_algorithm().user_penalty(broadcast)
    if own is not None:
        yield Bounded("the weight of the users' penalty", own, "min_penalty_users", "max_penalty_users")
    for name, penalty, share in (("users", users, settings.entry_penalty), ("items", items, 1.0)):
        weight = _weight(penalty)
        if weight is not None:  # a plug-in's own: its name was accepted
            what, high = f"the weight of the {name}' penalty", f"max_penalty_{name}"
            yield Bounded(what, weight, None, high)
            at_entry = what if share == 1 else f"{what} times entry_penalty"
            yield Bounded(at_entry, weight * share, None if _boxed(penalty) else f"min_penalty_{name}", high)


def _auto_beta(broadcast: Broadcast) -> Iterator[Bounded]:
    """The betas that the server computed: they span orders of magnitude, and p^2 divides all of them.

    So `min_beta` is for the smallest one times p^2: honest ones are seldom below 1e-6, for any number of clients p.
    """
    if ITEMS in broadcast.shared.arrays:
        low, high = beta_range(broadcast)
        yield Bounded("the smallest beta times clients^2", low * broadcast.clients**2, "min_beta", None)
        yield Bounded("the largest beta", high, None, "max_beta")


def _check_number(policy: Policy, number: Bounded) -> None:
    what, value, low, high = number
    least = 0 if low is None else getattr(policy, low)
    most = math.inf if high is None else getattr(policy, high)
    shown = f"{value:g}" if -HUGE < value < HUGE else "huge"
    if not value <= most:
        raise _outside(f"{what} is {shown}, this organisation accepts at most {most:g}", f"raise {high}")
    if not least <= value:
        reason = f"{what} is {shown}, this organisation accepts at least {least:g}"
        raise RefusedError("wrong-policy", reason) if low is None else _outside(reason, f"lower {low}")


def _outside(reason: str, cure: str) -> RefusedError:
    more = "in [policy] of config.toml and restart the node if you agree, or ask for a run within your policy"
    return RefusedError("wrong-policy", reason, f"{cure} {more}")


def _weight(penalty: Penalty) -> float | None:
    """The weights of a built-in penalty, added up; None for a plug-in's."""
    if isinstance(penalty, Fixed):
        return _weight(penalty.rest)
    if isinstance(penalty, GroupL2):
        return penalty.weight
    return penalty.l1 + penalty.l2 if isinstance(penalty, Separable) else None


def _boxed(penalty: Penalty) -> bool:
    inner = penalty.rest if isinstance(penalty, Fixed) else penalty
    return isinstance(inner, Separable) and max(abs(inner.lo), abs(inner.hi)) <= BOX


# --- new runs


def _admit(policy: Policy, journal: Journal, request: Request, now: float) -> None:
    run, settings = request.run, hash_of(request.broadcast.settings)
    known = journal.known(run) or Known(run, settings, describe(request), "", now)
    if known.decision == REJECTED:
        raise RefusedError("rejected", f"a person decided against run {run}", f"`fedmc node approve {run} FOLDER`")
    if known.settings != settings:
        cure = "ask for a new run"
        raise RefusedError("wrong-settings", f"run {run} was first asked for with other settings than these", cure)
    if journal.has_begun(run):
        return
    if policy.approve and known.decision != APPROVED:
        listed = known.decision == WAITING or journal.wait(known)
        raise _awaiting(known) if listed else _too_many_waiting(run)
    today = journal.begun_since(now - now % DAY)
    if today >= policy.runs_per_day:
        reason = f"{today} runs began here today (UTC), this organisation accepts {policy.runs_per_day} a day"
        cure = "wait for tomorrow, or raise runs_per_day in [policy] of config.toml and restart the node"
        raise RefusedError("too-many-runs", reason, cure)
    journal.begin(known, now)


def _awaiting(known: Known) -> RefusedError:
    reason = f"run {known.run} is new ({known.description}) and this organisation approves each run"
    return RefusedError(
        AWAITING_APPROVAL, reason, f"`fedmc node approve {known.run} FOLDER` or `fedmc node reject {known.run} FOLDER`"
    )


def _too_many_waiting(run: str) -> RefusedError:
    cure = "decide about those: `fedmc node approve --list FOLDER`, `fedmc node reject --all FOLDER`"
    return RefusedError(AWAITING_APPROVAL, f"too many runs wait for approval to list run {run} as well", cure)


def describe(request: Request) -> str:
    """A run's settings in words, for the person who decides about it."""
    settings = request.broadcast.settings
    mode = ", ".join(f"{name} {value}" for name, value in settings.privacy.words().items())
    measured = ", ranking metrics" if settings.ranking else ""
    users, items = (str(one).replace(" ", "") for one in (settings.penalty_users, settings.penalty_items))
    return one_line(
        f"{settings.make_algorithm()}, rank {settings.rank}, {request.broadcast.clients} organisations, {mode}"
        f"{measured}, loss {settings.make_loss()}, penalty of users {users}, of items {items}, beta {settings.beta}, "
        f"{settings.inner_steps} inner steps"
    )
