"""What a reply to a broadcast must hold: the names and shapes of its sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmc.algorithms import curvature
from fedmc.algorithms.messages import Broadcast


def shapes(cast: Broadcast, items: int) -> dict[str, tuple[int, ...]]:
    """The arrays that a reply to this request must hold, () for a number."""
    settings, width = cast.settings, cast.settings.width
    if cast.task == "moments":
        return {"count": (), "sum": (), "squares": (), "items": (items,)}
    if cast.task == "scale":
        return {"users": (), "squares": (width,)}
    if cast.task == "measure":
        names = ["loss", "penalty", "nonzeros", "entries"]
        names += [f"{part}_{what}" for part in ("train", "test", "validation") for what in ("count", "error")]
        found: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
        if cast.full:
            found |= dict.fromkeys(["gap", "stationarity_U", "L_U_high", "L_U_low", "L_V_low", "L_high"], ())
            found |= {"gradient_V": (items, width)} | ({} if settings.update == "curvature" else {"lagrangian": ()})
        return found
    if cast.task == "finish":
        return {}
    method: Any = settings.make_method()
    if settings.private:
        return {"release": method.shape(cast, items)}
    columns = curvature.columns(width, settings.penalties(1)[1]) if settings.update == "curvature" else width
    return {"S": (items, columns), "joined": ()}


def largest(cast: Broadcast, items: int) -> int:
    """No honest reply takes more bytes."""
    numbers = sum(int(np.prod(shape)) for shape in shapes(cast, items).values())
    return 12 * (numbers + items) + 100_000
