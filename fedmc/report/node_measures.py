"""How an organisation's models do on its own held-out ratings or events, measured where these are: at its node."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmc.data.ids import places
from fedmc.data.partition import Shard
from fedmc.data.prepare import opened_federation
from fedmc.data.prepared import Prepared, is_prepared, open_prepared
from fedmc.errors import require
from fedmc.evaluation import biases, coverage, single
from fedmc.evaluation.coverage import Calibration
from fedmc.evaluation.ranked import ranked
from fedmc.federation.node import models
from fedmc.federation.node.models import HeldOut, Version
from fedmc.federation.node.organisation import SHARD, source_of
from fedmc.federation.setup.layout import NodeConfig
from fedmc.model import Model, load
from fedmc.model.ids import Unknown
from fedmc.privacy.protocol import ROUNDS
from fedmc.types import Array

CUTOFF = 20  # of the ranking of events


class Measured(NamedTuple):
    """A model and the one before it, on held-out pairs that both know and neither was trained on."""

    label: str  # RMSE or NDCG@20
    pairs: int
    after: float
    before: float | None  # if there is an earlier model
    intervals: Calibration | None  # of a Bayesian model of ratings
    biases: float | None  # of ratings: the RMSE of biases that were fitted to the organisation's own ones
    alone: float | None  # of a model of the organisation's own data, if it was asked for


def prepared_of(config: NodeConfig) -> Prepared | None:
    """The organisation's data as the node has read them for runs; None if it has not yet."""
    source = source_of(config)
    place = source if is_prepared(source) else config.path(SHARD)
    return open_prepared(place) if is_prepared(place) else None


def counts(prepared: Prepared, shard: Shard) -> dict[str, object]:
    """What the organisation has, in counts."""
    what = "ratings" if prepared.events is None else "events"
    held_out = 0 if shard.test is None else int(shard.test.nnz)
    found: dict[str, object] = {
        "users": len(shard.users), f"items with {what}": len(shard.rated),
        "items of the catalogue": len(prepared.catalogue.items), what: int(shard.by_user.nnz), "held out": held_out,
    }  # fmt: skip
    if shard.features is not None:
        found["columns about users"] = int(shard.features.shape[1])
    if shard.also_seen is not None:
        found["events without a rating"] = int(shard.also_seen.nnz)
    return found


def measure(
    config: NodeConfig, prepared: Prepared, version: Version, before: Version | None, alone: bool = False
) -> Measured | None:
    """The model of a run and the one before it; None if nothing is held out that can be compared.

    With `alone`, the algorithm of the run is also trained on the organisation's own data.
    """
    shard = prepared.shards[0]
    if shard.test is None:
        return None
    held_out = HeldOut(prepared.ids[0], prepared.catalogue.items, shard.test)
    model = _load(config, version)
    older = None if before is None else _load(config, before)
    users, items, ratings = models.comparable((model,) if older is None else (older, model), held_out)
    if not len(ratings):
        return None
    measured = _rmse if prepared.events is None else _ndcg
    label = "RMSE" if prepared.events is None else f"NDCG@{CUTOFF}"
    found = [None if one is None else measured(one, users, items, ratings) for one in (model, older)]
    intervals = None
    if prepared.events is None:
        intervals = coverage.calibration(model, coverage.HeldOut(users, items, ratings))
    assert found[0] is not None
    own = None
    if prepared.events is None:
        predicted = _by_biases(prepared, users, items)
        clipped = predicted if model.rating_range is None else np.clip(predicted, *model.rating_range)
        own = float(np.sqrt(np.mean((clipped - ratings) ** 2)))
    single_one = measured(_alone(prepared, model), users, items, ratings) if alone else None
    return Measured(label, len(ratings), found[0], found[1], intervals, own, single_one)


def _load(config: NodeConfig, version: Version) -> Model:
    return load(config.path(models.FOLDER) / f"{version.run}.npz")


def _rmse(model: Model, users: Array, items: Array, ratings: Array) -> float:
    unknown: Unknown = (
        "refuse" if model.posterior is None else "prior"
    )  # of a model of own data: items never rated here
    return float(np.sqrt(np.mean((model.predict(users, items, unknown=unknown) - ratings) ** 2)))


def _by_biases(prepared: Prepared, users: Array, items: Array) -> Array:
    shard = prepared.shards[0]
    rows, columns = shard.users[places(prepared.ids[0], users)], prepared.catalogue.columns_of(items)
    return biases.fit([shard]).predict(rows, columns)


def _alone(prepared: Prepared, model: Model) -> Model:
    """The model of the organisation's own data alone."""
    federation = opened_federation(prepared)
    found = single.alone(federation, 0, single.settings_of_one(model.settings), ROUNDS)
    require(found is not None, "the model of the organisation's own data diverged: leave out --alone")
    assert found is not None
    if prepared.events is not None:
        return found
    return replace(single.with_all_items(found, federation.items), rating_range=model.rating_range)


def _ndcg(model: Model, users: Array, items: Array, ratings: Array) -> float:
    return float(ranked(model, users, items).model[CUTOFF].ndcg)
