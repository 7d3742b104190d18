"""The protocol of an algorithm: a client's update, its messages, and the server's aggregation.

An algorithm is one file. It inherits from `Algorithm`, which has defaults for everything but four members::

    name                                             its name in settings, models and federations
    client_update(shard, state, broadcast)           a client's work in a round -> (its new state, Sums)
    aggregate(server, total, broadcast, participants)  the server's work on the sum over clients -> ServerState
    schema(broadcast, items)                         the parts of a reply, used for checks, fixed-point encoding,
                                                     byte counts and memory estimates

It then runs in the simulation, in `compare`, and in federations, in plain mode and under secure aggregation. One object
serves all runs: whatever depends on a run is in the settings of each broadcast.

Hyper-parameters are numbers that the constructor takes. `__str__` then returns the spec, `name:numbers`, which
settings, models and nodes carry.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, Protocol, runtime_checkable

from scipy import sparse

from fedmc.algorithms.leakage import Leakage, RowNorms
from fedmc.algorithms.measures import RATINGS, Measures
from fedmc.algorithms.messages import Broadcast, Schema, Shared, Sums
from fedmc.algorithms.posterior import Posterior
from fedmc.algorithms.previous import Previous
from fedmc.algorithms.settings import Feedback, Settings
from fedmc.algorithms.start import Ask, normalised, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.theory import Theory
from fedmc.algorithms.users import new_users, users_at
from fedmc.data.partition import Shard
from fedmc.errors import InputError
from fedmc.problem.scaling import Scaling
from fedmc.types import Array


@runtime_checkable
class Sampler(Protocol):
    """Draws the clients of a round."""

    def draw(self, round: int, clients: int, seed: int) -> Array:
        """The chosen client numbers, sorted; a draw depends on these arguments only, so that a run can be resumed."""
        ...

    def probabilities(self, clients: int) -> Array:
        """Each client's probability of being in a round (the theory needs them above 0)."""
        ...


class Start(NamedTuple):
    """The start of a run: the first broadcast and the server's state."""

    broadcast: Broadcast
    server: ServerState


class Sizes(NamedTuple):
    """The sizes that memory estimates depend on."""

    clients: int
    users: int
    items: int
    rated: int  # (client, item) pairs with a rating
    width: int


class Algorithm(Protocol):
    """Inherit from this class and override what differs."""

    name: str = ""
    label: str = ""  # in tables and figures; the name if it is empty
    state_types: tuple[type[State], ...] = ()  # NamedTuples with a field U; a node's store writes and reads them
    unused_settings: Set[str] = frozenset()  # settings without a meaning here: refused if given
    ignored_settings: Set[str] = frozenset()  # settings that may be given, but change nothing: reports leave them out
    own_settings: Set[str] = frozenset()  # of `settings.OF_SOME`: those that it has; the others are refused
    tasks: Set[str] = frozenset({"moments", "start", "round", "measure", "finish"})  # nodes refuse all others
    uses_side: bool = False  # features, events without a rating, times and who rated what enter the model
    feedback: Feedback = "explicit"  # what it learns from: ratings ("explicit") or events ("implicit")
    weights: tuple[float, float] | None = None  # alpha0 and lambda, if they are given
    objectives_differ: bool = True  # clients may have a penalty and a loss of their own (`objectives`)
    cumulative: bool = False  # the server keeps a running sum of contributions, and clients send changes
    takes_decoys: bool = False  # `decoy_sums` is defined
    warm_starts: bool = True  # a run may go on from a trained model
    several_only: bool = False  # makes no sense for one party that trains alone
    one_pass: bool = False  # nothing changes any more once every client has taken part
    theory: Theory | None = None  # what full diagnostics measure; None if the algorithm has no theory
    measures: Measures = RATINGS  # what clients measure at the global V
    leakage: Leakage = RowNorms()  # what a client's messages leak, for the audit's attacks
    remedy: str = "raise the penalties"  # what to do about a run that diverged

    @property
    def of_events(self) -> bool:
        """Whether it learns from events instead of ratings."""
        return self.feedback == "implicit"

    def __str__(self) -> str:
        """The spec: the name, followed by the numbers of any hyper-parameters, `name:0.5,2`."""
        return self.name

    # --- settings

    def check(self, settings: Settings) -> None:
        """Refuse settings that this algorithm cannot run with."""

    def scaling(self, settings: Settings) -> Scaling | None:
        """The scaling of ratings, if it is public; None: determined from sums, according to `normalise`."""
        return None

    def columns(self, settings: Settings, items: int) -> tuple[int, int]:
        """Columns of U and of V."""
        return settings.width, settings.width

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        """A client's work in a round: its new state, which stays local, and its reply. `state` is None at first."""
        raise NotImplementedError

    def can_batch(self, broadcast: Broadcast) -> bool:
        """Whether several small clients may be updated together, with the same bits as one at a time."""
        return False

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        """`client_update` for several clients at once; called only if `can_batch` returns True.

        The reply's `sent` counts the bytes that the clients would send separately.
        """
        raise NotImplementedError

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        """A client's whole contribution to the server's running sum: the schema's cumulative parts."""
        return {}

    def decoy_sums(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        """What further ratings of a client's users add to its contribution, if nobody gave them (`training.decoys`)."""
        return {}

    def users_at(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
        """The user factors that belong to the broadcast's V, for measurements and for the model."""
        return users_at(shard, state, broadcast)

    def measured_at(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Broadcast:
        """The broadcast that a client measures at: with item factors of its own, if the algorithm keeps any."""
        return broadcast

    def prediction_users(self, shard: Shard, U: Array, broadcast: Broadcast) -> Array:
        """The user factors for predictions, given those that belong to the broadcast's V. Nothing is sent of them."""
        if shard.later is None:
            return U
        events = self.in_predictions(shard.by_user, shard.later)
        return U if events is shard.by_user else self.new_users(events, broadcast)

    def in_predictions(self, events: sparse.csr_array, later: Array) -> sparse.csr_array:
        """Ratings or events as they count in predictions, given how many later ones the user has: here, alike."""
        return events

    def adjusted(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Shard:
        """The ratings that the user factors explain, without what the client itself knows to add to predictions."""
        return shard

    def new_users(self, matrix: sparse.csr_array, broadcast: Broadcast) -> Array:
        """Factors of users who have these ratings or events but belong to no client, given V (fold-in)."""
        return new_users(matrix, broadcast)

    def event_effects(self, events: sparse.csr_array, column: int, broadcast: Broadcast) -> Array:
        """What each stored event of a single user adds to the user's score of this item."""
        raise InputError(f"models of {self} cannot be explained: use preset='bayes', or feedback='implicit'")

    def user_rows(self, U: Array, events: sparse.csr_array) -> Array:
        """Rows whose inner products with V's rows are the scores of users with these factors, ratings or events."""
        return U

    def posterior(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> Posterior | None:
        """The posteriors of items and of these clients' users, if the model has any."""
        return None

    def item_posterior(self, broadcast: Broadcast) -> Posterior | None:
        """The items' posteriors, noise and priors of a broadcast, if the model has any."""
        return None

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        """The start of a run. `ask` returns the sum of clients' replies; `first` are the clients of the first round."""
        broadcast, _ = normalised(ask, broadcast)
        return Start(broadcast, server_at(broadcast.V))

    def warm_start(self, begun: Start, previous: Previous) -> Start:
        """The start of a run that goes on from a trained model, given the start (`start`) with its item factors.

        All clients take part in the first round, so that V is never fitted to some of them only.
        """
        V = previous.onto(begun.broadcast.V)
        return Start(begun.broadcast._replace(V=V), begun.server._replace(V=V))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        """The server's next state, with the next V, from the sum over the participants.

        `participants` is their number. Sums are float64; V is cast to the run's dtype. It is not called for a round
        without participants (`aggregate_nothing`).
        """
        raise NotImplementedError

    def aggregate_nothing(self, server: ServerState, broadcast: Broadcast) -> ServerState:
        """The server's next state after a round without participants: by default the same."""
        return server

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        """The arrays that the next broadcast carries beside V."""
        return broadcast.shared

    def bound(self, server: ServerState, broadcast: Broadcast) -> float | None:
        """The evidence bound of the model, in nats and up to a constant, if it has one."""
        return None

    def epsilon_spent(self, settings: Settings, rounds: int) -> float | None:
        """The privacy cost of `rounds` rounds for each user; None if releases are not noised."""
        return None

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        """The parts of a reply to this broadcast."""
        raise NotImplementedError

    def check_broadcast(self, broadcast: Broadcast) -> None:
        """Refuse a broadcast that an honest server would never send. A node calls this before it reads any rating."""

    def user_penalty(self, broadcast: Broadcast) -> float | None:
        """The smallest l2 weight that a user is fitted with, for policies; None: the settings' penalty says it."""
        return None

    def with_weights(self, alpha0: float, weight: float) -> Algorithm | None:
        """The algorithm with other weights of all pairs and of the penalty, if it learns from events with such."""
        return None

    def model_settings(self, broadcast: Broadcast) -> Settings:
        """The settings of the model of this broadcast, with whatever training chose."""
        return broadcast.settings

    def noise_multiplier(self, broadcast: Broadcast) -> float | None:
        """The noise multiplier of the reply, for an organisation's ledger; None: this algorithm adds no noise."""
        return None

    def state_numbers(self, sizes: Sizes) -> int:
        """How many numbers all clients together keep besides their user factors."""
        return 0
