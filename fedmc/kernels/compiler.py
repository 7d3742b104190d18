"""Numba's compiler, with types that mypy can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit as _njit

Compiled = Callable[..., Any]  # numba infers argument and result types at the first call
njit: Compiled = _njit
inlined: Compiled = njit(cache=True, nogil=True, forceinline=True, _nrt=False)
