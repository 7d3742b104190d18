"""The values of secure aggregation as JSON, for messages and files: lists of numbers and hexadecimal text.

Reading checks types and lengths. Whatever the input, it gives a value or raises DataError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from fedmc.errors import DataError
from fedmc.privacy.secagg.session import Certificate, Head, Invited, Opened, Proof, PublicKeys, Session
from fedmc.types import Array

KEY = HASH = 32
SIGNATURE = 64
MAX_MEMBERS = 1_000
MAX_BYTES = 2**23
MAX_VALUES = 200_000  # lists and values in them, before they are parsed; 1,000 members need about 20,000
LARGEST = 2**53
Json = Sequence["Json"] | str | int | bool
T = TypeVar("T")


def to_blob(value: Json) -> Array:
    """JSON as an array of bytes, which messages can hold."""
    return np.frombuffer(json.dumps(value, separators=(",", ":")).encode(), np.uint8)


def from_blob(blob: Array | None, read: Callable[[Json], T]) -> T:
    """Inverse of `to_blob`, read by one of the functions below."""
    if blob is None or blob.dtype != np.uint8 or blob.ndim != 1 or blob.size > MAX_BYTES:
        raise DataError("a part of a message of secure aggregation is missing, or not made of bytes")
    return parsed(blob.tobytes(), read)


def parsed(content: bytes | str, read: Callable[[Json], T]) -> T:
    """Read JSON text by one of the functions below."""
    raw = content.encode() if isinstance(content, str) else content
    if sum(raw.count(mark) for mark in (b"[", b"{", b",")) > MAX_VALUES:
        raise DataError(f"a value of secure aggregation has at most {MAX_VALUES:,} parts")
    try:
        return read(json.loads(raw))
    except DataError:
        raise
    except Exception as error:  # strange values can raise anything
        raise DataError(f"not a value of secure aggregation: {type(error).__name__}") from None


def keys_to(keys: PublicKeys) -> Json:
    return [keys.member, keys.seq, keys.mask.hex(), keys.seal.hex(), keys.alone, keys.signature.hex()]


def keys_from(value: Json) -> PublicKeys:
    member, seq, mask, seal, alone, signature = items(value)
    return PublicKeys(
        whole_from(member), whole_from(seq), _bytes(mask, KEY), _bytes(seal, KEY), _switch(alone),
        _bytes(signature, SIGNATURE),
    )  # fmt: skip


def session_to(session: Session) -> Json:
    invited = [[keys_to(one.keys), one.base] for one in session.invited]
    return [
        session.run, session.number, session.attempt, session.content.hex(), invited, session.losses,
        session.previous.hex(), session.length, session.kept, session.instead_of.hex(),
    ]  # fmt: skip


def session_from(value: Json) -> Session:
    run, number, attempt, content, invited, losses, previous, length, kept, instead_of = items(value)
    return Session(
        _text(run), whole_from(number), whole_from(attempt), _bytes(content, HASH), invited_from(invited),
        whole_from(losses), hash_from(previous), whole_from(length), _switch(kept), hash_from(instead_of),
    )  # fmt: skip


def invited_from(value: Json) -> tuple[Invited, ...]:
    return tuple(Invited(keys_from(keys), whole_from(base)) for keys, base in map(items, items(value)))


def certificate_to(one: Certificate) -> Json:
    signatures: list[Json] = [[member, signature.hex()] for member, signature in one.signatures]
    return [one.run, one.number, list(one.members), one.losses, one.kept, one.rest.hex(), signatures]


def certificate_from(value: Json) -> Certificate:
    run, number, members, losses, kept, rest, signatures = items(value)
    return Certificate(
        _text(run), whole_from(number), tuple(map(whole_from, items(members))), whole_from(losses), _switch(kept),
        _bytes(rest, HASH), _table(signatures, SIGNATURE),
    )  # fmt: skip


def head_to(head: Head) -> Json:
    hashes = [part.hex() for part in head[1:5]]
    return [head.member, *hashes, keys_to(head.next), head.signature.hex()]


def head_from(value: Json) -> Head:
    member, *hashes, following, signature = items(value)
    ephemeral, commitment, boxes, masked = (_bytes(one, HASH) for one in hashes)
    return Head(
        whole_from(member), ephemeral, commitment, boxes, masked, keys_from(following), _bytes(signature, SIGNATURE)
    )


def heads_from(value: Json) -> list[Head]:
    return [head_from(one) for one in items(value)]


def opened_to(opened: Opened) -> Json:
    return [opened.member, opened.seal.hex(), opened.signature.hex()]


def opened_from(value: Json) -> Opened:
    member, seal, signature = items(value)
    return Opened(whole_from(member), _bytes(seal, KEY), _bytes(signature, SIGNATURE))


def proof_to(proof: Proof) -> Json:
    tables: list[Json] = [[[member, one.hex()] for member, one in table] for table in (proof.boxes, proof.seals)]
    return [head_to(proof.head), *tables]


def proof_from(value: Json) -> Proof:
    head, boxes, seals = items(value)
    return Proof(head_from(head), _table(boxes, None), _table(seals, KEY))


def items(value: Json) -> Sequence[Json]:
    if not isinstance(value, list) or len(value) > MAX_MEMBERS:
        raise DataError("a list was expected in a message of secure aggregation")
    return value


def _table(value: Json, size: int | None) -> tuple[tuple[int, bytes], ...]:
    return tuple((whole_from(member), _bytes(content, size)) for member, content in map(items, items(value)))


def whole_from(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise DataError("a whole number was expected in a message of secure aggregation")
    return value


def _switch(value: Json) -> bool:
    if not isinstance(value, bool):
        raise DataError("true or false was expected in a message of secure aggregation")
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise DataError("a name was expected in a message of secure aggregation")
    return value


def _bytes(value: Json, size: int | None) -> bytes:
    found = bytes.fromhex(value) if isinstance(value, str) else b""
    if (size is not None and len(found) != size) or len(found) > 1_000:
        raise DataError(f"{size} bytes were expected in a message of secure aggregation")
    return found


def hash_from(value: Json) -> bytes:
    """A hash, or nothing."""
    return b"" if value == "" else _bytes(value, HASH)
