"""The times of rows: which column holds them, and its values in seconds since 1970."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fedmc.data.readers.shapes import names_of
from fedmc.data.readers.usual import TIME_NAMES, guess
from fedmc.errors import DataError, require
from fedmc.types import Array


def find_time_column(names: Sequence[str], needed: bool = True) -> str | None:
    """The column that holds the time, by its usual names; if it is not needed, None if there is none."""
    known = guess(names, TIME_NAMES, "time", "name one fourth (columns='USER,ITEM,RATING,TIME')")
    if known is None and needed:
        raise DataError(
            f"no time column found: the table has {names_of(names)}; call it 'timestamp' "
            "or name it fourth (columns='USER,ITEM,RATING,TIME')"
        )
    return known


def seconds(column: pa.Array, where: str) -> Array:
    """Times in seconds since 1970, from numbers of seconds, dates or timestamps."""
    require(column.null_count == 0, f"{where}: a time is missing", DataError)
    kind = column.type
    try:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            numbers = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
            require(bool(np.isfinite(numbers).all()), f"{where}: a time is not a finite number", DataError)
            return numbers.astype(np.int64)
        return np.asarray(column.cast(pa.timestamp("s"), safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{where}: times must be seconds since 1970 or dates like 2005-12-31: {error}") from None
