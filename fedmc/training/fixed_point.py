"""A client's reply as whole numbers, for sums that are exact and can be masked: every part of it, and nothing else.

What a client adds to the server's sum S is kept in whole steps of 2^-28, and what travels is the difference to what is
in the sum already. So the sum is that of the rounded contributions after any number of rounds: the error is half a step
a client for ever, whatever the order, and S stays exact in float64 up to 2^25. The message has a place for every item:
which ones a client rated cannot be told from its length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms.client import ClientState, contribution, respond
from fedmc.algorithms.messages import CHANGING, Broadcast, Sums
from fedmc.algorithms.schema import shapes
from fedmc.data.partition import Shard
from fedmc.errors import Diverged, InputError
from fedmc.privacy.secagg.fixed import from_fixed, limit_of, to_fixed
from fedmc.types import Array

STEP_OF_SUMS = 28  # binary digits behind the point of S
STEP_OF_NUMBERS = 20  # of counts, losses and the like, which are larger


class Counted(NamedTuple):
    """What a client remembers: its state as in plain, and its part of the server's sum in whole steps."""

    inner: ClientState
    whole: Array

    @property
    def U(self) -> Array:
        return np.asarray(self.inner.U)


def respond_in_words(shard: Shard, state: Any, cast: Broadcast) -> tuple[Any, Array]:
    """As `client.respond`: the new state, and the reply as words (int64) of a length that depends on the task only."""
    after, sums = respond(shard, state.inner if isinstance(state, Counted) else state, cast)
    if cast.task not in CHANGING:
        return state, _words(sums.parts, cast, shard)
    if cast.settings.private:
        return after, _words(sums.parts, cast, shard)  # a release is whole and new each time, and in whole steps
    S = _fixed(contribution(shard, after, cast), STEP_OF_SUMS, cast)
    now = Counted(after, S)
    return now, difference(now, state)


def difference(now: Counted, before: Counted | None) -> Array:
    """What travels of a new state: the change of its part of the sum, and whether it is the first."""
    change = now.whole if before is None else now.whole - before.whole
    joined = np.array([before is None], np.int64) << STEP_OF_NUMBERS
    return np.concatenate([change.ravel(), joined])


def to_sums(total: Array, cast: Broadcast, items: int, sent: int) -> Sums:
    """The sums that words add up to."""
    parts = {name: from_fixed(part, _step(name)) for name, part in parts_of(total, cast, items).items()}
    return Sums(parts, sent)


def parts_of(words: Array, cast: Broadcast, items: int) -> dict[str, Array]:
    """The same whole numbers by name."""
    parts, start = {}, 0
    for name, shape in shapes(cast, items).items():
        stop = start + int(np.prod(shape))
        parts[name] = words[start:stop].reshape(shape)
        start = stop
    return parts


def to_words(parts: dict[str, Array]) -> Array:
    """And back: parts in the order of their names in `shapes`."""
    return np.concatenate([part.ravel() for part in parts.values()])


def length_of(cast: Broadcast, items: int) -> int:
    """Words of a reply."""
    return sum(int(np.prod(shape)) for shape in shapes(cast, items).values())


def _words(parts: dict[str, Any], cast: Broadcast, shard: Shard) -> Array:
    wanted = shapes(cast, shard.by_user.shape[1])
    found = []
    for name, shape in wanted.items():
        dense = np.zeros(shape)
        parts[name].add_to(dense) if hasattr(parts[name], "add_to") else np.copyto(dense, parts[name])
        found.append(_fixed(dense, _step(name), cast).ravel())
    return np.concatenate(found)


def _step(name: str) -> int:
    return STEP_OF_SUMS if name in ("S", "release") else STEP_OF_NUMBERS


def _fixed(values: Array, bits: int, cast: Broadcast) -> Array:
    try:
        return to_fixed(values, bits, limit_of(cast.clients, bits))
    except InputError as error:
        raise Diverged(cast.round, str(error), "rescale the ratings, or raise the penalties or beta") from None
