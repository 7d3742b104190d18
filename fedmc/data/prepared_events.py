"""Events in words, and in prepared shards: which confidences they hold, and by which scale."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.data.feedback import confidence, default_confidence
from fedmc.data.matrices import as_csr
from fedmc.data.partition import Shard
from fedmc.data.prepared import Prepared
from fedmc.data.ratings import Ratings
from fedmc.data.recency import TOLD
from fedmc.errors import DataError, quoted, require

SCALE = "confidence_scale"  # the entry of a manifest
AUTO = "auto"  # a scale that is chosen by `default_confidence`, from all amounts


class Weighed(NamedTuple):
    """Prepared shards whose values are confidences, the scale by which they are, and what to tell about them."""

    prepared: Prepared
    scale: str
    notes: tuple[str, ...]


def events_in_words(
    amounts: Ratings, confidences: Ratings, scale: str, reason: str = "", recency: bool = False
) -> list[str]:
    """What was understood: how many pairs, users and items, how much they count, and that `recency` does."""
    why = f" ({reason})" if reason else ""
    counted = f"{len(amounts):,} user-item pairs of {len(amounts.users):,} users and {len(amounts.items):,} items"
    understood = f"events: {counted}{why}; {_how_much(amounts, confidences, scale)}"
    return [understood, TOLD] if recency and amounts.times is not None else [understood]


def _how_much(amounts: Ratings, confidences: Ratings, scale: str) -> str:
    low, high = (float(end(amounts.matrix.data)) for end in (np.min, np.max))
    least, most = (float(end(confidences.matrix.data)) for end in (np.min, np.max))
    between = "confidence 1 each" if least == most == 1 else f"confidence {least:.3g} to {most:.3g}, by scale {scale}"
    return between if low == high == 1 else f"amounts {low:g} to {high:g}, {between}"


def weighed(opened: Prepared, scale: str) -> Weighed:
    """The confidences of prepared shards: those that they hold or, of shards of ratings or amounts, by a scale."""
    held = opened.about.get(SCALE)
    pairs, users = sum(shard.by_user.nnz for shard in opened.shards), sum(map(len, opened.ids))
    order = (TOLD,) if any(shard.later is not None for shard in opened.shards) else ()
    told = f"events: {pairs:,} user-item pairs of {users:,} users and {len(opened.catalogue):,} items (prepared shards)"
    if held is not None:
        require(
            scale in (AUTO, held),
            f"the prepared shards hold confidences by scale {quoted(held)}, not {quoted(scale)}: leave "
            "confidence_scale out, or prepare them again",
            DataError,
        )
        return Weighed(opened, str(held), (f"{told}; confidences by scale {held}", *order))
    if scale == AUTO:
        usual = {default_confidence(shard.by_user.data) for shard in opened.shards}
        scale = "none" if usual == {"none"} else "log"
    shards = [_scaled(shard, scale) for shard in opened.shards]
    return Weighed(opened._replace(shards=shards), scale, (f"{told}; their values are amounts, scale {scale}", *order))


def _scaled(shard: Shard, scale: str) -> Shard:
    def of(matrix: sparse.csr_array) -> sparse.csr_array:
        data = confidence(matrix.data, scale).astype(matrix.data.dtype)
        return as_csr(data, matrix.indices, matrix.indptr, matrix.shape[1])

    return replace(shard, by_user=of(shard.by_user), by_rated=of(shard.by_rated))


def check_ratings(opened: Prepared) -> None:
    """Refuse prepared events as ratings, and ratings that are all equal."""
    require(
        opened.events is None,
        "these shards were prepared as events, not ratings: use feedback='implicit' (--feedback implicit)",
        DataError,
    )
    ends = [end(shard.by_user.data) for shard in opened.shards if shard.by_user.nnz for end in (np.min, np.max)]
    several = sum(shard.by_user.nnz for shard in opened.shards) > 1
    require(
        not several or min(ends) < max(ends),
        lambda: (
            f"every rating is {float(ends[0]):g}: these are events, not ratings; use feedback='implicit' "
            "(--feedback implicit)"
        ),
        DataError,
    )
