"""Open an organisation's node folder: check keys, catalogue, ratings and state before anything is sent."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scipy import sparse

from fedmc.algorithms.state import State
from fedmc.data.addresses import present
from fedmc.data.prepare import Plan, read_parts, write_prepared
from fedmc.data.prepared import Prepared, is_prepared, open_prepared, verify
from fedmc.errors import DataError, require
from fedmc.federation.node import models
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store
from fedmc.federation.node.trust import Trust
from fedmc.federation.setup import keys, request_key
from fedmc.federation.setup.identities import identity_of
from fedmc.federation.setup.layout import NodeConfig
from fedmc.federation.wire import Request
from fedmc.model import Model
from fedmc.privacy.dp.ledger import Ledger
from fedmc.training.aggregation import is_masked
from fedmc.training.calibration import calibrated, rating_range
from fedmc.types import Array


class Opened(NamedTuple):
    """The content of a node folder; `ratings` is the hash of the ratings."""

    prepared: Prepared
    ratings: str
    keys: Any
    report: str | None
    trust: Trust


def open_folder(config: NodeConfig, reread: bool = False) -> Opened:
    """Check everything in the folder. Ratings that are not prepared yet are prepared once, into `shard`."""
    pair = keys.load_node_keys(config.path("node.key"))
    server, identity = request_key.load_public(config.folder), None
    if any(map(is_masked, config.accept)):  # mode: only secure aggregation needs an identity
        identity = identity_of(config.folder, config.organisation, config.min_cohort)
    keys.check_certificate(config.path("ca.crt"))
    catalogue = config.catalogue()
    source, report = source_of(config), None
    if not is_prepared(source):
        kept = config.path("shard")
        if reread or not is_prepared(kept):
            report = _prepare(config, kept, str(source) if present(source) else config.source)
        source = kept
    verify(source)
    prepared = open_prepared(source)
    require(len(prepared.shards) == 1, f"{source} holds {len(prepared.shards)} clients, a node is one", DataError)
    require(
        prepared.catalogue.hash == catalogue.hash,
        f"{source} was prepared with another catalogue than {config.path('catalogue.json')}: prepare it again",
        DataError,
    )
    trust = Trust(config.organisation, server, identity)
    return Opened(prepared, ratings_hash(source), pair, report, trust)


def source_of(config: NodeConfig) -> Path:
    """The ratings' source as a path: relative to the folder if it is there, else as it is written."""
    source = Path(config.source)
    inside = config.folder / source
    return inside if inside.exists() else source


def ratings_hash(prepared: Path) -> str:
    """The hash by which a node recognises its ratings: of the manifest, which holds a hash of every shard."""
    return hashlib.sha256((prepared / "manifest.json").read_bytes()).hexdigest()


def _prepare(config: NodeConfig, path: Path, source: str) -> str | None:
    columns = tuple(config.columns.split(",")) if config.columns else None
    plan = Plan(
        source, columns, config.query, config.duplicates, config.path("catalogue.json"), config.unknown_items,
        config.test, seed=config.seed,
    )  # fmt: skip
    parts = read_parts(plan)
    write_prepared(path, parts, overwrite=True)
    os.chmod(path, 0o700)
    return parts.report


def ledger_of(config: NodeConfig) -> Ledger:
    """The ledger of all releases of these ratings, over all runs and restarts."""
    return Ledger(config.path("ledger.sqlite"), config.epsilon, config.delta)


def make_node(config: NodeConfig, opened: Opened, store: Store) -> Node:
    """The node of an opened folder. At the end of a run it writes the organisation's model."""
    shard, users = opened.prepared.shards[0], opened.prepared.ids[0]

    def on_finish(request: Request, U: Array, state: State | None) -> None:
        broadcast, items = request.broadcast, opened.prepared.catalogue.items
        seen: sparse.csr_array = shard.pattern()
        about = broadcast.scaling, broadcast.settings, broadcast.clients, rating_range([shard])
        model = Model(items, broadcast.V, users, U, seen, *about, calibrated([shard], [state], broadcast, U))
        models.keep(config, request.run, model)

    return Node(
        shard, opened.prepared.catalogue.hash, store, opened.ratings, on_finish,
        trust=opened.trust, policy=replace(config.policy, accept=tuple(config.accept)),
        ledger=ledger_of(config) if config.epsilon else None,
    )  # fmt: skip
