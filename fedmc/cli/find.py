"""`fedmc find`: items by words of their titles, and the same at a node."""

from __future__ import annotations

import csv
import json
import sys
from typing import Annotated

import typer

from fedmc.cli.echo import echo
from fedmc.cli.model import AsJson, ModelPath, TitleTable
from fedmc.cli.predict import Folder, model_of_node
from fedmc.cli.runs import model_path
from fedmc.cli.titles import with_titles
from fedmc.errors import printable, quoted
from fedmc.model import Model, load

Text = Annotated[list[str], typer.Argument(help="Words of a title, in any order and case.", metavar="TEXT...")]
Most = Annotated[int, typer.Option("-n", "--number", "--n", help="Number of items to list at most.")]


def find(model: ModelPath, text: Text, number: Most = 10, items: TitleTable = None, as_json: AsJson = False) -> None:
    """List the items whose titles have all of these words, the best match first, as CSV or JSON."""
    _show(with_titles(load(model_path(model)), items, model), " ".join(text), number, as_json)


def find_at_node(
    folder: Folder, text: Text, number: Most = 10, items: TitleTable = None, as_json: AsJson = False
) -> None:
    """List items by words of their titles, from the model of the organisation's last run. Nothing is sent."""
    _show(with_titles(load(model_of_node(folder)), items, folder), " ".join(text), number, as_json)


def _show(fitted: Model, text: str, number: int, as_json: bool) -> None:
    ids, titles = fitted.find(text, number)
    found = list(zip(ids.tolist(), titles.tolist(), strict=True))
    if not found:
        echo(f"no title has all words of {quoted(text)}", err=True)
    if as_json:
        typer.echo(json.dumps([{"item": item, "title": title} for item, title in found]))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["item", "title"])
    shown = printable if sys.stdout.isatty() else str
    writer.writerows((item, shown(title)) for item, title in found)
