"""Warm starts: a run that goes on from a trained model, with what is new since."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.previous import Previous
from fedmc.algorithms.settings import Settings
from fedmc.data.ids import places as find
from fedmc.errors import require
from fedmc.model import Model
from fedmc.types import Array

ROUNDS = 5  # of a warm start, by default; `benchmarks/warm.py` shows what each is worth


def previous_of(model: Model, items: Array, settings: Settings) -> Previous:
    """A trained model, for a run on these items with these settings; InputError if it cannot go on from the model."""
    check(model.settings, settings)
    rows = Previous(model.V.astype(settings.dtype), np.ones(len(model.V), bool), model.scaling, model.posterior)
    return onto(rows, model.items, items)


def previous_run(last: Broadcast, trained: Array, items: Array, settings: Settings) -> Previous:
    """The last broadcast of a run on the items `trained`, for another run on these items."""
    check(last.settings, settings)
    posterior = last.settings.make_algorithm().item_posterior(last)
    return onto(
        Previous(last.V.astype(settings.dtype), np.ones(len(last.V), bool), last.scaling, posterior), trained, items
    )


def onto(previous: Previous, trained: Array, items: Array) -> Previous:
    """The rows of the items `trained` as rows of these items; those of other items are not known."""
    require(
        items.dtype.kind == trained.dtype.kind,
        f"the model's item ids are {_kind(trained)}, those of the ratings {_kind(items)}: give ids of one kind",
    )
    places = find(trained, items)
    known, posterior = places >= 0, previous.posterior
    require(bool(known.any()), "the model knows none of these items: train without it, or give their ids as before")
    if posterior is not None:
        directions = None if posterior.directions is None else posterior.directions[places]
        rows = posterior.item_means[places], posterior.item_covariances[places]
        posterior = replace(posterior, item_means=rows[0], item_covariances=rows[1], directions=directions)
    return Previous(previous.V[places], known, previous.scaling, posterior)


def check(before: Settings, settings: Settings) -> None:
    """Refuse a run whose item factors would mean something else than those of the trained model."""
    algorithm = settings.make_algorithm()
    require(
        algorithm.warm_starts,
        f"algorithm={algorithm.name!r} cannot go on from a trained model: train without it",
    )
    for name in ("rank", "biases", "normalise", "loss"):
        was, now = getattr(before, name), getattr(settings, name)
        require(was == now, f"{name} is {now!r}, but {was!r} in the model to go on from: set {name}={was!r}")
    was = before.make_algorithm().name
    require(
        was == algorithm.name,
        f"the model to go on from was trained with algorithm={was!r}, not {algorithm.name!r}: use the same",
    )


def _kind(ids: Array) -> str:
    return "text" if ids.dtype.kind == "U" else "whole numbers"
