"""`fedmc recommend` and `similar`, and the same at a node."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.progress import MofNCompleteColumn

from fedmc.cli import options
from fedmc.cli.display import counted, progress_bar
from fedmc.cli.filters import Chosen, choose
from fedmc.cli.groups import Filters
from fedmc.cli.model import AsJson, ModelPath, check_posterior
from fedmc.cli.predict import Folder, model_of_node
from fedmc.cli.runs import model_path
from fedmc.cli.titles import item_ids, with_titles
from fedmc.data.readers.writing import check_ending, writing_rows
from fedmc.errors import printable, require
from fedmc.model import Model, load
from fedmc.types import Array

ItemIds = Annotated[list[str], typer.Argument(help="Item ids, or words of a title.", metavar="ITEM...")]
Cautious = Annotated[
    bool,
    typer.Option(
        "--cautious",
        help="Rank by what the expected rating exceeds with 90 % probability: prefers items with many ratings "
        "(Bayesian models).",
    ),
]
IncludeSeen = Annotated[
    bool, typer.Option("--include-seen", help="Also recommend items that the user has rated or had.")
]
Everybody = Annotated[bool, typer.Option("--all", help="Recommend to all users of the model; needs --out.")]
Out = Annotated[
    Path | None,
    typer.Option(help="A .parquet, .feather, .csv, .tsv or .jsonl file to write instead of printing.", metavar="FILE"),
]
SimilarNumber = Annotated[int, typer.Option("-n", "--number", "--n", help="Number of similar items for each item.")]
BLOCK = 16384  # users at a time
SPREAD = 4_000_000  # (user, item) pairs at a time, if the spread of each is needed
RECOMMENDED = ("user", "rank", "item", "score")
SIMILAR = ("item", "rank", "similar", "cosine")
Row = tuple[str, int, str | int, float]


class Wish(NamedTuple):
    """What to recommend."""

    number: int
    chosen: Chosen
    cautious: bool = False
    include_seen: bool = False

    def ask(self, fitted: Model, users: Sequence[str] | Array) -> tuple[Array, Array]:
        only, exclude = self.chosen
        return fitted.recommend(
            users, self.number, exclude_seen=not self.include_seen, cautious=self.cautious, only=only, exclude=exclude
        )


def recommend(
    model: ModelPath,
    users: Annotated[list[str] | None, typer.Argument(help="User ids.")] = None,
    number: options.Number = 10,
    include_seen: IncludeSeen = False,
    cautious: Cautious = False,
    everybody: Everybody = False,
    out: Out = None,
    overwrite: options.Overwrite = False,
    as_json: AsJson = False,
    *,
    filters: Filters,
) -> None:
    """Recommend the items with the highest predicted ratings, or scores of events, to each user, as CSV or JSON."""
    _check_users(users, everybody, out, as_json)
    fitted = with_titles(load(model_path(model)), filters.items, model, tell=not filters.category)
    wish = Wish(number, choose(fitted, filters, model), cautious, include_seen)
    _answer(fitted, users, wish, _checked(out, overwrite), as_json)


def recommend_at_node(
    folder: Folder,
    users: Annotated[list[str] | None, typer.Argument(help="Ids of this organisation's users.")] = None,
    number: options.Number = 10,
    include_seen: IncludeSeen = False,
    cautious: Cautious = False,
    everybody: Everybody = False,
    out: Out = None,
    overwrite: options.Overwrite = False,
    as_json: AsJson = False,
    *,
    filters: Filters,
) -> None:
    """Recommend items to the organisation's own users, by the model of its last run. Nothing is sent."""
    _check_users(users, everybody, out, as_json)
    fitted = with_titles(load(model_of_node(folder)), filters.items, folder, tell=not filters.category)
    wish = Wish(number, choose(fitted, filters, folder), cautious, include_seen)
    _answer(fitted, users, wish, _checked(out, overwrite), as_json)


def similar(
    model: ModelPath, wanted: ItemIds, number: SimilarNumber = 10, as_json: AsJson = False, *, filters: Filters
) -> None:
    """Find the items whose factors point most nearly in the direction of an item's, as CSV or JSON."""
    fitted = with_titles(load(model_path(model)), filters.items, model, tell=not filters.category)
    _answer_similar(fitted, wanted, number, choose(fitted, filters, model), as_json)


def similar_at_node(
    folder: Folder, wanted: ItemIds, number: SimilarNumber = 10, as_json: AsJson = False, *, filters: Filters
) -> None:
    """Find items that are similar to items, by the model of the organisation's last run. Nothing is sent."""
    fitted = with_titles(load(model_of_node(folder)), filters.items, folder, tell=not filters.category)
    _answer_similar(fitted, wanted, number, choose(fitted, filters, folder), as_json)


def _check_users(users: Sequence[str] | None, everybody: bool, out: Path | None, as_json: bool) -> None:
    if everybody:
        require(not users, "--all recommends to all users: leave out the ids")
        require(out is not None, "--all needs --out FILE.parquet, .feather, .csv, .tsv or .jsonl")
    else:
        require(bool(users), "name a user at least, or --all with --out FILE")
    require(out is None or not as_json, "--json prints, --out writes a file: leave one of them out")


def _checked(out: Path | None, overwrite: bool) -> Path | None:
    if out is not None:
        check_ending(out)
        require(overwrite or not out.exists(), f"{out} exists already: --overwrite to replace it")
    return out


def _answer(fitted: Model, users: list[str] | None, wish: Wish, out: Path | None, as_json: bool) -> None:
    if wish.cautious:
        check_posterior(fitted, "--cautious")
    if out is not None:
        _write(fitted, fitted.users if users is None else np.array(users), wish, out)
    else:
        assert users is not None
        _print(fitted, RECOMMENDED, list(_rows(users, *wish.ask(fitted, users))), as_json)


def _write(fitted: Model, users: Array, wish: Wish, out: Path) -> None:
    """Write the recommendations of many users, in blocks."""
    block = max(1, SPREAD // len(fitted.items)) if wish.cautious else BLOCK
    total = 0
    with writing_rows(out) as write, progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("users", total=len(users))
        for start in range(0, len(users), block):
            some = users[start : start + block]
            ids, scores = wish.ask(fitted, some)
            there = ~np.isnan(scores)
            ranks = np.broadcast_to(np.arange(1, ids.shape[1] + 1), ids.shape)
            columns: tuple[Array, ...] = np.repeat(some, there.sum(axis=1)), ranks[there], ids[there], scores[there]
            if fitted.titles is not None:
                columns = (*columns, fitted.title_of(ids[there]))
            write(dict(zip(_fields(fitted, RECOMMENDED), columns, strict=True)))
            total += int(there.sum())
            bar.update(task, advance=len(some))
    typer.echo(f"{counted(total, 'recommendation')} to {counted(len(users), 'user')} in {out}")


def _rows(names: Sequence[str], ids: Array, scores: Array) -> Iterator[Row]:
    """Name, rank, item and score of each place that is filled."""
    for name, best, values in zip(names, ids.tolist(), scores, strict=True):
        for rank, (item, score) in enumerate(zip(best, values, strict=True), 1):
            if np.isfinite(score):
                yield name, rank, item, round(float(score), 4)


def _answer_similar(fitted: Model, wanted: Sequence[str], number: int, chosen: Chosen, as_json: bool) -> None:
    _print(fitted, SIMILAR, _similar(fitted, item_ids(fitted, wanted), number, chosen), as_json)


def _similar(fitted: Model, items: list[str], number: int, chosen: Chosen) -> list[Row]:
    """The most similar items that the filters let through: as many are searched as are needed."""
    require(number >= 1, f"--number must be at least 1, got {number}")
    most, searched = len(fitted.items), number
    while True:
        ids, cosines = fitted.similar(items, min(searched, most))
        keep = np.isfinite(cosines)
        if chosen.only is not None:
            keep &= np.isin(ids, chosen.only)
        if chosen.exclude is not None:
            keep &= ~np.isin(ids, chosen.exclude)
        if searched >= most or int(keep.sum(axis=1).min()) >= number:
            break
        searched *= 4
    rows: list[Row] = []
    for name, found, values, kept in zip(items, ids, cosines, keep, strict=True):
        rows += _rows([name], found[kept][None, :number], values[kept][None, :number])
    return rows


def _print(fitted: Model, fields: Sequence[str], rows: Sequence[Row], as_json: bool) -> None:
    """Print the rows, with the titles of their items if the model has any."""
    fields, shown = _fields(fitted, fields), list[tuple[object, ...]](rows)
    if fitted.titles is not None:
        shown = [(*row, fitted.title_of(row[2])) for row in rows]
    if as_json:
        typer.echo(json.dumps([dict(zip(fields, row, strict=True)) for row in shown]))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(fields)
    safe = printable if sys.stdout.isatty() else str  # a file gets the ids as they are
    writer.writerows([safe(one) if isinstance(one, str) else one for one in row] for row in shown)


def _fields(fitted: Model, fields: Sequence[str]) -> Sequence[str]:
    """The columns, the last one with the title if the model has titles."""
    return fields if fitted.titles is None else (*fields, "title")
