"""A plan of several studies: methods with grids of settings, on data sets with grids of budgets, over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from fedmc.algorithms import registry
from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.presets import OF_EVENTS
from fedmc.errors import FedmcError, InputError, require
from fedmc.evaluation import methods
from fedmc.evaluation.outcomes import file_names
from fedmc.evaluation.study import GOALS, Case, Figure, Panel, Study

Value = str | int | float | bool
Values = Mapping[str, Sequence[Value]]  # a grid: all values of each setting
BUDGET = ("clients", "active", "rounds", "test", "partition", "measure_every")
OF_PRESETS = {"fast": "fedmc", "bayes": "fedmc-bayes", "paper": "fedmc-paper", OF_EVENTS: "ials"}
NAMED_BY: dict[str, Callable[[str], str | None]] = {  # what names a method, the first one that does
    "method": str,
    "algorithm": lambda name: name if registry.name_of(name) in methods.names() else None,
    "preset": OF_PRESETS.get,
}
MOST = 100_000  # runs


class Part(NamedTuple):
    """One study of a plan: a data set under one budget."""

    name: str
    data: str
    folder: str
    study: Study


@dataclass(frozen=True)
class Plan:
    """All studies of a file. `measures` are those of the tables; None: by what each data set holds."""

    name: str
    parts: tuple[Part, ...]
    measures: tuple[str, ...] | None = None
    iterates: bool = False  # keep V of each round

    @property
    def runs(self) -> int:
        return sum(len(part.study.cases) * len(part.study.seeds) for part in self.parts)

    def measures_of(self, study: Study) -> tuple[str, ...]:
        """The measures of a study's table; the first one counts."""
        usual = (study.goal.measure, *(("test_ndcg_20",) if study.events is None else ("test_recall_20",)))
        return self.measures or usual


def combinations(grid: Values) -> Iterator[dict[str, Value]]:
    """Each combination of the values, the last setting fastest."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def cases_of(
    name: str, label: str, given: Values, shared: Values, objectives: dict[str, dict[str, str]]
) -> Iterator[Case]:
    """The cases of one method: a combination of settings each. Its own settings count before the `shared` ones."""
    own = {key: values for key, values in shared.items() if key not in given and _takes(name, given, key)}
    for options in combinations({**given, **own}):
        varied = [f"{key}={value}" for key, value in options.items() if len(given.get(key) or own[key]) > 1]
        method = _method(name, options)
        yield Case(", ".join([label, *varied]), method, dict[str, object](options), objectives)


def _takes(name: str, given: Values, key: str) -> bool:
    """Whether the method has a setting of the grid: a baseline only what it takes, an algorithm what it uses."""
    kind = methods.find(_method(name, next(combinations(given))))
    if kind.central is not None or key in _COMPARED:
        return key in kind.takes
    return True


_COMPARED = ("rank", "penalty_users", "inner_steps", "beta")  # what `Method.takes` may name


def _method(name: str, options: dict[str, Value]) -> str:
    """The method that the options describe, or the section's name; what only named it is removed from them."""
    words = {key: str(options[key]) for key in NAMED_BY if key in options}
    for key, word in words.items():
        found = NAMED_BY[key](word)
        if found is not None:
            del options[key]
            return found
    if words:
        return "fedmc"  # with another algorithm
    if name not in methods.names():
        cure = "add method, algorithm or preset, or name the section after a method"
        raise InputError(f"nothing says which method this is: {cure} ({', '.join(methods.names())})")
    return name


def check_case(case: Case) -> None:
    """Refuse settings that the case cannot have, or that its method would not use."""
    kind = case.kind
    unused = sorted(case.options.keys() - set(kind.takes)) if kind.central is not None else []
    require(
        not unused,
        lambda: f"{unused[0]} has no effect on {case.method}, which takes {' and '.join(kind.takes)}: leave it out",
    )
    require(kind.has_server or not case.objectives, f"{case.method} has no federation: leave out its objectives")
    asked = case.options.get("preset", kind.settings.get("preset"))
    found = case.settings(0, 1)
    if asked not in (None, found.preset_name):
        names = ", ".join(sorted(case.options.keys() - {"preset"}))
        raise InputError(f"preset={asked!r} has not all of the settings {names}: leave out those of others")
    for client, one in case.objectives.items():
        try:
            Objective(**one).settings(found, 1)
        except FedmcError as error:
            raise in_section(f"objectives.{client}", error) from None


def parts_of(data: str, study: Study, budgets: Values) -> Iterator[Part]:
    """A part for each budget of the grid; its folder is chosen by `with_folders`."""
    for changes in combinations(budgets):
        varied = [f"{key}={value}" for key, value in changes.items() if len(budgets[key]) > 1]
        made = study_with(study, changes)
        yield Part(", ".join([data, *varied]), data, "", made)


def study_with(study: Study, changes: Mapping[str, Value]) -> Study:
    """The study under another budget."""
    plain = cast(dict[str, object], vars(study)) | dict[str, object](changes)
    return Study(**plain)  # type: ignore[arg-type]


def with_folders(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts, each with a folder of its own."""
    names = file_names([part.name for part in parts])
    return tuple(part._replace(folder=names[part.name]) for part in parts)


def fitting(cases: Sequence[Case], implicit: bool) -> tuple[Case, ...]:
    """The cases that learn from ratings, or from events."""
    feedback = "implicit" if implicit else "explicit"
    return tuple(case for case in cases if feedback in case.kind.feedback)


def figure(implicit: bool) -> Figure:
    """What methods are compared by, over rounds and megabytes; nothing by time, which differs from run to run."""
    goal = GOALS["implicit" if implicit else "explicit"]
    panels = Panel(goal.measure, "round"), Panel(goal.measure, "megabytes")
    return Figure("curves", f"{goal.name[:1].upper()}{goal.name[1:]} by round and by what travelled", panels)


def in_section(where: str, error: FedmcError) -> InputError:
    """An error with the place that it is about."""
    return InputError(f"{where}: {error}")
