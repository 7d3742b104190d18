"""The states that clients and the server keep between rounds."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fedmc.types import Array


class State(Protocol):
    """A client's state: a NamedTuple of arrays, with its users' factors U. It never leaves the client."""

    @property
    def U(self) -> Array: ...
    def _asdict(self) -> dict[str, Array]: ...


class LocalState(NamedTuple):
    """The state of an algorithm whose clients keep only their users' factors."""

    U: Array


class ServerState(NamedTuple):
    """The state that the server keeps between rounds; its size does not grow with the number of clients."""

    S: Array | None  # one array of any shape: FedMC's running sum over clients, or another algorithm's memory
    V: Array
    seen: int = 0  # FedMC: the number of clients in S; other algorithms may use it as a counter
