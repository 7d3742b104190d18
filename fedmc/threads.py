"""Threads for the compiled loops: over clients where there are many of them, over rows inside of a large one.

The kernels hold no lock while they run, so plain threads are enough. Work that is too small to share is not shared,
and inside of a thread nothing is shared again. What comes out never depends on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmc.errors import InputError, require

Array = NDArray[Any]
T = TypeVar("T")
R = TypeVar("R")

VARIABLE = "FEDMC_THREADS"
WORTH = 1_000_000  # multiply-adds below which rows are not shared
BATCH = 20_000  # ratings of small clients that make a batch

_inside = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}
_limit: int | None = None
os.register_at_fork(after_in_child=_pools.clear)


def available() -> int:
    """How many threads to use: FEDMC_THREADS, or one for each core this process may use."""
    if _limit is not None:
        return _limit
    given = os.environ.get(VARIABLE)
    if given is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        number = int(given)
    except ValueError:
        raise InputError(f"{VARIABLE} must be a whole number, got {given!r}") from None
    require(number >= 1, f"{VARIABLE} must be at least 1, got {number}")
    return number


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Inside, that many threads."""
    global _limit
    before, _limit = _limit, threads
    try:
        yield
    finally:
        _limit = before


def over_rows(kernel: Callable[..., None], indptr: Array, effort: float, *arguments: Any) -> None:
    """kernel(first, last, *arguments) for all rows, cut into pieces of about equal work where that pays."""
    rows, threads = len(indptr) - 1, available()
    if threads == 1 or effort < WORTH or getattr(_inside, "thread", False):
        kernel(0, rows, *arguments)
        return
    cuts = [(a, b) for a, b in pairwise(pieces(indptr, 4 * threads).tolist()) if a < b]
    futures = [_pool(threads).submit(kernel, first, last, *arguments) for first, last in cuts]
    wait(futures)
    for future in futures:
        future.result()


def pieces(indptr: Array, count: int) -> Array:
    """Row bounds of pieces with about equal work, a row counting as its ratings and one more."""
    work = indptr.astype(np.int64) + np.arange(len(indptr))
    bounds = np.searchsorted(work, work[-1] * np.arange(count + 1) / count)
    bounds[-1] = len(indptr) - 1
    return bounds


def in_order(function: Callable[[T], R], items: Sequence[T], sizes: Sequence[int]) -> Iterator[R]:
    """function(item) of every item, in their order; small ones side by side, and each large one by all threads.

    A few batches run ahead of what was taken, no more: results that wait cost memory.
    """
    threads, total = available(), sum(sizes)
    if threads == 1 or len(items) == 1 or getattr(_inside, "thread", False):
        yield from map(function, items)
        return
    waiting: deque[Future[list[R]]] = deque()
    for batch in _batches(sizes, min(BATCH, total / (8 * threads))):
        if sum(sizes[k] for k in batch) > total / (2 * threads):
            while waiting:
                yield from waiting.popleft().result()
            yield from (function(items[k]) for k in batch)
            continue
        waiting.append(_pool(threads).submit(lambda batch: [function(items[k]) for k in batch], batch))
        if len(waiting) > 2 * threads:
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()


def _batches(sizes: Sequence[int], enough: float) -> Iterator[list[int]]:
    """Neighbours together until they are enough."""
    batch: list[int] = []
    held = 0
    for k, size in enumerate(sizes):
        batch.append(k)
        held += size
        if held >= enough:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, "fedmc", _enter)
    return _pools[threads]


def _enter() -> None:
    _inside.thread = True
