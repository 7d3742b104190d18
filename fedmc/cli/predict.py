"""`fedmc predict`, and the same at a node."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli import options, predict_pairs
from fedmc.cli.model import IntervalLevel, ModelPath, UnknownIds, check_known
from fedmc.cli.predict_pairs import Wanted
from fedmc.cli.runs import model_path
from fedmc.errors import DataError, InputError, require
from fedmc.model import load

Folder = Annotated[Path, typer.Argument(help="The organisation's folder.")]
PairsFile = Annotated[
    Path | None,
    typer.Option(help="A CSV file of user,item pairs instead; with --out also a Parquet file.", metavar="FILE"),
]
Out = Annotated[
    Path | None,
    typer.Option(help="With --pairs: a .parquet, .csv or .tsv file to write instead of printing.", metavar="FILE"),
]
Std = Annotated[bool, typer.Option("--std", help="Also print each rating's standard deviation (Bayesian models).")]


def predict(
    model: ModelPath,
    user: Annotated[str | None, typer.Argument(help="A user id.")] = None,
    items: Annotated[list[str] | None, typer.Argument(help="Item ids.")] = None,
    pairs: PairsFile = None,
    interval: IntervalLevel = None,
    std: Std = False,
    unknown: UnknownIds = "refuse",
    out: Out = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Predict ratings, as CSV: of one user for some items, or of the pairs in a file."""
    predict_pairs.check_out(pairs, out, overwrite)
    if pairs is not None and out is not None:
        predict_pairs.write(load(model_path(model)), pairs, Wanted(interval, std, unknown), out)
        return
    if pairs is not None:
        users, wanted = _read_pairs(pairs)
    elif user is not None and items:
        users, wanted = [user] * len(items), list(items)
    else:
        raise InputError("name a user and at least one item, or a file of them (--pairs FILE)")
    _predict(model_path(model), users, wanted, Wanted(interval, std, unknown))


def predict_at_node(
    folder: Folder,
    user: Annotated[str, typer.Argument(help="The id of one of this organisation's users.")],
    items: Annotated[list[str], typer.Argument(help="Item ids.")],
    interval: IntervalLevel = None,
    std: Std = False,
    unknown: UnknownIds = "refuse",
) -> None:
    """Predict ratings of one of the organisation's own users, by the model of its last run. Nothing is sent."""
    _predict(model_of_node(folder), [user] * len(items), items, Wanted(interval, std, unknown))


def model_of_node(folder: Path) -> Path:
    path = folder / "model.npz"
    require(path.is_file(), f"there is no model in {folder} yet: it comes at the end of a training run")
    return path


def _predict(path: Path, users: list[str], items: list[str], wanted: Wanted) -> None:
    """Print predictions as CSV."""
    fitted = load(path)
    wanted.check(fitted)
    check_known(fitted, users, items, wanted.unknown)
    columns = wanted.columns(fitted, users, items)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["user", "item", *columns])
    for user, item, *values in zip(users, items, *columns.values(), strict=True):
        writer.writerow([user, item, *(f"{value:.4f}" for value in values)])


def _read_pairs(path: Path) -> tuple[list[str], list[str]]:
    require(path.is_file(), f"there is no file {path}", DataError)
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = [(number, row) for number, row in enumerate(csv.reader(file), 1) if row]
    except csv.Error as error:
        raise DataError(f"{path} is not a table of user,item pairs: {error}") from None
    if rows and [field.strip().lower() for field in rows[0][1][:2]] == ["user", "item"]:
        rows = rows[1:]
    require(bool(rows), f"{path} is empty: expected lines of user,item", DataError)
    for number, row in rows:
        require(len(row) >= 2, f"{path}, line {number}: expected user,item, got {row}", DataError)
    return [row[0] for _, row in rows], [row[1] for _, row in rows]
