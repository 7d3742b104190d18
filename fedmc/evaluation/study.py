"""What is compared: cases (a method, its settings) on one source, over seeds; the same split, clients and budget."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from fedmc.algorithms import methods
from fedmc.algorithms.settings import Settings
from fedmc.data.builder import Duplicates
from fedmc.data.readers.databases import without_password
from fedmc.errors import InputError, require

CENTRAL = {
    "pooled": "pooled ALS",
    "pooled-prox": "pooled proximal gradient",
    "alone": "each client alone",
    "biases": "biases only",
}
FEDERATED = {
    "fedmc": "fedmc",
    "fedmc-exact": "fedmc, update=exact",
    "fedmc-paper": "FedMC-ADMM",
    "fedmavg": "FedMAvg",
    "fedmavg-printed": "FedMAvg, steps as printed",
    "fedmgs": "FedMGS",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
}


@dataclass(frozen=True)
class Case:
    """One curve: a method and the settings that differ from its preset."""

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [*FEDERATED, *CENTRAL]
        if self.method not in known:
            raise InputError(f"unknown method {self.method!r}: choose from {', '.join(known)}")

    @property
    def central(self) -> bool:
        return self.method in CENTRAL

    def settings(self, seed: int, active: int) -> Settings:
        """The settings of its run; a baseline solves the same problem as the preset it is compared under."""
        options = dict(self.options)
        preset = options.pop("preset", "paper" if self.method == "fedmc-paper" else "fast")
        if self.method == "fedmc-exact":
            options["update"] = "exact"
        if self.method in methods.NAMES:
            options["method"] = self.method
        return Settings.preset(preset, seed=seed, active=active, **options)


@dataclass(frozen=True)
class Panel:
    """One set of axes: a measure over rounds, seconds or megabytes, with some of the cases."""

    y: str  # objective, test_rmse, nonzeros
    x: str  # round, seconds, megabytes
    title: str = ""
    labels: tuple[str, ...] = ()  # all cases if empty


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Study:
    """Cases on one source, and how to draw them."""

    title: str
    source: str
    cases: tuple[Case, ...]
    figures: tuple[Figure, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    clients: int = 100
    active: int = 10
    rounds: int = 100
    test: str = "random:0.2"
    partition: str = "uniform"
    measure_every: int = 1
    columns: tuple[str, ...] | None = None
    query: str | None = None
    duplicates: Duplicates = "refuse"

    def __post_init__(self) -> None:
        require(len(self.cases) > 0, "a comparison needs at least one method")
        require(len(self.seeds) > 0, "a comparison needs at least one seed")
        require(all(seed >= 0 for seed in self.seeds), f"seeds must be at least 0, got {self.seeds}")
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")
        labels = [case.label for case in self.cases]
        require(len(set(labels)) == len(labels), f"each case needs a label of its own, got {labels}")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; without the password that a database's URL may hold."""
        plain = asdict(self) | {"source": without_password(self.source)}
        return json.loads(json.dumps(plain))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Study:
        figures = [
            Figure(f["name"], f["title"], tuple(Panel(**(p | {"labels": tuple(p["labels"])})) for p in f["panels"]))
            for f in plain["figures"]
        ]
        cases = tuple(Case(**case) for case in plain["cases"])
        columns = None if plain.get("columns") is None else tuple(plain["columns"])
        made = {"cases": cases, "figures": tuple(figures), "seeds": tuple(plain["seeds"]), "columns": columns}
        return cls(**(plain | made))

    def key(self, case: Case, seed: int, fingerprint: str) -> str:
        """What an outcome depends on, hashed: an outcome with another key is not this one's."""
        what = {name: getattr(self, name) for name in ("clients", "active", "rounds", "test", "partition")}
        what |= {"measure_every": self.measure_every, "case": asdict(case), "seed": seed, "data": fingerprint}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
