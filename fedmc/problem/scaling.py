"""How ratings are centred and scaled before the model sees them."""

from __future__ import annotations

from typing import NamedTuple


class Scaling(NamedTuple):
    """Ratings enter the model as (m - mean) / scale."""

    mean: float = 0.0
    scale: float = 1.0
