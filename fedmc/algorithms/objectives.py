"""What single clients have of their own in the problem: the R_i with its constraints, and the f_i of the paper's (1).

    min  1/p sum_i [ f_i(U_i, V) + R_i(U_i) ] + R(V)

An objective enters only what its client computes: the broadcast that the client answers then has the client's own
penalty and loss in its settings. It is never sent, and the server's R is that of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.errors import InputError, quoted, require, unknown
from fedmc.problem.losses import Loss
from fedmc.problem.penalties import Penalty


@dataclass(frozen=True)
class Objective:
    """A client's own penalty and loss; None: those of the run."""

    penalty_users: str | Penalty | None = None
    loss: str | Loss | None = None

    def settings(self, common: Settings, clients: int) -> Settings:
        """The run's settings as this client has them; InputError if the algorithm or the model has no such choice."""
        given = {one.name for one in fields(self) if getattr(self, one.name) is not None}
        algorithm = common.make_algorithm()
        none = sorted(given & algorithm.unused_settings)
        require(
            not none and algorithm.objectives_differ,
            lambda: (
                f"{algorithm} has no {none[0] if none else 'penalty or loss'} that could differ by client: "
                "use preset='fast' or preset='paper'"
            ),
        )
        tuned = common.needs_tuning or self.penalty_users == "auto"
        require(not tuned, "penalty_users='auto' chooses one penalty for all clients: give it a spec such as 'l2:10'")
        own = common.with_objective(self.penalty_users, self.loss, clients)
        x = np.linspace(-4.0, 4.0, 17)
        same = np.array_equal(own.make_loss().link(x), common.make_loss().link(x))
        what = f"the loss {own.loss} of a client and {common.loss} of the run"
        require(same, f"{what} have different links, and a model predicts by one: give losses with the same link")
        return own


class OwnObjective:
    """A client's objective, put into each broadcast that the client answers."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self._last: tuple[Settings, int, Settings] | None = None

    def of(self, broadcast: Broadcast) -> Broadcast:
        """The broadcast with the client's own penalty and loss."""
        known, clients = broadcast.settings, broadcast.clients
        if self._last is None or self._last[0] is not known or self._last[1] != clients:
            self._last = known, clients, self.objective.settings(known, clients)
        return broadcast._replace(settings=self._last[2])


Given = Objective | Mapping[str, object]  # a mapping has its fields by name
Objectives = Mapping[object, Given] | Callable[[object], Given | None]
"""By the name of the client, or a function of the name, None for a client without an objective of its own."""


def by_number(given: Objectives | None, names: Sequence[object]) -> dict[int, Objective]:
    """The objectives by client number; `names` are the clients' names, in the order of their numbers."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        require(callable(given), f"objectives must be a mapping or a function of a client, got {quoted(given)}")
        of_each = {name: given(name) for name in names}
        given = {name: found for name, found in of_each.items() if found is not None}
    places = {name: number for number, name in enumerate(names)}
    for name in given:
        if name not in places:
            raise unknown("client", name, map(str, names))
    return {places[name]: objective(one) for name, one in given.items()}


def objective(given: object) -> Objective:
    """An objective that is given as such, or by the names of its fields."""
    if isinstance(given, Objective):
        return given
    known = {one.name for one in fields(Objective)}
    if not isinstance(given, Mapping) or not given.keys() <= known:
        raise InputError(f"an objective has {' and '.join(sorted(known))}, got {quoted(given)}")
    return Objective(**cast(Mapping[str, str], given))
