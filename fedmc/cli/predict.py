"""`fedmc predict`, and the same at a node."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli import options, predict_pairs
from fedmc.cli.model import IntervalLevel, ModelPath, TitleTable, UnknownIds, check_known
from fedmc.cli.predict_pairs import Wanted
from fedmc.cli.runs import model_path
from fedmc.cli.titles import item_ids, with_titles
from fedmc.data.readers.places import place_of
from fedmc.data.readers.storage import reading
from fedmc.errors import DataError, InputError, require
from fedmc.model import Model, load
from fedmc.model.ids import Unknown

Folder = Annotated[Path, typer.Argument(help="The organisation's folder.")]
PairsFile = Annotated[
    str | None,
    typer.Option(help="A CSV file of user,item pairs instead; with --out also Parquet or Feather.", metavar="FILE"),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="With --pairs: a .parquet, .feather, .csv, .tsv or .jsonl file to write instead of printing.",
        metavar="FILE",
    ),
]
Std = Annotated[bool, typer.Option("--std", help="Also print each rating's standard deviation (Bayesian models).")]


def predict(
    model: ModelPath,
    user: Annotated[str | None, typer.Argument(help="A user id.")] = None,
    items: Annotated[list[str] | None, typer.Argument(help="Item ids, or words of a title.")] = None,
    pairs: PairsFile = None,
    interval: IntervalLevel = None,
    std: Std = False,
    unknown: UnknownIds = "refuse",
    table: TitleTable = None,
    out: Out = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Predict ratings, as CSV: of one user for some items, or of the pairs in a file."""
    predict_pairs.check_out(pairs, out, overwrite)
    fitted = with_titles(load(model_path(model)), table, model)
    if pairs is not None and out is not None:
        predict_pairs.write(fitted, pairs, Wanted(interval, std, unknown), out)
        return
    if pairs is not None:
        users, wanted = _read_pairs(pairs)
    elif user is not None and items:
        users, wanted = [user] * len(items), _items(fitted, items, unknown)
    else:
        raise InputError("name a user and at least one item, or a file of them (--pairs FILE)")
    _predict(fitted, users, wanted, Wanted(interval, std, unknown))


def predict_at_node(
    folder: Folder,
    user: Annotated[str, typer.Argument(help="The id of one of this organisation's users.")],
    items: Annotated[list[str], typer.Argument(help="Item ids, or words of a title.")],
    interval: IntervalLevel = None,
    std: Std = False,
    unknown: UnknownIds = "refuse",
    table: TitleTable = None,
) -> None:
    """Predict ratings of one of the organisation's own users, by the model of its last run. Nothing is sent."""
    fitted = with_titles(load(model_of_node(folder)), table, folder)
    _predict(fitted, [user] * len(items), _items(fitted, items, unknown), Wanted(interval, std, unknown))


def model_of_node(folder: Path) -> Path:
    path = folder / "model.npz"
    require(path.is_file(), f"there is no model in {folder} yet: it comes at the end of a training run")
    return path


def _items(fitted: Model, items: list[str], unknown: Unknown) -> list[str]:
    """The ids of items, which may be given by their titles unless unknown ids are welcome."""
    return item_ids(fitted, items) if unknown == "refuse" else items


def _predict(fitted: Model, users: list[str], items: list[str], wanted: Wanted) -> None:
    """Print predictions as CSV, with the titles of the items if the model has any."""
    wanted.check(fitted)
    check_known(fitted, users, items, wanted.unknown)
    columns = wanted.columns(fitted, users, items)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    cells = {name: [f"{value:.4f}" for value in values] for name, values in columns.items()}
    if fitted.titles is not None:
        cells["title"] = fitted.title_of(items).tolist()
    writer.writerow(["user", "item", *cells])
    writer.writerows(zip(users, items, *cells.values(), strict=True))


def _read_pairs(path: str) -> tuple[list[str], list[str]]:
    place = place_of(path)
    require(not place.folder, f"{place.name} is a folder: with --out it may be one, else name a file", DataError)
    try:
        with reading(path), place.file.open() as opened, io.TextIOWrapper(opened, "utf-8-sig", "replace", "") as file:
            rows = [(number, row) for number, row in enumerate(csv.reader(file), 1) if row]
    except csv.Error as error:
        raise DataError(f"{place.name} is not a table of user,item pairs: {error}") from None
    if rows and [field.strip().lower() for field in rows[0][1][:2]] == ["user", "item"]:
        rows = rows[1:]
    require(bool(rows), f"{place.name} is empty: expected lines of user,item", DataError)
    for number, row in rows:
        require(len(row) >= 2, f"{place.name}, line {number}: expected user,item, got {row}", DataError)
    return [row[0] for _, row in rows], [row[1] for _, row in rows]
