"""What clients and the server remember between rounds."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fedmc.types import Array


class State(Protocol):
    """A client's state: a NamedTuple of arrays, with its users' factors U. It never leaves the client."""

    @property
    def U(self) -> Array: ...
    def _asdict(self) -> dict[str, Array]: ...


class LocalState(NamedTuple):
    """The state of an algorithm whose clients remember their users' factors only."""

    U: Array


class ServerState(NamedTuple):
    """All that the server remembers between rounds: nothing in it grows with the number of clients."""

    S: Array | None  # one array of any shape: FedMC's running sum over clients, or what another algorithm keeps
    V: Array
    seen: int = 0  # FedMC: the number of clients in S; other algorithms may count with it
