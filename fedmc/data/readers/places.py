"""Where a source is: on disk, or in object storage."""

from __future__ import annotations

from pathlib import Path

from fedmc.data.addresses import is_stored, present, without_password
from fedmc.data.readers import storage
from fedmc.data.readers.files import Place, place_on_disk
from fedmc.errors import DataError, require


def place_of(source: str | Path) -> Place:
    """Where a source is: a file or folder, on disk or in object storage."""
    if is_stored(source):
        return storage.place_of(str(source))
    path = Path(source)
    require(present(path), f"there is no file {without_password(str(source))}", DataError)
    return place_on_disk(path)
