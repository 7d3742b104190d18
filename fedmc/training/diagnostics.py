"""What the server reports of a round, made from the clients' sums alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms import curvature
from fedmc.algorithms.measures import POWER
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.settings import Settings
from fedmc.training.engine import Engine
from fedmc.types import Array


class ServerState(NamedTuple):
    """All that the server remembers between rounds: nothing in it grows with the number of clients."""

    S: Any  # float64, one row an item; with another method, what that keeps
    V: Array
    seen: int  # clients inside S


class Diagnostics(NamedTuple):
    """Of a round; None where it was not asked for or does not apply."""

    objective: float | None = None  # F(U, V) at the global V
    train_rmse: float | None = None  # on the rating scale, at the global V
    test_rmse: float | None = None
    validation_rmse: float | None = None
    nonzeros_users: float | None = None  # shares
    nonzeros_items: float | None = None
    lagrangian: float | None = None  # None with update="curvature", which has no duals
    primal_residual: float | None = None  # sqrt( sum_i ||W_i - V||^2 )
    dual_residual: float | None = None  # sqrt(p) ||beta (V - V_before)||, beta 1 with curvature
    stationarity: float | None = None  # a bound of dist(0, dPhi), after the paper's (122d)
    beta_needed: float | None = None  # the theorem's (corrected) threshold, from the constants seen so far
    certified: bool | None = None  # the theorem speaks of these settings, and beta is above it
    epsilon: float | None = None  # spent so far, with privacy="dp"


class Certificate:
    """Whether beta meets the theorem's condition, with the Lipschitz constants met on the way so far.

        beta > max{ 8 N L^2 / (p L_V),  8 (8 + N) L_U'^2 / (p_min p L_U) }

    L_V and L_U are lower bounds, L and L_U' upper ones. The paper writes min; its proof needs both brackets positive,
    so the condition is with max. It speaks of the linearised update with one beta, and of draws that do not depend on
    the past; elsewhere the threshold is still told, and nothing is certified.
    """

    def __init__(self, settings: Settings, clients: int, p_min: float) -> None:
        as_published = settings.update == "linearised" and settings.fit_users_to == "W" and settings.dual_step == 1
        independent = getattr(settings.make_sampler(clients), "independent", True)
        self.covered = as_published and independent and settings.beta != "auto"
        self.settings, self.clients, self.p_min = settings, clients, p_min
        self.L = self.L_U_high = 0.0
        self.L_U_low = self.L_V_low = np.inf

    def update(self, sums: Sums) -> tuple[float, bool]:
        """Take in a round's constants: (the threshold, whether the theorem holds here and beta is above it)."""
        high = {name: sums.number(name) ** (1 / POWER) for name in ("L_high", "L_U_high", "L_U_low", "L_V_low")}
        if not all(0 < value < np.inf for value in high.values()):
            return np.inf, False
        self.L, self.L_U_high = max(self.L, high["L_high"]), max(self.L_U_high, high["L_U_high"])
        self.L_U_low, self.L_V_low = (
            min(self.L_U_low, 1 / high["L_U_low"]),
            min(self.L_V_low, 1 / high["L_V_low"]),
        )
        N, p = self.settings.inner_steps, self.clients
        users = 8 * N * self.L**2 / (p * self.L_V_low)
        items = 8 * (8 + N) * self.L_U_high**2 / (self.p_min * p * self.L_U_low)
        needed = max(users, items)
        return needed, self.covered and bool(float(self.settings.beta) > needed)


def diagnose(
    engine: Engine, cast: Broadcast, state: ServerState, V_before: Array | None, certificate: Certificate, full: bool
) -> Diagnostics:
    """Ask all clients for their measures at V and put them together."""
    p, V = cast.clients, cast.V
    if cast.settings.private and not engine.simulated:
        return Diagnostics()  # losses and errors would be releases too
    sums = engine.ask(cast._replace(task="measure", full=full), range(p))
    basic = from_sums(sums, cast)
    if not full:
        return basic
    _, penalty = cast.settings.penalties(p)
    needed, certified = certificate.update(sums)
    return basic._replace(
        lagrangian=sums.number("lagrangian") + penalty.value(V) if "lagrangian" in sums.parts else None,
        primal_residual=float(np.sqrt(sums.number("gap"))),
        dual_residual=None if V_before is None else float(np.sqrt(p) * np.linalg.norm(cast.beta * (V - V_before))),
        stationarity=None if V_before is None else _stationarity(sums, state, cast),
        beta_needed=needed,
        certified=certified,
    )


def _stationarity(sums: Sums, state: ServerState, cast: Broadcast) -> float:
    """The two norms after (122d); nu lies in the subdifferential of R at V once V came out of a server's step."""
    slope = sums["gradient_V"]
    if cast.settings.update == "curvature":
        free, nu = curvature.subgradient(state.S, cast.V, cast.settings.penalties(cast.clients)[1], state.seen)
        slope = slope[:, free]
    else:
        nu = (state.S - state.seen * cast.beta * cast.V) * (cast.clients / state.seen)
    return float(np.sqrt(np.square(slope + nu).sum() + sums.number("stationarity_U")))


def from_sums(sums: Sums, cast: Broadcast) -> Diagnostics:
    """The diagnostics that every measurement gives."""
    _, penalty = cast.settings.penalties(cast.clients)
    factors = cast.V[:, : cast.settings.rank]
    return Diagnostics(
        objective=(sums.number("loss") + sums.number("penalty")) / cast.clients + penalty.value(cast.V),
        train_rmse=_rmse(sums, "train"),
        test_rmse=_rmse(sums, "test"),
        validation_rmse=_rmse(sums, "validation"),
        nonzeros_users=sums.number("nonzeros") / max(sums.number("entries"), 1),
        nonzeros_items=float(np.count_nonzero(factors)) / factors.size,
    )


def _rmse(sums: Sums, part: str) -> float | None:
    count = sums.number(f"{part}_count")
    return float(np.sqrt(sums.number(f"{part}_error") / count)) if count else None
