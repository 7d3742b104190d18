"""Ratings in one folder from which several processes map them, so that they are read and held in memory once."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from fedmc.data.ratings import Ratings

OBJECT, BUFFERS = "ratings.pickle", "buffer-{}.npy"


def save(ratings: Ratings, folder: Path) -> None:
    """Write the ratings for processes of this program: the arrays apart from the object that they belong to."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(ratings, protocol=5, buffer_callback=buffers.append)
    for number, buffer in enumerate(buffers):
        np.save(folder / BUFFERS.format(number), np.frombuffer(buffer.raw(), np.uint8))
    (folder / OBJECT).write_bytes(content)


def load(folder: Path) -> Ratings:
    """The ratings that `save` wrote in this run; their arrays are memory-mapped, copy on write."""
    count = len(list(folder.glob(BUFFERS.format("*"))))
    buffers = [np.load(folder / BUFFERS.format(number), mmap_mode="c") for number in range(count)]
    found: Ratings = pickle.loads((folder / OBJECT).read_bytes(), buffers=buffers)
    return found
