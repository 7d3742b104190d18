"""Train a model over simulated clients: shards, engine, rounds, model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import Broadcast, Shared
from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.previous import Previous
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Federation, Shard, narrow
from fedmc.errors import DataError, Diverged, require
from fedmc.model import Model, titles
from fedmc.training.calibration import finished, rating_range
from fedmc.training.diagnostics import from_sums
from fedmc.training.engine import Simulation
from fedmc.training.engines import EngineChoice, Local, engine_of
from fedmc.training.local import LocalEngine
from fedmc.training.rate import Rate
from fedmc.training.rounds import Round, rounds
from fedmc.training.stopping import OnRound, Stop, tell, until
from fedmc.training.tuning import Trial, best, choose, in_words
from fedmc.training.warm import previous_of


class Run(NamedTuple):
    """A model, the history of its rounds, and the error if the run diverged."""

    model: Model
    history: list[Round]
    diverged: Diverged | None = None
    trials: tuple[Trial, ...] = ()  # if the penalty was tuned


class Extras(TypedDict, total=False):
    """What a run need not have."""

    spill: str | Path | None  # keep the clients' states in this folder
    engine: EngineChoice  # what carries the run: Local(), or OnRay(...) for worker processes
    start_from: Model | None  # go on from this trained model
    objectives: Mapping[int, Objective]  # penalties and losses of single clients, by their numbers


def train(
    federation: Federation,
    settings: Settings,
    stop: Stop | None = None,
    *,
    measure_every: int | None = None,
    full: bool = False,
    on_round: OnRound | Sequence[OnRound] = (),
    **extras: Unpack[Extras],
) -> Run:
    """Train over simulated clients. A run that diverges returns its last finite model and the error in `diverged`.

    Every `measure_every`-th round is measured; by default, as often as costs little. Each `on_round` is called with
    every `Round`; the run ends if one returns True. `Extras` are what else may be given.
    With `penalty_users="auto"` the l2 weight is chosen first, on ratings that the clients hold out; training then
    uses all ratings.
    With `start_from`, the run goes on from this trained model (a warm start); its ratings are all that count, those
    that the model was trained on included.
    """
    stop, start_from, objectives = stop or Stop(), extras.get("start_from"), extras.get("objectives", {})
    check_domain(settings, federation, objectives)
    chosen = engine_of(extras.get("engine", Local()), extras.get("spill"))
    chosen.check_memory(federation.shards, settings, 1)
    previous = None if start_from is None else previous_of(start_from, federation.items, settings)
    warm_up(settings, federation.shards[0].by_user.data.dtype)
    trials = choose(federation.shards, settings) if settings.needs_tuning else []
    if trials:
        settings = settings.replace(penalty_users=in_words(best(trials).weight))
    plan = Plan(settings, stop, measure_every, full or stop.tolerance is not None, previous)
    with chosen.open(federation.shards, federation.item_features, objectives) as engine:
        history, diverged = _trained(engine, plan, on_round)
        model = titled(collect(engine, federation, history[-1].broadcast), federation, start_from)
    return Run(model, history, diverged, tuple(trials))


class Plan(NamedTuple):
    """What the rounds of a run need besides the engine."""

    settings: Settings
    stop: Stop
    measure_every: int | None
    full: bool
    previous: Previous | None

    def interval(self, clients: int) -> int:
        """Rounds between measurements."""
        if self.measure_every is not None:
            return self.measure_every
        always = self.full or self.stop.patience is not None
        return 1 if always else measure_interval(self.settings, clients, self.stop.rounds)


def _trained(
    engine: Simulation, plan: Plan, on_round: OnRound | Sequence[OnRound]
) -> tuple[list[Round], Diverged | None]:
    """The rounds of a run, the last one measured, and the error if it diverged."""
    history: list[Round] = []
    diverged, stop = None, plan.stop
    every = plan.interval(engine.clients)
    running = rounds(
        engine, plan.settings, measure_every=every, last=stop.rounds, full=plan.full, previous=plan.previous
    )
    try:
        for round in until(running, stop):
            history[-1:] = map(slim, history[-1:])
            history.append(round)
            if tell(round, on_round):
                break
    except Diverged as error:
        if not history:
            raise
        diverged = error
    last = history[-1]
    if last.diagnostics.objective is None:
        history[-1] = _measured(engine, last)
    return history, diverged


def slim(round: Round) -> Round:
    """A round without the arrays that are larger than V, and without what was derived from them."""
    broadcast = round.broadcast
    small = {name: array for name, array in broadcast.shared.arrays.items() if array.nbytes <= broadcast.V.nbytes}
    return round._replace(broadcast=broadcast._replace(shared=Shared(small)))


def _measured(engine: Simulation, last: Round) -> Round:
    """The last round of a run that ended early, with the diagnostics it lacks."""
    broadcast = last.broadcast._replace(task="measure")
    sums = engine.ask(broadcast, range(engine.clients))
    found = from_sums(sums, broadcast)._replace(epsilon=last.diagnostics.epsilon)
    return last._replace(diagnostics=found, bytes_measured=sums.sent + sums.received)


def measure_interval(settings: Settings, clients: int, number: int) -> int:
    """Rounds between measurements, such that all measurements cost at most about a seventh of a run.

    A measurement reads the ratings of all clients, a round only those of the active ones. It takes about half as long
    as a round with the same number of clients (`benchmarks/speed.py diagnostics`).
    """
    of_a_round = 0.5 * clients / min(settings.active, clients)
    affordable = int(0.15 * number / of_a_round) - 1  # besides the first
    return max(1, math.ceil(number / affordable)) if affordable > 0 else max(1, number)


def warm_up(settings: Settings, ratings_dtype: Any) -> None:
    """Compile (or load from the disk cache) the kernels of a run with these settings before its first round."""
    if not settings.names_algorithm:
        return  # a user's own algorithm must see only its own clients
    chosen = settings.replace(active=3, sampler="uniform", min_cohort=3)
    if chosen.needs_tuning:
        chosen = chosen.replace(penalty_users="l2:1")
    table = sparse.csr_array(np.array([[0.5, 1], [1, 0.5]], ratings_dtype))
    shards = [Shard.of(client, np.arange(2), narrow(table), table) for client in range(3)]
    with suppress(Diverged):
        for _ in islice(rounds(LocalEngine(shards), chosen), 3):
            pass


def check_domain(settings: Settings, federation: Federation, objectives: Mapping[int, Objective]) -> None:
    """Refuse ratings outside of the loss's domain, and objectives of clients that the run cannot have."""
    for one in objectives.values():
        one.settings(settings, len(federation.shards))
    if settings.make_algorithm().of_events:
        lowest = min(float(shard.by_user.data.min()) for shard in federation.shards)
        require(lowest > 0, f"events have confidences above 0, got {lowest:g}: drop these rows", DataError)
    for shard in federation.shards:
        own = objectives.get(shard.client, Objective()).loss
        loss = settings.with_objective(None, own, 1).make_loss() if own is not None else settings.make_loss()
        _check_ratings(shard, getattr(loss, "domain", None))


def _check_ratings(shard: Shard, domain: tuple[float, float] | None) -> None:
    low, high = float(shard.by_user.data.min()), float(shard.by_user.data.max())
    ok = domain is None or (domain[0] <= low and high <= domain[1])
    told = None if domain is None else f"this loss takes ratings from {domain[0]} to {domain[1]}"
    require(ok, f"{told}, got {low:g} to {high:g}: rescale them", DataError)


def collect(engine: Simulation, federation: Federation, broadcast: Broadcast) -> Model:
    """The model of the whole simulated federation: V, and every client's U (refitted to V with `fold_in`)."""
    rows = np.concatenate([shard.users for shard in engine.shards])
    order = np.argsort(federation.users[rows], kind="stable")
    states = zip(engine.shards, engine.states, strict=True)
    algorithm = broadcast.settings.make_algorithm()
    asked = ((shard, state, engine.told(shard.client, broadcast)) for shard, state in states)
    fitted = ((shard, algorithm.users_at(shard, state, own), own) for shard, state, own in asked)
    U = np.concatenate([algorithm.prediction_users(shard, found, own) for shard, found, own in fitted])
    seen = sparse.vstack([shard.pattern() for shard in engine.shards], format="csr")[order]
    users = federation.users[rows][order]
    settings = algorithm.model_settings(broadcast)
    about = broadcast.scaling, settings, broadcast.clients, rating_range(engine.shards, settings)
    U, posterior = finished(engine.shards, engine.states, broadcast, U)
    if posterior is not None:
        assert posterior.user_covariances is not None
        posterior = posterior.of_users(posterior.user_covariances[order], posterior.calibration)
        if posterior.days is not None:
            posterior = replace(posterior, days=posterior.days.in_order(order))
    return Model(federation.items, broadcast.V, users, U[order], seen, *about, posterior)


def titled(model: Model, federation: Federation, start_from: Model | None) -> Model:
    """The model with the titles of its items: those of the table or, where it has none, those of the model before."""
    before = None if start_from is None else (start_from.items, start_from.titles)
    return replace(model, titles=titles.of_items(model.items, federation.item_table, before))


def summary(history: list[Round]) -> dict[str, Any]:
    """The main numbers of a run; of events, each ranking metric too, such as "test_ndcg_20"."""
    last = history[-1].diagnostics
    return {
        "test_rmse": last.test_rmse,
        "train_rmse": last.train_rmse,
        "objective": last.objective,
        "bound": last.bound,
        "rounds": history[-1].number,
        "seconds": sum(round.seconds for round in history),
        "bytes_up": sum(round.bytes_up for round in history),
        "bytes_down": sum(round.bytes_down for round in history),
        "bytes_measured": sum(round.bytes_measured for round in history),
        "certified": last.certified,
        **{name: getattr(last, name) for name in ("beta_needed", "beta_suggested", *Rate._fields)},
        "epsilon": last.epsilon,
    } | (last.ranking or {})
