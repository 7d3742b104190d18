"""`fedmc evaluate` and `info`, and the options and checks that they share with `predict` and `recommend`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedmc.algorithms.posterior import Posterior
from fedmc.cli import options
from fedmc.cli.display import print_table
from fedmc.cli.echo import echo
from fedmc.cli.parsing import parse_names
from fedmc.cli.runs import model_path
from fedmc.data.addresses import without_password
from fedmc.data.datasets import load_source
from fedmc.errors import DataError, InputError, require
from fedmc.evaluation.coverage import HeldOut, coverage, entries_of, percent
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


def evaluate(
    model: ModelPath,
    source: Annotated[str, typer.Argument(help="Ratings to test on: whatever `train` takes.")],
    fold_in: Annotated[
        str | None, typer.Option(help="Ratings of new users, from which their factors are computed first.")
    ] = None,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also test on ratings that the model was trained on.")
    ] = False,
    interval: IntervalLevel = None,
    unknown: UnknownIds = "refuse",
    columns: options.Columns = None,
    duplicates: options.Duplicates = "refuse",
    as_json: AsJson = False,
) -> None:
    """Show RMSE and mean absolute error on ratings that the model was not trained on.

    With --interval also the share of these ratings that the intervals hold, and the mean width of the intervals.
    """
    names = parse_names(columns)
    fitted = load(model_path(model))
    check_level(fitted, interval)
    if fold_in is not None:
        fitted = fitted.fold_in(load_source(fold_in, names, duplicates=duplicates))
    timed = fitted.posterior is not None and fitted.posterior.days is not None
    tested = entries_of(load_source(source, names, duplicates=duplicates, times=timed))
    check_known(fitted, tested.users, tested.items, unknown)
    if not include_seen:
        new = ~fitted.has_seen(tested.users, tested.items, unknown)
        tested = tested.some(new)
    require(
        bool(len(tested.ratings)),
        f"the model was trained on every rating of {without_password(source)}: --include-seen to use them",
        DataError,
    )
    result = _measure(fitted, tested, interval, unknown)
    typer.echo(json.dumps(result) if as_json else _in_words(result))


def _measure(fitted: Model, tested: HeldOut, level: float | None, unknown: Unknown) -> dict[str, float]:
    """The errors on these ratings and, at a level, coverage and mean width of the intervals."""
    times = tested.times if fitted.posterior is not None else None
    errors = fitted.predict(tested.users, tested.items, unknown=unknown, times=times) - tested.ratings
    found = {"ratings": len(errors), "rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    return found if level is None else found | coverage(fitted, tested, level, unknown)._asdict()


def _in_words(result: dict[str, float]) -> str:
    said = f"{result['ratings']:,} ratings: RMSE {result['rmse']:.4f}, MAE {result['mae']:.4f}"
    if "level" in result:
        said += f"\n{percent(result['level'])} intervals hold {100 * result['coverage']:.1f} % of them; "
        said += f"their mean width is {result['width']:.4f}"
    return said


def info(model: ModelPath, as_json: AsJson = False) -> None:
    """Show a model's size, the scaling and range of its ratings, its noise, its parts and its settings.

    Of a run with --ablation also what each part is worth.
    """
    worth = ablation.load(model) if model.is_dir() else []
    fitted = load(model_path(model))
    facts: dict[str, object] = {
        "users": len(fitted.users),
        "items": len(fitted.items),
        "ratings": int(fitted.seen.nnz),
        "clients": fitted.clients,
        "mean": fitted.scaling.mean,
        "scale": fitted.scaling.scale,
    }
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
