"""The server's checkpoint on disk, written before each round: a resumed run gives the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.state import ServerState
from fedmc.data.files import write_whole
from fedmc.errors import DataError
from fedmc.federation.wire import SHARED, Arrays, Header, Request, decode, encode, from_bytes, to_bytes
from fedmc.training.rounds import Checkpoint
from fedmc.types import Array

FORMAT = 2
NOTHING: Mapping[int, float] = MappingProxyType({})


class SavedRun(NamedTuple):
    """A checkpoint, and what the server knows about its nodes."""

    run: str
    checkpoint: Checkpoint
    counted: dict[int, int]  # each node's last round that is in the sum
    catalogue: str
    factors: Mapping[int, float] = NOTHING  # the clipping factor of each node's last counted update
    measured: Array | None = None  # under secure aggregation: the running totals of measurements


def save(path: Path, found: SavedRun) -> None:
    """Write a checkpoint atomically."""
    number, broadcast, server, start_objective = found.checkpoint
    arrays, header = encode(Request(found.run, 0, broadcast, -1, found.catalogue))
    arrays |= {"state_V": server.V} | ({} if server.S is None else {"S": np.asarray(server.S)})
    arrays |= {} if found.measured is None else {"measured": found.measured}
    more: Header = {
        "format": FORMAT, "number": number, "seen": server.seen, "opening": start_objective,
        "counts": {str(client): number for client, number in found.counted.items()},
        "factors": {str(client): float(factor).hex() for client, factor in found.factors.items()},
    }  # fmt: skip
    write_whole(path, to_bytes(arrays, header | more))


def load(path: Path) -> SavedRun:
    """Read a checkpoint, also one of the previous version (format 1)."""
    try:
        arrays, header = from_bytes(path.read_bytes())
        if header.get("format") not in (1, FORMAT):
            raise DataError(f"it has format {header.get('format')}, this fedmc reads up to {FORMAT}")
        return _read(arrays, header)
    except FileNotFoundError:
        raise DataError(f"there is no checkpoint {path}") from None
    except (DataError, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}") from None


def _read(arrays: Arrays, header: Header) -> SavedRun:
    if header["format"] == 1:
        header["settings_hash"] = None
        arrays |= {SHARED + name: arrays.pop(name) for name in ("beta", "memory") if name in arrays}
    request = decode(arrays, header)
    counted = {int(client): int(number) for client, number in header["counts"].items()}
    factors = {int(client): float.fromhex(factor) for client, factor in header["factors"].items()}
    server = ServerState(arrays.get("S"), np.ascontiguousarray(arrays["state_V"]), int(header["seen"]))
    checkpoint = Checkpoint(int(header["number"]), request.broadcast, server, header["opening"])
    return SavedRun(request.run, checkpoint, counted, request.catalogue, factors, arrays.get("measured"))
