"""Aggregation: how clients' replies become one sum. The simulation and federations use the same objects.

sums.PlainSum            replies are arrays of floats, added in the order of a fixed tree
sums.ClippedSum          fixed-point integers; each update counts up to a multiple of the median update norm
secure_sums.SecureSum    fixed-point integers; a federation masks them
"""

from __future__ import annotations

from fedmc.algorithms.settings import Settings
from fedmc.errors import require
from fedmc.privacy import modes
from fedmc.privacy.modes import DP, DPSecAgg, Plain, SecAgg
from fedmc.privacy.protocol import Privacy
from fedmc.training.secure_sums import NoisedSecureSum, SecureSum
from fedmc.training.sums import Aggregation, ClippedSum, PlainSum


def aggregation_of(privacy: Privacy) -> Aggregation:
    """The aggregation that a privacy mode needs."""
    if isinstance(privacy, Plain):
        return ClippedSum(privacy.clip) if privacy.clip else PlainSum()
    if isinstance(privacy, SecAgg):
        return SecureSum(privacy.min_cohort, privacy.decoys)
    if isinstance(privacy, DPSecAgg):
        return NoisedSecureSum(privacy.min_cohort)
    assert isinstance(privacy, DP)
    return PlainSum()


def is_masked(mode: str) -> bool:
    """Whether this privacy mode masks replies, so that nodes need an identity."""
    return aggregation_of(modes.parse(mode, {})).masked


def check_run(settings: Settings, clients: int, rounds: int | None, full: bool) -> None:
    """Before the first round, refuse a run that the privacy mode or the algorithm does not support."""
    settings.privacy.check_run(clients, settings.active, rounds, full)
    algorithm = settings.make_algorithm()
    require(
        algorithm.theory is not None or not full,
        f"full diagnostics exist for FedMC only, not for {algorithm}: leave them out",
    )


def check_everybody(settings: Settings, simulated: bool) -> None:
    """Refuse to update the users of clients that are not drawn where such clients are not asked for anything."""
    plain = simulated and not aggregation_of(settings.privacy).masked
    cure = "in a federation and under secure aggregation, only clients that are drawn are asked: leave it out"
    require(settings.update_users == "drawn" or plain, f"update_users='all' needs a simulation in plain mode: {cure}")
