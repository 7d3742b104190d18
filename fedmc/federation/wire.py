"""The messages between server and nodes: named arrays and a JSON header.

A request carries a Broadcast, the node's number, and the node's last round that the server counted; it travels in a
signed envelope (`envelope.py`). A reply carries a status and, if that is "ok", one client's Sums. It carries nothing
else: no error text ever leaves a node.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np

from fedmc import __version__
from fedmc.algorithms.messages import Broadcast, Rows, Shared, Sparse, Sums, Value
from fedmc.algorithms.settings import Settings
from fedmc.errors import DataError, InputError, UnknownNameError
from fedmc.federation.protocol import PROTOCOL
from fedmc.federation.statuses import OK
from fedmc.privacy.secagg.serial import digest
from fedmc.problem.scaling import Scaling
from fedmc.types import Array

Arrays = dict[str, Array]
Header = dict[str, Any]  # what JSON can hold
HEADER, EARLIER_HEADER = "header.json", "words.json"  # its name in a message, and before version 0.2
SHARED = "shared/"  # before the names of what the algorithm broadcasts beside V
RUN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"  # the id of a run, which names files
NEVER = -1  # no round of this node was counted


class Invitation(NamedTuple):
    """Invites a node to a session of secure aggregation: it answers with an advert, and its reply is masked."""

    token: str
    cohort: tuple[int, ...]
    threshold: int


class Request(NamedTuple):
    """A request to one node: a broadcast, and what concerns only this node."""

    run: str
    client: int  # the node's number
    broadcast: Broadcast
    counted: int  # the node's last round that is in the server's sum, or NEVER
    catalogue: str  # hash of the items
    version: str = __version__  # only nodes of protocol 1 read it
    factor: float = 1.0  # the clipping factor with which that round's update was counted
    invitation: Invitation | None = None

    @property
    def key(self) -> str:
        """Hash by which a node recognises a repeated request: of all but `counted`, `factor` and `invitation`."""
        return self.hash(counted=None, factor=None, invitation=None)

    @property
    def common(self) -> str:
        """Hash of the part of a request that is the same for all members of a session."""
        return self.hash(client=None, counted=None, factor=None, invitation=None)

    def hash(self, **without: None) -> str:
        arrays, header = encode(self)
        return digest(header | without, arrays).hex()


class Reply(NamedTuple):
    run: str
    client: int
    round: int
    task: str
    status: str
    sums: Sums | None = None
    protocol: int = PROTOCOL  # the node's


def hash_of(settings: Settings) -> str:
    return digest(settings.to_dict()).hex()


def portable(settings: Settings) -> None:
    """Refuse settings that JSON cannot hold: a penalty, loss, sampler or algorithm given as an object."""
    try:
        same = Settings.from_dict(settings.to_dict()).to_dict() == settings.to_dict()
    except InputError:
        same = False
    if not same:
        raise InputError(
            "a federation takes settings in words only, since nodes run nothing but what they installed: "
            "install a plug-in package at every node, and give its name"
        )


def encode(request: Request) -> tuple[Arrays, Header]:
    """Arrays and header of a request."""
    broadcast = request.broadcast
    arrays = {"V": broadcast.V} | {SHARED + name: array for name, array in broadcast.shared.arrays.items()}
    header: Header = {
        "run": request.run, "client": request.client, "counted": request.counted, "catalogue": request.catalogue,
        "version": request.version, "task": broadcast.task, "round": broadcast.round, "clients": broadcast.clients,
        "settings": broadcast.settings.to_dict(), "settings_hash": hash_of(broadcast.settings), "full": broadcast.full,
        "mean": float(broadcast.scaling.mean).hex(), "scale": float(broadcast.scaling.scale).hex(),
        "factor": float(request.factor).hex(), "invitation": request.invitation,
    }  # fmt: skip
    return arrays, header


def decode(arrays: Arrays, header: Header) -> Request:
    """The request; InputError: its settings cannot be run here, DataError: it is none."""
    try:
        settings = _settings(header)
        scaling = Scaling(float.fromhex(header["mean"]), float.fromhex(header["scale"]))
        shared = {name.removeprefix(SHARED): array for name, array in arrays.items() if name.startswith(SHARED)}
        broadcast = Broadcast(
            header["task"], int(header["round"]), int(header["clients"]), settings,
            np.ascontiguousarray(arrays["V"], settings.dtype), scaling, Shared(shared), bool(header["full"]),
        )  # fmt: skip
        return Request(
            str(header["run"]), int(header["client"]), broadcast, int(header["counted"]), header["catalogue"],
            header["version"], float.fromhex(header["factor"]), _invitation(header["invitation"]),
        )  # fmt: skip
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise DataError(f"not a request of this protocol: {type(error).__name__}: {error}") from None


def _settings(header: Header) -> Settings:
    try:
        settings = Settings.from_dict(header["settings"])
    except UnknownNameError:
        raise
    except InputError as error:
        raise InputError(f"settings: {error}") from None
    if header["settings_hash"] not in (None, hash_of(settings)):  # None: of an earlier version's checkpoint
        raise InputError("the settings do not match their hash")
    return settings


def _invitation(header: Sequence[Any] | None) -> Invitation | None:
    if header is None:
        return None
    token, cohort, threshold = header
    return Invitation(str(token), tuple(int(member) for member in cohort), int(threshold))


def encode_reply(reply: Reply) -> tuple[Arrays, Header]:
    header: Header = {key: getattr(reply, key) for key in ("run", "client", "round", "task", "status", "protocol")}
    arrays: dict[str, Array] = {}
    heights = {}
    for name, part in ({} if reply.sums is None else reply.sums.parts).items():
        if isinstance(part, Sparse):
            arrays[f"{name}/rows"], arrays[f"{name}/values"] = part.rows, part.values
            heights[name] = part.height
        else:
            arrays[name] = np.asarray(part)
    return arrays, header | {"heights": heights}


def decode_reply(arrays: Arrays, header: Header) -> Reply:
    try:
        heights = header["heights"]
        parts: dict[str, Value] = {name: part for name, part in arrays.items() if "/" not in name}
        for name, height in heights.items():
            parts[name] = Rows(arrays[f"{name}/rows"], arrays[f"{name}/values"], int(height))
        sums = Sums.of(**parts) if header["status"] == OK else None
        return Reply(
            str(header["run"]),
            int(header["client"]),
            int(header["round"]),
            str(header["task"]),
            str(header["status"]),
            sums,
            int(header.get("protocol", 1)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"not a reply of this protocol: {error}") from None


def to_bytes(arrays: Mapping[str, Array], header: Header) -> bytes:
    """Arrays and header as one .npz file; the same content gives the same bytes."""
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)
    content = {HEADER: text} | {name: arrays[name] for name in sorted(arrays)}
    np.savez(file, **content)  # type: ignore[arg-type]
    return file.getvalue()


def from_bytes(content: bytes) -> tuple[Arrays, Header]:
    """Inverse of `to_bytes`; DataError for anything else. It never unpickles or runs the content."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            inside = archive.infolist()
        if any(part.compress_type for part in inside) or sum(part.file_size for part in inside) > len(content):
            raise DataError("not a message of this protocol: it would grow when opened")
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            place = HEADER if HEADER in found.files else EARLIER_HEADER
            arrays = {name: found[name] for name in found.files if name != place}
            header = json.loads(found[place].tobytes())
    except (BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"not a message of this protocol: {error}") from None
    if not isinstance(header, dict):
        raise DataError("not a message of this protocol")
    return arrays, header
