"""Bounds on what a server may choose under secure aggregation, checked before any rating is read.

A node works before anybody else takes part in the sum. If it could fail then, and the failure depended on the ratings,
its status would be an oracle. Such probes were possible: V zero but for one item, and a penalty of 1e-12, make a node
fail if and only if somebody there rated the item. Two things rule them out for the built-in algorithms.

1. Within the bounds of this file no number overflows float64. With the penalties l2 >= LEAST (or l1 or group-l2 of at
   least that, or a box) the factors of a user with ratings m_t obey, for any V at all,

       |u| <= |m_t| / (2 sqrt(LEAST))      or      |u| <= |m_t|^2 / (2 LEAST)      or      |u| <= LARGEST sqrt(rank)

   (1 / (2 sqrt(l2)) is the largest singular value of a ridge solution; the others follow from the objective at u = 0).
   N proximal gradient steps of 1/L add at most |m_t| sqrt(N/L), and L is kept above 1e-12. Scaled ratings are at most
   (|m| + MEAN) / SCALE. Ratings up to 1e9 and 1e9 of them thus give sums below 1e120; float64 reaches 1e308. The dual
   of the exact update grows at most linearly over the rounds, since its step is below 2.
2. What is not finite or does not fit into a secure sum is cut to the largest number that fits, and travels on
   (`training.fixed_point`). This covers float32, and a linearised run that diverges over hundreds of rounds. The server
   sees it in the sum, as everybody's; the node's own log has the cause.

What remains: a plug-in of an installed package may raise an error that depends on the ratings. An organisation that
installs one trusts it. Any such failure ends the run at the node, so it tells at most one bit a run.
"""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.beta import COORDINATES, ITEMS, NUMBER
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.errors import InputError, require
from fedmc.federation.node.refusals import RefusedError
from fedmc.problem.losses import Huber
from fedmc.problem.penalties import Coefficients, Fixed, GroupL2, Penalty, coefficients

LEAST = 1e-8  # weight of the users' penalty; the paper's preset has 1e-6
LARGEST = 1e6  # an entry of V, a bound of a box, a mean of ratings; real ones are below 100
SCALE = 1e-6, 1e6  # of the ratings
BETA = 1e-12, 1e9
DELTA = 1e-6, 1e6  # of the Huber loss
ENTRY = 0.01  # the share of the users' penalty at a client's first update


def check_settings(settings: Settings) -> None:
    """InputError for settings with which a node under secure aggregation does not work."""
    least = f"with privacy={settings.privacy.mode!r}"
    require(settings.entry_penalty >= ENTRY, f"{least} entry_penalty must be at least {ENTRY}")
    loss = settings.make_loss()
    if isinstance(loss, Huber):
        require(DELTA[0] <= loss.delta <= DELTA[1], f"{least} Huber's delta must be {DELTA[0]:g} to {DELTA[1]:g}")
    users, _ = settings.penalties(1)
    require(
        _holds(users, settings.width),
        f"{least} the users' penalty must hold every factor, got {settings.penalty_users!r}: add l2:{LEAST:g} or more, "
        f"or bounds within {LARGEST:g}",
    )


def check_limits(broadcast: Broadcast) -> None:
    """Refuse settings and numbers beyond the bounds. No rating is read."""
    try:
        check_settings(broadcast.settings)
    except InputError as error:
        raise RefusedError("wrong-settings", str(error)) from None
    if np.abs(broadcast.V).max(initial=0.0) > LARGEST:
        raise RefusedError("diverged", f"V holds numbers beyond {LARGEST:g}")
    mean, scale = broadcast.scaling
    if abs(mean) > LARGEST or not SCALE[0] <= scale <= SCALE[1]:
        bounds = f"a mean up to {LARGEST:g} and a scale from {SCALE[0]:g} to {SCALE[1]:g}: rescale the ratings"
        raise RefusedError("diverged", f"ratings scaled by {mean:g} and {scale:g}, expected {bounds}")
    low, high = beta_range(broadcast)
    if not (BETA[0] <= low and high <= BETA[1]):
        raise RefusedError("diverged", f"beta from {low:g} to {high:g}, expected {BETA[0]:g} to {BETA[1]:g}")


def beta_range(broadcast: Broadcast) -> tuple[float, float]:
    """The smallest and largest beta; 1 if the broadcast has none."""
    arrays = broadcast.shared.arrays
    low = high = 1.0 if NUMBER in arrays else broadcast.settings.beta_scale / broadcast.clients**2
    found = [arrays[name] for name in (NUMBER, ITEMS, COORDINATES) if name in arrays and arrays[name].size]
    for array in found:
        low, high = low * float(array.min()), high * float(array.max())
    return (low, high) if found else (1.0, 1.0)


def _holds(penalty: Penalty, width: int) -> bool:
    """Whether the penalty bounds every factor; one of a plug-in is trusted to."""
    numbers = coefficients(penalty, width)
    if numbers is not None:
        return _bounded(numbers)
    rest = penalty.rest if isinstance(penalty, Fixed) else penalty
    return not isinstance(rest, GroupL2) or rest.weight >= LEAST


def _bounded(numbers: Coefficients) -> bool:
    inside = (numbers.lo >= -LARGEST) & (numbers.hi <= LARGEST)
    weighed = (numbers.l2 >= LEAST) | (numbers.l1 >= LEAST)
    limits = np.concatenate([numbers.lo, numbers.hi])
    return bool((inside | weighed).all() and (np.abs(limits[np.isfinite(limits)]) <= LARGEST).all())
