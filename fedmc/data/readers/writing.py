"""Write ratings to a CSV, TSV, Parquet or Feather file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from fedmc.data.files import free
from fedmc.data.ratings import Ratings
from fedmc.errors import unknown

ENDINGS = (".csv", ".tsv", ".parquet", ".feather")


def write_table(ratings: Ratings, path: str | Path) -> None:
    """Write one row per rating, in the order of the ids, atomically; the file's ending determines the format."""
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise unknown("ending", path.suffix, ENDINGS)
    columns = {
        "user": ratings.users[ratings.rows()],
        "item": ratings.items[ratings.matrix.indices],
        "rating": ratings.matrix.data,
    }
    if ratings.times is not None:
        columns["timestamp"] = ratings.times
    table = pa.table(columns)
    partial = free(path.with_name(path.name + ".part"))
    try:
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, partial)
        elif path.suffix == ".feather":
            pyarrow.feather.write_feather(table, partial)
        else:
            options = pyarrow.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
            pyarrow.csv.write_csv(table, partial, options)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
