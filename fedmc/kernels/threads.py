"""Threads for the compiled loops: over clients if there are many, or over the rows of a large client.

The kernels release the GIL, so plain threads are enough. Small work stays in one thread, and a worker thread never
starts another. Results do not depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from itertools import count, pairwise
from typing import TypeVar

import numpy as np

from fedmc.errors import InputError, require
from fedmc.types import Array

T = TypeVar("T")
R = TypeVar("R")

VARIABLE = "FEDMC_THREADS"
WORTH = 1_000_000  # with fewer multiply-adds, rows stay in one thread
SHARED = 300_000  # nanoseconds per client, on average, from which clients run in parallel
WINDOW = 8  # results per thread that may wait to be consumed

_inside = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}
_limit: int | None = None
os.register_at_fork(after_in_child=_pools.clear)


def available() -> int:
    """The number of threads to use: FEDMC_THREADS, or one for each core that this process may use."""
    return _limit or _by_default()


@cache
def _by_default() -> int:
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
    """Use this number of threads inside the block."""
    global _limit
    before, _limit = _limit, threads
    try:
        yield
    finally:
        _limit = before


def over_rows(kernel: Callable[..., None], indptr: Array, effort: float, *arguments: object) -> None:
    """kernel(first, last, *arguments) for all rows, divided into pieces of about equal work if that is faster."""
    rows, threads = len(indptr) - 1, available()
    if threads == 1 or effort < WORTH or getattr(_inside, "thread", False):
        kernel(0, rows, *arguments)
        return
    cuts = [(a, b) for a, b in pairwise(pieces(indptr, 4 * threads).tolist()) if a < b]
    _share(lambda cut: kernel(*cut, *arguments), cuts, threads)


def pieces(indptr: Array, count: int) -> Array:
    """Row bounds of pieces with about equal work; the work of a row is its number of ratings plus one."""
    work = indptr.astype(np.int64) + np.arange(len(indptr))
    bounds: Array = np.searchsorted(work, work[-1] * np.arange(count + 1) / count)
    bounds[-1] = len(indptr) - 1
    return bounds


def gathered(work: Array, targets: Array, rows: int) -> Array:
    """The `indptr` of `over_rows` for work that is scattered into target rows."""
    ends = np.zeros(rows + 1, np.int64)
    ends[1:] = np.cumsum(np.bincount(targets, work, rows))
    return ends


def in_order(function: Callable[[T], R], items: Sequence[T], efforts: Sequence[float]) -> Iterator[R]:
    """function(item) of every item, in order: items run in parallel, but a large item runs alone with all threads.

    Efforts are nanoseconds in the kernels. If they are small, contention for the GIL would cost more than a second
    thread gains, so one thread does everything. Results run ahead of the consumer by at most a window, because they
    take memory.
    """
    threads, total = available(), sum(efforts)
    if threads == 1 or total < SHARED * len(items) or len(items) == 1 or getattr(_inside, "thread", False):
        yield from map(function, items)
        return
    window: list[T] = []
    for item, effort in [*zip(items, efforts, strict=True), (None, 0.0)]:
        large = effort > total / (2 * threads)
        if large or item is None or len(window) == WINDOW * threads:
            yield from _share(function, window, threads)
            window = []
        if item is not None and large:
            yield function(item)
        elif item is not None:
            window.append(item)


def _share(function: Callable[[T], R], tasks: Sequence[T], threads: int) -> list[R]:
    """function(task) of every task; this thread and those of the pool take tasks until none are left."""
    results: dict[int, R] = {}
    turn = count()
    failed: list[BaseException] = []

    def work() -> None:
        _inside.thread = True
        try:
            while not failed and (k := next(turn)) < len(tasks):
                results[k] = function(tasks[k])
        except BaseException as error:
            failed.append(error)
        finally:
            _inside.thread = False

    helpers = [_pool(threads).submit(work) for _ in range(min(threads, len(tasks)) - 1)]
    work()
    wait(helpers)
    if failed:
        raise failed[0]
    return [results[k] for k in range(len(tasks))]


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, "fedmc")
    return _pools[threads]
