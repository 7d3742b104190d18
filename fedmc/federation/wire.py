"""What travels between server and nodes: named arrays, and words and numbers that JSON can hold.

A request carries what a Broadcast does, who is meant, and which of the node's rounds the server has counted. A reply
carries a status word and, where that is "ok", one client's Sums. Nothing else: no error text ever leaves a node.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np

from fedmc import __version__
from fedmc.algorithms.messages import Broadcast, Rows, Sparse, Sums
from fedmc.algorithms.settings import Settings
from fedmc.errors import DataError, InputError
from fedmc.problem.subproblem import Scaling
from fedmc.types import Array

OK = "ok"
STATUS = {
    OK: "counted",
    "wrong-version": "the node runs another version of fedmc: install the same one",
    "wrong-catalogue": "the node has another catalogue of items: agree on one and prepare the shard again",
    "wrong-settings": "the settings do not match their hash, or the node cannot run them",
    "wrong-round": "the round is behind one that the node has already committed",
    "wrong-privacy": "the node's organisation did not agree to this kind of run: its config.toml says to which",
    "over-budget": "the node's organisation would go over its privacy budget: its own log says by how much",
    "wrong-member": "the node is not known by this number, or knows no identities: compare identities.json",
    "no-session": "the node was restarted within a session of secure aggregation",
    "not-hidden": "the node would not be hidden by this session: its own log says why",
    "changed-ratings": "the node's ratings are not those it began the run with: put them back, or start a new run",
    "busy": "another process of this organisation is at work on the same state",
    "diverged": "the node's numbers are not finite: raise the penalties or beta",
    "failed": "the node could not do its work: its own log says why",
}
RUN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"  # the id of a run, which names files
NEVER = -1  # no round of this node was counted


class Invitation(NamedTuple):
    """To a session of secure aggregation: the answer is an advert, and what was asked for travels masked."""

    token: str
    cohort: tuple[int, ...]
    threshold: int


class Request(NamedTuple):
    run: str
    client: int  # the node's number
    cast: Broadcast
    counted: int  # the node's last round that is in the server's sum, or NEVER
    catalogue: str  # hash of the items
    version: str = __version__
    factor: float = 1.0  # how much of that round's change was counted, where changes are clipped
    invitation: Invitation | None = None

    @property
    def key(self) -> str:
        """What makes two requests the same: asked again, a node does the same work."""
        return self.hash(counted=None, factor=None, invitation=None)

    @property
    def common(self) -> str:
        """What is the same for all members of a session: none of them is asked anything else than the others."""
        return self.hash(client=None, counted=None, factor=None, invitation=None)

    def hash(self, **without: None) -> str:
        arrays, words = encode(self)
        digest = hashlib.sha256(json.dumps(words | without, sort_keys=True).encode())
        for name in sorted(arrays):
            digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes())
        return digest.hexdigest()


class Reply(NamedTuple):
    run: str
    client: int
    round: int
    task: str
    status: str
    sums: Sums | None = None


def hash_of(settings: Settings) -> str:
    return hashlib.sha256(json.dumps(settings.to_dict(), sort_keys=True).encode()).hexdigest()


def portable(settings: Settings) -> None:
    """Refuse settings that do not survive as words: a penalty, loss, sampler or method of the user's own."""
    try:
        same = Settings(**settings.to_dict()).to_dict() == settings.to_dict()
    except InputError:
        same = False
    if not same:
        raise InputError("a federation takes settings in words only: nodes run nothing but what they installed")


def encode(request: Request) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and words of a request."""
    cast = request.cast
    arrays = {"V": cast.V, "beta": np.asarray(cast.beta)}
    if cast.memory is not None:
        arrays["memory"] = cast.memory
    words = {
        "run": request.run, "client": request.client, "counted": request.counted, "catalogue": request.catalogue,
        "version": request.version, "task": cast.task, "round": cast.round, "clients": cast.clients,
        "settings": cast.settings.to_dict(), "settings_hash": hash_of(cast.settings), "full": cast.full,
        "mean": float(cast.scaling.mean).hex(), "scale": float(cast.scaling.scale).hex(),
        "factor": float(request.factor).hex(), "invitation": request.invitation,
    }  # fmt: skip
    return arrays, words


def decode(arrays: dict[str, Array], words: dict[str, Any]) -> Request:
    """The request; settings that do not match their hash are refused."""
    try:
        settings = Settings(**words["settings"])
        if hash_of(settings) != words["settings_hash"]:
            raise DataError("the settings do not match their hash")
        scaling = Scaling(float.fromhex(words["mean"]), float.fromhex(words["scale"]))
        beta = arrays["beta"]
        cast = Broadcast(
            words["task"], int(words["round"]), int(words["clients"]), settings,
            np.ascontiguousarray(arrays["V"], settings.dtype), beta if beta.ndim else beta.item(), scaling,
            arrays.get("memory"), bool(words["full"]),
        )  # fmt: skip
        return Request(
            str(words["run"]), int(words["client"]), cast, int(words["counted"]), words["catalogue"], words["version"],
            float.fromhex(words["factor"]), _invitation(words["invitation"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, InputError) as error:
        raise DataError(f"not a request of this protocol: {error}") from None


def _invitation(words: list[Any] | None) -> Invitation | None:
    if words is None:
        return None
    token, cohort, threshold = words
    return Invitation(str(token), tuple(int(member) for member in cohort), int(threshold))


def encode_reply(reply: Reply) -> tuple[dict[str, Array], dict[str, Any]]:
    words = {key: getattr(reply, key) for key in ("run", "client", "round", "task", "status")}
    arrays: dict[str, Array] = {}
    heights = {}
    for name, part in ({} if reply.sums is None else reply.sums.parts).items():
        if isinstance(part, Sparse):
            arrays[f"{name}/rows"], arrays[f"{name}/values"] = part.rows, part.values
            heights[name] = part.height
        else:
            arrays[name] = np.asarray(part)
    return arrays, words | {"heights": heights}


def decode_reply(arrays: dict[str, Array], words: dict[str, Any]) -> Reply:
    try:
        heights = words["heights"]
        parts: dict[str, Any] = {name: part for name, part in arrays.items() if "/" not in name}
        for name, height in heights.items():
            parts[name] = Rows(arrays[f"{name}/rows"], arrays[f"{name}/values"], int(height))
        sums = Sums.of(**parts) if words["status"] == OK else None
        return Reply(
            str(words["run"]), int(words["client"]), int(words["round"]), str(words["task"]), str(words["status"]), sums
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"not a reply of this protocol: {error}") from None


def to_bytes(arrays: dict[str, Array], words: dict[str, Any]) -> bytes:
    """One file of both; the same content gives the same bytes."""
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(words, sort_keys=True).encode(), np.uint8)
    content: dict[str, Any] = {"words.json": text} | {name: arrays[name] for name in sorted(arrays)}
    np.savez(file, **content)
    return file.getvalue()


def from_bytes(content: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    """Back again; anything else is refused, and nothing in it is run."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            inside = archive.infolist()
        if any(part.compress_type for part in inside) or sum(part.file_size for part in inside) > len(content):
            raise DataError("not a message of this protocol: it would grow when opened")
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files if name != "words.json"}
            words = json.loads(found["words.json"].tobytes())
    except (BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"not a message of this protocol: {error}") from None
    if not isinstance(words, dict):
        raise DataError("not a message of this protocol")
    return arrays, words
