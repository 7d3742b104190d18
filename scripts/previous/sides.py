"""What the two sides call differently, one adapter each; everything that knows internal names of a tree is here.

An adapter has three functions: `simulate` (a run over simulated clients), `pooled` (alternating solves on one table)
and `federate` (nodes and a server in this process). Each gives a `Result`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

RUN, CATALOGUE = "a-run", "a-hash"


class Task(NamedTuple):
    """A case with its data."""

    settings: Any
    train: Any  # Ratings
    test: Any
    owner: np.ndarray
    rounds: int
    folder: Path
    trials: int | None = None
    spill: bool = False
    full: bool = False


class Result(NamedTuple):
    U: np.ndarray
    V: np.ndarray
    mean: float
    scale: float
    history: list[dict[str, Any]]


class Side(Protocol):
    def simulate(self, task: Task) -> Result: ...
    def pooled(self, task: Task) -> Result: ...
    def federate(self, task: Task) -> Result: ...


class Wire:
    """The transport of a federation in one process."""

    def __init__(self, answers: Mapping[int, Callable[[bytes], bytes]]) -> None:
        self.answers = answers

    def exchange(self, contents: Mapping[int, bytes], *limits: Any) -> dict[int, bytes]:
        return {client: self.answers[client](content) for client, content in contents.items()}


class Previous:
    """The commit before the packages."""

    def simulate(self, task: Task) -> Result:
        from fedmc.partition import Federation, make_shards
        from fedmc.stopping import Stop
        from fedmc.training import train
        from fedmc.tuning import Budget

        shards = make_shards(task.train, task.owner, task.settings.dtype, task.test)
        clients = Federation(shards, task.train.users, task.train.items)
        budget = None if task.trials is None else Budget(task.trials, 4)
        spill = task.folder / "states" if task.spill else None
        stop = Stop(task.rounds)
        return of_run(train(clients, task.settings, stop, measure_every=1, full=task.full, budget=budget, spill=spill))

    def pooled(self, task: Task) -> Result:
        from fedmc.baselines.pooled import als
        from fedmc.partition import make_shards

        shard = make_shards(task.train, np.zeros_like(task.owner), task.settings.dtype, task.test)[0]
        fit = als(shard, *task.settings.penalties(1), task.settings.width, sweeps=30)
        return Result(fit.U, fit.V, fit.scaling.mean, fit.scaling.scale, [])

    def federate(self, task: Task) -> Result:
        from fedmc.federation.engine import FederatedEngine
        from fedmc.federation.node import Node
        from fedmc.federation.seats import Identity
        from fedmc.federation.store import Store
        from fedmc.partition import make_shards
        from fedmc.privacy.ledger import Ledger
        from fedmc.server import rounds

        shards = make_shards(task.train, task.owner, task.settings.dtype, task.test)
        keys, publics = key_pairs(len(shards))
        users: dict[int, np.ndarray] = {}
        nodes = {}
        for k, shard in enumerate(shards):
            store = Store(task.folder / f"node-{k}")
            nodes[k] = Node(
                shard, CATALOGUE, store, on_finish=lambda asked, U, k=k: users.update({k: U}),
                identity=Identity(k, keys[k], publics, 3), ledger=Ledger(task.folder / f"ledger-{k}", 50.0, 1e-6),
            )  # fmt: skip
        wire = Wire({k: node.answer_bytes for k, node in nodes.items()})
        engine = FederatedEngine(wire, RUN, len(nodes), len(task.train.items), CATALOGUE, len(nodes), pinned=publics)
        history, states = [], []
        for round in rounds(engine, task.settings, last=task.rounds, on_state=states.append):
            history.append(round.record())
            if round.number == task.rounds:
                break
        cast = states[-1].cast
        engine.finish(cast, range(len(nodes)))
        U = np.concatenate([users[k] for k in range(len(nodes))])
        return Result(U, cast.V, cast.scaling.mean, cast.scaling.scale, history)


class Current:
    """This commit."""

    def simulate(self, task: Task) -> Result:
        from fedmc.data.partition import Federation, make_shards
        from fedmc.training.simulation import train
        from fedmc.training.stopping import Stop
        from fedmc.training.tuning import Budget

        shards = make_shards(task.train, task.owner, task.settings.dtype, task.test)
        clients = Federation(shards, task.train.users, task.train.items)
        budget = None if task.trials is None else Budget(task.trials, 4)
        spill = task.folder / "states" if task.spill else None
        stop = Stop(task.rounds)
        return of_run(train(clients, task.settings, stop, measure_every=1, full=task.full, budget=budget, spill=spill))

    def pooled(self, task: Task) -> Result:
        from fedmc.data.partition import make_shards
        from fedmc.evaluation.pooled import als

        shard = make_shards(task.train, np.zeros_like(task.owner), task.settings.dtype, task.test)[0]
        fit = als(shard, *task.settings.penalties(1), task.settings.width, sweeps=30)
        return Result(fit.U, fit.V, fit.scaling.mean, fit.scaling.scale, [])

    def federate(self, task: Task) -> Result:
        from fedmc.data.partition import make_shards
        from fedmc.federation.node.node import Node
        from fedmc.federation.node.store import Store
        from fedmc.federation.node.trust import Trust
        from fedmc.federation.server.engine import FederatedEngine
        from fedmc.federation.server.members import Members
        from fedmc.federation.server.signing import Signer
        from fedmc.federation.setup.identities import Identity
        from fedmc.privacy.dp.ledger import Ledger
        from fedmc.training.rounds import rounds

        shards = make_shards(task.train, task.owner, task.settings.dtype, task.test)
        keys, publics = key_pairs(len(shards))
        (server,), _ = key_pairs(1)
        users: dict[int, np.ndarray] = {}
        nodes = {}
        for k, shard in enumerate(shards):
            store = Store(task.folder / f"node-{k}")
            trust = Trust(f"node {k}", server.public_key(), Identity(k, keys[k], publics, 3))
            nodes[k] = Node(
                shard, CATALOGUE, store, on_finish=lambda asked, U, k=k: users.update({k: U}),
                trust=trust, ledger=Ledger(task.folder / f"ledger-{k}", 50.0, 1e-6),
            )  # fmt: skip
        wire = Wire({k: node.answer_bytes for k, node in nodes.items()})
        members = Members(len(nodes), len(task.train.items), CATALOGUE, len(nodes), publics)
        engine = FederatedEngine(wire, RUN, members, Signer(server))
        history, states = [], []
        for round in rounds(engine, task.settings, last=task.rounds, on_checkpoint=states.append):
            history.append(round.record())
            if round.number == task.rounds:
                break
        broadcast = states[-1].broadcast
        engine.finish(broadcast, range(len(nodes)))
        U = np.concatenate([users[k] for k in range(len(nodes))])
        return Result(U, broadcast.V, broadcast.scaling.mean, broadcast.scaling.scale, history)


SIDES: dict[str, Side] = {"previous": Previous(), "current": Current()}


def key_pairs(count: int) -> tuple[list[Any], dict[int, Any]]:
    """Signing keys of the nodes, and everybody's public ones."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    keys = [Ed25519PrivateKey.generate() for _ in range(count)]
    return keys, {k: key.public_key() for k, key in enumerate(keys)}


def of_run(run: Any) -> Result:
    """Of what `train` and a fitted `FedMC` have in common."""
    if run.diverged is not None:
        raise run.diverged
    return of_model(run.model, run.history)


def of_model(model: Any, history: Any) -> Result:
    records = [round.record() for round in history]
    return Result(model.U, model.V, model.scaling.mean, model.scaling.scale, records)
