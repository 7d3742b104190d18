"""The server's rounds, as a generator of `Round` records; the caller decides when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.beta import beta_of
from fedmc.algorithms.messages import ITEM_FEATURES, NOTHING, Broadcast, Shared, Sums
from fedmc.algorithms.previous import Previous
from fedmc.algorithms.protocol import Start
from fedmc.algorithms.schema import measured_parts
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.algorithms.state import ServerState
from fedmc.errors import Diverged, InputError, require
from fedmc.privacy.secagg.cohorts import Turn
from fedmc.problem.scaling import Scaling
from fedmc.training import side
from fedmc.training.aggregation import aggregation_of, check_everybody, check_run
from fedmc.training.clocks import Clocks
from fedmc.training.diagnostics import Certificate, Diagnostics, Measured, diagnose, from_sums
from fedmc.training.engine import Engine
from fedmc.training.sampling import sampler_of
from fedmc.types import Array

DIVERGED = 1e6  # times the objective at the start


class Round(NamedTuple):
    """The record of one round. Round 0 is the start; diagnostics are None if not requested."""

    number: int
    clients: int
    participants: tuple[int, ...]
    seconds: float  # of updates, without diagnostics
    bytes_down: int  # all arrays sent to clients; in a federation, all messages
    bytes_up: int
    bytes_measured: int  # in both directions, for diagnostics
    diagnostics: Diagnostics
    broadcast: Broadcast  # with the V after the round
    cpu_seconds: float = 0.0  # of this process and all its threads, as `seconds`

    @property
    def V(self) -> Array:
        return self.broadcast.V

    @property
    def scaling(self) -> Scaling:
        return self.broadcast.scaling

    @property
    def beta(self) -> float | Array:
        return beta_of(self.broadcast)

    def record(self) -> dict[str, object]:
        """The numbers of this round, for a line of JSON."""
        names = ("number", "seconds", "bytes_down", "bytes_up", "bytes_measured")
        measured = {name: value for name, value in self.diagnostics._asdict().items() if value is not None}
        measured |= measured.pop("ranking", {})
        return {name: getattr(self, name) for name in names} | {"participants": list(self.participants)} | measured


class Checkpoint(NamedTuple):
    """The state of a run between two rounds: all that is needed to resume it."""

    number: int
    broadcast: Broadcast
    server: ServerState
    start_objective: float | None = None  # the reference for divergence


@dataclass
class Traffic:
    """Asks clients, and counts the bytes."""

    engine: Engine
    down: int = 0
    up: int = 0
    total: Sums | None = None  # the last one

    def ask(self, broadcast: Broadcast, clients: Sequence[int]) -> Sums:
        reply = self.engine.ask(broadcast, clients)
        self.down, self.up, self.total = self.down + reply.received, self.up + reply.sent, reply
        return reply


def rounds(
    engine: Engine,
    settings: Settings,
    *,
    measure_every: int = 1,
    last: int | None = None,
    full: bool = False,
    checkpoint: Checkpoint | None = None,
    on_checkpoint: Callable[[Checkpoint], None] = lambda checkpoint: None,
    previous: Previous | None = None,
) -> Iterator[Round]:
    """Train for as long as the caller asks for the next round.

    Every `measure_every`-th round and the `last` are measured; `full` adds the costly diagnostics. `on_checkpoint` is
    called after each round, before clients are asked again; a later call resumes from its argument (`checkpoint`).
    With `previous`, the run starts from the item factors of a trained model, and all clients take part in round 1.
    If the `last` round is known, an engine may let measurements ride along: those of a round come with the updates of
    the next one, which is then asked for before the round is yielded.
    """
    plan = _Plan(engine, settings, measure_every, last, full, previous)
    checkpoint, opening = _opening(plan, on_checkpoint) if checkpoint is None else (checkpoint, None)
    number, broadcast, server, start = checkpoint
    if number == last:  # the process was killed before the last round was measured
        yield _closing(plan, checkpoint)
        return
    waiting = (opening or _resumed(engine, checkpoint)) if plan.rides else None  # measured with the next updates
    if opening is not None and waiting is None:
        yield opening
    if number == 0 and start is None and waiting is None:  # the process was killed before the start was measured
        start = plan.diagnose(broadcast, server, None).diagnostics.objective
    while True:
        number += 1
        began, before, traffic = Clocks(), server.V, Traffic(engine)
        asked = broadcast._replace(task="round", round=number, measured=plan.due_with(waiting))
        server, participants, following = one_round(traffic, asked, server, plan.participants(number))
        if waiting is not None:
            waiting = _measured_along(waiting, traffic)
            start = waiting.diagnostics.objective if start is None else start
            yield _not_diverged(engine, waiting, start)
        broadcast = broadcast._replace(V=following.V, shared=following.shared, round=number)
        seconds, cpu_seconds = began.spent()
        on_checkpoint(Checkpoint(number, broadcast, server, start))
        waits = plan.rides and number != last
        measured = plan.report(broadcast, server, None if waits else before, now=not waits)
        sent = traffic.down, traffic.up
        ended = Round(number, engine.clients, participants, seconds, *sent, *measured[::-1], broadcast, cpu_seconds)
        waiting = ended if waits else None
        if not waits:
            yield _not_diverged(engine, ended, start)


class _Plan:
    """Who takes part in a round, which rounds are measured, and how."""

    def __init__(
        self, engine: Engine, settings: Settings, measure_every: int, last: int | None, full: bool,
        previous: Previous | None,
    ) -> None:  # fmt: skip
        require(not settings.needs_tuning, "penalty_users='auto' is still to be chosen: `fedmc.training.train` does it")
        require(measure_every >= 1, f"measure_every must be at least 1, got {measure_every}")
        check_run(settings, engine.clients, last, full)
        self.engine, self.measure_every, self.last, self.full = engine, measure_every, last, full
        check_everybody(settings, engine.simulated)
        self.previous = previous
        self.certificate = Certificate(settings, engine.clients)
        self.rides = last is not None and engine.measures_ride(settings)

    def participants(self, number: int) -> tuple[int, ...]:
        """The clients of a round; a warm start begins with all of them, so that V is not fitted to a few."""
        if self.previous is not None and number == 1:
            return tuple(range(self.engine.clients))
        return _participants(self.engine, self.certificate.settings, number)

    def due(self, number: int) -> bool:
        return number % self.measure_every == 0 or number == self.last

    def due_with(self, waiting: Round | None) -> bool:
        """Whether the next updates come with the measurement of a round that waits for it."""
        return waiting is not None and self.due(waiting.number)

    def diagnose(self, broadcast: Broadcast, server: ServerState, before: Array | None) -> Measured:
        return diagnose(self.engine, broadcast, server, before, self.certificate, self.full)

    def report(self, broadcast: Broadcast, server: ServerState, before: Array | None, now: bool) -> Measured:
        """The diagnostics of a round: what the server knows itself and, if it is measured `now`, what clients say."""
        algorithm, due = broadcast.settings.make_algorithm(), self.due(broadcast.round)
        measured = self.diagnose(broadcast, server, before) if due and now else Measured()
        found = measured.diagnostics._replace(
            epsilon=algorithm.epsilon_spent(broadcast.settings, broadcast.round),
            bound=algorithm.bound(server, broadcast) if due else None,
        )
        return Measured(found, measured.nbytes)


def _measured_along(round: Round, traffic: Traffic) -> Round:
    """A round with its diagnostics, from what came with the updates of the next one."""
    told = None if traffic.total is None else measured_parts(traffic.total)
    if told is None or not told.parts:
        return round
    known = round.diagnostics
    found = from_sums(told, round.broadcast)._replace(bound=known.bound, epsilon=known.epsilon)
    return round._replace(diagnostics=found)


def _not_diverged(engine: Engine, round: Round, start: float | None) -> Round:
    """The round; Diverged if its objective is far above that of the start."""
    objective = round.diagnostics.objective
    if has_diverged(objective, start):
        engine.rollback()
        grew = f"the objective grew from {start:.3g} to {objective:.3g}"
        raise Diverged(round.number, grew, round.broadcast.settings.make_algorithm().remedy)
    return round


def _resumed(engine: Engine, checkpoint: Checkpoint) -> Round:
    """The round of a checkpoint, whose measurement is still to come; its times and bytes are lost."""
    return Round(checkpoint.number, engine.clients, (), 0.0, 0, 0, 0, Diagnostics(), checkpoint.broadcast)


def _closing(plan: _Plan, checkpoint: Checkpoint) -> Round:
    """The last round of a run, measured at last."""
    diagnostics, nbytes = plan.report(checkpoint.broadcast, checkpoint.server, None, now=True)
    ended = _resumed(plan.engine, checkpoint)._replace(diagnostics=diagnostics, bytes_measured=nbytes)
    return _not_diverged(plan.engine, ended, checkpoint.start_objective)


def _opening(plan: _Plan, on_checkpoint: Callable[[Checkpoint], None]) -> tuple[Checkpoint, Round]:
    """Start-up, reported as round 0."""
    engine, settings = plan.engine, plan.certificate.settings
    began, traffic = Clocks(), Traffic(engine)
    first = plan.participants(1) or (0,)
    broadcast, server = start_up(traffic, settings, first, plan.previous)
    seconds, cpu_seconds = began.spent()
    on_checkpoint(Checkpoint(0, broadcast, server))
    measured = Measured() if plan.rides else plan.diagnose(broadcast, server, None)
    checkpoint = Checkpoint(0, broadcast, server, measured.diagnostics.objective)
    on_checkpoint(checkpoint)
    everyone = tuple(range(engine.clients)) if server.seen else ()
    down, up = traffic.down, traffic.up
    told = measured.nbytes, measured.diagnostics, broadcast
    return checkpoint, Round(0, engine.clients, everyone, seconds, down, up, *told, cpu_seconds)


def start_up(traffic: Traffic, settings: Settings, first: Sequence[int], previous: Previous | None = None) -> Start:
    """The first V, and what the algorithm needs before the first round, all from sums over clients."""
    engine, algorithm = traffic.engine, settings.make_algorithm()
    V, scaling = start_items(engine.items, settings), algorithm.scaling(settings)
    if previous is not None:
        V, scaling = previous.onto(V), previous.scaling
    features = engine.item_features if side.used_by(settings) else None
    shared = NOTHING if features is None else Shared({ITEM_FEATURES: features})
    broadcast = Broadcast("moments", 0, engine.clients, settings, V, scaling or Scaling(), shared)
    begun = algorithm.start(traffic.ask, broadcast, first)
    return begun if previous is None else algorithm.warm_start(begun, previous)


def _participants(engine: Engine, settings: Settings, number: int) -> tuple[int, ...]:
    """The clients of a round: those drawn or, if the aggregation must hide them, a fixed group."""
    p = engine.clients
    drawn = tuple(int(i) for i in sampler_of(settings, p).draw(number, p, settings.seed))
    return aggregation_of(settings.privacy).participants(Turn(number, drawn, p, settings.active), engine.joined)


def one_round(
    traffic: Traffic, broadcast: Broadcast, server: ServerState, participants: tuple[int, ...]
) -> tuple[ServerState, tuple[int, ...], Broadcast]:
    """Ask the participants and aggregate their replies: the server's state, who took part, and the next broadcast.

    With update_users="all", the other clients update their U at the same V. If nobody takes part, the algorithm says
    what the server does.
    """
    total = traffic.ask(broadcast, participants) if participants else None
    took_part = participants if total is None or total.clients is None else total.clients
    if broadcast.settings.update_users == "all":
        others = sorted(set(range(broadcast.clients)) - set(took_part))
        if others:
            traffic.ask(broadcast._replace(task="users"), others)
    try:
        after, following = aggregated(total, broadcast, server, took_part)
        return after, took_part, following
    except (InputError, np.linalg.LinAlgError, ArithmeticError) as error:  # a hostile update can lead to them
        traffic.engine.rollback()
        cure = f"{broadcast.settings.make_algorithm().remedy}, or look for a client that sends wrong updates"
        raise Diverged(broadcast.round, f"the sum of the updates gives no model: {error}", cure) from None


def aggregated(
    total: Sums | None, broadcast: Broadcast, server: ServerState, took_part: tuple[int, ...]
) -> tuple[ServerState, Broadcast]:
    """The server's next state, and the next broadcast, which must be one that nodes accept."""
    settings, algorithm = broadcast.settings, broadcast.settings.make_algorithm()
    if total is None or not took_part:
        after = algorithm.aggregate_nothing(server, broadcast)
        if after is server:
            return server, broadcast
    else:
        after = algorithm.aggregate(server, total, broadcast, len(took_part))
    after = after._replace(V=np.ascontiguousarray(after.V, settings.dtype))
    require(bool(np.isfinite(after.V).all()), "the item factors are not finite")
    following = broadcast._replace(V=after.V, shared=algorithm.shared(after, broadcast))
    algorithm.check_broadcast(following)
    return after, following


def has_diverged(objective: float | None, start: float | None) -> bool:
    """Whether the objective exceeds a million times its value at the start (at least 1), or is not a number."""
    return objective is not None and start is not None and not objective <= DIVERGED * max(start, 1.0)
