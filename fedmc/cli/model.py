"""`fedmc evaluate`, `predict`, `recommend`, `info`, and `fedmc node recommend`: the commands that use a model."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedmc.cli import options
from fedmc.cli.echo import echo
from fedmc.cli.parsing import parse_names
from fedmc.cli.runs import model_path
from fedmc.data.addresses import without_password
from fedmc.data.datasets import load_source
from fedmc.errors import DataError, InputError, printable, require
from fedmc.model import load

ModelPath = Annotated[Path, typer.Argument(help="A run folder or a model.npz file.", metavar="MODEL")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def evaluate(
    model: ModelPath,
    source: Annotated[str, typer.Argument(help="Ratings to test on: whatever `train` takes.")],
    fold_in: Annotated[
        str | None, typer.Option(help="Ratings of new users, from which their factors are computed first.")
    ] = None,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also test on ratings that the model was trained on.")
    ] = False,
    columns: options.Columns = None,
    duplicates: options.Duplicates = "refuse",
    as_json: AsJson = False,
) -> None:
    """Show RMSE and mean absolute error on ratings that the model was not trained on."""
    names = parse_names(columns)
    fitted = load(model_path(model))
    if fold_in is not None:
        fitted = fitted.fold_in(load_source(fold_in, names, duplicates=duplicates))
    ratings = load_source(source, names, duplicates=duplicates)
    users, items = ratings.users[ratings.rows()], ratings.items[ratings.matrix.indices]
    test = np.ones(len(ratings), bool) if include_seen else ~fitted.has_seen(users, items)
    require(
        bool(test.any()),
        f"the model was trained on every rating of {without_password(source)}: --include-seen to use them",
        DataError,
    )
    errors = fitted.predict(users[test], items[test]) - ratings.matrix.data[test]
    result = {"ratings": len(errors), "rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
    shown = f"{len(errors):,} ratings: RMSE {result['rmse']:.4f}, MAE {result['mae']:.4f}"
    typer.echo(json.dumps(result) if as_json else shown)


def predict(
    model: ModelPath,
    user: Annotated[str | None, typer.Argument(help="A user id.")] = None,
    items: Annotated[list[str] | None, typer.Argument(help="Item ids.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="A CSV file of user,item pairs instead.")] = None,
) -> None:
    """Predict ratings, as CSV: of one user for some items, or of the pairs in a file."""
    if pairs is not None:
        users, wanted = _read_pairs(pairs)
    elif user is not None and items:
        users, wanted = [user] * len(items), list(items)
    else:
        raise InputError("name a user and at least one item, or a file of them (--pairs FILE)")
    predictions = load(model_path(model)).predict(users, wanted)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["user", "item", "prediction"])
    writer.writerows((u, i, f"{x:.4f}") for u, i, x in zip(users, wanted, predictions, strict=True))


def recommend(
    model: ModelPath,
    users: Annotated[list[str], typer.Argument(help="User ids.")],
    number: options.Number = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also recommend items that the user has rated.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recommend the items with the highest predicted ratings to each user, as CSV or JSON."""
    _recommend(model_path(model), users, number, include_seen, as_json)


def recommend_at_node(
    folder: Annotated[Path, typer.Argument(help="The organisation's folder.")],
    users: Annotated[list[str], typer.Argument(help="Ids of this organisation's users.")],
    number: options.Number = 10,
) -> None:
    """Recommend items to the organisation's own users, by the model of its last run. Nothing is sent."""
    path = folder / "model.npz"
    require(path.is_file(), f"there is no model in {folder} yet: it comes at the end of a training run")
    _recommend(path, users, number)


def _recommend(path: Path, users: list[str], number: int, include_seen: bool = False, as_json: bool = False) -> None:
    ids, scores = load(path).recommend(users, number, exclude_seen=not include_seen)
    rows = [
        (user, rank, item, round(float(score), 4))
        for user, best, values in zip(users, ids.tolist(), scores, strict=True)
        for rank, (item, score) in enumerate(zip(best, values, strict=True), 1)
        if score == score
    ]
    if as_json:
        fields = "user", "rank", "item", "score"
        typer.echo(json.dumps([dict(zip(fields, row, strict=True)) for row in rows]))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["user", "rank", "item", "score"])
    shown = printable if sys.stdout.isatty() else str  # a file gets the ids as they are
    writer.writerows((shown(str(user)), rank, shown(str(item)), score) for user, rank, item, score in rows)


def info(model: ModelPath, as_json: AsJson = False) -> None:
    """Show a model's size, the scaling of its ratings and its settings."""
    fitted = load(model_path(model))
    facts = {
        "users": len(fitted.users),
        "items": len(fitted.items),
        "ratings": int(fitted.seen.nnz),
        "clients": fitted.clients,
        "mean": fitted.scaling.mean,
        "scale": fitted.scaling.scale,
        **fitted.settings.to_dict(),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        echo(f"{name:14} {value}")


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
