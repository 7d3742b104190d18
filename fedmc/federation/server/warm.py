"""A run that goes on from another one: what its folder keeps of that run.

catalogue.json           the items of the run, of every run
previous.npz             the last checkpoint of the run that it goes on from
previous-catalogue.json  the items of that run, which may be fewer
"""

from __future__ import annotations

from pathlib import Path

from fedmc.algorithms.previous import Previous
from fedmc.algorithms.settings import Settings
from fedmc.data import catalogue as catalogues
from fedmc.data.catalogue import Catalogue
from fedmc.data.files import write_whole
from fedmc.errors import DataError, require
from fedmc.federation.server import checkpoint
from fedmc.training import warm

ITEMS, LAST, TRAINED = "catalogue.json", "previous.npz", "previous-catalogue.json"
SAVED = "server.npz"  # the checkpoint of a run


def check_previous(run: Path, now: Catalogue, settings: Settings) -> None:
    """Refuse a run that another one with these settings and items cannot go on from."""
    found = checkpoint.load(run / SAVED)
    warm.previous_run(found.checkpoint.broadcast, _items_of(run, found.catalogue, now).items, now.items, settings)


def keep(folder: Path, now: Catalogue, run: Path | None) -> None:
    """Write the items of a new run into its folder and, if it goes on from another run, what it needs of that."""
    now.save(folder / ITEMS)
    if run is not None:
        _items_of(run, checkpoint.load(run / SAVED).catalogue, now).save(folder / TRAINED)
        write_whole(folder / LAST, (run / SAVED).read_bytes())


def previous_of(folder: Path, settings: Settings) -> Previous:
    """What the run of this folder goes on from."""
    trained, now = (catalogues.load(folder / name).items for name in (TRAINED, ITEMS))
    return warm.previous_run(checkpoint.load(folder / LAST).checkpoint.broadcast, trained, now, settings)


def _items_of(run: Path, hash: str, now: Catalogue) -> Catalogue:
    """The items of a run; one of an earlier version kept only their hash."""
    if (run / ITEMS).exists():
        return catalogues.load(run / ITEMS)
    cure = "put the catalogue of that run into its folder as catalogue.json, or train without it"
    require(hash == now.hash, f"run {run.name} was trained on another catalogue than that of today: {cure}", DataError)
    return now
