"""The server's state on disk: written before the next round begins, so that a new process goes on to the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms.messages import Broadcast
from fedmc.data.files import write_whole
from fedmc.errors import DataError
from fedmc.federation.wire import Request, decode, encode, from_bytes, to_bytes
from fedmc.training.diagnostics import ServerState

FORMAT = 1


class Checkpoint(NamedTuple):
    run: str
    number: int  # the last round that counts
    cast: Broadcast
    state: ServerState
    counted: dict[int, int]  # each node's last round that is in the sum
    catalogue: str
    opening: float | None  # the objective at the start, which divergence is measured by
    factors: Mapping[int, float] = MappingProxyType({})  # how much of each node's last round counted


def save(path: Path, found: Checkpoint) -> None:
    """The file appears whole or not at all."""
    arrays, words = encode(Request(found.run, 0, found.cast, -1, found.catalogue))
    arrays |= {"state_V": found.state.V} | ({} if found.state.S is None else {"S": np.asarray(found.state.S)})
    more: dict[str, Any] = {
        "format": FORMAT, "number": found.number, "seen": found.state.seen, "opening": found.opening,
        "counts": {str(client): number for client, number in found.counted.items()},
        "factors": {str(client): float(factor).hex() for client, factor in found.factors.items()},
    }  # fmt: skip
    write_whole(path, to_bytes(arrays, words | more))


def load(path: Path) -> Checkpoint:
    try:
        arrays, words = from_bytes(path.read_bytes())
        if words.get("format") != FORMAT:
            raise DataError(f"it has format {words.get('format')}, this fedmc reads {FORMAT}")
        request = decode(arrays, words)
        counted = {int(client): int(number) for client, number in words["counts"].items()}
        factors = {int(client): float.fromhex(factor) for client, factor in words["factors"].items()}
        state = ServerState(arrays.get("S"), np.ascontiguousarray(arrays["state_V"]), int(words["seen"]))
        return Checkpoint(
            request.run, int(words["number"]), request.cast, state, counted, request.catalogue, words["opening"],
            factors,
        )  # fmt: skip
    except FileNotFoundError:
        raise DataError(f"there is no checkpoint {path}") from None
    except (DataError, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}") from None
