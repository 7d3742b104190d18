"""The users that an organisation has forgotten: `forgotten.json` in its folder, as salted hashes of their ids.

The ratings' source is the organisation's own and may still hold such a user. Readers leave those rows out. Ids can be
guessed, and whoever has the file can test a guess: only the organisation may read it.
"""

from __future__ import annotations

import json
import os
import secrets
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from fedmc.data.files import write_whole
from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, require
from fedmc.federation.setup.layout import NodeConfig
from fedmc.types import Array

FILE, FORMAT, VERSION = "forgotten.json", "fedmc-forgotten", 1
BYTES = 16  # of a hash and of the salt


class Forgotten(NamedTuple):
    """`unfinished`: a removal has begun and did not come to its end."""

    salt: bytes
    users: frozenset[str] = frozenset()  # hashes
    unfinished: bool = False

    def mask(self, ids: Array) -> Array:
        """Which of these ids are those of forgotten users; 17 and "17" are the same id."""
        if not self.users:
            return np.zeros(len(ids), bool)
        return np.fromiter((self._hash(str(one)) in self.users for one in ids.tolist()), bool, len(ids))

    def adding(self, users: list[str]) -> Forgotten:
        return self._replace(users=self.users | {self._hash(user) for user in users}, unfinished=True)

    def left_out(self, ratings: Ratings) -> tuple[Ratings, str | None]:
        """The ratings without those of forgotten users, and in words how many were left out, if any."""
        gone = self.mask(ratings.users)
        if not gone.any():
            return ratings, None
        require(not gone.all(), "the source holds no users but forgotten ones: nothing is left to read", DataError)
        kept = ratings.with_users(np.flatnonzero(~gone))
        rows = f"forgotten users ({int(gone.sum()):,}): {len(ratings) - len(kept):,} rows are left out"
        return kept, f"{rows}; delete them from the source, too"

    def _hash(self, user: str) -> str:
        return blake2b(user.encode("utf-8", "surrogatepass"), key=self.salt, digest_size=BYTES).hexdigest()


def load(config: NodeConfig) -> Forgotten:
    """Who was forgotten here; a damaged list is refused, as it would let users in again."""
    path = config.path(FILE)
    if not path.exists():
        return Forgotten(secrets.token_bytes(BYTES))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {content['format']} {content['version']}, this fedmc reads {FORMAT} {VERSION}")
        return Forgotten(bytes.fromhex(content["salt"]), frozenset(content["users"]), bool(content["unfinished"]))
    except (ValueError, KeyError, TypeError) as error:
        cure = "put a copy back, or delete it and forget its users again"
        raise DataError(f"{path} cannot be read ({error}): {cure}") from None


def save(config: NodeConfig, forgotten: Forgotten) -> None:
    about = {"format": FORMAT, "version": VERSION, "salt": forgotten.salt.hex()}
    content = about | {"users": sorted(forgotten.users), "unfinished": forgotten.unfinished}
    path = config.path(FILE)
    write_whole(path, json.dumps(content).encode())
    os.chmod(path, 0o600)


def check_none_in(config: NodeConfig, ids: Array, place: object, own: bool) -> None:
    """Refuse data for runs that hold a forgotten user, and a removal that did not come to its end."""
    known = load(config)
    again = f"`fedmc node forget {config.folder} --again`"
    require(not known.unfinished, f"the removal of forgotten users was interrupted: finish it with {again}", DataError)
    number = int(known.mask(ids).sum())
    cure = f"remove them with {again}" if own else "prepare it again without them, with `fedmc prepare`"
    require(not number, f"{place} holds {number:,} users who were forgotten here: {cure}", DataError)
