"""The presets: default values of the settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal, cast

from fedmc.algorithms import registry
from fedmc.errors import quoted, require
from fedmc.privacy.protocol import Privacy

LOG = logging.getLogger(__name__)

OF_EVENTS = "implicit"  # the preset of events
Update = Literal["linearised", "explicit", "exact", "curvature"]
PRESETS: dict[str, dict[str, object]] = {
    "paper": dict(
        penalty_users="l2:1e-6", penalty_items="l2:1e-6", beta=0.3, algorithm=("linearised",), fit_users_to="W",
        dual_step=1.0, normalise="none", biases=False, start="uniform", entry="all", fold_in=False, sampler="uniform",
        extrapolation=0.0, entry_penalty=1.0,
    ),
    "bayes": dict(
        penalty_users="l2:4", penalty_items="auto", beta="auto", algorithm=("bayes",), fit_users_to="V", dual_step=1.5,
        normalise="standard", biases=True, start="normal", entry="first-turn", fold_in=True, sampler="passes",
        extrapolation=0.5, entry_penalty=0.3, implicit=True,
    ),
    "fast": dict(
        penalty_users="l2:10", penalty_items="auto", beta="auto", algorithm=("curvature", "exact"), fit_users_to="V",
        dual_step=1.5, normalise="standard", biases=True, start="normal", entry="first-turn", fold_in=True,
        sampler="passes", extrapolation=0.5, entry_penalty=0.3,
    ),
    "implicit": dict(
        penalty_users="l2:1", penalty_items="auto", beta="auto", algorithm=("ials", "ials-blocks"), fit_users_to="V",
        dual_step=1.0, normalise="none", biases=False, start="normal", entry="first-turn", fold_in=True,
        sampler="passes", extrapolation=0.0, entry_penalty=1.0,
    ),
}  # fmt: skip


BAYESIAN: dict[str, tuple[object, ...]] = {  # settings that preset "bayes" takes with these values only
    "algorithm": ("bayes", "gibbs"), "method": ("fedmc", "bayes", "gibbs"), "update": (), "loss": ("square",),
    "biases": (True,), "normalise": ("standard",), "fold_in": (True,), "entry": ("first-turn",), "beta": (),
    "beta_scale": (), "dual_step": (), "inner_steps": (), "passes": (), "fit_users_to": (), "entry_penalty": (),
    "penalty_users": (), "penalty_items": (),
}  # fmt: skip


def fitting(name: str, given: Mapping[str, object]) -> str:
    """The preset to use: "fast" instead of "bayes" for settings that the Bayesian model does not have."""
    privacy = cast(Privacy, given["privacy"])
    if name == OF_EVENTS or registry.of_events(given.get("algorithm", given.get("method"))):
        require(
            privacy.algorithm is None,
            f"privacy={privacy.mode!r} has an algorithm for ratings only: for events, what one user adds to the sums "
            "is not bounded; use privacy='plain' or privacy='secagg'",
        )
        return OF_EVENTS
    if name != "bayes":
        return name
    if privacy.algorithm is not None:
        return "fast"  # differential privacy has an algorithm of its own
    for setting, accepted in BAYESIAN.items():
        if setting in given and given[setting] not in accepted:
            wish = f"{setting}={quoted(given[setting])}"
            LOG.warning("preset 'bayes' does not take %s: using preset 'fast'", wish)
            return "fast"
    return name


def with_theory(name: str, lacks: str = "residuals for full diagnostics or a tolerance") -> str:
    """The preset to use for what the Bayesian model lacks: "fast" instead of "bayes"."""
    if name != "bayes":
        return name
    LOG.warning("preset 'bayes' has no %s: using preset 'fast'", lacks)
    return "fast"


def with_objectives(name: str) -> str:
    """The preset to use if clients have penalties or losses of their own."""
    return with_theory(name, "penalties or losses that differ by client")


EVERYBODY: dict[str, Update] = {"fast": "exact"}  # as accurate, a seventh of the bytes, and it leaks less


def usual_update(given: Update | None, preset: str, everybody: bool, method: str | None = None) -> Update | None:
    """The update of a federation: as given, or what is best where all organisations take part in every round.

    Another `method` than FedMC has no update.
    """
    return EVERYBODY.get(preset) if given is None and everybody and method in (None, "fedmc") else given
