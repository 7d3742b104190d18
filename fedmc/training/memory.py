"""Estimates the memory of a simulated run before it starts; refuses a run that cannot fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmc.algorithms.messages import Broadcast, length
from fedmc.algorithms.protocol import Sizes
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard
from fedmc.errors import InputError
from fedmc.kernels import threads

WORTH_SAYING = 1 << 30  # bytes
CGROUP = Path("/sys/fs/cgroup")


def needed(shards: Sequence[Shard], settings: Settings, rounds: int, spill: bool = False) -> dict[str, int]:
    """Bytes by purpose, without the ratings: those of prepared shards are memory-mapped."""
    p, n, number = len(shards), shards[0].by_user.shape[1], np.dtype(settings.dtype).itemsize
    users, rated = sum(len(shard.users) for shard in shards), sum(len(shard.rated) for shard in shards)
    algorithm = settings.make_algorithm()
    of_users, of_items = algorithm.columns(settings, n)
    V = np.empty((n, settings.width), settings.dtype)
    schema = algorithm.schema(Broadcast("round", 2, p, settings, V), n)
    message = sum(part.size * (rated / (p * n) if part.sparse else 1) for part in schema.values())
    held = min(settings.active / p, 1) if spill else 1
    waiting = min(settings.active, threads.WINDOW * threads.available())
    ratings = sum(shard.by_user.nnz for shard in shards)
    states = users * of_users + algorithm.state_numbers(Sizes(p, users, n, rated, settings.width))
    return {
        "clients": int(held * states * number),
        "messages": int(waiting * message * number),
        "server": 4 * length(schema) * 8,
        "history": (rounds + 1) * n * of_items * number,
        "model": 2 * users * of_users * number + 10 * ratings,
    }


def available() -> int | None:
    """Bytes that this process may still allocate, by the system and its control group; None if unknown."""
    found = [_of_the_system(), _of_the_group()]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _of_the_system() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
        return pages * os.sysconf("SC_PAGE_SIZE") or None


def _of_the_group() -> int | None:
    try:
        most, now = ((CGROUP / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        return int(most) - int(now)
    except (OSError, ValueError):
        return None  # no such group, or "max"


def check(shards: Sequence[Shard], settings: Settings, rounds: int, spill: bool = False) -> str | None:
    """Refuse a run that cannot fit; returns a message on the memory of a large run, or None."""
    parts = needed(shards, settings, rounds, spill)
    total, free = sum(parts.values()), available()
    if free is not None and total > free:
        largest = max(parts, key=lambda name: parts[name])
        cure = "use spill=FOLDER, dtype='float32' or fewer clients" if largest == "clients" else "lower the rank"
        raise InputError(
            f"this run needs about {_gigabytes(total)} of memory ({_gigabytes(parts[largest])} for the {largest}), "
            f"and {_gigabytes(free)} are free: {cure}"
        )
    if total < WORTH_SAYING:
        return None
    return f"this run takes up to {_gigabytes(total)} of memory" + (f" of {_gigabytes(free)} free" if free else "")


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
