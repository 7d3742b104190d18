"""The server's rounds, as a generator of `Round` records: the caller decides when to stop.

Of all clients the server keeps only S = sum_i (beta W_i + Y_i), stale clients included:

    V <- prox_{R/(p beta)}( S / (p beta) )

Where clients enter at their first turn, p in S / (p beta) is the number seen so far, and R weighs as much less. With
`update="curvature"` S holds other sums, and V comes out of them as `curvature` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms import curvature
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.settings import Settings
from fedmc.errors import DataError, Diverged, require
from fedmc.privacy.secagg.cohorts import cohort
from fedmc.problem.penalties import project
from fedmc.problem.subproblem import Scaling
from fedmc.training.diagnostics import Certificate, Diagnostics, ServerState, diagnose
from fedmc.training.engine import Engine
from fedmc.training.sampling import server_rng
from fedmc.types import Array


class Round(NamedTuple):
    """What one round did. Round 0 is the start; diagnostics are None where they were not asked for."""

    number: int
    clients: int
    participants: tuple[int, ...]
    seconds: float  # of updates, not of diagnostics
    bytes_down: int
    bytes_up: int
    diagnostics: Diagnostics
    V: Array
    beta: Any
    scaling: Scaling

    def record(self) -> dict[str, Any]:
        """The numbers of this round, for a line of JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in ("number", "seconds", "bytes_down", "bytes_up")}
        measured = {name: value for name, value in self.diagnostics._asdict().items() if value is not None}
        return plain | {"participants": list(self.participants)} | measured


class Begun(NamedTuple):
    """Where a run stands between two rounds: what it takes to go on with it."""

    number: int
    cast: Broadcast
    state: ServerState
    opening: float | None = None  # the objective at the start


def rounds(
    engine: Engine,
    settings: Settings,
    *,
    measure_every: int = 1,
    last: int | None = None,
    full: bool = False,
    begun: Begun | None = None,
    on_state: Callable[[Begun], None] = lambda begun: None,
) -> Iterator[Round]:
    """Train for as long as the caller asks for the next round.

    Measured are every `measure_every`-th round and the `last`; `full` adds the costly diagnostics. `on_state` hears
    where the run stands once a round counts, before anybody is asked again; a later call goes on from there (`begun`).
    """
    require(not settings.undecided, "penalty_users='auto' is still to be chosen: `fedmc.training.train` does that")
    require(measure_every >= 1, f"measure_every must be at least 1, got {measure_every}")
    p, method = engine.clients, settings.make_method()
    require(
        not settings.private or last is None or last <= settings.dp_rounds,
        f"the privacy budget is divided among dp_rounds={settings.dp_rounds} rounds, {last} were asked for",
    )
    require(method is None or not full, "full diagnostics speak of FedMC only: leave them out with another method")
    sampler = settings.make_sampler(p)
    _check_cohorts(settings, p, full)
    certificate = Certificate(settings, p, float(sampler.probabilities(p).min()))
    if begun is None:
        began = time.perf_counter()
        first = _participants(engine, settings, 1)
        cast, state, down, up = start_up(engine, settings, first or (0,))
        seconds = time.perf_counter() - began
        on_state(Begun(0, cast, state))
        opening = diagnose(engine, cast, state, None, certificate, full)
        begun = Begun(0, cast, state, opening.objective)
        on_state(begun)
        everyone = tuple(range(p)) if state.seen else ()
        yield Round(0, p, everyone, seconds, down, up, opening, cast.V, cast.beta, cast.scaling)
    number, cast, state, start = begun
    if number == 0 and start is None:  # it was killed before its start was measured
        start = diagnose(engine, cast, state, None, certificate, full).objective
    while True:
        number += 1
        participants = _participants(engine, settings, number)
        began = time.perf_counter()
        old = state.V
        down = len(participants) * (cast.V.nbytes + (0 if cast.memory is None else cast.memory.nbytes))
        state, up, participants = one_round(engine, cast._replace(task="round", round=number), state, participants)
        cast = cast._replace(V=state.V, memory=None if method is None else state.S, round=number)
        seconds = time.perf_counter() - began
        on_state(Begun(number, cast, state, start))
        measured = number % measure_every == 0 or number == last
        seen = diagnose(engine, cast, state, old, certificate, full) if measured else Diagnostics()
        seen = seen._replace(epsilon=_spent(settings, number))
        if grown(seen.objective, start):
            engine.undo()
            raise Diverged(number, f"the objective grew from {start:.3g} to {seen.objective:.3g}", "raise beta")
        yield Round(number, p, participants, seconds, down, up, seen, cast.V, cast.beta, cast.scaling)


def _participants(engine: Engine, settings: Settings, number: int) -> tuple[int, ...]:
    """Who is asked in a round: those drawn, and with secure aggregation as many more as it takes to hide them."""
    p = engine.clients
    drawn = tuple(int(i) for i in settings.make_sampler(p).draw(number, p, settings.seed))
    if not settings.hidden or not drawn:
        return drawn
    return cohort(drawn, engine.joined, p, settings.min_cohort, number)


def _spent(settings: Settings, number: int) -> float | None:
    """The epsilon of the rounds so far, by the plan."""
    if not settings.private:
        return None
    from fedmc.privacy.dp.mechanism import spent

    method: Any = settings.make_method()
    return spent([method.multiplier(round) for round in range(1, number + 1)], settings.delta)


def _check_cohorts(settings: Settings, clients: int, full: bool) -> None:
    least = settings.min_cohort
    require(
        settings.privacy == "plain" or not full,
        f"full diagnostics show more than sums: not with privacy={settings.privacy!r}",
    )
    require(
        not settings.private or settings.active == clients,
        f"with privacy={settings.privacy!r} all {clients} clients take part each time, active is {settings.active}",
    )
    require(
        not settings.hidden or clients >= least,
        f"{clients} clients are too few to hide among, min_cohort is {least}: lower it to say who must be enough, "
        "or use privacy='plain', which hides nothing",
    )


def one_round(
    engine: Engine, cast: Broadcast, state: ServerState, participants: tuple[int, ...]
) -> tuple[ServerState, int, tuple[int, ...]]:
    """Ask the participants, add what they send, take the new V: the new state, bytes up, and who took part.

    A round that nobody joined changes nothing.
    """
    if not participants:
        return state, 0, participants
    method = cast.settings.make_method()
    reply = engine.ask(cast, participants)
    took_part = participants if reply.clients is None else reply.clients
    if not took_part:
        return state, 0, took_part
    S: Any
    if method is None:
        S, seen = reply["S"], state.seen + int(reply.number("joined"))
        S += state.S  # the reply's own array: nobody else has it
        V = next_items(S, seen, cast)
    else:
        S, V = method.gather(state.S, reply, cast, len(took_part))
        V, seen = np.ascontiguousarray(V, cast.settings.dtype), 0
    if not np.isfinite(V).all():
        engine.undo()
        raise Diverged(cast.round, "the item factors are not finite", "raise beta")
    return ServerState(S, V, seen), reply.sent, took_part


def next_items(S: Array, seen: int, cast: Broadcast) -> Array:
    """V = prox_{R/(p beta)}( S / (seen beta) ), or what the curvature says."""
    _, penalty = cast.settings.penalties(cast.clients)
    if cast.settings.update == "curvature":
        return curvature.next_items(S, cast.V, penalty, seen)
    V = penalty.prox(S / (seen * cast.beta), 1 / (cast.clients * cast.beta))
    return np.ascontiguousarray(V, cast.settings.dtype)


class Start(NamedTuple):
    """Where a run begins, and what it took to get there."""

    cast: Broadcast
    state: ServerState
    bytes_down: int
    bytes_up: int


def start_up(engine: Engine, settings: Settings, first: tuple[int, ...]) -> Start:
    """The start: V, the ratings' mean and spread, beta, and with `entry="all"` everybody's S. All of it from sums."""
    p, everyone = engine.clients, range(engine.clients)
    V = start_items(engine.items, settings)
    method = settings.make_method()
    cast = Broadcast("moments", 0, p, settings, V, scaling=getattr(method, "scaling", Scaling()))
    down = up = 0
    auto = settings.beta == "auto" and settings.update != "curvature" and method is None
    public = getattr(method, "scaling", None)
    if public is not None:  # nobody is asked
        cast = cast._replace(scaling=public)
    elif settings.normalise != "none" or auto:
        moments = engine.ask(cast, everyone)
        up += moments.sent
        mean, variance = mean_and_variance(moments)
        if variance < 1e-6 * mean**2:  # the difference of two large sums has lost its digits
            up += moments.sent
            shifted = engine.ask(cast._replace(scaling=Scaling(mean)), everyone)
            mean, variance = mean + mean_and_variance(shifted)[0], mean_and_variance(shifted)[1]
        cast = cast._replace(scaling=scaling_of(mean, variance, settings))
    if auto:
        scale = engine.ask(cast._replace(task="scale"), first)
        beta = auto_beta(settings, p, moments["items"], scale["squares"] / scale.number("users"))
        cast = cast._replace(beta=beta.astype(settings.dtype))
        up += scale.sent
        down += len(first) * V.nbytes + p * sum(beta.shape) * beta.itemsize  # beta travels as its two factors
    elif settings.beta != "auto":
        cast = cast._replace(beta=float(settings.beta))
    state = ServerState(None if method else np.zeros(_sums_shape(V, settings)), V, 0)
    if settings.entry == "all" and method is None:
        reply = engine.ask(cast._replace(task="start"), everyone)
        state = ServerState(reply["S"], V, p)
        down, up = down + p * V.nbytes, up + reply.sent
    return Start(cast, state, down, up)


def _sums_shape(V: Array, settings: Settings) -> tuple[int, int]:
    if settings.update != "curvature":
        return V.shape[0], V.shape[1]
    return V.shape[0], curvature.columns(settings.width, settings.penalties(1)[1])


def mean_and_variance(moments: Sums) -> tuple[float, float]:
    require(moments.number("count") > 0, "the clients have no ratings between them", DataError)
    mean = moments.number("sum") / moments.number("count")
    return mean, max(moments.number("squares") / moments.number("count") - mean**2, 0.0)


def scaling_of(mean: float, variance: float, settings: Settings) -> Scaling:
    """What the settings ask for; ratings that are all the same are not scaled."""
    if settings.normalise == "none":
        return Scaling()
    wanted = settings.normalise == "standard" and variance > 1e-24 * mean**2
    return Scaling(mean, float(np.sqrt(variance)) if wanted else 1.0)


def start_items(items: int, settings: Settings) -> Array:
    """V uniform in [0, 1] as in the paper, or normal with spread 0.3, inside its constraints."""
    rng = server_rng(settings.seed)
    shape = items, settings.width
    V = rng.random(shape) if settings.start == "uniform" else rng.normal(0, 0.3, shape)
    _, penalty = settings.penalties(1)
    return np.ascontiguousarray(project(penalty, V), settings.dtype)


def auto_beta(settings: Settings, clients: int, counts: Array, mean_squares: Array) -> Array:
    """beta_ja = c (count_j + 1)/p^2 mean_t u_ta^2: c times a client's own share of the curvature, over p."""
    floor = max(float(mean_squares.max()), 1.0) * 1e-6
    beta: Array = settings.beta_scale * np.outer(counts + 1.0, np.maximum(mean_squares, floor)) / clients**2
    return beta


def grown(objective: float | None, opening: float | None) -> bool:
    """Whether an objective is a million times what it was at the start, or not a number."""
    return objective is not None and opening is not None and not objective <= 1e6 * max(opening, 1.0)
