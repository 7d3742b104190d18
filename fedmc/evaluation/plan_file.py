"""Read a plan from TOML. Every error names the file, the section and the entry, and says what may be there instead."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from fedmc.algorithms.settings import Settings
from fedmc.data import splits
from fedmc.data.feedback import EventOptions
from fedmc.errors import FedmcError, InputError, quoted, require
from fedmc.evaluation.plan import (
    BUDGET,
    MOST,
    Part,
    Plan,
    Value,
    Values,
    cases_of,
    check_case,
    figure,
    fitting,
    in_section,
    parts_of,
    with_folders,
)
from fedmc.evaluation.runner import MEASURES
from fedmc.evaluation.study import Case, Study
from fedmc.privacy import modes

Table = Mapping[str, Any]  # of TOML
SECTIONS = ("study", "data", "method", "grid")
NOT_SETTINGS = {"seed", "preset_name", "privacy"}
SETTINGS = {one.name for one in fields(Settings)} - NOT_SETTINGS | {"preset", "privacy", *modes.WORDS} - {
    "rating_range"
}
METHOD = SETTINGS | {"method", "label", "objectives"}
EVENTS = tuple(one.name for one in fields(EventOptions))
SOURCE = ("source", "columns", "query", "duplicates", "wide", "feedback", "confidence_scale", *EVENTS, *BUDGET)
KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "text"), "label": (str, "text"), "source": (str, "text"), "query": (str, "text"),
    "duplicates": (str, "text"), "partition": (str, "text"), "confidence": (str, "text"), "event": (str, "text"),
    "confidence_scale": (str, "text"), "test": ((str, int, float), "a share such as 0.2, or text such as 'last:5'"),
    "clients": (int, "a whole number"), "active": (int, "a whole number"), "rounds": (int, "a whole number"),
    "measure_every": (int, "a whole number"), "min_events": (int, "a whole number"),
    "min_rating": ((int, float), "a number"), "iterates": (bool, "true or false"), "wide": (bool, "true or false"),
    "recency": (bool, "true or false"), "weights": (dict, "a table such as {view = 1, purchase = 5}"),
}  # fmt: skip


def read_plan(path: str | Path) -> Plan:
    """The plan in a TOML file; a relative source is looked for beside the file first."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    try:
        return plan_of(content, path.stem, path.parent)
    except FedmcError as error:
        raise InputError(f"{path}, {error}") from None


def plan_of(content: Table, name: str = "study", folder: Path | None = None) -> Plan:
    """The plan in the parsed content of a file, or in a dictionary of the same form."""
    _check_names("the file", content, SECTIONS)
    study, grid = _table("[study]", content.get("study", {})), _table("[grid]", content.get("grid", {}))
    _check_names("[study]", study, ("name", "seeds", "measures", "iterates", *BUDGET))
    _check_kinds("[study]", study)
    _check_names("[grid]", grid, {*SETTINGS, *BUDGET})
    values = {key: _values("[grid]", key, value) for key, value in grid.items()}
    budgets = {key: found for key, found in values.items() if key in BUDGET}
    _check_budgets(budgets)
    cases = _cases(content.get("method", {}), {key: found for key, found in values.items() if key not in BUDGET})
    data = _table("[data]", content.get("data", {}))
    require(bool(data), "[data]: there is no data set: add a section such as [data.films] with source = 'films.csv'")
    seeds = study.get("seeds", [1, 2, 3])
    whole = isinstance(seeds, list) and bool(seeds) and all(type(one) is int and one >= 0 for one in seeds)
    require(whole, f"[study]: seeds must be whole numbers of at least 0, such as [1, 2, 3], got {quoted(seeds)}")
    require(len(set(seeds)) == len(seeds), f"[study]: each seed counts once, got {seeds}")
    common = {"title": study.get("name", name), "seeds": tuple(seeds), **_budget(study)}
    parts = [part for key, one in data.items() for part in _parts(key, one, common, cases, budgets, folder)]
    iterates = bool(study.get("iterates", False))
    plan = Plan(study.get("name", name), with_folders(parts), _measures(study.get("measures")), iterates)
    require(plan.runs <= MOST, f"[grid]: {plan.runs:,} runs are more than {MOST:,}: leave out some values")
    return plan


def _cases(given: object, shared: Values) -> dict[str, list[Case]]:
    """The cases by their sections."""
    sections = _table("[method]", given)
    require(bool(sections), "[method]: there is no method: add a section such as [method.fast] with preset = 'fast'")
    found: dict[str, list[Case]] = {}
    used: set[str] = set()
    for name, content in sections.items():
        where = f"[method.{name}]"
        entries = _table(where, content)
        _check_names(where, entries, METHOD)
        _check_kinds(where, {key: entries[key] for key in ("label",) if key in entries})
        own = {k: _values(where, k, value) for k, value in entries.items() if k not in ("label", "objectives")}
        objectives = _objectives(where, entries.get("objectives", {}))
        try:
            found[where] = list(cases_of(name, str(entries.get("label", name)), own, shared, objectives))
            for case in found[where]:
                check_case(case)
        except FedmcError as error:
            raise in_section(where, error) from None
        used |= shared.keys() & {key for case in found[where] for key in case.options}
    unused = sorted(shared.keys() - used)
    require(not unused, lambda: f"[grid]: no method uses {unused[0]}: leave it out, or add a method that does")
    return found


def _objectives(where: str, given: object) -> dict[str, dict[str, str]]:
    sections = _table(f"{where} objectives", given)
    for client, one in sections.items():
        section = f"{where[:-1]}.objectives.{client}]"
        _check_names(section, _table(section, one), ("penalty_users", "loss"))
        for key, value in one.items():
            require(isinstance(value, str), f"{section}: {key} must be text such as 'l2:5', got {quoted(value)}")
    return {client: dict(one) for client, one in sections.items()}


def _parts(
    name: str, given: object, common: dict[str, Any], cases: Mapping[str, list[Case]], budgets: Values,
    folder: Path | None,
) -> list[Part]:  # fmt: skip
    """The studies of one data set, one for each budget."""
    where = f"[data.{name}]"
    entries = _table(where, given)
    _check_names(where, entries, SOURCE)
    _check_kinds(where, entries)
    require("source" in entries, f"{where}: source is missing: a file, a folder, or a name such as 'demo'")
    feedback = entries.get("feedback", "explicit")
    require(
        feedback in ("explicit", "implicit"), f"{where}: feedback is 'explicit' or 'implicit', got {quoted(feedback)}"
    )
    implicit = feedback == "implicit"
    of_events = [key for key in (*EVENTS, "confidence_scale") if key in entries]
    require(implicit or not of_events, lambda: f"{where}: {of_events[0]} needs feedback = 'implicit': add it")
    columns = entries.get("columns")
    named = columns is None or (isinstance(columns, list) and all(isinstance(one, str) for one in columns))
    require(named, f"{where}: columns must be a list of names, got {quoted(columns)}")
    chosen = fitting([case for group in cases.values() for case in group], implicit)
    require(bool(chosen), f"{where}: no method learns from {feedback} feedback: add a [method] that does")
    reading = {key: entries[key] for key in ("query", "duplicates", "confidence_scale", "wide") if key in entries}
    try:
        events = EventOptions(**{key: entries[key] for key in EVENTS if key in entries}) if implicit else None
        study = Study(
            source=_source(entries["source"], folder), cases=chosen, figures=(figure(implicit),), events=events,
            columns=None if columns is None else tuple(columns), **(common | _budget(entries) | reading),
        )  # fmt: skip
        return list(parts_of(name, study, {k: v for k, v in budgets.items() if k not in entries}))
    except FedmcError as error:
        raise in_section(where, error) from None


def _source(source: str, folder: Path | None) -> str:
    beside = None if folder is None else folder / source
    return source if beside is None or not beside.exists() else str(beside)


def _budget(entries: Table) -> dict[str, Any]:
    found = {key: entries[key] for key in BUDGET if key in entries}
    return found | {"test": splits.normalise(found["test"]) or "random:0"} if "test" in found else found


def _check_budgets(budgets: dict[str, list[Value]]) -> None:
    for key, values in budgets.items():
        for value in values:
            _check_kinds("[grid]", {key: value})
    if "test" in budgets:
        budgets["test"] = [splits.normalise(str(value)) or "random:0" for value in budgets["test"]]


def _measures(given: object) -> tuple[str, ...] | None:
    if given is None:
        return None
    known = isinstance(given, list) and bool(given) and all(one in MEASURES for one in given)
    require(known, f"[study]: measures must be some of {', '.join(MEASURES)}; got {quoted(given)}")
    return tuple(cast(list[str], given))


def _values(where: str, key: str, given: object) -> list[Value]:
    """The values of a setting; one value is a list of one."""
    values = given if isinstance(given, list) else [given]
    require(bool(values), f"{where}: {key} is an empty list: give at least one value, or leave it out")
    for value in values:
        plain = isinstance(value, str | int | float)
        require(plain, lambda value=value: f"{where}: {key} takes text, numbers, true or false, got {quoted(value)}")  # type: ignore[misc]
    require(len(set(map(repr, values))) == len(values), f"{where}: {key} has a value twice: {quoted(values)}")
    return cast(list[Value], values)


def _table(where: str, given: object) -> Table:
    require(isinstance(given, dict), f"{where} must be a section, got {quoted(given)}")
    return cast(Table, given)


def _check_names(where: str, entries: Table, known: Collection[str]) -> None:
    for key in entries:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            cure = f"did you mean {close[0]}?" if close else f"it takes {', '.join(sorted(known))}"
            raise InputError(f"{where}: {quoted(key)} is not an entry of it: {cure}")


def _check_kinds(where: str, entries: Table) -> None:
    """Refuse values of a wrong type; true and false are no numbers."""
    for key, value in entries.items():
        kind, words = KINDS.get(key, (object, ""))
        fits = isinstance(value, kind) and (not isinstance(value, bool) or kind in (bool, object))
        require(fits, lambda key=key, words=words, value=value: f"{where}: {key} must be {words}, got {quoted(value)}")  # type: ignore[misc]
