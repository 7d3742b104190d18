"""The models of an organisation's runs: `model.npz` is the one in use, `models/RUN.npz` those of the last runs.

A server names the runs, so the folder is bounded in number and bytes: the oldest models are deleted first, but never
the newest and the one in use. `model-in-use` names the run of the latter.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.data.files import write_whole
from fedmc.data.ids import places
from fedmc.errors import FedmcError, require
from fedmc.federation.setup.layout import NodeConfig
from fedmc.model import Model, load
from fedmc.types import Array

log = logging.getLogger("fedmc.node")
FOLDER, LAST, IN_USE = "models", "model.npz", "model-in-use"
MEASURED = "measured.json"  # the RMSE of each model on the organisation's held-out ratings
MEGABYTE = 10**6
ENOUGH = 30  # held-out ratings that two models are compared on, at least
CHANCE = 2.0  # standard errors of the difference that chance may explain


class HeldOut(NamedTuple):
    """An organisation's held-out ratings."""

    users: Array  # ids of the rows
    items: Array  # ids of the columns
    ratings: sparse.csr_array


class Version(NamedTuple):
    """A model of an earlier run, or of the last one."""

    run: str
    written: float  # seconds since 1970
    megabytes: float
    in_use: bool
    rmse: float | None = None  # on the organisation's held-out ratings, if they are enough


def keep(config: NodeConfig, run: str, model: Model, held_out: HeldOut | None = None) -> bool:
    """Write the model of a run and take it into use, if the policy allows it; returns whether it is in use now.

    Older models beyond the organisation's bounds are deleted.
    """
    folder = config.path(FOLDER)
    folder.mkdir(mode=0o700, exist_ok=True)
    newest = folder / f"{run}.npz"
    save(model, newest)
    why = _worse(config, model, held_out) if config.policy.no_worse and held_out is not None else None
    if why is None:
        save(model, config.path(LAST))
        write_whole(config.path(IN_USE), run.encode())
    else:
        cure = f"`fedmc node rollback FOLDER --to {run}` takes it"
        log.warning("the model of run %s is not taken into use: %s; %s", run, why, cure)
    prune(folder, newest, config.keep_models, config.keep_megabytes * MEGABYTE)
    if held_out is not None:
        _note_rmse(folder, run, _rmse(model, held_out))
    return why is None


def save(model: Model, path: Path) -> None:
    """Write a model that only the organisation can read."""
    model.save(path)
    os.chmod(path, 0o600)


def versions(config: NodeConfig) -> list[Version]:
    """The models that are kept, the newest first."""
    used, measured = _in_use(config.folder), _measured(config.path(FOLDER))
    found = [(path, path.stat()) for path in config.path(FOLDER).glob("*.npz")]
    known = [
        Version(path.stem, one.st_mtime, one.st_size / MEGABYTE, path.stem == used, measured.get(path.stem))
        for path, one in found
    ]
    return sorted(known, key=lambda version: version.written, reverse=True)


def rollback(config: NodeConfig, run: str | None = None) -> str:
    """Take another model into use: that of `run`, or the newest one that is older than the one in use."""
    known = versions(config)
    names = [version.run for version in known]
    if run is None:
        used = next((k for k, version in enumerate(known) if version.in_use), 0)
        require(used + 1 < len(known), f"there is no older model in {config.path(FOLDER)}: name one with --to")
        run = names[used + 1]
    require(run in names, f"there is no model of run {run!r}: choose from {', '.join(names) or 'none'}")
    path = config.path(FOLDER) / f"{run}.npz"
    save(load(path), config.path(LAST))  # a damaged one is refused
    write_whole(config.path(IN_USE), run.encode())
    return run


def _in_use(folder: Path) -> str:
    try:
        return (folder / IN_USE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _worse(config: NodeConfig, model: Model, held_out: HeldOut) -> str | None:
    """Why the model in use is better, in words; None if the new one is no worse, or there is nothing to compare."""
    try:
        used = load(config.path(LAST))
    except FedmcError:  # there is none yet, or it is damaged
        return None
    users, items, ratings = comparable((used, model), held_out)
    if len(ratings) < ENOUGH:
        return None
    new, old = (np.square(one.predict(users, items) - ratings) for one in (model, used))
    more, chance = float(np.mean(new - old)), CHANCE * float(np.std(new - old)) / np.sqrt(len(ratings))
    if more <= chance:
        return None
    errors = f"RMSE {np.sqrt(new.mean()):.4f} against {np.sqrt(old.mean()):.4f}"
    return f"{errors} of the model in use, on {len(ratings):,} held-out ratings, more than chance explains"


def _rmse(model: Model, held_out: HeldOut) -> float | None:
    """On the held-out ratings; None if they are few."""
    users, items, ratings = comparable((model,), held_out)
    if len(ratings) < ENOUGH:
        return None
    return float(np.sqrt(np.mean(np.square(model.predict(users, items) - ratings))))


def _note_rmse(folder: Path, run: str, rmse: float | None) -> None:
    """Keep it beside the models, and forget those of models that are no longer there."""
    known = _measured(folder) | {run: rmse}
    there = {name: value for name, value in known.items() if value is not None and (folder / f"{name}.npz").is_file()}
    write_whole(folder / MEASURED, json.dumps(there).encode())


def _measured(folder: Path) -> dict[str, float | None]:
    try:
        found = json.loads((folder / MEASURED).read_text(encoding="utf-8"))
        return {str(run): float(value) for run, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def comparable(known: Sequence[Model], held_out: HeldOut) -> tuple[Array, Array, Array]:
    """Users, items and ratings of the held-out pairs that all models know, and that none was trained on."""
    table = held_out.ratings.tocoo()
    rows, columns = table.coords
    users, items, fair = held_out.users[rows], held_out.items[columns], np.ones(len(rows), bool)
    for one in known:
        fair &= np.isin(users, one.users) & np.isin(items, one.items)
        fair[fair] &= ~_seen(one, users[fair], items[fair])
    return users[fair], items[fair], table.data[fair].astype(np.float64)


def _seen(model: Model, users: Array, items: Array) -> Array:
    """Whether the model was trained on these pairs of known users and items."""
    width, seen = len(model.items), model.seen
    trained = np.repeat(np.arange(len(model.users)), np.diff(seen.indptr)) * width + seen.indices
    return np.isin(places(model.users, users) * width + places(model.items, items), trained)


def prune(folder: Path, newest: Path, number: int, size: int) -> None:
    """Delete the oldest models until at most `number` of at most `size` bytes together are left.

    The newest one and the one in use always stay.
    """
    for partial in folder.glob("*.npz.part"):  # of a process that was killed
        partial.unlink(missing_ok=True)
    kept = {newest, folder / f"{_in_use(folder.parent)}.npz"}
    found = [path for path in folder.glob("*.npz") if path not in kept and path.is_file()]
    found.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    there = [path for path in kept if path.is_file()]
    count, used = len(there), sum(path.stat().st_size for path in there)
    for path in found:
        count, used = count + 1, used + path.stat().st_size
        if count > number or used > size:
            path.unlink(missing_ok=True)
