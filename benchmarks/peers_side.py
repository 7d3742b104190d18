"""Pooled libraries that know more than the values: who rated what (myFM), attributes of users and items (cmfrec).

    python benchmarks/peers_side.py [DATASET ...]      as `peers.py`, with the same splits, measures and cache

Only training ratings become features: no pair of the test ratings does. MovieLens alone has attributes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
from peers import Lines, Peer, Result, cmfrec, main, myfm, peer_of
from scipy import sparse

from fedmc.data.ratings import Ratings

AGES = (18, 25, 35, 45, 50, 56)  # where the later ranges of MovieLens 1M start
ATTRIBUTE_WEIGHTS = (1.0, 2.0, 5.0)  # of errors in attributes against one of errors in ratings


def own_and_rated(table: sparse.csr_array) -> sparse.csr_matrix:
    """A line for each row of a table: a one for the row itself, and 1 / sqrt(count) for each of its entries."""
    counts = np.diff(table.indptr)
    values = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    rated = sparse.csr_matrix((values, table.indices, table.indptr), shape=table.shape)
    return sparse.csr_matrix(sparse.hstack([sparse.identity(table.shape[0]), rated], format="csr"))


def implicit(train: Ratings, test: Ratings) -> Lines:
    """Each rating's user, the items that user rated in training, its item, and the users who rated that in training."""
    from myfm import RelationBlock

    users, items = own_and_rated(train.matrix), own_and_rated(sparse.csr_array(train.matrix.T))

    def blocks(ratings: Ratings) -> list[RelationBlock]:
        return [RelationBlock(ratings.rows().tolist(), users), RelationBlock(ratings.matrix.indices.tolist(), items)]

    nothing = [sparse.csr_matrix((len(ratings), 0)) for ratings in (train, test)]
    n, m = train.matrix.shape
    return Lines(*nothing, [n, m, m, n], blocks(train), blocks(test))


def read(folder: str, file: str, separator: str) -> list[list[str]]:
    """The fields of each line of a file of MovieLens."""
    text = (Path(os.environ.get("FEDMC_DATA", "")) / folder / file).read_text(encoding="latin-1")
    return [line.split(separator) for line in text.splitlines()]


def indicators(labels: dict[int, set[str]], ids: np.ndarray) -> np.ndarray:
    """A row for each id, with a one for each of its labels."""
    names = sorted(set().union(*labels.values()))
    return np.array([[name in labels[int(each)] for name in names] for each in ids], dtype=np.float64)


def people(folder: str, ids: np.ndarray) -> np.ndarray:
    """Sex, range of age and occupation of users, as ones and zeros."""
    if folder == "ml-100k":
        lines = [(user, sex, age, work) for user, age, sex, work, _ in read(folder, "u.user", "|")]
    else:
        lines = [(user, sex, age, work) for user, sex, age, work, _ in read(folder, "users.dat", "::")]
    ranges = np.searchsorted(AGES, [int(age) for _, _, age, _ in lines], side="right")
    known = zip(lines, ranges, strict=True)
    return indicators({int(user): {sex, f"age {part}", f"work {work}"} for (user, sex, _, work), part in known}, ids)


def films(folder: str, ids: np.ndarray) -> np.ndarray:
    """Genres of items as ones and zeros, and the year, standardised (an unknown one counts as the mean)."""
    if folder == "ml-100k":  # the sixth field and those behind it are a flag for each genre
        lines = read(folder, "u.item", "|")
        genres = {int(line[0]): {str(number) for number, flag in enumerate(line[5:]) if flag == "1"} for line in lines}
    else:
        lines = read(folder, "movies.dat", "::")
        genres = {int(item): set(names.split("|")) for item, _, names in lines}
    dates = {int(line[0]): re.findall(r"\((\d{4})\)", line[1]) for line in lines}
    years = np.array([float(dates[int(item)][-1]) if dates[int(item)] else np.nan for item in ids])
    return np.column_stack([indicators(genres, ids), np.nan_to_num((years - np.nanmean(years)) / np.nanstd(years))])


def cmfrec_side(folder: str) -> Peer:
    """cmfrec with the attributes of users and items, at the best of three times its usual settings."""

    def fit(train: Ratings, test: Ratings, seed: int) -> Result:
        known = {"U": people(folder, train.users), "I": films(folder, train.items)}
        return cmfrec(train, test, seed, ATTRIBUTE_WEIGHTS, **known)

    return fit


IMPLICIT = {rank: myfm(rank, implicit) for rank in (10, 20)}
SIDE = {"MovieLens 100K": cmfrec_side("ml-100k"), "MovieLens 1M": cmfrec_side("ml-1m")}
RANKS = {"MovieLens 100K": (10, 20), "demo": (10, 20), "MovieLens 1M": (20,), "InstEval": (10,), "planted": (10,)}


def side_peers_of(name: str, seed: int) -> dict[str, Result]:
    """What each peer that suits a data set reached on its split: from the cache, or measured now."""
    peers = {"cmfrec side": SIDE[name]} if name in SIDE else {}
    peers |= {f"myFM implicit rank {rank}": IMPLICIT[rank] for rank in RANKS[name]}
    return {peer: peer_of(name, seed, peer, fit) for peer, fit in peers.items()}


if __name__ == "__main__":
    main(side_peers_of)
