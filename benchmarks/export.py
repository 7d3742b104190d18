"""Indexes of `fedmc export`: recall@20 against the exact ranking, and the time of a query as a ratio.

    FEDMC_DATA=FOLDER python benchmarks/export.py      FOLDER holds ml-1m

MovieLens 1M with the Bayesian model, and vectors drawn at random whose norms differ as those of real items do, or more.
"unseen" leaves out what a user has rated: by FAISS's selector, or by a search for so many more items. A query's time is
relative to the exact index (`--to faiss`) with all items. One thread, one query at a time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from scipy import sparse

from fedmc import FedMC
from fedmc.data.datasets import load_source
from fedmc.exporting.faiss_index import BUILD, LINKS, SEARCH
from fedmc.types import Array

K, QUERIES, TIMED, TURNS = 20, 1000, 50, 9
Search = Callable[[int], Array]  # the rows found for a query


class Case(NamedTuple):
    name: str
    items: Array  # vectors (factors, bias)
    queries: Array  # (factors, 1)
    seen: sparse.csr_array | None


def movielens(folder: Path) -> Case:
    ratings = load_source(str(folder / "ml-1m" / "ratings.dat"))
    model = FedMC(10, clients=10, rounds=15).fit(ratings).model_
    some = np.sort(np.random.default_rng(0).choice(len(model.users), QUERIES, replace=False))
    r = model.settings.rank
    queries = np.hstack([model.U[some, :r], np.ones((QUERIES, 1))])
    return Case("MovieLens 1M", model.V[:, : r + 1].astype(np.float32), queries.astype(np.float32), model.seen[some])


def drawn(items: int, spread: float) -> Case:
    """Vectors in random directions whose norms are log-normal with this deviation."""
    rng, r = np.random.default_rng(0), 32
    vectors = rng.normal(size=(items, r + 1)) * rng.lognormal(0, spread, (items, 1))
    queries = np.hstack([rng.normal(size=(QUERIES, r)), np.ones((QUERIES, 1))])
    return Case(f"drawn, {items:,} items, {spread:g}", *(one.astype(np.float32) for one in (vectors, queries)), None)


def graph(vectors: Array, metric: int) -> Any:
    index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, metric)
    index.hnsw.efConstruction = BUILD
    index.add(np.ascontiguousarray(vectors))
    return index


def augmented(case: Case) -> tuple[Array, Array]:
    """Items and queries whose Euclidean distances rank as the inner products do."""
    squares = np.square(case.items, dtype=np.float64).sum(axis=1)
    more = np.sqrt(np.maximum(squares.max() - squares, 0)).astype(np.float32)
    return np.hstack([case.items, more[:, None]]), np.pad(case.queries, ((0, 0), (0, 1)))


def seconds(searches: dict[str, Search]) -> dict[str, float]:
    """The smallest time of a query of each search; they take turns, because other programs use the machine too."""
    found: dict[str, list[float]] = {name: [] for name in searches}
    for _ in range(TURNS):
        for name, search in searches.items():
            began = time.perf_counter()
            for k in range(TIMED):
                search(k)
            found[name].append((time.perf_counter() - began) / TIMED)
    return {name: min(times) for name, times in found.items()}


def recall(search: Search, exact: Array) -> float:
    return float(np.mean([len(set(search(k)[:K]) & set(exact[k])) / K for k in range(QUERIES)]))


class Graphs(NamedTuple):
    """HNSW by inner product, and by distance with the queries that it takes."""

    product: Any
    distance: Any
    queries: Array


def graphs_of(case: Case) -> Graphs:
    vectors, queries = augmented(case)
    return Graphs(graph(case.items, faiss.METRIC_INNER_PRODUCT), graph(vectors, faiss.METRIC_L2), queries)


def searches(case: Case, graphs: Graphs, candidates: int) -> dict[str, Search]:
    """Searches by name; those called unseen leave out the seen items."""
    plain, product = faiss.SearchParametersHNSW(efSearch=candidates), graphs.product
    found: dict[str, Search] = {
        "inner product": lambda k: product.search(case.queries[k : k + 1], K, params=plain)[1][0],
        "augmented L2": lambda k: graphs.distance.search(graphs.queries[k : k + 1], K, params=plain)[1][0],
    }
    if case.seen is None:
        return found
    lists = np.split(case.seen.indices.astype(np.int64), case.seen.indptr[1:-1])

    def selected(k: int) -> Array:
        chosen = faiss.IDSelectorNot(faiss.IDSelectorBatch(lists[k]))
        wanted = faiss.SearchParametersHNSW(sel=chosen, efSearch=candidates)
        return product.search(case.queries[k : k + 1], K, params=wanted)[1][0]

    def more(k: int) -> Array:
        n = K + len(lists[k])
        wanted = faiss.SearchParametersHNSW(efSearch=max(candidates, 2 * n))
        rows = product.search(case.queries[k : k + 1], n, params=wanted)[1][0]
        return rows[~np.isin(rows, lists[k])]

    return found | {"unseen, selector": selected, "unseen, more items": more}


def first(scores: Array) -> Array:
    """The best items of each line."""
    return np.array([np.argpartition(-line, K)[:K] for line in scores])


def measure(case: Case) -> None:
    scores = case.queries @ case.items.T
    best = first(scores)
    if case.seen is not None:
        scores[np.repeat(np.arange(QUERIES), np.diff(case.seen.indptr)), case.seen.indices] = -np.inf
    unseen = first(scores)
    flat, graphs = faiss.IndexFlatIP(case.items.shape[1]), graphs_of(case)
    flat.add(case.items)
    exact: dict[str, Search] = {"exact": lambda k: flat.search(case.queries[k : k + 1], K)[1][0]}
    for candidates in (SEARCH // 2, SEARCH, 2 * SEARCH):
        asked = searches(case, graphs, candidates)
        times = seconds(exact | asked)
        for name, search in asked.items():
            found = recall(search, unseen if name.startswith("unseen") else best)
            ratio = times[name] / times["exact"]
            print(f"{case.name:<26}{name:<20}{candidates:>10}{found:>11.4f}{ratio:>8.2f}", flush=True)


def main() -> None:
    folder = Path(os.environ.get("FEDMC_DATA", ""))
    if not (folder / "ml-1m" / "ratings.dat").is_file():
        sys.exit("set FEDMC_DATA to a folder that holds ml-1m/ratings.dat")
    faiss.omp_set_num_threads(1)
    print(f"{'vectors':<26}{'HNSW':<20}{'candidates':>10}{f'recall@{K}':>11}{'time':>8}")
    for case in (movielens(folder), drawn(50_000, 0.2), drawn(200_000, 0.5)):
        measure(case)


if __name__ == "__main__":
    main()
