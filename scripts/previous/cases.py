"""The runs that are compared: which data, which settings, and which way of running them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

USERS, ITEMS, CLIENTS, ROUNDS = 60, 25, 8, 8
Way = Literal["train", "estimator", "pooled", "federation"]


@dataclass(frozen=True)
class Case:
    """One run. `options` are keyword arguments of `Settings.preset`, or of `FedMC` for an estimator."""

    preset: str = "fast"
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    way: Way = "train"
    rounds: int = ROUNDS
    data: Literal["stars", "likes"] = "stars"
    trials: int | None = None  # of the search for penalty_users="auto"
    spill: bool = False  # client states in a folder
    full: bool = False  # with the costly diagnostics
    test: float = 0.2  # the share of ratings held out


def case(preset: str = "fast", /, **options: object) -> Case:
    return Case(preset, options)


def federation(preset: str = "fast", /, **options: object) -> Case:
    test = 0.0 if "dp_rounds" in options else 0.2  # nodes refuse held-out ratings beside differential privacy
    return Case(preset, {"rank": 3, "active": CLIENTS} | options, "federation", rounds=5, test=test)


def private(mode: str, **options: object) -> dict[str, object]:
    return {
        "privacy": mode,
        "rank": 2,
        "active": CLIENTS,
        "epsilon": 20,
        "dp_rounds": ROUNDS,
        "min_cohort": 3,
    } | options


SECAGG: dict[str, object] = {"privacy": "secagg", "active": 4, "min_cohort": 4}
BASELINES = ("fedmavg", "fedmavg-printed", "fedmgs", "fedavg", "fedprox", "scaffold")

TRAINED: dict[str, Case] = {
    "paper": case("paper", rank=4, active=3),
    "paper, full diagnostics": Case("paper", {"rank": 3, "active": CLIENTS, "beta": 5.0}, full=True),
    "paper, beta=auto": case("paper", rank=4, active=3, beta="auto"),
    "paper, exact update": case("paper", rank=4, active=3, beta=0.5, update="exact"),
    "paper, huber": case("paper", rank=3, active=4, loss="huber:0.5"),
    "paper, biases, mean": case("paper", rank=3, active=4, biases=True, normalise="mean"),
    "paper, by passes over the ratings": case("paper", rank=3, active=4, passes=True),
    "paper, float32": case("paper", rank=3, active=4, dtype="float32"),
    "paper, 3 inner steps, groups": case("paper", rank=3, active=3, inner_steps=3, sampler="groups"),
    "fast": case(rank=4, active=3),
    "fast, float32": case(rank=4, active=3, dtype="float32"),
    "fast, no biases": case(rank=4, active=3, biases=False),
    "fast, normalise none": case(rank=3, active=3, normalise="none"),
    "fast, normalise mean": case(rank=3, active=3, normalise="mean"),
    "fast, curvature, seed 7": case(rank=5, active=4, update="curvature", seed=7),
    "fast, exact": case(rank=4, active=3, update="exact"),
    "fast, exact, float32": case(rank=4, active=3, update="exact", dtype="float32"),
    "fast, linearised": case(rank=4, active=3, update="linearised"),
    "fast, beta=2": case(rank=4, active=3, beta=2.0),
    "fast, huber": case(rank=3, active=4, loss="huber"),
    "fast, logistic": Case("fast", {"rank": 3, "active": 4, "loss": "logistic"}, data="likes"),
    "paper, logistic": Case("paper", {"rank": 3, "active": 4, "loss": "logistic", "beta": 1.0}, data="likes"),
    "sampler uniform": case(rank=3, active=3, sampler="uniform"),
    "sampler coins": case(rank=3, active=3, sampler="coins"),
    "sampler groups": case(rank=3, active=3, sampler="groups"),
    "sampler passes, exact": case(rank=3, active=3, sampler="passes", update="exact"),
    "penalties none": case("paper", rank=3, active=4, penalty_users="none", penalty_items="none"),
    "penalties l1": case(rank=3, active=4, penalty_users="l1:0.5", penalty_items="l1:0.1"),
    "penalties elastic-net": case(rank=3, active=4, penalty_users="elastic-net:0.2,1"),
    "penalties non-negative": case(
        "paper", rank=3, active=4, penalty_users="non-negative", penalty_items="non-negative+l2:0.1"
    ),
    "penalties box": case(rank=3, active=4, penalty_users="box:-1,1", penalty_items="box:-0.5,0.5", update="exact"),
    "penalties group-l2": case("paper", rank=3, active=4, penalty_users="group-l2:0.3", penalty_items="group-l2:0.1"),
    "penalty of users chosen": Case("fast", {"rank": 3, "active": 4, "penalty_users": "auto"}, trials=2),
    "states in a folder": Case("fast", {"rank": 4, "active": 3, "update": "exact"}, spill=True),
    "states in a folder, curvature": Case("fast", {"rank": 4, "active": 3}, spill=True),
    "clipped": case(rank=3, active=4, clip=1.0),
    "clipped, exact": case(rank=3, active=4, clip=1.5, update="exact"),
    "clipped, paper": case("paper", rank=3, active=4, clip=1.0),
    "secagg": case(rank=3, **SECAGG),
    "secagg, exact": case(rank=3, update="exact", **SECAGG),
    "secagg, paper": case("paper", rank=3, **SECAGG),
    "secagg, float32": case(rank=3, dtype="float32", **SECAGG),
    "dp": case(**private("dp")),
    "dp, float32": case(**private("dp", dtype="float32")),
    "dp+secagg": case(**private("dp+secagg")),
    **{name: case(rank=3, active=4, method=name) for name in BASELINES},
    "fedmavg, paper": case("paper", rank=3, active=4, method="fedmavg"),
}  # fmt: skip
ESTIMATORS: dict[str, Case] = {
    "FedMC": Case("fast", {"rank": 4}, "estimator"),
    "FedMC, paper": Case("paper", {"rank": 4, "active": 3}, "estimator"),
    "FedMC, validation": Case("fast", {"rank": 3, "active": 3, "validation": 0.2, "patience": 3}, "estimator"),
    "FedMC, dp": Case("fast", {"rank": 2, "privacy": "dp", "epsilon": 20.0}, "estimator"),
    "FedMC, scaffold": Case("fast", {"rank": 3, "active": 4, "method": "scaffold"}, "estimator"),
}
OTHERS: dict[str, Case] = {
    "pooled ALS": Case("fast", {"rank": 4}, "pooled"),
    "pooled ALS, float32": Case("fast", {"rank": 4, "dtype": "float32"}, "pooled"),
    "federation, paper": federation("paper", active=3),
    "federation, exact": federation(update="exact"),
    "federation, curvature": federation(active=3),
    "federation, clipped": federation(active=4, clip=1.0),
    "federation, secagg": federation(privacy="secagg", active=4, min_cohort=4),
    "federation, secagg, exact": federation(privacy="secagg", update="exact", min_cohort=4),
    "federation, dp": federation(**private("dp")),
    "federation, dp+secagg": federation(**private("dp+secagg", min_cohort=4)),
}
CASES = TRAINED | ESTIMATORS | OTHERS


def triples(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users, items and ratings around planted factors; everybody and everything has at least two ratings."""
    rng = np.random.default_rng(20)
    full = 3 + rng.normal(size=(USERS, 3)) @ rng.normal(size=(3, ITEMS)) / np.sqrt(3)
    full += 0.1 * rng.normal(size=full.shape)
    known = rng.random(full.shape) < 0.4
    for shift in range(2):
        known[np.arange(USERS), (np.arange(USERS) + shift) % ITEMS] = True
    users, items = np.nonzero(known)
    ratings = np.clip(full, 1, 5)[known]
    return users, items, (ratings > 3).astype(float) if kind == "likes" else ratings
