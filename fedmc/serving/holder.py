"""The model in use. A new file is loaded beside it and replaces it between two requests; a broken one is refused."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, FedmcError, printable, reason
from fedmc.model import Model
from fedmc.serving.answers import Served

ATTEMPTS = 5  # at reading a file that changes meanwhile
AGAIN = 60.0  # seconds until a refused file is tried again: what was wrong may have been the machine
DIGITS = 12  # of a hash, as it is shown

log = logging.getLogger("fedmc.serve")


class Loaded(NamedTuple):
    """A model as it is read, and how its run read events."""

    model: Model
    scale: str | None = None
    recency: bool = True


class Refusal(NamedTuple):
    """A new file that could not be taken into use."""

    when: float
    why: str  # for everybody who may ask for the health: it names no folders


class Stamp(NamedTuple):
    """What tells one file from the one that replaces it."""

    inode: int
    written: int
    size: int
    changed: int  # of its name, rights or content: copies may keep the time of writing


class Holder:
    """Reads a model with `load` whenever the file changes. `current` is replaced as a whole, never changed."""

    def __init__(self, path: Path, load: Callable[[], Loaded], name: str) -> None:
        self.path, self.load, self.name = path, load, name
        self.refused: Refusal | None = None
        self._stamp, self.current = self._read()

    def check(self, anyway: bool = False) -> None:
        """Take a new file into use, if there is one (or `anyway`); it blocks while the file is read."""
        stamp = stamp_of(self.path)
        again = self.refused is not None and time.time() - self.refused.when > AGAIN
        if stamp is None or (stamp == self._stamp and not (anyway or again)):
            return
        try:
            self._stamp, self.current = self._read()
            self.refused = None
            log.info("the model %s is in use", self.current.hash)
        except Exception as error:  # whatever it is, the model in use is whole
            why = printable(reason(error))
            log.error("the new model is refused, %s stays in use: %s", self.current.hash, why)
            self._stamp, self.refused = stamp, Refusal(time.time(), why.replace(f"{self.path.parent}{os.sep}", ""))

    async def watch(self, seconds: float, poke: asyncio.Event) -> None:
        """Look for a new file again and again; at once and anyway, if poked."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(poke.wait(), seconds)
            anyway = poke.is_set()
            poke.clear()
            await asyncio.to_thread(self.check, anyway)

    def _read(self) -> tuple[Stamp | None, Served]:
        for _ in range(ATTEMPTS):
            stamp = stamp_of(self.path)
            found, digest = self.load(), hash_of(self.path)
            if stamp == stamp_of(self.path):
                warm(found.model)
                return stamp, Served(found.model, digest, self.name, time.time(), found.scale, found.recency)
        raise DataError(f"{self.path} changes while it is read: write it under another name, and rename it")


def stamp_of(path: Path) -> Stamp | None:
    """None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns)


def hash_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def warm(model: Model) -> None:
    """Compile what answers need, and compute what depends on the items only, before the first request."""
    user, item = model.users[:1], model.items[:1]
    tries: list[Callable[[], object]] = [
        lambda: model.recommend(user, 1),
        lambda: model.recommend(user, 1, cautious=True),
        lambda: model.interval(user, item),
        lambda: model.similar(item, 1),
        lambda: model.fold_in(Ratings(user, item, sparse.csr_array(np.ones((1, 1))))),
        lambda: model.find("a", 1),
    ]
    for one in tries:
        with suppress(FedmcError):  # this model has no intervals, no titles, or no factors of this item
            one()
