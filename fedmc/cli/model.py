"""`fedmc info`, and the options and checks that it shares with `evaluate`, `predict` and `recommend`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedmc.algorithms.posterior import Posterior
from fedmc.cli.display import print_table
from fedmc.cli.echo import echo
from fedmc.cli.runs import model_path
from fedmc.errors import InputError, require
from fedmc.model import Model, find_ids, load
from fedmc.model.ids import Unknown
from fedmc.training import ablation
from fedmc.types import Array

ModelPath = Annotated[Path, typer.Argument(help="A run folder or a model.npz file.", metavar="MODEL")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
IntervalLevel = Annotated[
    float | None,
    typer.Option(
        help="Add intervals that hold a rating with this probability, such as 0.9 (Bayesian models).", metavar="LEVEL"
    ),
]
UnknownIds = Annotated[
    Unknown,
    typer.Option(
        help="For users and items that the model does not know: refuse them, or predict them as users and items without"
        " ratings (prior; Bayesian models)."
    ),
]
TitleTable = Annotated[
    str | None,
    typer.Option(
        "--items",
        help="Table of the items with their titles, for a model that has none: an id and a column called title.",
        metavar="FILE",
    ),
]


def of_events(fitted: Model) -> bool:
    """Whether the model was trained on events instead of ratings."""
    return fitted.settings.make_algorithm().of_events


def info(model: ModelPath, as_json: AsJson = False) -> None:
    """Show a model's size, the scaling and range of its ratings, its noise, its parts and its settings.

    Of a run with --ablation also what each part is worth.
    """
    worth = ablation.load(model) if model.is_dir() else []
    fitted = load(model_path(model))
    facts: dict[str, object] = {
        "users": len(fitted.users),
        "items": len(fitted.items),
        "events" if of_events(fitted) else "ratings": int(fitted.seen.nnz),
        "clients": fitted.clients,
    }
    if not of_events(fitted):
        facts |= {"mean": fitted.scaling.mean, "scale": fitted.scaling.scale}
    if fitted.rating_range is not None:
        facts["rating_range"] = list(fitted.rating_range)
    if fitted.posterior is not None:
        facts["noise"] = fitted.scaling.scale / float(np.sqrt(fitted.posterior.hyper.noise))
        facts["prior_means"] = _prior_means(fitted.posterior)
    facts |= fitted.settings.to_dict()
    if as_json:
        typer.echo(json.dumps(facts | ({"worth": ablation.record(worth)} if worth else {})))
        return
    for name, value in facts.items():
        echo(f"{name:14} {_fact(name, value)}")
    if worth:
        print_table("what each part is worth", ablation.COLUMNS, ablation.rows(worth))


def _prior_means(known: Posterior) -> str:
    """What the prior means of users and items come from."""
    found = [] if known.directions is None else [f"who rated what ({known.directions.shape[1]} directions)"]
    weights = {"item": known.item_weights, "user": known.home}
    found += [f"{len(W)} {side} feature{'s' * (len(W) != 1)}" for side, W in weights.items() if W is not None]
    return ", ".join(found) or "the same for all"


def _fact(name: str, value: object) -> str:
    """A fact as text shows it."""
    if name == "noise":
        return f"{value}  (standard deviation of a rating around what it is expected to be)"
    return f"{value[0]:g} to {value[1]:g}" if isinstance(value, list) else str(value)


def check_level(fitted: Model, level: float | None) -> None:
    """Refuse a level of intervals that is out of bounds, and any level if the model has no posterior."""
    if level is not None:
        require(0 < level < 1, f"--interval must lie between 0 and 1, got {level:g}: 0.9 stands for 90 %")
        check_posterior(fitted, "--interval")


def check_explained(fitted: Model) -> None:
    """Refuse a model whose predictions cannot be explained: neither Bayesian nor of events."""
    if not of_events(fitted):
        check_posterior(fitted, "explain")


def check_posterior(fitted: Model, option: str) -> None:
    """Refuse an option that needs a Bayesian model."""
    made = f"this one has preset {fitted.settings.preset_name}"
    require(fitted.posterior is not None, f"{option} needs a Bayesian model, {made}: train with --preset bayes")


def check_known(fitted: Model, users: Sequence[str] | Array, items: Sequence[str] | Array, unknown: Unknown) -> None:
    """Refuse unknown ids, unless the prior is to stand for them, which a Bayesian model offers as a cure."""
    if unknown == "prior":
        check_posterior(fitted, "--unknown prior")
        return
    try:
        find_ids(fitted.users, users, "user")
        find_ids(fitted.items, items, "item")
    except InputError as error:
        if fitted.posterior is None:
            raise
        raise InputError(f"{error}; --unknown prior predicts without knowing their ratings") from None
