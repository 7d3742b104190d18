"""The messages between server and nodes: named arrays and a JSON header.

A request carries a Broadcast, the node's number, and the node's last round that the server counted; it travels in a
signed envelope (`envelope.py`). A reply carries a status and, if that is "ok", one client's Sums. It carries nothing
else: no error text ever leaves a node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from fedmc import __version__
from fedmc.algorithms import limits
from fedmc.algorithms.messages import Broadcast, Rows, Shared, Sparse, Sums, Task, Value
from fedmc.algorithms.settings import Settings
from fedmc.errors import DataError, InputError, UnknownNameError, reason, require
from fedmc.federation import container
from fedmc.federation.container import Arrays as Arrays
from fedmc.federation.container import Header as Header
from fedmc.federation.protocol import PROTOCOL
from fedmc.federation.statuses import OK
from fedmc.privacy.secagg import encoding
from fedmc.privacy.secagg.serial import digest
from fedmc.privacy.secagg.session import Certificate, Invited, Proof
from fedmc.problem.scaling import Scaling
from fedmc.types import MAX_CLIENTS, MAX_ROUND, Array, number, switch, text, whole

HEADER, EARLIER_HEADER = "header.json", "words.json"  # its name in a message, and before version 0.2
INVITATION = "invitation"  # the array that holds it
SHARED = "shared/"  # before the names of what the algorithm broadcasts beside V
RUN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"  # the id of a run, which names files
NEVER = -1  # no round of this node was counted
MAX_RELEASES = 2**40  # no server has received more
NAMED = 20  # releases that a request names, not one: they may have come in another order than they were made
MAX_ITEMS = 2**31 - 1
MAX_PROTOCOL = 2**16 - 1


class Invitation(NamedTuple):
    """Invites a node to a session of secure aggregation: its reply is masked. Without members it asks for keys."""

    number: int = 0  # of the sum
    attempt: int = 0
    invited: tuple[Invited, ...] = ()
    losses: int = 0
    previous: bytes = b""
    instead_of: bytes = b""
    certificates: tuple[Certificate, ...] = ()  # that this node may not know: they prove themselves
    proofs: tuple[Proof, ...] = ()  # that members misdealt in the session before

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(one.keys.member for one in self.invited)


class Witnessed(NamedTuple):
    """The releases that the server ever received from this organisation: their number, and the keys of the last."""

    releases: int
    last: tuple[str, ...]


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
    witnessed: Witnessed | None = None  # None: no release was ever received from this node
    members: str = ""  # under secure aggregation: the hash of the list of members that the run is among
    leaving: tuple[int, ...] = ()  # members whose whole contribution is taken out of the sum in this round

    @property
    def key(self) -> str:
        """Hash by which a node recognises a repeated request: of all but what depends on earlier answers."""
        return self._replace(witnessed=None, invitation=None).hash(counted=None, factor=None)

    @property
    def common(self) -> str:
        """Hash of the part of a request that is the same for all members of a session."""
        return self._replace(witnessed=None, invitation=None).hash(client=None, counted=None, factor=None)

    @property
    def release(self) -> str:
        """The key of the release that answers this request under differential privacy, at node and server."""
        return f"{self.run}/{self.key}"

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
    """Refuse settings that JSON cannot hold: a penalty, loss, sampler or algorithm given as an object, or inf."""
    for name, value in settings.to_dict().items():
        finite = not isinstance(value, float) or math.isfinite(value)
        require(finite, f"{name}={value} is for simulations only: a federation takes finite numbers")
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
        "measured": broadcast.measured,
        "mean": float(broadcast.scaling.mean).hex(), "scale": float(broadcast.scaling.scale).hex(),
        "factor": float(request.factor).hex(), "invitation": None if request.invitation is None else True,
    }  # fmt: skip
    if request.invitation is not None:
        arrays[INVITATION] = encoding.to_blob(_from_invitation(request.invitation))
    more = {"witnessed": request.witnessed, "members": request.members, "leaving": request.leaving}
    return arrays, header | {name: value for name, value in more.items() if value}


def decode(arrays: Arrays, header: Header) -> Request:
    """The request; InputError: its settings cannot be run here, DataError: it is none."""
    try:
        settings = _settings(header)
    except InputError:
        raise
    except Exception as error:  # strange values can raise anything
        raise DataError(f"not a request of this protocol: {reason(error)}") from None
    try:
        return _request(arrays, header, settings)
    except Exception as error:
        raise DataError(f"not a request of this protocol: {reason(error)}") from None


def _request(arrays: Arrays, header: Header, settings: Settings) -> Request:
    scaling = Scaling(_real(header, "mean"), _real(header, "scale"))
    shared = {name.removeprefix(SHARED): array for name, array in arrays.items() if name.startswith(SHARED)}
    require(arrays["V"].dtype.kind == "f", f"V is of type {arrays['V'].dtype}, expected floating-point numbers")
    with np.errstate(over="ignore", invalid="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        V = np.ascontiguousarray(arrays["V"], settings.dtype)
    broadcast = Broadcast(
        cast(Task, text("task", header["task"])), whole("round", header["round"], 0, MAX_ROUND),
        whole("clients", header["clients"], 1, MAX_CLIENTS), settings, V, scaling, Shared(shared),
        switch("full", header["full"]), switch("measured", header.get("measured", False)),
    )  # fmt: skip
    return Request(
        text("run", header["run"]), whole("client", header["client"], 0, MAX_CLIENTS), broadcast,
        whole("counted", header["counted"], NEVER, MAX_ROUND), text("catalogue", header["catalogue"]),
        text("version", header["version"]), number("factor", _real(header, "factor"), 0, 1),
        _invitation(arrays, header["invitation"]), _witnessed(header.get("witnessed")),
        text("members", header.get("members", "")),
        tuple(whole("leaving", one, 0, MAX_CLIENTS) for one in header.get("leaving", ())),
    )  # fmt: skip


def _real(header: Header, name: str) -> float:
    """A number in hexadecimal notation, which keeps every bit."""
    return float.fromhex(text(name, header[name]))


def _settings(header: Header) -> Settings:
    try:
        limits.check_words(header["settings"])
        settings = Settings.from_dict(header["settings"])
    except UnknownNameError:
        raise
    except InputError as error:
        raise InputError(f"settings: {error}") from None
    if header["settings_hash"] not in (None, hash_of(settings)):  # None: of an earlier version's checkpoint
        raise InputError("the settings do not match their hash")
    return settings


def _from_invitation(invitation: Invitation) -> encoding.Json:
    invited = [[encoding.keys_to(one.keys), one.base] for one in invitation.invited]
    return [
        invitation.number, invitation.attempt, invited, invitation.losses, invitation.previous.hex(),
        invitation.instead_of.hex(), [encoding.certificate_to(one) for one in invitation.certificates],
        [encoding.proof_to(one) for one in invitation.proofs],
    ]  # fmt: skip


def _to_invitation(value: encoding.Json) -> Invitation:
    number, attempt, invited, losses, previous, instead_of, certificates, proofs = encoding.items(value)
    return Invitation(
        encoding.whole_from(number), encoding.whole_from(attempt), encoding.invited_from(invited),
        encoding.whole_from(losses), encoding.hash_from(previous), encoding.hash_from(instead_of),
        tuple(encoding.certificate_from(one) for one in encoding.items(certificates)),
        tuple(encoding.proof_from(one) for one in encoding.items(proofs)),
    )  # fmt: skip


def _invitation(arrays: Arrays, given: object) -> Invitation | None:
    if not given:  # None: in a checkpoint of an earlier version
        require(INVITATION not in arrays, "an invitation that is not announced")
        return None
    return encoding.from_blob(arrays.get(INVITATION), _to_invitation)


def _witnessed(header: Sequence[Any] | None) -> Witnessed | None:
    if header is None:
        return None
    releases, last = header
    named = isinstance(last, list | tuple) and 0 < len(last) <= NAMED and all(isinstance(key, str) for key in last)
    if isinstance(releases, bool) or not isinstance(releases, int) or not named:
        raise ValueError(f"releases are counted in whole numbers, and up to {NAMED} are named")
    if not 0 < releases <= MAX_RELEASES or max(map(len, last)) > 300:
        raise ValueError(f"no server has received {releases} releases")
    return Witnessed(releases, tuple(last))


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
        parts: dict[str, Value] = {name: part for name, part in arrays.items() if "/" not in name}
        for name, height in header["heights"].items():
            rows, values = arrays[f"{name}/rows"], arrays[f"{name}/values"]
            parts[name] = Rows(rows, values, whole("height", height, 0, MAX_ITEMS))
        status = text("status", header["status"])
        sums = Sums.of(**parts) if status == OK else None
        client, round = (whole(name, header[name], NEVER, MAX_ROUND) for name in ("client", "round"))
        protocol = whole("protocol", header.get("protocol", 1), 1, MAX_PROTOCOL)
        return Reply(text("run", header["run"]), client, round, text("task", header["task"]), status, sums, protocol)
    except Exception as error:  # strange values can raise anything
        raise DataError(f"not a reply of this protocol: {reason(error)}") from None


def to_bytes(arrays: Mapping[str, Array], header: Header) -> bytes:
    """Arrays and header as one .npz file; the same content gives the same bytes."""
    return container.write(arrays, header, HEADER)


def read_header(content: bytes) -> Header:
    """The header of a message, without its arrays; DataError for anything else."""
    return container.read_header(content, (HEADER, EARLIER_HEADER))


def from_bytes(content: bytes) -> tuple[Arrays, Header]:
    """Inverse of `to_bytes`; DataError for anything else, whatever the bytes."""
    return container.read(content, (HEADER, EARLIER_HEADER))
