"""A study: cases (a method and its settings) on one source, with the same seeds, splits and clients."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from fedmc.algorithms.settings import Feedback, Settings
from fedmc.data import splits
from fedmc.data.addresses import without_password
from fedmc.data.builder import Duplicates
from fedmc.data.feedback import EventOptions
from fedmc.data.forms import Wide
from fedmc.errors import require
from fedmc.evaluation import methods
from fedmc.evaluation.methods import Method

Measure = Literal["objective", "objective_at_copies", "test_rmse", "test_ndcg_20", "nonzeros"]
Axis = Literal["round", "seconds", "cpu_seconds", "megabytes"]
GROWING = ("cases", "seeds", "title", "figures")  # what may change without a change of outcomes


class Goal(NamedTuple):
    """The measure by which methods are compared first."""

    measure: Measure
    name: str
    sign: int  # -1: lower is better
    superlative: str

    def reached(self, value: float | None, mark: float, within: float) -> bool:
        """Whether a value is at most this much, as a share of the mark, worse than the mark."""
        return value is not None and self.sign * value >= self.sign * mark * (1 - self.sign * within)


RMSE = Goal("test_rmse", "test RMSE", -1, "lowest")
NDCG = Goal("test_ndcg_20", "test NDCG@20", 1, "highest")
GOALS: dict[Feedback, Goal] = {"explicit": RMSE, "implicit": NDCG}


@dataclass(frozen=True)
class Case:
    """One curve: a method, and the settings that differ from its preset."""

    label: str
    method: str
    options: dict[str, object] = field(default_factory=dict)
    objectives: dict[str, dict[str, str]] = field(default_factory=dict)  # penalties and losses of single clients

    def __post_init__(self) -> None:
        methods.find(self.method)

    @property
    def kind(self) -> Method:
        return methods.find(self.method)

    def settings(self, seed: int, active: int) -> Settings:
        """The settings of the case's run; a baseline solves the same problem as the preset it is compared with."""
        options = dict(self.kind.settings) | self.options
        preset = str(options.pop("preset", "fast"))
        return Settings.preset(preset, **({"active": active} | options | {"seed": seed}))

    def plain(self) -> dict[str, object]:
        """The case as plain values; objectives only if there are any, since earlier versions have none."""
        return {name: value for name, value in asdict(self).items() if name != "objectives" or value}


@dataclass(frozen=True)
class Panel:
    """One set of axes: a measure over rounds, seconds or megabytes, with some of the cases."""

    y: Measure
    x: Axis
    title: str = ""
    labels: tuple[str, ...] = ()  # all cases if empty


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    panels: tuple[Panel, ...]


class Budget(TypedDict, total=False):
    """The options that all cases of a study share: clients, rounds, split and partition."""

    clients: int
    active: int
    rounds: int
    test: str
    partition: str
    measure_every: int


class StudyOptions(Budget, total=False):
    """The fields of a `Study` that have a default."""

    seeds: tuple[int, ...]


class CaseDict(TypedDict):
    label: str
    method: str
    options: dict[str, object]
    objectives: NotRequired[dict[str, dict[str, str]]]


class PanelDict(TypedDict):
    y: Measure
    x: Axis
    title: str
    labels: list[str]


class FigureDict(TypedDict):
    name: str
    title: str
    panels: list[PanelDict]


class StudyDict(Budget):
    """A study in JSON."""

    title: str
    source: str
    cases: list[CaseDict]
    figures: list[FigureDict]
    seeds: list[int]
    columns: NotRequired[list[str] | None]
    query: NotRequired[str | None]
    duplicates: NotRequired[Duplicates]
    events: NotRequired[dict[str, Any] | None]  # the fields of EventOptions
    confidence_scale: NotRequired[str | None]
    wide: NotRequired[list[Any] | bool | None]  # the fields of Wide


@dataclass(frozen=True)
class Study:
    """Cases on one source, and the figures of their outcomes."""

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
    events: EventOptions | None = None  # how the source is read as events; None: as ratings
    confidence_scale: str | None = None  # of events; None: the default for their amounts
    wide: Wide | bool | None = None  # how a wide matrix is read; None: it is refused

    def __post_init__(self) -> None:
        require(len(self.cases) > 0, "a comparison needs at least one method")
        require(len(self.seeds) > 0, "a comparison needs at least one seed")
        require(all(seed >= 0 for seed in self.seeds), f"seeds must be at least 0, got {self.seeds}")
        splits.check_pairs(self.test)
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")
        labels = self.labels
        require(len(set(labels)) == len(labels), f"each case needs a label of its own, got {labels}")
        other = next((case.method for case in self.cases if self.feedback not in case.kind.feedback), None)
        has, cure = ("ratings", "implicit") if self.events is None else ("events", "explicit")
        require(other is None, f"the method {other} does not learn from {has}: leave it out, or feedback={cure!r}")

    def continues(self, before: Study) -> bool:
        """Whether this is an earlier study with more cases or seeds: the outcomes that are there stay valid."""
        old, new = ({k: v for k, v in one.to_dict().items() if k not in GROWING} for one in (before, self))
        more = all(case in self.cases for case in before.cases) and set(before.seeds) <= set(self.seeds)
        return more and old == new

    @property
    def drawn(self) -> list[Measure]:
        """The measures of the figures: what this study is about, the first one first."""
        return list(dict.fromkeys(panel.y for figure in self.figures for panel in figure.panels))

    @property
    def by_time(self) -> bool:
        """Whether this study is about how soon an objective is reached: its figures show it over both clocks."""
        panels = [panel for figure in self.figures for panel in figure.panels]
        return {"seconds", "cpu_seconds"} <= {panel.x for panel in panels if panel.y == "objective"}

    @property
    def labels(self) -> list[str]:
        return [case.label for case in self.cases]

    @property
    def feedback(self) -> Feedback:
        return "explicit" if self.events is None else "implicit"

    @property
    def goal(self) -> Goal:
        """What methods are compared by: the error of ratings, or how events are ranked."""
        return GOALS[self.feedback]

    def to_dict(self) -> StudyDict:
        """The study as plain JSON values, without the password that a database's URL may hold."""
        plain: StudyDict = json.loads(json.dumps(self._plain()))
        return plain

    def _plain(self) -> dict[str, object]:
        cases = [case.plain() for case in self.cases]
        return asdict(self) | {"source": without_password(self.source), "cases": cases}

    @classmethod
    def from_dict(cls, plain: StudyDict) -> Study:
        """Inverse of `to_dict`; also reads studies of an earlier version, which lack the last entries."""
        cases = tuple(Case(**case) for case in plain["cases"])
        figures = tuple(
            Figure(figure["name"], figure["title"], tuple(map(_panel, figure["panels"]))) for figure in plain["figures"]
        )
        columns, events, wide = plain.get("columns"), plain.get("events"), plain.get("wide")
        return cls(
            plain["title"], plain["source"], cases, figures, tuple(plain["seeds"]), plain["clients"], plain["active"],
            plain["rounds"], plain["test"], plain["partition"], plain["measure_every"],
            None if columns is None else tuple(columns), plain.get("query"), plain.get("duplicates", "refuse"),
            None if events is None else EventOptions(**events), plain.get("confidence_scale"),
            Wide(*wide) if isinstance(wide, list) else wide,
        )  # fmt: skip

    def key(self, case: Case, seed: int, fingerprint: str) -> str:
        """A hash of everything an outcome depends on; a stored outcome with another key is run again."""
        what: dict[str, object] = {
            name: getattr(self, name) for name in ("clients", "active", "rounds", "test", "partition")
        }
        what |= {"measure_every": self.measure_every, "case": case.plain(), "seed": seed, "data": fingerprint}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _panel(plain: PanelDict) -> Panel:
    return Panel(plain["y"], plain["x"], plain["title"], tuple(plain["labels"]))
