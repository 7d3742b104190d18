"""What a trained model is measured against: biases only, each client alone, and all data in one place.

All are measured on the same held-out data as the model. In a simulation everything is on this machine; in a federation
nobody can compute the pooled baseline, and each organisation only its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from fedmc.algorithms.objectives import Objective
from fedmc.data.files import write_whole
from fedmc.data.partition import Federation
from fedmc.errors import InputError
from fedmc.evaluation import biases, single
from fedmc.evaluation.single import Score
from fedmc.model import Model

Measure = Literal["rmse", "ndcg_20"]
FILE = "baselines.json"  # in a run folder
MOST = 50  # clients that are trained alone, at most
FEWEST_USERS = 5  # of a client that is listed: numbers of a smaller one would be about single users
NAMES = {"biases": "biases only", "alone": "each alone", "pooled": "all data in one place"}
QUIET: Callable[[str], None] = lambda _: None  # noqa: E731


class Client(NamedTuple):
    """One client's RMSE or NDCG@20 on its own held-out data: by a model of its own, and by that of all."""

    client: int
    users: int
    ratings: int  # or events, for training
    held_out: int  # ratings, or users with held-out events
    alone: float
    together: float
    name: str = ""  # if clients have names

    @property
    def label(self) -> str:
        """The name, or the number of those who count from 1."""
        return self.name or f"organisation {self.client + 1}"


@dataclass(frozen=True)
class Baselines:
    """What is known; None: it was not computed."""

    measure: Measure
    biases: float | None = None
    pooled: float | None = None
    alone: float | None = None  # over all held-out data of the clients that were trained alone
    together: float | None = None  # the model of all, on the same data
    trained_alone: int = 0
    clients: tuple[Client, ...] = ()  # those of them that are large enough to be listed

    def values(self) -> dict[str, float]:
        """Those that are known, by their fields."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}


def biases_only(model: Model, federation: Federation) -> Baselines | None:
    """The baseline that takes a moment; None of events, and if nothing is held out."""
    if model.settings.make_algorithm().of_events or not _held_out(federation):
        return None
    fitted = biases.fit(federation.shards)
    return Baselines("rmse", single.rmse(single.squared_error(shard, fitted.predict) for shard in federation.shards))


def compute(
    model: Model,
    federation: Federation,
    rounds: int,
    *,
    objectives: Mapping[int, Objective] | None = None,
    on_step: Callable[[str], None] = QUIET,
    interrupted: Callable[[], bool] = lambda: False,
) -> Baselines | None:
    """All baselines of a trained model: the same algorithm also learns from each client's data alone, and from all.

    Each is trained for as many rounds, which takes longer than the run; of many clients only some are, evenly spaced.
    A client alone keeps its own objective; data in one place have that of the run.
    None if nothing is held out. If `interrupted`, what takes long is left out.
    """
    of_events = model.settings.make_algorithm().of_events
    found = Baselines("ndcg_20") if of_events else biases_only(model, federation)
    wanted = chosen(federation)
    if found is None or not wanted:
        return None
    settings, average = single.settings_of_one(model.settings), single.mean if of_events else single.rmse
    pairs: dict[int, tuple[Score, Score]] = {}
    for client in wanted:
        objective = (objectives or {}).get(client)
        own = single.alone(federation, client, settings, rounds, objective, interrupted)
        if interrupted():
            return found
        on_step(f"client {client} alone")
        if own is not None:
            pairs[client] = single.score(own, federation, client), single.score(model, federation, client)
    whole = single.pooled(federation, settings, rounds, interrupted)
    if interrupted():
        return found
    on_step("all data in one place")
    in_one = (
        None if whole is None else average(single.score(whole, federation, k) for k in range(len(federation.shards)))
    )
    if not pairs:
        return replace(found, pooled=in_one)
    sides = (average(scores) for scores in zip(*pairs.values(), strict=True))
    alone, together = sides
    listed = (_client(federation, client, *both, average) for client, both in pairs.items())
    large = tuple(one for one in listed if one.users >= FEWEST_USERS)
    return Baselines(found.measure, found.biases, in_one, alone, together, len(pairs), large)


def chosen(federation: Federation) -> list[int]:
    """The clients to train alone: those with held-out data, at most MOST, evenly spaced."""
    there = _held_out(federation)
    step = max(1, -(-len(there) // MOST))
    return there[::step]


def _held_out(federation: Federation) -> list[int]:
    return [k for k, shard in enumerate(federation.shards) if shard.test is not None and shard.test.nnz]


def _client(
    federation: Federation, client: int, alone: Score, together: Score, average: Callable[[list[Score]], float]
) -> Client:
    shard = federation.shards[client]
    counts = len(shard.users), int(shard.by_user.nnz), alone.number
    name = federation.client_names[client] if federation.client_names else ""
    return Client(client, *counts, average([alone]), average([together]), name)


def save(found: Baselines, folder: Path) -> None:
    """Write the baselines into a run folder, whole or not at all."""
    record = {**vars(found), "clients": [one._asdict() for one in found.clients]}
    write_whole(folder / FILE, (json.dumps(record, indent=1) + "\n").encode())


def load(folder: Path) -> Baselines | None:
    """The baselines in a run folder; None if there are none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        clients = tuple(Client(**one) for one in record.pop("clients"))
        found = Baselines(**record, clients=clients)
        numbers = [*vars(found).values(), *(value for one in clients for value in one[:-1])]
        wrong = [one for one in numbers if not isinstance(one, int | float | tuple | None) and one != found.measure]
        if wrong or found.measure not in ("rmse", "ndcg_20"):
            raise ValueError(f"{wrong or found.measure!r} is not a number")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged: {error}; remove it for a report without baselines") from None
    return found
