"""FedMC-ADMM with the explicit step of the paper's remark on W (Remark 4.1): one step instead of N, without L.

The remark linearises f at the old W, and leaves out the proximal term of Algorithm 1:

    W <- argmin_W  < grad_V f(U, W_old)/p + Y, W > + beta/2 ||W - V||^2  =  V - ( Y + grad_V f(U, W_old)/p ) / beta

Its next equation has the gradient at the new W instead, which is the exact solve of `exact`. The explicit step needs a
beta of at least about L_U/p, the curvature that the left-out term would add; with a smaller one it diverges. The
theorem does not cover it.
"""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.admm import ADMMState, LinearisedADMM
from fedmc.algorithms.admm_leakage import ExplicitLeakage
from fedmc.algorithms.beta import beta_of
from fedmc.algorithms.exact import ExactTheory
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.users import by_item
from fedmc.data.partition import Shard
from fedmc.kernels import steps
from fedmc.problem import subproblem
from fedmc.types import Array


class ExplicitADMM(LinearisedADMM):
    """N proximal gradient steps of the U half, and one explicit step of the W half."""

    name = "explicit"
    theory = ExactTheory()
    leakage = ExplicitLeakage()

    def item_half(
        self, shard: Shard, U: Array, old: ADMMState, broadcast: Broadcast
    ) -> tuple[Array, Array, Array, bool]:
        settings, V, tie = broadcast.settings, broadcast.V, beta_of(broadcast)
        slope = subproblem.gradient(by_item(shard, broadcast), U, old.W)
        W = steps.anchors(V, old.Y, tie) - slope / (broadcast.clients * tie)
        W = np.asarray(settings.penalty_of_copies.prox(W, 0.0), V.dtype)  # with biases, the column of ones
        return W, *steps.dual_step(V, old.W, old.Y, W, tie, settings.dual_step)
