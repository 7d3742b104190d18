"""The model of one party: of a client's data alone, or of all data in one place; and any model's error at a client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.settings import PLAIN, Settings
from fedmc.data.days import SECONDS, Days
from fedmc.data.partition import Federation, Shard, narrow, together
from fedmc.evaluation.ranked import ranked
from fedmc.model import Model
from fedmc.training import simulation
from fedmc.training.stopping import Stop
from fedmc.types import Array

CUTOFF = 20  # of NDCG
Interrupted = Callable[[], bool]
NEVER: Interrupted = lambda: False  # noqa: E731


class Score(NamedTuple):
    """What a model does on held-out data: squared errors of so many ratings, or the NDCG of so many users."""

    total: float = 0.0
    number: int = 0


def rmse(scores: Iterable[Score]) -> float:
    """The root mean squared error of several clients."""
    return float(np.sqrt(mean(scores)))


def mean(scores: Iterable[Score]) -> float:
    """The mean over all ratings or users of several clients."""
    totals, numbers = zip(*scores, strict=True)
    return float(sum(totals) / sum(numbers))


def settings_of_one(settings: Settings) -> Settings:
    """The same algorithm for a single client, which hides nothing from itself.

    Preset "fast" stands for an algorithm that is for several clients only, such as that of differential privacy.
    """
    if settings.make_algorithm().several_only:
        kept = {"rank": settings.rank, "seed": settings.seed, "dtype": settings.dtype}
        return Settings.preset("fast", active=1, **kept)
    return settings.replace(privacy=PLAIN, active=1, sampler="uniform", ranking=False)


def alone(
    federation: Federation, client: int, settings: Settings, rounds: int, objective: Objective | None = None,
    interrupted: Interrupted = NEVER,
) -> Model | None:  # fmt: skip
    """The model of one client's training data, by its own objective if it has one; None if it diverged.

    A model of ratings has only the items that the client rated or saw: others would take time and teach it nothing.
    """
    shard = federation.shards[client]
    one = Shard.of(
        0, shard.users, shard.by_user, features=shard.features, also_seen=shard.also_seen, days=shard.days,
        later=shard.later,
    )  # fmt: skip
    items, about = federation.items, federation.item_features
    if not settings.make_algorithm().of_events:
        columns = np.unique(shard.incidence.indices)
        one = _of_items(one, columns)
        items, about = items[columns], None if about is None else about[columns]
    only = Federation([one], federation.users, items, item_features=about)
    return _trained(only, settings, Stop(rounds, interrupted=interrupted), {} if objective is None else {0: objective})


def pooled(federation: Federation, settings: Settings, rounds: int, interrupted: Interrupted) -> Model | None:
    """The model of all clients' training data in one place; None if it diverged."""
    whole = together(federation.shards)
    one = Shard.of(
        0, whole.users, whole.by_user, features=whole.features, also_seen=whole.also_seen,
        days=_days_of(federation.shards), later=whole.later,
    )  # fmt: skip
    about = federation.item_features
    whole_table = Federation([one], federation.users, federation.items, item_features=about)
    return _trained(whole_table, settings, Stop(rounds, interrupted=interrupted), {})


def score(model: Model, federation: Federation, client: int) -> Score:
    """What a model does on a client's held-out data. A rating of an item that it does not know counts too."""
    shard = federation.shards[client]
    if shard.test is None or not shard.test.nnz:
        return Score()
    if not model.settings.make_algorithm().of_events:
        whole = with_all_items(model, federation.items)
        return squared_error(shard, lambda rows, columns: _predicted(whole, federation, shard, rows, columns))
    held_out = shard.test.tocoo()
    found = ranked(model, federation.users[shard.users[held_out.row]], federation.items[held_out.col])
    return Score(found.model[CUTOFF].ndcg * found.users, found.users)


def squared_error(shard: Shard, predict: Callable[[Array, Array], Array]) -> Score:
    """The squared errors on a client's test ratings; `predict` gets rows of the whole table, and columns."""
    if shard.test is None or not shard.test.nnz:
        return Score()
    rows = np.repeat(shard.users, np.diff(shard.test.indptr))
    errors = predict(rows, shard.test.indices) - shard.test.data.astype(np.float64)
    return Score(float(errors @ errors), len(errors))


def _trained(
    federation: Federation, settings: Settings, stop: Stop, objectives: Mapping[int, Objective]
) -> Model | None:
    run = simulation.train(federation, settings, stop, measure_every=max(stop.rounds, 1), objectives=objectives)
    return run.model if run.diverged is None else None


def _of_items(shard: Shard, columns: Array) -> Shard:
    """The shard with these columns only, which hold all of its ratings and events."""
    by_user = narrow(sparse.csr_array(shard.by_user[:, columns]))
    also_seen = None if shard.also_seen is None else narrow(sparse.csr_array(shard.also_seen[:, columns]))
    days = None if shard.days is None else shard.days._replace(of_test=None, of_validation=None)
    return Shard.of(0, shard.users, by_user, features=shard.features, also_seen=also_seen, days=days)


def with_all_items(model: Model, items: Array) -> Model:
    """The model with a row for each item, and without clipping; an unknown one has no factors, and no bias.

    A Bayesian model stays as it is: it predicts unknown items by their prior.
    """
    model = replace(model, rating_range=None)
    if model.posterior is not None or len(model.items) == len(items):
        return model
    _, penalty = model.settings.penalties(1)
    V = penalty.prox(np.zeros((len(items), model.V.shape[1]), model.V.dtype), 0.0)
    V[np.searchsorted(items, model.items)] = model.V
    return replace(model, items=items, V=V)


def _predicted(model: Model, federation: Federation, shard: Shard, rows: Array, columns: Array) -> Array:
    """Predictions of test ratings, not clipped: as they are measured in training."""
    ids = federation.users[rows], federation.items[columns]
    if model.posterior is None:
        return model.predict(*ids)
    days, times = shard.days, None
    if days is not None and days.of_test is not None:
        times = np.append(days.numbers, -1)[days.of_test] * SECONDS  # before 1970 where nothing is known of the day
    return model.predict(*ids, unknown="prior", times=times)


def _days_of(shards: list[Shard]) -> Days | None:
    """The days of all clients' training ratings; None unless all know them."""
    found = [shard.days for shard in shards if shard.days is not None]
    if len(found) < len(shards):
        return None
    users = np.cumsum([0, *(len(shard.users) for shard in shards)])[:-1]
    groups = np.cumsum([0, *(len(days.users) for days in found)])[:-1]
    return Days(
        np.concatenate([days.users + first for days, first in zip(found, users, strict=True)]),
        np.concatenate([days.numbers for days in found]),
        np.concatenate([days.of_ratings + first for days, first in zip(found, groups, strict=True)]),
    )
