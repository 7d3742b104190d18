"""What both apps share: the run's settings, one client's ratings, and messages as Flower's records."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict, UserConfig

from fedmc import Settings
from fedmc.algorithms.messages import Broadcast, Shared, Sums, dense
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.state import State
from fedmc.data.datasets import load_source
from fedmc.data.partition import Shard, assign_users, make_shards
from fedmc.data.splits import split
from fedmc.problem.scaling import Scaling

SHARED = "shared/"  # before the names of arrays that an algorithm sends beside V


def settings_of(config: UserConfig) -> Settings:
    """The paper's setting: raw ratings, no biases, U and V uniform in [0, 1]."""
    settings = {"rank": config["rank"], "inner_steps": config["inner-steps"], "active": config["active"]}
    penalties = {"penalty_users": config["penalty"], "penalty_items": config["penalty"]}
    own = {"beta": config["beta"]} if config["algorithm"] == "linearised" else {}
    return Settings.preset("paper", algorithm=config["algorithm"], seed=config["seed"], **settings, **penalties, **own)


def shard_of(config: UserConfig, client: int) -> Shard:
    """The ratings of this client's users; a real client would read a table of its own."""
    seed = int(config["seed"])
    train, test = split(load_source(str(config["data"])), float(config["test"]), seed)
    owner = assign_users(len(train.users), int(config["clients"]), seed)
    return make_shards(train, owner, settings_of(config).dtype, test)[client]


def to_record(broadcast: Broadcast) -> RecordDict:
    """V and what the algorithm sends beside it, the task, and the scaling of ratings."""
    arrays = {"V": broadcast.V} | {SHARED + name: array for name, array in broadcast.shared.arrays.items()}
    words = {
        "task": broadcast.task, "round": broadcast.round, "clients": broadcast.clients,
        "mean": broadcast.scaling.mean, "scale": broadcast.scaling.scale,
    }  # fmt: skip
    return RecordDict({"arrays": _record(arrays), "words": ConfigRecord(words)})


def from_record(record: RecordDict, settings: Settings) -> Broadcast:
    arrays, words = _arrays(record["arrays"]), record["words"]
    shared = {name.removeprefix(SHARED): array for name, array in arrays.items() if name.startswith(SHARED)}
    scaling = Scaling(words["mean"], words["scale"])
    return Broadcast(words["task"], words["round"], words["clients"], settings, arrays["V"], scaling, Shared(shared))


def reply_to_record(sums: Sums, broadcast: Broadcast) -> RecordDict:
    """A client's reply, of which the server needs only the sum over clients."""
    schema = schema_of(broadcast, len(broadcast.V))
    return RecordDict({"sums": _record({name: dense(value, schema[name].shape) for name, value in sums.parts.items()})})


def reply_of(record: RecordDict) -> Sums:
    return Sums.of(**_arrays(record["sums"]))


def keep(state: State | None, record: RecordDict) -> None:
    """Put a client's state (U, and W and Y of FedMC-ADMM) where Flower keeps it: with the client."""
    if state is not None:
        record["state"] = _record(state._asdict())


def kept(record: RecordDict, settings: Settings) -> State | None:
    if "state" not in record:
        return None
    arrays = _arrays(record["state"])
    kinds = settings.make_algorithm().state_types
    return next(kind(**arrays) for kind in kinds if set(kind._fields) == arrays.keys())


def _record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def _arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}
