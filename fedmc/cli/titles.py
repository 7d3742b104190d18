"""Titles at the command line: where a model without them gets them from, and items that are named by their titles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedmc.cli.as_trained import settings_beside
from fedmc.cli.echo import echo
from fedmc.data import catalogue as catalogues
from fedmc.data.addresses import without_password
from fedmc.data.feature_rows import Features
from fedmc.data.features import only_titles, open_table
from fedmc.errors import FedmcError, InputError, quoted
from fedmc.federation.node.files import own_titles
from fedmc.federation.setup.layout import load_node
from fedmc.model import Model, find_ids
from fedmc.model.given import titled
from fedmc.model.titles import words_of

SHOWN = 10  # items that a title in question could mean


def with_titles(fitted: Model, table: str | None, place: Path, tell: bool = True) -> Model:
    """The model with the titles of a table or, if it has none, of the table of its run or the catalogue of its node.

    `place` is the run folder, the model's file or the node's folder.
    """
    if table is None:
        if fitted.titles is None:
            with suppress(FedmcError):  # nobody asked for this table
                fitted = titled(fitted, _table_at(place))
        return fitted
    found = titled(fitted, only_titles(open_table(table, "item")))
    if found.titles is None and tell:
        echo(f"{without_password(table)} has no titles of the model's items (a column called title or name)", err=True)
    return found


def _table_at(place: Path) -> Features | None:
    table = table_of_run(place)
    if table is not None:
        return only_titles(open_table(table, "item"))
    path = place / "catalogue.json"
    if not path.is_file():
        return None
    shared = catalogues.load(path).features
    own = None if shared is not None and shared.titles is not None else own_titles(load_node(place))
    return shared if own is None else own


def table_of_run(place: Path) -> Path | None:
    """The table of items that a run was trained with, if it is still there."""
    named = settings_beside(place).get("items")
    return Path(str(named)) if named is not None and Path(str(named)).is_file() else None


def item_ids(fitted: Model, wanted: Sequence[str]) -> list[str]:
    """The ids of items that are given by their ids or titles."""
    places = find_ids(fitted.items, np.array(wanted), "item", "prior").tolist()
    found = [text if place >= 0 else by_title(fitted, text) for text, place in zip(wanted, places, strict=True)]
    for text, item in zip(wanted, found, strict=True):
        if item is None and fitted.titles is not None and not _may_be_id(fitted, text):
            raise InputError(f"no item has the id {quoted(text)}, and no title has all of its words")
    return [item or text for text, item in zip(wanted, found, strict=True)]


def ids_in_list(fitted: Model, parts: Sequence[str]) -> list[str]:
    """The ids of items from a text that was split at commas, which whole titles may have too; unknown parts stay."""
    places = find_ids(fitted.items, np.array(parts), "item", "prior")
    whole = {" ".join(words_of(title)) for title in ([] if fitted.titles is None else fitted.titles.tolist())}
    found, start = list[str](), 0
    while start < len(parts):
        ends = [] if places[start] >= 0 else range(len(parts), start + 1, -1)
        joined = ((end, ", ".join(parts[start:end])) for end in ends)
        end, text = next((one for one in joined if " ".join(words_of(one[1])) in whole), (start + 1, parts[start]))
        found.append(text if places[start] >= 0 else by_title(fitted, text) or text)
        start = end
    return found


def by_title(fitted: Model, text: str) -> str | None:
    """The id of the only item whose title has these words, or is this text, which is told; None if there is none.

    Several are listed and refused.
    """
    if fitted.titles is None or _may_be_id(fitted, text) or not words_of(text):
        return None
    ids, titles = fitted.find(text, len(fitted.items))
    whole = np.array([words_of(title) == words_of(text) for title in titles.tolist()], np.bool_)
    if whole.sum() == 1:
        ids, titles = ids[whole], titles[whole]
    if len(ids) == 1:
        echo(f"{quoted(text)}: item {ids[0]}, {titles[0]}", err=True)
    if len(ids) > 1:
        for item, title in zip(ids[:SHOWN].tolist(), titles[:SHOWN].tolist(), strict=True):
            echo(f"{item!s:>10}  {title}", err=True)
        first = f", the first {SHOWN} above" if len(ids) > SHOWN else ""
        raise InputError(f"{quoted(text)} may be {len(ids):,} items{first}: give the id of one, or its whole title")
    return str(ids[0]) if len(ids) else None


def _may_be_id(fitted: Model, text: str) -> bool:
    """Whether a text looks like an id of this model, so that it is no title: a number, where ids are numbers."""
    return fitted.items.dtype.kind == "i" and re.fullmatch(r"[+-]?\d+", text.strip()) is not None
