"""The messages of secure aggregation on the wire: a stage's arrays, with session token, client, stage and status.

The first stage travels with the request itself (`Invitation`); the other stages are separate messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.messages import length
from fedmc.algorithms.schema import schema_of
from fedmc.errors import DataError, InputError
from fedmc.federation.statuses import OK
from fedmc.federation.wire import MAX_COHORT, Header, Request, from_bytes, to_bytes
from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg.session import Advert, Revealed, Session
from fedmc.types import MAX_CLIENTS, Array, text, whole

Arrays = dict[str, Array]

KEY, SIGNATURE = 32, 64
SEALED = 2 * crypto.SHARE + 16  # two shares and AES-GCM's tag
FOLLOWING = ("share", "mask", "confirm", "reveal")  # the stages after "advertise"


class Stage(NamedTuple):
    """One message of a stage: the server's request or a node's answer."""

    token: str  # of the session
    client: int
    stage: str
    arrays: Arrays
    status: str = OK


def session_of(request: Request, items: int) -> Session:
    """The session, as both sides derive it. Its name, and thereby every key and signature, covers the whole request:
    a server that sends one member a different request has no common session with it."""
    broadcast, invitation = request.broadcast, request.invitation
    assert invitation is not None
    name = f"{request.run}/{broadcast.task}/{invitation.token}/{request.common}"
    return Session(name, broadcast.round, invitation.cohort, invitation.threshold, length(schema_of(broadcast, items)))


def encode_stage(stage: Stage) -> bytes:
    header: Header = {"token": stage.token, "client": stage.client, "stage": stage.stage, "status": stage.status}
    return to_bytes(stage.arrays, header)


def decode_stage(arrays: Arrays, header: Header) -> Stage:
    try:
        token, stage, status = (text(name, header[name]) for name in ("token", "stage", "status"))
        return Stage(token, whole("client", header["client"], 0, MAX_CLIENTS), stage, arrays, status)
    except (KeyError, InputError) as error:
        raise DataError(f"not a stage of this protocol: {error}") from None


def read_stage(content: bytes) -> Stage:
    return decode_stage(*from_bytes(content))


def from_adverts(adverts: list[Advert]) -> Arrays:
    return {
        "members": np.array([advert.member for advert in adverts], np.int64),
        "new": np.array([advert.new for advert in adverts], np.uint8),
        "seal": _rows([advert.seal_key for advert in adverts], KEY),
        "mask": _rows([advert.mask_key for advert in adverts], KEY),
        "commitments": _rows([advert.commitment for advert in adverts], KEY),
        "signatures": _rows([advert.signature for advert in adverts], SIGNATURE),
    }


def to_adverts(arrays: Arrays) -> list[Advert]:
    members = _numbers(arrays, "members")
    count = len(members)
    new = _bytes_of(arrays, "new", count)
    seal, mask, commitments = (_contents(arrays, name, count, KEY) for name in ("seal", "mask", "commitments"))
    signatures = _contents(arrays, "signatures", count, SIGNATURE)
    flags = [flag != 0 for flag in new]
    return [Advert(*one) for one in zip(members, seal, mask, signatures, flags, commitments, strict=True)]


def from_table(table: Mapping[int, bytes], size: int, name: str = "members") -> Arrays:
    return {name: np.array(list(table), np.int64), f"{name}_contents": _rows(list(table.values()), size)}


def to_table(arrays: Arrays, size: int, name: str = "members") -> dict[int, bytes]:
    members = _numbers(arrays, name)
    if len(set(members)) != len(members):
        raise DataError("a member comes twice")
    return dict(zip(members, _contents(arrays, f"{name}_contents", len(members), size), strict=True))


def from_revealed(revealed: Revealed) -> Arrays:
    size = crypto.SHARE
    return from_table(revealed.of_survivors, size, "survivors") | from_table(revealed.of_lost, size, "lost")


def to_revealed(member: int, arrays: Arrays) -> Revealed:
    size = crypto.SHARE
    return Revealed(member, to_table(arrays, size, "survivors"), to_table(arrays, size, "lost"))


def from_members(members: tuple[int, ...]) -> Arrays:
    return {"members": np.array(members, np.int64)}


def to_members(arrays: Arrays) -> tuple[int, ...]:
    return tuple(_numbers(arrays, "members"))


def to_signature(arrays: Arrays) -> bytes:
    return _contents(arrays, "signature", 1, SIGNATURE)[0]


def from_signature(signature: bytes) -> Arrays:
    return {"signature": _rows([signature], SIGNATURE)}


def _rows(contents: list[bytes], size: int) -> Array:
    return np.frombuffer(b"".join(contents), np.uint8).reshape(len(contents), size)


def _numbers(arrays: Arrays, name: str) -> list[int]:
    found = arrays.get(name)
    if found is None or found.ndim != 1 or found.dtype != np.int64 or (found < 0).any():
        raise DataError(f"{name} must be a list of member numbers")
    if len(found) > MAX_COHORT:
        raise DataError(f"{name} lists {len(found)} members, at most {MAX_COHORT} are read")
    return [int(number) for number in found]


def _contents(arrays: Arrays, name: str, count: int, size: int) -> list[bytes]:
    found = arrays.get(name)
    if found is None or found.dtype != np.uint8 or found.shape != (count, size):
        raise DataError(f"{name} must be {count} times {size} bytes")
    return [row.tobytes() for row in found]


def _bytes_of(arrays: Arrays, name: str, count: int) -> list[int]:
    found = arrays.get(name)
    if found is None or found.dtype != np.uint8 or found.shape != (count,):
        raise DataError(f"{name} must be {count} bytes")
    return [int(value) for value in found]
