"""Types that every layer shares."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]  # of any element type: kernels and checks at the border say which
