"""The server's report of a round, computed from the clients' sums alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms.measures import measures_of
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import ServerState
from fedmc.algorithms.theory import LIPSCHITZ, POWER, Convergence, cross_lipschitz
from fedmc.errors import UnmeasuredError
from fedmc.training.engine import Engine
from fedmc.training.rate import Constants, Progress, Rate, Setting, constant, suggested, threshold
from fedmc.training.sampling import sampler_of
from fedmc.types import Array


class Diagnostics(NamedTuple):
    """The diagnostics of a round; None if not requested or not applicable."""

    objective: float | None = None  # F(U, V) at the global V
    bound: float | None = None  # the evidence bound of a Bayesian model, in nats
    train_rmse: float | None = None  # on the rating scale, at the global V
    test_rmse: float | None = None
    validation_rmse: float | None = None
    ranking: dict[str, float] | None = None  # metrics by part, name and cutoff, such as "test_ndcg_20"
    nonzeros_users: float | None = None  # share of non-zero factors
    nonzeros_items: float | None = None
    lagrangian: float | None = None  # None with update="curvature", which has no duals
    primal_residual: float | None = None  # sqrt( sum_i ||W_i - V||^2 )
    dual_residual: float | None = None  # sqrt(p) ||beta (V - V_before)||, with beta 1 for curvature
    stationarity: float | None = None  # an upper bound on dist(0, dPhi), after the paper's (122d)
    beta_needed: float | None = None  # the theorem's (corrected) threshold, from the constants seen so far
    beta_suggested: float | None = None  # above the threshold with a margin, if the theorem covers these settings
    certified: bool | None = None  # the theorem covers these settings, and beta is above the threshold
    min_dist2: float | None = None  # the smallest stationarity^2 of all rounds so far
    dist2_bound: float | None = None  # C (L^0 - alpha) / K, the theorem's bound on its expectation; if certified
    dist2_slope: float | None = None  # of log(min_dist2) against log(K), over the last decade of K
    epsilon: float | None = None  # spent so far, under differential privacy


class Certificate:
    """Whether beta meets the theorem's condition, with the Lipschitz constants seen so far.

        beta > max{ 8 N L^2 / (p L_V),  8 (8 + N) L_U'^2 / (p_min p L_U) }

    L_V and L_U are lower bounds, L and L_U' upper bounds; L also pairs U of one round with W of the next
    (`theory.cross_lipschitz`). The paper writes min, but its proof needs both brackets to be positive, so the condition
    uses max. It covers the linearised update with one beta, and draws that do not depend on the past; otherwise the
    threshold is still reported, but nothing is certified.
    """

    def __init__(self, settings: Settings, clients: int) -> None:
        theory, sampler = settings.make_algorithm().theory, sampler_of(settings, clients)
        self.covered = theory is not None and theory.covers(settings) and getattr(sampler, "independent", True)
        self.p_min = float(sampler.probabilities(clients).min())
        self.settings, self.clients = settings, clients
        self.seen = dict.fromkeys(LIPSCHITZ, 0.0)  # maxima; of L_U_low and L_V_low, those of 1 / L
        self.progress = Progress()

    def update(self, sums: Sums) -> tuple[float, bool]:
        """Add a round's constants: (the threshold, whether the theorem applies and beta is above the threshold)."""
        for name, before in self.seen.items():
            largest = sums.number(name) ** (1 / POWER)
            measured = largest < np.inf and (largest > 0 or name == "pulls_high")  # neither overflow nor underflow
            self.seen[name] = max(before, largest) if measured else np.inf
        needed = threshold(self.constants(), self.setting)
        return needed, bool(self.covered and self.setting.beta > needed)

    def constants(self) -> Constants:
        """The constants of all rounds so far."""
        found = self.seen
        L = cross_lipschitz(found["U_high"], found["W_high"], found["pulls_high"])
        L_U, L_V = ((1 / found[f"{name}_low"], found[f"{name}_high"]) for name in ("L_U", "L_V"))
        return Constants(L, found["L_bar"], found["kappa"], L_U, L_V)

    @property
    def setting(self) -> Setting:
        beta = float(self.settings.beta) if self.covered else 0.0
        return Setting(beta, self.settings.inner_steps, self.clients, self.p_min)

    def suggested(self, needed: float) -> float | None:
        """A beta for another run, which the theorem certifies if its constants are no more than a little worse."""
        return suggested(needed) if self.covered else None

    def rate(self, number: int, found: Convergence, certified: bool) -> Rate:
        """How fast the run becomes stationary, after the constants of a round have been added."""
        C = constant(self.constants(), self.setting) if certified else None
        return self.progress.add(number, found.lagrangian, found.stationarity, C)


class Measured(NamedTuple):
    """The diagnostics of a round, and the bytes that measuring took in both directions."""

    diagnostics: Diagnostics = Diagnostics()
    nbytes: int = 0


def diagnose(
    engine: Engine,
    broadcast: Broadcast,
    server: ServerState,
    before: Array | None,
    certificate: Certificate,
    full: bool,
) -> Measured:
    """Ask all clients for their measurements at V and combine them; `before` is the V of the previous round."""
    settings = broadcast.settings
    if not engine.simulated and "measure" not in settings.privacy.tasks:
        return Measured()
    try:
        measure = broadcast._replace(task="measure", full=full)
        asked = [engine.ask(measure, some) for some in engine.measured_in(settings)]
    except UnmeasuredError:
        return Measured()
    if not asked:
        return Measured()
    sums = asked[-1]
    basic, nbytes = from_sums(sums, broadcast), sum(one.sent + one.received for one in asked)
    theory = settings.make_algorithm().theory
    if not full or theory is None:
        return Measured(basic, nbytes)
    needed, certified = certificate.update(sums)
    found = theory.server(sums, server, broadcast, before)
    rate = certificate.rate(broadcast.round, found, certified)
    known = found._asdict() | rate._asdict() | {"beta_needed": needed, "certified": certified}
    return Measured(basic._replace(**known, beta_suggested=certificate.suggested(needed)), nbytes)


def from_sums(sums: Sums, broadcast: Broadcast) -> Diagnostics:
    """The diagnostics that every measurement contains."""
    return Diagnostics(**measures_of(broadcast.settings).server(sums, broadcast))  # type: ignore[arg-type]
