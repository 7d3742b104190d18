"""A plan of several studies: methods with grids of settings, on data sets with grids of budgets, over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from fedmc.algorithms import registry
from fedmc.algorithms.presets import OF_EVENTS
from fedmc.errors import FedmcError, InputError, require
from fedmc.evaluation import methods
from fedmc.evaluation.outcomes import file_names
from fedmc.evaluation.study import GOALS, Case, Figure, Panel, Study

Value = str | int | float | bool
Values = Mapping[str, Sequence[Value]]  # a grid: all values of each setting
BUDGET = ("clients", "active", "rounds", "test", "partition", "measure_every")
OF_PRESETS = {"fast": "fedmc", "bayes": "fedmc-bayes", "paper": "fedmc-paper", OF_EVENTS: "ials"}
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
    """The name of the method that the options describe; what only named it is removed from them."""
    if "method" in options:
        return str(options.pop("method"))
    algorithm, preset = str(options.get("algorithm", "")), str(options.get("preset", ""))
    if algorithm and registry.name_of(algorithm) in methods.names():
        del options["algorithm"]
        return algorithm
    if algorithm or preset:
        found = OF_PRESETS.get(preset, "fedmc")
        if preset in OF_PRESETS:
            del options["preset"]
        return found
    if name not in methods.names():
        cure = "add method, algorithm or preset, or name the section after a method"
        raise InputError(f"nothing says which method this is: {cure} ({', '.join(methods.names())})")
    return name


def check_case(case: Case, active: int) -> None:
    """Refuse settings that the case cannot have, or that its method would not use."""
    kind = case.kind
    unused = sorted(case.options.keys() - set(kind.takes)) if kind.central is not None else []
    require(
        not unused,
        lambda: f"{unused[0]} has no effect on {case.method}, which takes {' and '.join(kind.takes)}: leave it out",
    )
    require(kind.central is None or not case.objectives, f"{case.method} has no clients: leave out its objectives")
    wanted = case.options.get("preset", kind.settings.get("preset"))
    try:
        found = case.settings(0, active)
    except TypeError as error:
        raise InputError(f"a value has the wrong type: {error}") from None
    if wanted is not None and wanted != found.preset_name:
        names = ", ".join(sorted(case.options.keys() - {"preset"}))
        raise InputError(f"preset={wanted!r} has not all of the settings {names}: leave out those of others")
    if case.objectives:
        require(
            found.make_algorithm().objectives_differ,
            f"{found.make_algorithm()} has no objectives that differ by client: leave them out",
        )


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
