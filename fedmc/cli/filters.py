"""Which items may be recommended: lists of ids, and categories."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.cli.echo import echo
from fedmc.cli.groups import Filters
from fedmc.cli.titles import ids_in_list, table_of_run
from fedmc.data import catalogue as catalogues
from fedmc.data.categories import Categories, categories_of, parse_categories, read_categories
from fedmc.errors import DataError, InputError, require
from fedmc.model import Model, find_ids
from fedmc.types import Array


class Chosen(NamedTuple):
    """Ids of the items to choose from and to leave out, as `Model.recommend` takes them; None: all, and none."""

    only: Array | None = None
    exclude: Array | None = None


def choose(fitted: Model, filters: Filters, place: Path) -> Chosen:
    """The items that the filters let through; `place` is the run folder, the model's file or the node's folder."""
    only = None if filters.only is None else _known(fitted, _ids(fitted, filters.only, "--only"), "--only")
    if filters.category:
        of_category = _categories(filters, place).items_with(parse_categories(filters.category))
        known = _known(fitted, of_category, "--category", tell=False)
        only = known if only is None else np.intersect1d(only, known)
        require(len(only) > 0, "no item of --only is of the --category: leave one of them out")
    if filters.exclude is None:
        return Chosen(only)
    return Chosen(only, _known(fitted, _ids(fitted, filters.exclude, "--exclude"), "--exclude", needed=False))


def _ids(fitted: Model, text: str, option: str) -> list[str]:
    """Ids or titles separated by commas, or the ids in a file, one in each line."""
    path = Path(text)
    try:
        from_file = path.is_file()
    except OSError:  # a long list is no name of a file
        from_file = False
    if not from_file:
        found = [part.strip() for part in text.split(",") if part.strip()]
        require(bool(found), f"{option} takes ids separated by commas, or a file with an id in each line, got {text!r}")
        return ids_in_list(fitted, found)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file with an id in each line") from None
    found = [line.strip() for line in lines if line.strip()]
    require(bool(found), f"{path} is empty: expected an id in each line", DataError)
    return found


def _known(fitted: Model, ids: list[str] | Array, option: str, needed: bool = True, tell: bool = True) -> Array:
    """Those of the ids that are items of the model; the others are told."""
    places = find_ids(fitted.items, ids, "item", "prior")
    found = places[places >= 0]
    missing = np.flatnonzero(places < 0)
    known = len(found) > 0 or not needed
    require(known, lambda: f"no id of {option} is an item of the model: it has {fitted.items[0]}, ..., not {ids[0]}")
    if tell and len(missing):
        first = ids[int(missing[0])]
        echo(f"{len(missing):,} of {len(ids):,} ids of {option} are no items of the model, such as {first}", err=True)
    return np.asarray(fitted.items[found])


def _categories(filters: Filters, place: Path) -> Categories:
    """The categories of --items or, without it, of the run's table of items or the node's catalogue."""
    table = filters.items or table_of_run(place)
    if table is not None:
        return read_categories(table)
    path = place / "catalogue.json"
    features = catalogues.load(path).features if path.is_file() else None
    if features is None:
        raise InputError("--category needs a table of the items and their categories: give --items FILE")
    return categories_of(features)
