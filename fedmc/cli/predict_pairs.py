"""Predictions of many pairs, from a table of pairs into a table."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import typer
from rich.progress import MofNCompleteColumn

from fedmc.cli.display import counted, progress_bar
from fedmc.cli.model import check_known, check_level, check_posterior
from fedmc.data import pairs
from fedmc.data.readers.writing import check_ending, writing_rows
from fedmc.errors import require
from fedmc.model import Model, find_ids
from fedmc.model.ids import Unknown
from fedmc.types import Array

BLOCK = 200_000  # pairs at a time


class Wanted(NamedTuple):
    """The columns of a prediction besides the prediction itself, and what happens to unknown ids."""

    level: float | None
    std: bool
    unknown: Unknown

    def check(self, fitted: Model) -> None:
        check_level(fitted, self.level)
        if self.std:
            check_posterior(fitted, "--std")

    def columns(self, fitted: Model, users: list[str] | Array, items: list[str] | Array) -> dict[str, Array]:
        """The columns of numbers of these pairs."""
        found = {"prediction": fitted.predict(users, items, unknown=self.unknown)}
        if self.std:
            _, found["std"] = fitted.predict(users, items, return_std=True, unknown=self.unknown)
        if self.level is not None:
            _, found["low"], found["high"] = fitted.interval(users, items, self.level, unknown=self.unknown)
        return found


def check_out(source: str | None, out: Path | None, overwrite: bool) -> None:
    """Refuse a file to write without one to read, and one that exists."""
    if out is not None:
        require(source is not None, "--out writes the predictions of a file of pairs: give one (--pairs FILE)")
        check_ending(out)
        require(overwrite or not out.exists(), f"{out} exists already: --overwrite to replace it")


def write(fitted: Model, source: str, wanted: Wanted, out: Path) -> None:
    """Predict the pairs of a table, in blocks, and write them in its order."""
    wanted.check(fitted)
    given = pairs.read(source)
    check_known(fitted, given.users.ids, given.items.ids, wanted.unknown)
    users, items = (
        column.within(find_ids(known, column.ids, role, "prior"), known)
        for column, known, role in ((given.users, fitted.users, "user"), (given.items, fitted.items, "item"))
    )
    with writing_rows(out) as write_block, progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("pairs", total=len(given))
        for start in range(0, len(given), BLOCK):
            rows = slice(start, start + BLOCK)
            numbers = wanted.columns(fitted, users.part(rows), items.part(rows))
            titles = {} if fitted.titles is None else {"title": fitted.title_of(items.part(rows))}
            write_block({"user": given.users.part(rows), "item": given.items.part(rows)} | numbers | titles)
            bar.update(task, advance=len(users.codes[rows]))
    typer.echo(f"{counted(len(given), 'prediction')} in {out}")
