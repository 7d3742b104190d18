"""The protocol of an algorithm: what a client computes, what travels, and what the server makes of the sum.

An algorithm is one file. It inherits from `Algorithm`, which has a default for everything but four things:

    name                                             how settings, models and nodes call it
    client_update(shard, state, broadcast)           a client's work in a round -> (its new state, Sums)
    aggregate(server, total, broadcast, participants)  the server's work on the sum over clients -> ServerState
    schema(broadcast, items)                         the parts of a reply: the one source for checks at nodes,
                                                     fixed-point encoding, byte counts and memory estimates

It then runs in the simulation, in `compare`, and in federations, in plain and under secure aggregation. The same object
serves all runs: whatever depends on a run is in the settings that come with each broadcast.

Hyper-parameters are numbers that the constructor takes. `__str__` then returns the spec, `name:numbers`, which
settings, models and nodes carry.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, Protocol, runtime_checkable

from fedmc.algorithms.leakage import Leakage, RowNorms
from fedmc.algorithms.messages import Broadcast, Schema, Shared, Sums
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import Ask, normalised, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.theory import Theory
from fedmc.data.partition import Shard
from fedmc.problem.scaling import Scaling
from fedmc.types import Array


@runtime_checkable
class Sampler(Protocol):
    """Which clients take part in a round."""

    def draw(self, round: int, clients: int, seed: int) -> Array:
        """The chosen client numbers, sorted; a draw depends on these arguments only, so that a run can be resumed."""
        ...

    def probabilities(self, clients: int) -> Array:
        """Each client's chance to be in a round (the theory needs them above 0)."""
        ...


class Start(NamedTuple):
    """Where a run begins: the first broadcast and the server's state."""

    broadcast: Broadcast
    server: ServerState


class Sizes(NamedTuple):
    """What memory estimates are made of."""

    clients: int
    users: int
    items: int
    rated: int  # (client, item) pairs with a rating
    width: int


class Algorithm(Protocol):
    """Inherit from this class; override what differs."""

    name: str = ""
    label: str = ""  # in tables and figures; the name if it is empty
    state_types: tuple[type[State], ...] = ()  # NamedTuples with a field U; a node's store writes and reads them
    unused_settings: Set[str] = frozenset()  # settings that mean nothing here: giving one is refused
    cumulative: bool = False  # the server keeps a running sum of contributions, and changes of it travel
    theory: Theory | None = None  # what full diagnostics measure; None where nothing is proven
    leakage: Leakage = RowNorms()  # what a client's messages show, which the audit attacks
    remedy: str = "raise the penalties"  # what to do about a run that diverged

    def __str__(self) -> str:
        """The spec: the name, and where there are hyper-parameters their numbers, `name:0.5,2`."""
        return self.name

    # --- what it takes

    def check(self, settings: Settings) -> None:
        """Refuse settings that this algorithm cannot run with."""

    def scaling(self, settings: Settings) -> Scaling | None:
        """How ratings are scaled if everybody knows it beforehand; None: as `normalise` says, from sums."""
        return None

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        """A client's work in a round: its new state, which stays with it, and its reply. State None: its first."""
        raise NotImplementedError

    def can_batch(self, broadcast: Broadcast) -> bool:
        """Whether several small clients may be updated together, with the same bits as one by one."""
        return False

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        """`client_update` of several clients in one go; called only where `can_batch` says so.

        The reply counts the bytes (`sent`) that the clients would send one by one.
        """
        raise NotImplementedError

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        """All that a client has in the server's running sum: the cumulative parts of the schema, whole."""
        return {}

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        """Where a run begins. `ask` sums replies of clients; `first` are the clients of the first round."""
        broadcast, _ = normalised(ask, broadcast)
        return Start(broadcast, server_at(broadcast.V))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        """The server's work on the sum over the participants: the next V, and what it remembers.

        `participants` is their number. Sums are float64; V is cast to the run's dtype. It is not called for a round in
        which nobody took part.
        """
        raise NotImplementedError

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        """What the next broadcast carries beside V."""
        return broadcast.shared

    def epsilon_spent(self, settings: Settings, rounds: int) -> float | None:
        """What so many rounds cost each user, where releases are noised."""
        return None

    # --- what travels

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        """The parts of a reply to this broadcast."""
        raise NotImplementedError

    def check_broadcast(self, broadcast: Broadcast) -> None:
        """Refuse, at a node and before any rating is looked at, what an honest server never sends."""

    def noise_multiplier(self, broadcast: Broadcast) -> float | None:
        """The noise of the reply, for an organisation's ledger; None: this algorithm adds none."""
        return None

    def state_numbers(self, sizes: Sizes) -> int:
        """How many numbers all clients remember besides their user factors."""
        return 0
