"""The messages of secure aggregation on the wire.

Exchange 1 is a request with an `Invitation`; a node answers `masked`, or `keys` if the server has none that the node
has not used, or `opened` if it has opened another session for the same sum. Exchange 2 is the message `open`, which a
node answers with `opened`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.messages import STATEFUL_TASKS, length
from fedmc.algorithms.schema import schema_of
from fedmc.errors import DataError, InputError
from fedmc.federation.statuses import OK
from fedmc.federation.wire import Header, Request, from_bytes, to_bytes
from fedmc.privacy.secagg import crypto, encoding
from fedmc.privacy.secagg.session import Head, Masked, Opened, PublicKeys, Session
from fedmc.types import MAX_CLIENTS, Array, text, whole

Arrays = dict[str, Array]
KEPT_TASKS = (*STATEFUL_TASKS, "measure")
BOX = crypto.SHARE + 16  # a share and AES-GCM's tag


class Stage(NamedTuple):
    """A message that is not a request: exchange 2, or a node's answer in either exchange."""

    run: str
    client: int
    stage: str
    arrays: Arrays
    status: str = OK


def session_of(request: Request, items: int) -> Session:
    """The session, as both sides derive it: its hash covers the whole request and the cohort."""
    broadcast, invitation = request.broadcast, request.invitation
    assert invitation is not None
    return Session(
        request.run, invitation.number, invitation.attempt, bytes.fromhex(request.common), invitation.invited,
        invitation.losses, invitation.previous, length(schema_of(broadcast, items)), is_kept(request),
        invitation.instead_of,
    )  # fmt: skip


def is_kept(request: Request) -> bool:
    """Whether nodes keep what they send: the sum is of changes."""
    return request.broadcast.task in KEPT_TASKS


def encode_stage(stage: Stage) -> bytes:
    header: Header = {"run": stage.run, "client": stage.client, "stage": stage.stage, "status": stage.status}
    return to_bytes(stage.arrays, header)


def decode_stage(arrays: Arrays, header: Header) -> Stage:
    try:
        run, stage, status = (text(name, header[name]) for name in ("run", "stage", "status"))
        return Stage(run, whole("client", header["client"], 0, MAX_CLIENTS), stage, arrays, status)
    except (KeyError, InputError) as error:
        raise DataError(f"not a stage of this protocol: {error}") from None


def read_stage(content: bytes) -> Stage:
    return decode_stage(*from_bytes(content))


def keys_arrays(keys: PublicKeys, certified: int) -> Arrays:
    """A node's unused keys, and the last certified sum that it knows of."""
    return {"keys": encoding.to_blob(encoding.keys_to(keys)), "certified": np.array([certified], np.int64)}


def keys_of(arrays: Arrays) -> tuple[PublicKeys, int]:
    known = arrays.get("certified")
    if known is None or known.shape != (1,) or known.dtype != np.int64 or known[0] < 0:
        raise DataError("the number of a sum was expected")
    return encoding.from_blob(arrays.get("keys"), encoding.keys_from), int(known[0])


def masked_arrays(masked: Masked) -> Arrays:
    boxes = b"".join(box for _, box in sorted(masked.boxes.items()))
    return {
        "head": encoding.to_blob(encoding.head_to(masked.head)),
        "boxes": np.frombuffer(boxes, np.uint8).reshape(len(masked.boxes), BOX),
        "words": masked.words,
    }


def masked_of(arrays: Arrays, members: Sequence[int]) -> Masked:
    """The reply of a session's member; its boxes are in the order of the other members."""
    head = encoding.from_blob(arrays.get("head"), encoding.head_from)
    others = [member for member in members if member != head.member]
    boxes, words = arrays.get("boxes"), arrays.get("words")
    if boxes is None or words is None or boxes.dtype != np.uint8 or boxes.shape != (len(others), BOX):
        raise DataError(f"{len(others)} boxes of {BOX} bytes and a masked input were expected")
    return Masked(head, {member: row.tobytes() for member, row in zip(others, boxes, strict=True)}, words)


def open_arrays(session: bytes, heads: Sequence[Head]) -> Arrays:
    return {
        "session": np.frombuffer(session, np.uint8),
        "heads": encoding.to_blob([encoding.head_to(head) for head in heads]),
    }


def heads_of(arrays: Arrays) -> tuple[bytes, list[Head]]:
    return _session(arrays), encoding.from_blob(arrays.get("heads"), encoding.heads_from)


def opened_arrays(session: bytes, opened: Opened) -> Arrays:
    return {
        "session": np.frombuffer(session, np.uint8),
        "opened": encoding.to_blob(encoding.opened_to(opened)),
    }


def opened_of(arrays: Arrays) -> tuple[bytes, Opened]:
    return _session(arrays), encoding.from_blob(arrays.get("opened"), encoding.opened_from)


def _session(arrays: Arrays) -> bytes:
    found = arrays.get("session")
    if found is None or found.dtype != np.uint8 or found.shape != (encoding.HASH,):
        raise DataError("the hash of a session was expected")
    return found.tobytes()
