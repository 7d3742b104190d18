"""Federated methods other than FedMC behind the same rounds, budget and diagnostics.

A method of one's own is any object with

    turn(shard, state, cast) -> (state, Sums)
        a client: what it remembers (with a field U at least), and what goes up
    gather(memory, reply, cast, participants) -> (memory, V)
        the server, given the sum of the replies; `cast.V` is the V that the participants got

`memory` is an array (or None) that the server keeps; it goes down with V as `cast.memory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fedmc.errors import unknown
from fedmc.types import Array

if TYPE_CHECKING:
    from fedmc.algorithms.messages import Broadcast, Sums
    from fedmc.data.partition import Shard


NAMES = ("fedmc", "fedmavg", "fedmavg-printed", "fedmgs", "fedavg", "fedprox", "scaffold")


@runtime_checkable
class Method(Protocol):
    def turn(self, shard: Shard, state: Any, cast: Broadcast) -> tuple[Any, Sums]: ...
    def gather(
        self, memory: Array | None, reply: Sums, cast: Broadcast, participants: int
    ) -> tuple[Array | None, Array]: ...


def parse(name: str) -> Method | None:
    """A method by its name; None is FedMC itself."""
    if name not in NAMES:
        raise unknown("method", name, NAMES)
    if name == "fedmc":
        return None
    from fedmc.algorithms.averaging import FedAvg, FedMAvg, FedMGS, Scaffold

    made: dict[str, Method] = {
        "fedmavg": FedMAvg(),
        "fedmavg-printed": FedMAvg(as_printed=True),
        "fedmgs": FedMGS(),
        "fedavg": FedAvg(),
        "fedprox": FedAvg(mu=0.1),
        "scaffold": Scaffold(),
    }
    return made[name]
