"""A client's state as bytes, for a node's store."""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.protocol import Algorithm
from fedmc.algorithms.state import State
from fedmc.federation.wire import from_bytes, to_bytes
from fedmc.training.fixed_point import DECOYS, MEASUREMENT, WHOLE, put_together, taken_apart

EARLIER = {"Tied": "ADMMState", "TiedRated": "SparseADMMState", "Fitted": "CurvatureState", "Users": "LocalState"}


def dump(state: State | None) -> bytes:
    assert state is not None
    inner, steps = taken_apart(state)
    arrays = {name: np.asarray(value) for name, value in inner._asdict().items()}
    return to_bytes(arrays | steps, {"kind": type(inner).__name__})


def load(content: bytes, algorithm: Algorithm) -> State:
    arrays, header = from_bytes(content)
    steps = {name: arrays.pop(name) for name in (WHOLE, MEASUREMENT, DECOYS) if name in arrays}
    known: dict[str, type[State]] = {kind.__name__: kind for kind in algorithm.state_types}
    kind = str(header["kind"])
    return put_together(known[EARLIER.get(kind, kind)](**arrays), steps)
