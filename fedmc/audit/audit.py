"""Run a configuration, attack what its server sees, and report how well the attacks do.

    plain    the server sees each client's message
    secagg   the server sees masked uploads and their sums
    dp       as plain (or as secagg with dp+secagg), but noised

An attack is measured by its advantage over a guess from what the server knows anyway: for items, their popularity among
the other clients; for ratings, the rating that the item got most often. The attacked messages are real ones: the engine
is the simulation's own, with an observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.leakage import Observation
from fedmc.algorithms.messages import SUM_BITS
from fedmc.algorithms.settings import Settings
from fedmc.audit import attacks, group_testing, item_lists, results, support
from fedmc.audit.masking import masked_round
from fedmc.audit.observer import Observer, Planned, watch
from fedmc.audit.results import Finding, Linked, Listed
from fedmc.audit.server_attacks import of_server
from fedmc.data.partition import Shard
from fedmc.errors import InputError, require
from fedmc.privacy.secagg.cohorts import Turn
from fedmc.training.aggregation import aggregation_of
from fedmc.training.sampling import Passes, sampler_of
from fedmc.training.secure_sums import SecureSum
from fedmc.types import Array

MEMBERS = 20  # members of a cohort that are masked: the cost grows with their square
SETTLE = 10  # updates of each client before newcomers join
FLOATS = 1e-11  # rounding of replies that are not in fixed point
LEVELS = 50  # with at most this many different values, ratings are assumed to be on a discrete scale


class Clients(NamedTuple):
    """The ground truth, which only the audit knows."""

    shards: Sequence[Shard]
    counts: Array  # ratings of each item over all clients
    grid: Array | None  # the scale of the ratings, which is public
    votes: Array | None  # items x levels: how often each rating was given

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Clients:
        counts = sum(count_items(shard) for shard in shards)
        levels = np.unique(np.concatenate([np.unique(shard.by_user.data) for shard in shards]))
        if len(levels) > LEVELS:
            return cls(shards, np.asarray(counts), None, None)
        votes = sum(count_levels(shard, levels) for shard in shards)
        return cls(shards, np.asarray(counts), levels.astype(np.float64), np.asarray(votes))

    def popularity(self, client: int) -> Array:
        """The items' counts over the other clients."""
        return np.asarray(self.counts - count_items(self.shards[client]))


def count_items(shard: Shard) -> Array:
    return np.bincount(shard.by_user.indices, minlength=shard.by_user.shape[1])


def count_levels(shard: Shard, levels: Array) -> Array:
    place = np.searchsorted(levels, shard.by_user.data)
    flat = np.bincount(shard.by_user.indices * len(levels) + place, minlength=shard.by_user.shape[1] * len(levels))
    return flat.reshape(-1, len(levels))


def audit(
    shards: Sequence[Shard],
    settings: Settings,
    *,
    number: int = 10,
    targets: int = 10,
    absences: int = 0,
    on_step: Callable[[str], None] = lambda words: None,
) -> list[Finding]:
    """Attack a run of these settings over `number` rounds, against at most `targets` of its clients.

    With `absences`, sums of a run in which each client misses so many of its rounds are attacked as well.
    """
    for name, value, least in (("absences", absences, 0), ("rounds", number, 1), ("targets", targets, 1)):
        require(value >= least, f"{name} must be at least {least}, got {value}")
    require(not settings.needs_tuning, "penalty_users='auto' is chosen by training: audit with the penalty it chose")
    settings.privacy.check_run(len(shards), settings.active, None, full=False)
    on_step("running the configuration")
    truth, cohort = Clients.of(shards), first_cohort(len(shards), settings)
    chosen, aggregation = cohort[:targets], aggregation_of(settings.privacy)
    if not isinstance(aggregation, SecureSum):  # mode: what there is to attack depends on what the server sees
        engine = watch(shards, settings, chosen, number)
        on_step("attacking each client's messages")
        return of_messages(truth, engine, chosen)
    engine = watch(shards, settings, cohort[: max(MEMBERS, targets)], number)
    on_step("attacking masked uploads")
    found = of_masked(truth, engine, chosen)
    on_step("attacking the sums")
    found += of_sums(truth, engine, chosen)
    on_step("reading off lists of items")
    found += _lists_of_sums(truth, engine)
    on_step("testing groups")
    missing = [watch(shards, settings, chosen[:1], number, absences)] if absences else []
    found += [one for watched in (engine, *missing) for one in of_groups(truth, watched)]
    on_step("acting as a malicious server")
    found += of_server([shards[client] for client in cohort], engine.sums[-1].broadcast)
    on_step("admitting newcomers")
    return found + of_newcomers(truth, settings, min(targets, 5), aggregation.min_cohort)


def first_cohort(clients: int, settings: Settings) -> tuple[int, ...]:
    """The clients of the first round."""
    drawn = tuple(int(client) for client in sampler_of(settings, clients).draw(1, clients, settings.seed))
    joined = set(range(clients)) if settings.entry == "all" else set()
    return aggregation_of(settings.privacy).participants(Turn(1, drawn, clients, settings.active), joined)


def of_messages(truth: Clients, engine: Observer, targets: Sequence[int]) -> list[Finding]:
    """The attacks on the messages of each of these clients."""
    heard = {client: engine.heard[client] for client in targets if engine.heard[client]}
    if not heard:
        raise InputError("none of the clients looked at was drawn: raise rounds")
    guess = [_rated(truth, client, truth.popularity(client)) for client in heard]
    found = [results.items(results.EACH, _told(truth, heard), attacks.mean_auc(guess), len(heard))]
    alone = [client for client in heard if len(truth.shards[client].users) == 1]
    found += _ratings(truth, {client: heard[client] for client in alone})
    crowds = {client: seen for client, seen in heard.items() if client not in alone}
    if crowds:
        parts = [linked(attacks.persons(seen), truth.shards[k].by_user) for k, seen in crowds.items()]
        found.append(
            results.persons(results.EACH, Linked(*(sum(part) for part in zip(*parts, strict=True))), len(crowds))
        )
    return found + _lists_of_messages(truth, engine, targets)


def _lists_of_messages(truth: Clients, engine: Observer, targets: Sequence[int]) -> list[Finding]:
    """Whole lists of items, from each client's replies about who rated what."""
    asked = [client for client in targets if engine.patterns[client]]
    if not asked:
        return []
    parts = [listed(engine.patterns[client], FLOATS, truth.shards[client].incidence) for client in asked]
    whole = Listed(*(sum(part) for part in zip(*parts, strict=True)))
    return [results.item_lists(results.EACH, whole, len(asked))]


def _lists_of_sums(truth: Clients, engine: Observer) -> list[Finding]:
    """Whole lists of items, from sums over all clients."""
    if not engine.pattern_sums:
        return []
    everybody = sparse.vstack([shard.incidence for shard in truth.shards], format="csr")
    rounding = 2.0**-SUM_BITS * np.sqrt(len(truth.shards))
    found = listed(engine.pattern_sums, rounding, everybody)
    return [results.item_lists(results.sum_of(len(truth.shards)), found, len(truth.shards))]


def listed(seen: Sequence[Observation], rounding: float, incidence: sparse.csr_array) -> Listed:
    """Read off lists and score them; each is attributed to the user who has most of its items.

    A list is whole if it has all items of the user that have lines, which rare items do not.
    """
    lined = np.isin(incidence.indices, item_lists.with_lines(seen))
    of_item, sizes = incidence.tocsc(), np.diff(np.append(0, np.cumsum(lined))[incidence.indptr])
    whole, right, said = set(), 0, 0
    for items in item_lists.lists(seen, rounding):
        votes = np.bincount(of_item[:, items].indices, minlength=len(sizes))
        right, said = right + int(votes.max()), said + len(items)
        whole |= set(np.flatnonzero((votes == len(items)) & (sizes == len(items)))[:1].tolist())
    return Listed(len(whole), len(sizes), right, said, incidence.nnz)


def _told(truth: Clients, heard: dict[int, list[Observation]]) -> float:
    """Mean AUC of the attack on messages, with the best of its blends of scores."""
    right: dict[str, list[float]] = {}
    for client, seen in heard.items():
        alone = attacks.rated_items(seen)
        for name, scores in attacks.leakage_of(seen).blends(alone, truth.popularity(client)).items():
            right.setdefault(name, []).append(_rated(truth, client, scores))
    return max(attacks.mean_auc(values) for values in right.values())


def _rated(truth: Clients, client: int, scores: Array) -> float:
    return attacks.auc(scores, count_items(truth.shards[client]) > 0)


def _ratings(truth: Clients, heard: dict[int, list[Observation]]) -> list[Finding]:
    """The attack on each rating of clients with one user."""
    tried = {client: attacks.ratings_of_one(seen, truth.grid) for client, seen in heard.items()}
    found = {client: recovered for client, recovered in tried.items() if recovered is not None}
    if not found:
        return []
    hits = sum(_hits(truth.shards[client], recovered) for client, recovered in found.items())
    whole = sum(truth.shards[client].by_user.nnz for client in found)
    guessed = None if truth.grid is None else sum(_guessed(truth, client) for client in found) / whole
    return [results.ratings(results.EACH, hits / whole, guessed, len(found))]


def _hits(shard: Shard, recovered: attacks.Recovered) -> int:
    """The number of ratings that were recovered exactly (within a thousandth)."""
    said = np.full(shard.by_user.shape[1], np.nan)
    said[recovered.items] = recovered.ratings
    return int((np.abs(said[shard.by_user.indices] - shard.by_user.data) < 1e-3).sum())


def _guessed(truth: Clients, client: int) -> int:
    """How many of the client's ratings equal the item's most frequent rating among the other clients."""
    shard = truth.shards[client]
    assert truth.grid is not None
    assert truth.votes is not None
    usual = truth.grid[(truth.votes - count_levels(shard, truth.grid)).argmax(axis=1)]
    return int((np.abs(usual[shard.by_user.indices] - shard.by_user.data) < 1e-3).sum())


def linked(groups: Sequence[Array], by_user: sparse.csr_array) -> Linked:
    """Score groups of linked items; each group is attributed to the user who rated most of its items."""
    rated = by_user.tocsc()
    found, right, said = set(), 0, 0
    for items in groups:
        votes = np.bincount(rated[:, items].indices, minlength=by_user.shape[0])
        right, said = right + int(votes.max()), said + len(items)
        if votes.max() == len(items):
            found.add(int(votes.argmax()))
    return Linked(len(found), by_user.shape[0], right, said, by_user.nnz)


def of_masked(truth: Clients, engine: Observer, targets: Sequence[int]) -> list[Finding]:
    """The attack on the first messages as the server gets them under secure aggregation: masked uploads."""
    members = list(engine.heard)[:MEMBERS]
    hidden = masked_round({client: engine.heard[client][0] for client in members})
    chosen = [client for client in targets if client in hidden]
    right = [_rated(truth, client, attacks.rated_items([hidden[client]])) for client in chosen]
    guess = [_rated(truth, client, truth.popularity(client)) for client in chosen]
    return [results.items(results.MASKED, attacks.mean_auc(right), attacks.mean_auc(guess), len(chosen))]


def of_sums(truth: Clients, engine: Observer, targets: Sequence[int]) -> list[Finding]:
    """The attacks on the sums alone: the best of several scores for each client's items, and persons."""
    size = len(engine.cohorts[-1])
    right: dict[str, list[float]] = {}
    for client in targets:
        there = [client in cohort for cohort in engine.cohorts]
        for name, scores in attacks.in_a_sum(engine.sums, there, truth.popularity(client)).items():
            right.setdefault(name, []).append(_rated(truth, client, scores))
    guess = attacks.mean_auc([_rated(truth, client, truth.popularity(client)) for client in targets])
    best = max(attacks.mean_auc(values) for values in right.values() if len(values) == len(targets))
    everybody = sparse.vstack([truth.shards[client].by_user for client in engine.cohorts[0]], format="csr")
    found = linked(attacks.persons(engine.sums[:1]), everybody)
    return [
        results.items(results.sum_of(size), best, guess, len(targets)),
        results.persons(results.sum_of(len(engine.cohorts[0])), found, len(engine.cohorts[0])),
    ]


def of_groups(truth: Clients, engine: Observer) -> list[Finding]:
    """Group testing on the sums, if the same clients did not take part in all; scores where some were absent."""
    if len(set(engine.cohorts)) == 1:
        return []
    seen = engine.sums, engine.cohorts, np.array([count_items(shard) > 0 for shard in truth.shards])
    proven = results.group_testing(group_testing.attribute(*seen), engine.missed)
    return [proven, *results.support(support.attack(*seen, truth.counts), engine.missed)] if engine.missed else [proven]


def of_newcomers(truth: Clients, settings: Settings, lone: int, min_cohort: int) -> list[Finding]:
    """Attack sums with late clients, one among settled ones or several, without the rule that newcomers wait."""
    p, size = len(truth.shards), min(min_cohort, len(truth.shards) // 3)
    cumulative = settings.make_algorithm().cumulative  # in other algorithms a newcomer's message is like any other
    if settings.entry != "first-turn" or size < 2 or not cumulative:
        return []
    lone = max(1, min(lone, p - 2 * size))
    there = p - size - lone
    settling = [Passes(-(-there // 10)).draw(k, there, settings.seed) for k in range(1, 10 * SETTLE + 1)]
    quiet = [Passes(size).draw(k, there, settings.seed) for k in range(1, lone + 1)]
    alone = [(*cohort[: size - 1], there + k) for k, cohort in enumerate(quiet)]
    batch = tuple(range(p - size, p))
    plan: list[Iterable[int]] = [*settling, *quiet, *alone, batch]
    told = Planned(tuple(tuple(int(client) for client in cohort) for cohort in plan))
    engine = watch(truth.shards, settings.replace(sampler=told, privacy="plain"), (0,), len(plan))
    usual, at = engine.sums[len(settling) :][:lone], len(settling) + lone
    single = _newcomers(truth, usual, [(engine.sums[at + k], there + k) for k in range(lone)])
    many = _newcomers(truth, usual, [(engine.sums[-1], client) for client in batch])
    return [results.newcomers(size, False, *single, lone), results.newcomers(size, True, *many, len(batch))]


def _newcomers(
    truth: Clients, usual: list[Observation], came: Sequence[tuple[Observation, int]]
) -> tuple[float, float]:
    """AUC of the best score, and of popularity, for newcomers in these sums; `usual` are sums without newcomers."""
    right: dict[str, list[float]] = {}
    guess = []
    for seen, client in came:
        popularity = truth.popularity(client)
        guess.append(_rated(truth, client, popularity))
        there = [False] * len(usual) + [True]
        for name, scores in attacks.in_a_sum([*usual, seen], there, popularity).items():
            right.setdefault(name, []).append(_rated(truth, client, scores))
    return max(attacks.mean_auc(values) for values in right.values()), attacks.mean_auc(guess)
