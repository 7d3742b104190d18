"""A catalogue that grows at a node: old items keep their columns, so what was read keeps its meaning.

A larger catalogue is taken in if the authority signed it and it begins with the items of now. What was read before is
used with more columns, which are empty until the organisation reads its source again (`fedmc node refresh`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from scipy import sparse

from fedmc.data.catalogue import Catalogue
from fedmc.data.partition import Shard
from fedmc.data.prepared import Prepared
from fedmc.federation.node.refusals import log
from fedmc.federation.setup import succession
from fedmc.federation.setup.layout import NodeConfig

Matrix = TypeVar("Matrix", sparse.csr_array, sparse.csr_array | None)


def take_in(config: NodeConfig, new: Catalogue) -> bool:
    """Write a catalogue that follows the one in the folder; whether it is a new one."""
    old = config.catalogue()
    if new.hash == old.hash:
        return False
    succession.check_catalogue(old, new, succession.authority_of(config.folder))
    new.save(config.path("catalogue.json"))
    log.info("the catalogue has grown from %s to %s items", f"{len(old):,}", f"{len(new):,}")
    return True


def widened(prepared: Prepared, catalogue: Catalogue) -> Prepared:
    """What was read with a smaller catalogue, with the columns of one that has grown since."""
    if not prepared.catalogue.begins(catalogue):
        return prepared
    shards = [_with_columns(shard, len(catalogue)) for shard in prepared.shards]
    return prepared._replace(catalogue=catalogue, shards=shards)


def _with_columns(shard: Shard, items: int) -> Shard:
    def wide(matrix: Matrix) -> Matrix:
        if matrix is None:
            return matrix
        parts = matrix.data, matrix.indices, matrix.indptr
        found = sparse.csr_array(parts, shape=(matrix.shape[0], items), copy=False)
        found.has_sorted_indices = True
        return found

    return replace(
        shard, by_user=wide(shard.by_user), test=wide(shard.test), validation=wide(shard.validation),
        also_seen=wide(shard.also_seen),
    )  # fmt: skip
