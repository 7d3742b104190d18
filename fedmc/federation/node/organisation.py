"""Open an organisation's node folder: check keys, catalogue, ratings and state before anything is sent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from scipy import sparse

from fedmc.algorithms.objectives import Objective, OwnObjective
from fedmc.algorithms.state import State
from fedmc.data.addresses import without_password
from fedmc.data.feedback import default_confidence
from fedmc.data.partition import Shard
from fedmc.data.prepare import Plan, load_table, read_parts, write_prepared
from fedmc.data.prepared import Prepared, is_prepared, open_prepared, verify
from fedmc.data.prepared_events import SCALE
from fedmc.data.ratings import Ratings
from fedmc.data.understanding import understand
from fedmc.errors import DataError, require
from fedmc.federation.news import News
from fedmc.federation.node import consents, forgotten, models, withdrawing
from fedmc.federation.node import source as changed_source
from fedmc.federation.node.files import known_titles, located, words
from fedmc.federation.node.growth import widened
from fedmc.federation.node.memberships import Own
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store
from fedmc.federation.node.trust import Trust
from fedmc.federation.setup import keys, member_keys, members, request_key
from fedmc.federation.setup.entries import AGREE, DEFAULT_SCALE
from fedmc.federation.setup.identities import identity_of, load_key
from fedmc.federation.setup.layout import NodeConfig
from fedmc.federation.wire import Request
from fedmc.model import Model
from fedmc.privacy.dp.ledger import Ledger
from fedmc.training.aggregation import is_masked
from fedmc.training.calibration import finished, rating_range
from fedmc.types import Array

SHARD = "shard"  # the folder's own copy of the data, as they were read for runs
REFRESH = "`fedmc node refresh FOLDER`, for a new run,"


class Opened(NamedTuple):
    """The content of a node folder; `ratings` is the hash of the ratings."""

    prepared: Prepared
    ratings: str
    keys: Any
    report: str | None
    trust: Trust
    notes: tuple[str, ...] = ()  # about features and events
    titles: Array | None = None  # of the items


def open_folder(config: NodeConfig, reread: bool = False) -> Opened:
    """Check everything in the folder. Ratings that are not prepared yet are prepared once, into `shard`."""
    if members.there(config.folder):  # after a kill, new keys may still wait
        member_keys.promote(config.folder, members.load(config.folder), config.organisation)
    pair = keys.load_node_keys(config.path("node.key"))
    trust = Trust(config.organisation, request_key.load_public(config.folder))
    if any(map(is_masked, config.accept)):  # mode: only secure aggregation needs an identity
        found = members.load(config.folder), config.organisation, load_key(config.folder), config.min_cohort
        trust = trust._replace(identity=identity_of(*found), own=Own(*found, withdrawing.stated(config.folder)))
    keys.check_certificate(config.path("ca.crt"))
    catalogue = config.catalogue()
    source, report = source_of(config), None
    notes: tuple[str, ...] = ()
    own = not is_prepared(source)
    if own:
        kept, now = config.path(SHARD), changed_source.found(config, _files(config))
        if reread or not is_prepared(kept):
            report, notes = _prepare(config, kept, sourcewords(config), now)
            changed_source.remember(config, now)
        elif changed := changed_source.changes(config, now):
            notes = (f"{', '.join(changed)} changed since the data were read for runs: {REFRESH} takes the new data",)
        source = kept
    else:
        _check_prepared(config, source)
    verify(source)
    prepared = widened(open_prepared(source), catalogue)
    prepared = prepared if config.recency else prepared.without_order()
    _check_feedback(config, prepared, own)
    require(len(prepared.shards) == 1, f"{source} holds {len(prepared.shards)} clients, a node is one", DataError)
    require(
        prepared.catalogue.hash == catalogue.hash,
        f"{source} was prepared with another catalogue than {config.path('catalogue.json')}: "
        + (REFRESH if own else "prepare it again"),
        DataError,
    )
    forgotten.check_none_in(config, prepared.ids[0], source, own)
    if own:
        notes += _unread(config, prepared.shards[0])
    return Opened(prepared, ratings_hash(source), pair, report, trust, notes, known_titles(config, catalogue))


def read_now(config: NodeConfig) -> Prepared | None:
    """The data as they are in the source now, if they differ from those that were read for runs; None if not.

    Data that were prepared elsewhere are used as they are.
    """
    kept = config.path(SHARD)
    if is_prepared(source_of(config)) or not is_prepared(kept):
        return None
    with TemporaryDirectory(dir=config.folder, prefix="check-") as folder:
        fresh = Path(folder) / SHARD
        _prepare(config, fresh, sourcewords(config), changed_source.found(config, _files(config)))
        return None if ratings_hash(fresh) == ratings_hash(kept) else open_prepared(fresh)


def source_changes(config: NodeConfig) -> list[str]:
    """The files, and entries of config.toml, that changed since the data were read for runs; nothing is read again."""
    if is_prepared(source_of(config)):  # prepared elsewhere, and used as they are
        return []
    return changed_source.changes(config, changed_source.found(config, _files(config)))


def read_at(config: NodeConfig) -> float | None:
    """When the data were read for runs, seconds since 1970; None: not yet."""
    source = source_of(config)
    manifest = (source if is_prepared(source) else config.path(SHARD)) / "manifest.json"
    return manifest.stat().st_mtime if manifest.is_file() else None


def sourcewords(config: NodeConfig) -> str:
    """The ratings' source: a path if it is there, else as it is written, such as an address."""
    return words(config, config.source)


def _files(config: NodeConfig) -> list[Path]:
    """The files of ratings, features and events."""
    side = [located(config, file) for file in _side_files(config).values() if file is not None]
    return [source_of(config), *side]


def source_of(config: NodeConfig) -> Path:
    """The ratings' source as a path: relative to the folder if it is there, else as it is written."""
    return located(config, config.source)


def ratings_hash(prepared: Path) -> str:
    """The hash by which a node recognises its ratings, events and features.

    It is that of the manifest, which holds hashes of every shard, with its side information, and of the catalogue.
    """
    return hashlib.sha256((prepared / "manifest.json").read_bytes()).hexdigest()


def _prepare(
    config: NodeConfig, path: Path, source: str, now: changed_source.Source
) -> tuple[str | None, tuple[str, ...]]:
    """Read the ratings, features and events; returns what is to be told about them.

    What is held out at random stays held out when the source is read again, and so does what is trained on.
    """
    again = is_prepared(config.path(SHARD)) and changed_source.same_split(config, now)
    columns = tuple(config.columns.split(",")) if config.columns else None
    files = {name: None if file is None else words(config, file) for name, file in _side_files(config).items()}
    plan = Plan(
        source, columns, config.query, config.duplicates, config.path("catalogue.json"), config.unknown_items,
        config.test, seed=config.seed, user_features=files["user_features"], also_seen=files["also_seen"],
        categorical=tuple(config.categorical), times=config.times, events=config.event_options(),
        confidence_scale=config.scale if config.of_events else None, before=config.path(SHARD) if again else None,
        wide=config.form(),
    )  # fmt: skip
    table, notes = _table(plan)
    ratings, left_out = forgotten.load(config).left_out(table)
    parts = read_parts(plan, ratings)
    write_prepared(path, parts, overwrite=True)
    os.chmod(path, 0o700)
    return parts.report, (*parts.side.notes, *notes, *([left_out] if left_out else []))


def _table(plan: Plan) -> tuple[Ratings, tuple[str, ...]]:
    """The table and what is to be told about it: ratings that look like events, or amounts that count 1 each."""
    if plan.events is None:
        found = understand(plan)
        seen = f"they look like events, not ratings ({found.what.reason})"
        cure = 'for runs on events, enter feedback = "implicit" under [ratings] of config.toml'
        require(
            found.ratings is not None,
            f"{without_password(plan.source)} cannot be read as ratings, {seen}: {cure}",
            DataError,
        )
        assert found.ratings is not None
        return found.ratings, () if found.what.kind == "ratings" else (f"ratings: {seen}; {cure}",)
    amounts = load_table(plan)
    unequal = plan.confidence_scale == DEFAULT_SCALE and default_confidence(amounts.matrix.data) != DEFAULT_SCALE
    cure = f'confidence_scale = "log", {AGREE}, would count them'
    return amounts, (f"events: the amounts differ, and each pair counts 1: {cure}",) if unequal else ()


def _check_feedback(config: NodeConfig, prepared: Prepared, own: bool) -> None:
    """Refuse data that were read as ratings where config.toml says events, or by another scale, and the reverse."""
    events, scale = prepared.events is not None, str(prepared.about.get(SCALE, DEFAULT_SCALE))
    held = f"events by scale {scale}" if events else "ratings"
    wanted = f"events by scale {config.scale}" if config.of_events else "ratings"
    cure = "read them again (--reread), for a new run" if own else "prepare them again, or change the entry"
    given = config.confidence_scale is not None or own
    same = events == config.of_events and (not events or scale == config.scale or not given)
    where = config.path("config.toml")
    require(same, f"the data were read as {held}, and {where} says {wanted}: {cure}", DataError)


def _side_files(config: NodeConfig) -> dict[str, str | None]:
    return {"user_features": config.user_features, "also_seen": config.also_seen}


def _check_prepared(config: NodeConfig, source: Path) -> None:
    """Refuse features and events beside shards that were prepared elsewhere."""
    given = next((name for name, file in _side_files(config).items() if file is not None), None)
    require(
        given is None,
        f"{config.path('config.toml')}: {source} is prepared and holds its features and events: give {given} to "
        "`fedmc prepare`, and leave it out here",
        DataError,
    )


def _unread(config: NodeConfig, shard: Shard) -> tuple[str, ...]:
    """Notes about files that were entered or removed since the ratings were read into the folder's shard."""
    held = {"user_features": shard.features, "also_seen": shard.also_seen}
    changed = [name for name, file in _side_files(config).items() if (file is None) != (held[name] is None)]
    cure = "the entry takes effect with --reread, in a new run"
    return tuple(f"{name} was changed in config.toml after the ratings were read: {cure}" for name in changed)


def ledger_of(config: NodeConfig) -> Ledger:
    """The ledger of all releases of these ratings, over all runs and restarts."""
    return Ledger(config.path("ledger.sqlite"), config.epsilon, config.delta)


def _alone(config: NodeConfig) -> bool:
    """Whether sums may show this organisation's own part: it said so, by record, by policy or when it left."""
    left = withdrawing.stated(config.folder)
    return consents.alone(config) or (left is not None and left.visible)


def make_node(
    config: NodeConfig, opened: Opened, store: Store, on_news: Callable[[News], None] = lambda news: None
) -> Node:
    """The node of an opened folder. At the end of a run it writes the organisation's model."""
    shard, users = opened.prepared.shards[0], opened.prepared.ids[0]

    def on_finish(request: Request, U: Array, state: State | None) -> None:
        broadcast, catalogue = request.broadcast, opened.prepared.catalogue
        items = catalogue.items
        seen: sparse.csr_array = shard.pattern()
        settings = broadcast.settings.make_algorithm().model_settings(broadcast)
        about = broadcast.scaling, settings, broadcast.clients, rating_range([shard], settings)
        U, posterior = finished([shard], [state], broadcast, U)
        model = Model(items, broadcast.V, users, U, seen, *about, posterior, opened.titles)
        rated = None if shard.test is None or config.of_events else models.HeldOut(users, items, shard.test)
        models.keep(config, request.run, model, rated)

    policy = replace(config.policy, accept=tuple(config.accept), feedback=config.feedback, alone_visible=_alone(config))
    node = Node(
        shard, opened.prepared.catalogue.hash, store, opened.ratings, on_finish,
        trust=opened.trust, policy=policy, ledger=ledger_of(config) if config.epsilon else None,
    )  # fmt: skip
    node.on_news = on_news
    if config.objective:
        node.terms = node.terms._replace(own=OwnObjective(Objective(**config.objective)))
    return node
