"""Whether an organisation's source has changed since it was read: a node keeps what it was when it was read."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from fedmc.data.files import write_whole
from fedmc.federation.setup.layout import NodeConfig

FILE = "shard-source.json"  # beside the shard
READ_BY = (  # entries of config.toml that decide what is read
    "source", "columns", "query", "duplicates", "unknown_items", "test", "seed", "user_features", "also_seen",
    "categorical", "times", "scale", "wide", "missing",
)  # fmt: skip


class Source(NamedTuple):
    """What was read: the files, with their sizes and times, and the entries of config.toml that say how."""

    files: dict[str, list[int]]
    entries: dict[str, str]  # hashes


def found(config: NodeConfig, files: list[Path]) -> Source:
    """The source as it is now. Of an address, such as that of a database, only the entries are known."""
    facts: dict[str, list[int]] = {}
    for path in files:
        if path.is_file():
            about = path.stat()
            facts[str(path)] = [about.st_size, about.st_mtime_ns]
    return Source(facts, {name: _digest(getattr(config, name)) for name in READ_BY})


def _digest(value: object) -> str:
    """An entry may hold a password, so only its hash is kept."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()


def remember(config: NodeConfig, source: Source) -> None:
    """Keep what the shard was read from."""
    path = config.path(FILE)
    write_whole(path, json.dumps(source._asdict()).encode())
    os.chmod(path, 0o600)


def same_split(config: NodeConfig, now: Source) -> bool:
    """Whether the shard was split by the entries of now."""
    before = _before(config)
    return before is not None and all(before.entries.get(name) == now.entries[name] for name in ("test", "seed"))


def changes(config: NodeConfig, now: Source) -> list[str]:
    """What has changed since the shard was read, in words; nothing if an earlier version read it."""
    before = _before(config)
    if before is None:
        return []
    names = [Path(path).name for path in before.files.keys() | now.files.keys() if _differs(path, before, now)]
    entries = [name for name, value in now.entries.items() if before.entries.get(name, value) != value]
    return [*sorted(names), *(f"{name} of config.toml" for name in entries)]


def _before(config: NodeConfig) -> Source | None:
    """What the shard was read from; None if that is not known."""
    try:
        return Source(**json.loads(config.path(FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _differs(path: str, before: Source, now: Source) -> bool:
    return before.files.get(path) != now.files.get(path)
