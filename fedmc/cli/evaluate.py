"""`fedmc evaluate`"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
import typer

from fedmc.cli import options
from fedmc.cli.as_trained import MATRIX, as_trained, recency_of, scale_of, settings_beside
from fedmc.cli.display import counted, print_table
from fedmc.cli.echo import echo, tell
from fedmc.cli.groups import Form
from fedmc.cli.model import AsJson, IntervalLevel, ModelPath, check_known, check_level, check_posterior, of_events
from fedmc.cli.parsing import parse_names
from fedmc.cli.runs import model_path
from fedmc.data.addresses import without_password
from fedmc.data.builder import Duplicates
from fedmc.data.datasets import load_source
from fedmc.data.feedback import EventOptions, default_confidence, parse_weights
from fedmc.data.forms import Wide
from fedmc.data.given import scaled
from fedmc.data.loading import ReadOptions
from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, InputError, require
from fedmc.evaluation.coverage import HeldOut, coverage, entries_of, percent
from fedmc.evaluation.known import LeftOut, known_items, known_pairs
from fedmc.evaluation.ranked import SAMPLED, Ranked, popularity_of, ranked
from fedmc.model import Model, load
from fedmc.model.ids import Unknown, find_ids
from fedmc.problem.ranking import Ranking

LABELS = {
    "recall": "Recall", "precision": "Precision", "ndcg": "NDCG", "hit_rate": "Hit rate", "map": "MAP", "mrr": "MRR",
    "novelty": "Novelty (bits)", "coverage": "Coverage",
}  # fmt: skip
UnknownPairs = Annotated[
    Literal["refuse", "prior", "drop"],
    typer.Option(
        help="For users and items that the model does not know: refuse them, leave their rows out and say how many "
        "(drop), or predict them as users and items without ratings (prior; Bayesian models, no ranking)."
    ),
]
RATINGS_ONLY = "the model was trained on events, which have no ratings: leave out"


class Read(NamedTuple):
    """How to read the tables to test on and to fold in."""

    columns: tuple[str, ...] | None
    duplicates: Duplicates
    events: EventOptions | None  # None: as ratings
    trained: Mapping[str, object]  # the settings of the run
    wide: Wide | bool | None  # how a wide matrix is read; None: it is refused

    def table(self, source: str, times: bool = False, recency: bool = False) -> Ratings:
        """The table; of events, which rows count is as given or as in training, and what is left out is told.

        With `recency`, the times of events are read, if there are any.
        """
        columns, events = MATRIX if self.wide else self.columns, None
        if self.events is not None:
            events = replace(as_trained(self.events, self.trained, source, columns), recency=recency)
        read_as = ReadOptions(duplicates=self.duplicates, times=times, events=events, wide=self.wide)
        found = load_source(source, self.columns, **read_as)
        tell(found.notes)
        return found


def evaluate(
    model: ModelPath,
    source: Annotated[str, typer.Argument(help="Ratings or events to test on: whatever `train` takes.")],
    fold_in: Annotated[
        str | None, typer.Option(help="Ratings or events of new users, from which their factors are computed first.")
    ] = None,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also test on ratings that the model was trained on.")
    ] = False,
    ranking: Annotated[
        bool,
        typer.Option(
            "--ranking",
            help="Also rank all items that a user has not rated: how many of the best 10 and 20 are held-out ones. "
            "Always done for models of events.",
        ),
    ] = False,
    sampled: Annotated[
        int | None,
        typer.Option(
            help="Rank held-out items only among this many random ones, as some papers do. Not comparable with the "
            "ranking of all items.",
            metavar="N",
        ),
    ] = None,
    min_rating: Annotated[
        float | None, typer.Option(help="For the ranking: only held-out rows of at least this rating are relevant.")
    ] = None,
    event: options.Event = None,
    weights: options.EventWeights = None,
    confidence: options.Confidence = None,
    confidence_scale: options.ConfidenceScale = None,
    interval: IntervalLevel = None,
    unknown: UnknownPairs = "refuse",
    columns: options.Columns = None,
    duplicates: options.Duplicates = "refuse",
    as_json: AsJson = False,
    *,
    form: Form,
) -> None:
    """Show RMSE and mean absolute error on ratings that the model was not trained on; of events, ranking metrics.

    With --interval also the share of these ratings that the intervals hold, and the mean width of the intervals.
    """
    fitted = load(model_path(model))
    check_level(fitted, interval)
    if unknown == "prior":
        check_posterior(fitted, "--unknown prior")
    chosen = EventOptions(confidence, event, {} if weights is None else parse_weights(weights), 1, min_rating)
    events = of_events(fitted)
    _check(events, chosen, ranking or sampled is not None, include_seen)
    read = Read(parse_names(columns), duplicates, chosen if events else None, settings_beside(model), form.chosen())
    popularity, drop = popularity_of(fitted), unknown == "drop"
    if fold_in is not None:
        fitted = _folded_in(fitted, _folded(read, fold_in, confidence_scale), drop)
    unseen: Unknown = "prior" if unknown == "prior" else "refuse"
    tested, left_out = _held_out(fitted, read, source, unseen, include_seen, drop, fold_in is not None)
    result: dict[str, object] = {} if left_out is None else _left_out(left_out)
    if not events:
        result |= _measure(fitted, tested, interval, unseen)
    if events or ranking or sampled is not None:
        relevant = tested if events or min_rating is None else tested.some(tested.ratings >= min_rating)
        found = ranked(fitted, relevant.users, relevant.items, sampled, popularity)
        result |= _record(found) | ({} if sampled is None else {"sampled": sampled})
    if sampled is not None:
        typer.echo(f"warning: {SAMPLED.format(sampled)}", err=True)
    _show(result, as_json)


def _check(events: bool, chosen: EventOptions, ranking: bool, include_seen: bool) -> None:
    """Refuse options without a meaning for this model."""
    if events:
        require(not include_seen, f"{RATINGS_ONLY} --include-seen: items of training are no candidates")
        return
    named = {"--event": chosen.event, "--event-weights": chosen.weights, "--confidence": chosen.confidence}
    given = next((name for name, value in named.items() if value), None)
    require(given is None, f"{given} is about events, and the model was trained on ratings: leave it out")
    cure = "--min-rating says which ratings are relevant in a ranking: add --ranking"
    require(chosen.min_rating is None or ranking, cure)
    require(not (ranking and include_seen), "a ranking has no items of training: leave out --include-seen or --ranking")


def _held_out(
    fitted: Model, read: Read, source: str, unknown: Unknown, include_seen: bool, drop: bool, folded: bool
) -> tuple[HeldOut, LeftOut | None]:
    """The rows of the source that the model was not trained on, and what was dropped if there are unknown ids."""
    timed = fitted.posterior is not None and fitted.posterior.days is not None
    tested, left_out = entries_of(read.table(source, timed)), None
    if drop:
        count = len(tested.ratings)
        tested, left_out = known_pairs(fitted, tested)
        said = left_out.in_words(count)
        require(bool(len(tested.ratings)), f"{said}: none is left; compare the ids with those of training", DataError)
        if left_out.pairs:
            echo(f"{said}: they are left out", err=True)
    else:
        _check_known(fitted, tested, unknown)
    if not include_seen:
        tested = tested.some(~fitted.has_seen(tested.users, tested.items, unknown))
    what = "rating" if read.events is None else "event"
    cure = ": --include-seen to use them" if read.events is None else ": test on others"
    shown = without_password(source)
    known = "--fold-in has" if folded else "the model was trained on"
    require(bool(len(tested.ratings)), f"{known} every {what} of {shown}{cure}", DataError)
    return tested, left_out


def _check_known(fitted: Model, tested: HeldOut, unknown: Unknown) -> None:
    """Refuse unknown ids, and say how many rows they have and what can be done."""
    if unknown == "prior":
        check_known(fitted, tested.users, tested.items, unknown)
        return
    lost = known_pairs(fitted, tested).left_out
    cures = ["--unknown drop leaves them out"]
    cures += ["--fold-in FILE adds new users"] if lost.users else []
    cures += [] if fitted.posterior is None else ["--unknown prior predicts them without their ratings"]
    said = lost.in_words(len(tested.ratings))
    require(not lost.pairs, f"{said}, such as {lost.example}: {', '.join(cures)}")


def _left_out(found: LeftOut) -> dict[str, object]:
    return {"left_out": found.pairs, "unknown_users": found.users, "unknown_items": found.items}


def _folded_in(fitted: Model, table: Ratings, drop: bool) -> Model:
    """The model of new users; items that it does not know are left out, or refused with the cure."""
    if drop:
        return fitted.fold_in(known_items(fitted, table))
    try:
        find_ids(fitted.items, table.items, "item")
    except InputError as error:
        raise InputError(f"--fold-in: {error}; --unknown drop leaves the others out") from None
    return fitted.fold_in(table)


def _folded(read: Read, source: str, scale: str | None) -> Ratings:
    """What is known of new users; of events, as confidences by the scale of training, with times as there."""
    table = read.table(source, recency=recency_of(read.trained))
    if read.events is None:
        return table
    if scale is None:
        scale = scale_of(read.trained)
    if scale is None and default_confidence(table.matrix.data) != "none":
        raise InputError("the amounts of these events are not all 1: say --confidence-scale as in training")
    return scaled(table, scale or "none")


def _measure(fitted: Model, tested: HeldOut, level: float | None, unknown: Unknown) -> dict[str, float]:
    """The errors on these ratings and, at a level, coverage and mean width of the intervals."""
    times = tested.times if fitted.posterior is not None else None
    errors = fitted.predict(tested.users, tested.items, unknown=unknown, times=times) - tested.ratings
    found = {"ratings": len(errors), "rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    return found if level is None else found | coverage(fitted, tested, level, unknown)._asdict()


def _record(found: Ranked) -> dict[str, object]:
    """The metrics for JSON: `ndcg_20`, `popular_ndcg_20` and so on."""
    named: dict[str, object] = {"users": found.users, "pairs": found.pairs}
    for before, metrics in (("", found.model), ("popular_", found.popularity)):
        for cutoff, one in metrics.items():
            named |= {f"{before}{name}_{cutoff}": value for name, value in one._asdict().items()}
    return named


def _show(result: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
        return
    if "rmse" in result:
        typer.echo(_in_words(result))
    if "users" in result:
        among = f"among {result['sampled']} random items" if "sampled" in result else "among all items not in training"
        title = f"{counted(result['pairs'], 'held-out pair')} of {counted(result['users'], 'user')}, ranked {among}"
        print_table(title, ("metric", "model", "popularity"), list(_rows(result)))


def _rows(result: Mapping[str, object]) -> list[tuple[str, str, str]]:
    return [
        (f"{label}@{cutoff}" if name in Ranking._fields[:-2] else f"{label}, {cutoff} items",
         f"{result[f'{name}_{cutoff}']:.4f}", f"{result[f'popular_{name}_{cutoff}']:.4f}")
        for cutoff in sorted({int(key.rpartition("_")[2]) for key in result if key.startswith("ndcg_")})
        for name, label in LABELS.items()
    ]  # fmt: skip


def _in_words(result: Mapping[str, object]) -> str:
    said = f"{result['ratings']:,} ratings: RMSE {result['rmse']:.4f}, MAE {result['mae']:.4f}"
    level, held = result.get("level"), result.get("coverage")
    if isinstance(level, float) and isinstance(held, float):
        said += f"\n{percent(level)} intervals hold {100 * held:.1f} % of them; "
        said += f"their mean width is {result['width']:.4f}"
    return said
