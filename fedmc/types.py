"""Types that every layer shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of any element type: kernels and input checks determine which
DType = np.dtype[np.generic]
Scalar = float | np.float32  # np.float64 is a float
