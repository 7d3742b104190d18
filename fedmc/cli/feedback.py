"""Ratings or events: what a source holds, what the user wants, and a question where these do not agree."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Literal, NamedTuple

import typer

from fedmc.algorithms import registry
from fedmc.algorithms.presets import OF_EVENTS, PRESETS
from fedmc.algorithms.settings import Settings
from fedmc.cli.echo import echo
from fedmc.cli.groups import Events
from fedmc.data.feedback import EventOptions, parse_weights
from fedmc.data.prepare import Plan
from fedmc.data.prepared_events import AUTO
from fedmc.data.ratings import Ratings
from fedmc.data.recognition import SHOWN, Understanding, check_explicit, constant_value
from fedmc.data.understanding import Understood, by_columns, reason_of, understand
from fedmc.errors import DataError, InputError, quoted, require

Wanted = Literal["explicit", "implicit"] | None
DEFAULT = "bayes"  # the preset of ratings that nobody has to name, so it gives way to that of events


class Decided(NamedTuple):
    """How to read the source, and its table, if it was read already."""

    plan: Plan
    ratings: Ratings | None = None

    @property
    def events(self) -> bool:
        return self.plan.events is not None


def decide(plan: Plan, events: Events, wanted: Wanted) -> Decided:
    """Ratings or events: as wanted, else as the source looks like; a person is asked before events are used."""
    given = events.given()
    if wanted == "implicit":
        return Decided(_as_events(plan, events))
    if wanted is None and given is None:
        found = understand(plan)
        if found.what.kind == "ratings":
            return Decided(plan, found.ratings)
        if _agreed(found):
            return Decided(_as_events(plan, events, found))
        if found.ratings is None:
            raise DataError(f"{plan.source} cannot be read as ratings: {found.what.reason}; name a column of ratings")
        check_explicit(found.ratings)
        return Decided(plan, found.ratings)
    require(given is None, f"{given} is about events, such as purchases: add --feedback implicit, or leave it out")
    return Decided(plan)


def wanted_by(events: Events, preset: str, algorithm: str | None) -> Wanted:
    """What the options want: `--feedback`, or what the algorithm learns from; options that contradict are refused."""
    named = {f"--algorithm {algorithm}": registry.of_events(algorithm), f"--preset {preset}": _is_of_events(preset)}
    of_events = [flag for flag, found in named.items() if found]
    if events.feedback == "explicit":
        cure = "leave out --feedback explicit"
        require(not of_events, lambda: f"{of_events[0]} learns from events, not from ratings: {cure}")
    if events.feedback == "implicit" and not of_events:
        _check_preset(preset)
        cure = "choose ials, or leave it out"
        usual = algorithm in (None, "fedmc")  # mode: the option's own default
        require(usual, f"--algorithm {algorithm} learns from ratings, not from events: {cure}")
    return "implicit" if of_events else events.feedback


def preset_of(decided: Decided, preset: str) -> str:
    """The preset for what was decided: that of events for events."""
    if not decided.events:
        return preset
    _check_preset(preset)
    return OF_EVENTS


def _check_preset(name: str) -> None:
    """Refuse a preset of ratings for events, unless it is the default."""
    cure = "leave it out: events have --preset implicit"
    require(name == DEFAULT or _is_of_events(name), f"--preset {name} learns from ratings, not from events: {cure}")


def _is_of_events(name: str) -> bool:
    usual = PRESETS[name]["algorithm"]
    return registry.of_events(usual[0] if isinstance(usual, tuple) else usual)


def check_fits(settings: Settings, decided: Decided) -> None:
    """Refuse an algorithm of ratings for events, such as that of differential privacy."""
    algorithm = settings.make_algorithm()
    fits = algorithm.of_events == decided.events
    has = "events" if decided.events else "ratings"
    cure = "for events, choose --privacy plain or secagg and --algorithm ials" if decided.events else "choose another"
    require(fits, f"the algorithm {algorithm} does not learn from {has}: {cure}")


def options_of(events: Events) -> EventOptions:
    """The options as the readers take them."""
    weights = {} if events.weights is None else parse_weights(events.weights)
    rows = weights, events.min_events, events.min_rating
    return EventOptions(events.confidence, events.event, *rows, events.recency)


def on_terminal() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def _as_events(plan: Plan, events: Events, found: Understood | None = None) -> Plan:
    """The plan for events; a column of amounts that was recognised, and agreed to, is used."""
    chosen = options_of(events)
    if found is not None and found.what.confidence is not None:
        chosen = replace(chosen, confidence=found.what.confidence)
    plan = plan._replace(events=chosen, confidence_scale=events.confidence_scale or AUTO)
    if found is not None:
        return plan._replace(reason=found.what.reason)
    columns = by_columns(plan)
    _tell_unused(columns, chosen)
    return plan._replace(reason=reason_of(chosen, columns))


def _tell_unused(columns: Understanding, chosen: EventOptions) -> None:
    """Say on stderr which columns could count but do not."""
    if columns.kind != "events" or chosen.min_rating is not None:
        return
    amounts, event = columns.confidence, columns.event
    if amounts is not None and chosen.confidence is None:
        echo(f"the column {quoted(amounts)} is not used: --confidence {amounts} counts it", err=True)
    if event is not None and not chosen.weights:
        cure = "--event-weights TYPE=WEIGHT,... tells them apart"
        echo(f"all types in the column {quoted(event)} count the same: {cure}", err=True)


def _agreed(found: Understood) -> bool:
    """Ask whether to train on events; without anybody to ask, refuse with the cure."""
    what = found.what
    amounts = "" if what.confidence is None else f" --confidence {what.confidence}"
    seen = f"these look like events, not ratings ({what.reason})"
    if not on_terminal():
        readable = found.ratings is not None and constant_value(found.ratings) is None
        types = [f"{one}=1" for one in found.event_types[:SHOWN]] + ["..."] * (len(found.event_types) > SHOWN)
        weigh = f"; --event-weights {','.join(types)} weighs their types, and leaves out those without a weight"
        raise InputError(
            f"{seen}: train on them with --feedback implicit{amounts}{weigh if found.event_types else ''}"
            + (", or say --feedback explicit if they are ratings" if readable else "")
        )
    using = "" if what.confidence is None else f", with the amounts in {quoted(what.confidence)}"
    return typer.confirm(f"T{seen[1:]}. Train on them as implicit feedback{using}?", default=True, err=True)
