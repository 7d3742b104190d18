"""Forget users: an organisation's folder without them, in its data for runs, its models and the states of its runs.

The list of forgotten users is written first, and every step removes whoever is on it. So a removal that was interrupted
is finished by doing all steps again, and a backup that was put back is cleaned in the same way.

States of runs go as a whole. A run goes on only with the data that it began with, so none of them can be used again;
and what they hold by item, such as a copy of an item that one person rated, is that person's too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmc.data.leaving import shard_without
from fedmc.data.prepared import is_prepared, open_prepared, verify, writing
from fedmc.errors import DataError, FedmcError, InputError, require
from fedmc.federation.node import forgotten, models
from fedmc.federation.node.forgotten import Forgotten
from fedmc.federation.node.organisation import SHARD, source_of
from fedmc.federation.node.overview import look
from fedmc.federation.node.secagg_store import SecAggStore
from fedmc.federation.node.store import Ended, Store
from fedmc.federation.setup.layout import NodeConfig
from fedmc.model import files, load
from fedmc.model.leaving import model_without
from fedmc.privacy.dp.ledger import Ledger
from fedmc.types import Array

ENDED = Ended("changed-ratings", "users were forgotten here: ask for a new run")
LEFTOVERS = ("check-*", "shard.part*", "shard.old*", "*.npz.part*", "models/*.npz.part*", "forgotten.json.part*")
AGAIN = "`fedmc node forget FOLDER --again`"


class Removed(NamedTuple):
    """What was found and removed."""

    ratings: int = 0  # or events
    held_out: int = 0
    also_seen: int = 0
    models: int = 0
    runs: int = 0  # of which states were kept
    ended: tuple[str, ...] = ()  # runs that were going on


def forget(config: NodeConfig, store: Store, users: Sequence[str], end_runs: bool = False) -> Removed:
    """Forget users by their ids. Nothing changes if one of them is not known here, or while a run goes on."""
    known = forgotten.load(config)
    for user in users:
        _check_known(config, known, user)
    return _remove(config, store, known.adding(list(users)), end_runs)


def again(config: NodeConfig, store: Store, end_runs: bool = False) -> Removed:
    """Remove all who were forgotten before: after an interruption, or from a backup that was put back."""
    known = forgotten.load(config)
    require(bool(known.users), f"nobody was forgotten in {config.folder}: name a user")
    return _remove(config, store, known._replace(unfinished=True), end_runs)


def _remove(config: NodeConfig, store: Store, known: Forgotten, end_runs: bool) -> Removed:
    going_on = tuple(one.run for one in look(config).runs if one.state == "active")
    _check_runs(going_on, end_runs)
    _check_others(config, known)
    forgotten.save(config, known)
    removed = Removed(ended=going_on, runs=_states(store, going_on))
    _releases(config)
    removed = _shard(config, known, removed)
    removed = removed._replace(models=_models(config, known))
    _leftovers(config)
    forgotten.save(config, known._replace(unfinished=False))
    return removed


# --- checks, before anything changes


def _check_runs(going_on: Sequence[str], end_runs: bool) -> None:
    some = ", ".join(going_on[:3]) + (f" and {len(going_on) - 3} more" if len(going_on) > 3 else "")
    require(
        end_runs or not going_on,
        f"a run is going on here ({some}), and it goes on only with the data that it began with: wait for its end, or "
        "give --end-runs, which ends this node's part in it for good",
    )


def _check_known(config: NodeConfig, known: Forgotten, user: str) -> None:
    """Refuse an id that nothing here knows; those next to it by alphabet are named."""
    found = [ids.astype(np.str_) for ids in (data_users(config), *map(_model_users, _model_files(config)))]
    if any((ids == user).any() for ids in found) or known.mask(np.array([user])).any():
        return
    ids = np.unique(np.concatenate(found))
    place = int(np.searchsorted(ids, user))
    near = ", ".join(ids[max(0, place - 2) : place + 2].tolist())
    where = f"the ids next to it are {near}" if near else "no user is known here"
    cure = "a user who is only in the source, and was never read for a run, is forgotten by deleting it there"
    raise InputError(f"there is no user {user!r} in the data or models of {config.folder}; {where}; {cure}")


def _check_others(config: NodeConfig, known: Forgotten) -> None:
    ids = data_users(config)
    require(
        not len(ids) or not known.mask(ids).all(),
        f"nobody else is left in {config.folder}: an organisation without users takes no part; stop the node and "
        "delete shard/, state/, models/ and model.npz",
    )


def data_users(config: NodeConfig) -> Array:
    """The users of the folder's own copy of the data, and of data that were prepared elsewhere."""
    places = [place for place in (config.path(SHARD), source_of(config)) if is_prepared(place)]
    ids = [one for place in places for one in open_prepared(place).ids]
    return np.concatenate([one.astype(np.str_) for one in ids]) if ids else np.zeros(0, np.str_)


def _model_files(config: NodeConfig) -> list[Path]:
    found = [config.path(models.LAST), *sorted(config.path(models.FOLDER).glob("*.npz"))]
    return [path for path in found if path.is_file()]


def _model_users(path: Path) -> Array:
    try:
        return files.read(path)["users"]
    except (FedmcError, KeyError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{error}; whether a user is in it cannot be told: delete {path}, then run this command again")


# --- the steps, each of which may be repeated


def _states(store: Store, going_on: Sequence[str]) -> int:
    """End the runs that are going on, and drop what was kept of all runs; returns of how many."""
    replies = SecAggStore(store)
    number = store.drop_states(going_on, ENDED)
    replies.drop_replies()
    cure = f"another process reads it, such as `fedmc node status`: end that, then {AGAIN}"
    require(store.erase(), f"the state in {store.folder} still holds deleted pages, as {cure}", DataError)
    return number


def _releases(config: NodeConfig) -> None:
    """Drop the bytes of releases: sums over users, which runs that are over might have asked for again."""
    path = config.path("ledger.sqlite")
    if path.exists():
        with Ledger(path, config.epsilon or 1.0, config.delta) as ledger:  # nothing is released: any bound would do
            ledger.drop_contents()


def _shard(config: NodeConfig, known: Forgotten, removed: Removed) -> Removed:
    """Write the folder's copy of the data anew. Data that were prepared elsewhere are the organisation's own."""
    place = config.path(SHARD)
    if not is_prepared(place):
        return removed
    verify(place)
    opened = open_prepared(place)
    gone, shard = known.mask(opened.ids[0]), opened.shards[0]
    if not gone.any():
        return removed
    kept = shard_without(shard, gone)
    with writing(place, opened.catalogue, overwrite=True) as writer:
        more = kept.features, kept.also_seen, kept.days, kept.later
        writer.add(opened.ids[0][~gone], kept.by_user, kept.test, *more)
        writer.finish(opened.about)
    os.chmod(place, 0o700)

    def fewer(name: str) -> int:
        before, after = getattr(shard, name), getattr(kept, name)
        return 0 if before is None else int(before.nnz - after.nnz)

    return removed._replace(ratings=fewer("by_user"), held_out=fewer("test"), also_seen=fewer("also_seen"))


def _models(config: NodeConfig, known: Forgotten) -> int:
    """Rewrite all models that know a forgotten user, with the times that they had; returns how many did."""
    number = 0
    for path in _model_files(config):
        gone = known.mask(_model_users(path))
        if not gone.any():
            continue
        number += 1
        if gone.all():
            path.unlink()
            continue
        try:
            model, written = load(path), path.stat()
        except FedmcError as error:
            raise _unreadable(path, error) from None
        models.save(model_without(model, gone), path)
        os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    return number


def _leftovers(config: NodeConfig) -> None:
    """Delete what processes that were killed have left in the folder."""
    for pattern in LEFTOVERS:
        for path in config.folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
