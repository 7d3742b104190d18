"""How an organisation's models do on its own held-out ratings or events, measured where these are: at its node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.data.ids import places
from fedmc.data.partition import Shard
from fedmc.data.prepared import Prepared, is_prepared, open_prepared
from fedmc.evaluation import biases, coverage
from fedmc.evaluation.coverage import Calibration
from fedmc.evaluation.ranked import ranked
from fedmc.federation.node import models
from fedmc.federation.node.models import HeldOut, Version
from fedmc.federation.node.organisation import SHARD, source_of
from fedmc.federation.setup.layout import NodeConfig
from fedmc.model import Model, load
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


def measure(config: NodeConfig, prepared: Prepared, version: Version, before: Version | None) -> Measured | None:
    """The model of a run and the one before it; None if nothing is held out that can be compared."""
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
    own = _biases_rmse(prepared, users, items, ratings) if prepared.events is None else None
    return Measured(label, len(ratings), found[0], found[1], intervals, own)


def _load(config: NodeConfig, version: Version) -> Model:
    return load(config.path(models.FOLDER) / f"{version.run}.npz")


def _rmse(model: Model, users: Array, items: Array, ratings: Array) -> float:
    return float(np.sqrt(np.mean((model.predict(users, items) - ratings) ** 2)))


def _biases_rmse(prepared: Prepared, users: Array, items: Array, ratings: Array) -> float:
    shard = prepared.shards[0]
    rows, columns = shard.users[places(prepared.ids[0], users)], prepared.catalogue.columns_of(items)
    return float(np.sqrt(np.mean((biases.fit([shard]).predict(rows, columns) - ratings) ** 2)))


def _ndcg(model: Model, users: Array, items: Array, ratings: Array) -> float:
    return float(ranked(model, users, items).model[CUTOFF].ndcg)
