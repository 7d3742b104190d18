"""An organisation's policy: what a run may ask of its node, as [policy] in config.toml says it.

`fedmc.federation.node.policy` checks every request against it before a rating is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from fedmc.algorithms import registry
from fedmc.errors import DataError
from fedmc.privacy.protocol import MODES
from fedmc.problem import losses, penalties, plugins

T = TypeVar("T")
ABOVE = ("accept", "min_cohort", "epsilon", "delta")  # entries at the top of config.toml
HEADING = (
    "# What a run may ask of this node. Each line shows a default: remove the # to change it.",
    "# A plug-in is used only if algorithms, losses or penalties name it.",
)
PAIRS = ("beta", "penalty_users", "penalty_items")  # with min_ and max_ before the name


def _entry(default: T, meaning: str) -> T:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Policy:
    """The defaults hold for a folder without [policy]. Every preset and every documented run is inside of them."""

    accept: tuple[str, ...] = MODES  # privacy modes: an entry of its own, at the top of config.toml
    feedback: str = ""  # what the node's data are, explicit (ratings) or implicit (events), from [ratings]; "": any
    algorithms: tuple[str, ...] = _entry(tuple(registry.BUILT_IN), "")
    losses: tuple[str, ...] = _entry(losses.BUILT_IN_NAMES, "")
    penalties: tuple[str, ...] = _entry(penalties.BUILT_IN_NAMES, "")
    max_rank: int = _entry(200, "number of factors")
    max_rounds: int = _entry(1000, "rounds of a run")
    max_inner_steps: int = _entry(1000, "local steps in a round")
    min_beta: float = _entry(1e-6, "the ADMM penalty, or the factor of beta=auto")
    max_beta: float = _entry(1e6, "")
    min_penalty_users: float = _entry(1e-6, "weight of the users' penalty; a box within +-1e6 is enough instead")
    max_penalty_users: float = _entry(1e6, "")
    min_penalty_items: float = _entry(0.0, "weight of the items' penalty")
    max_penalty_items: float = _entry(1e6, "")
    ranking: bool = _entry(True, "false: no run that measures how held-out ratings are ranked")
    runs_per_day: int = _entry(20, "new runs in a day (UTC); 0: none")
    alone_visible: bool = _entry(False, "true: take part in secure sums that show this node's own change")
    departed_visible: bool = _entry(False, "true: take part in secure sums that show the part of those that left")
    no_worse: bool = _entry(False, "true: use a new model only if it is no worse on this node's held-out ratings")
    approve: bool = _entry(False, "true: a new run waits for `fedmc node approve RUN FOLDER`")

    def in_words(self) -> list[str]:
        """The policy, without the privacy modes, as lines for people."""
        beta, users, items = (self._range(name) for name in PAIRS)
        names = {one: ", ".join(getattr(self, one)) for one in ("algorithms", "losses", "penalties")}
        new = "wait for `fedmc node approve RUN FOLDER`" if self.approve else "start without asking a person"
        return [
            *(f"{kind}: {listed}" for kind, listed in names.items()),
            f"rank up to {self.max_rank:,}, up to {self.max_rounds:,} rounds a run, "
            f"up to {self.max_inner_steps:,} inner steps a round, beta {beta}",
            f"weight of the users' penalty {users}, of the items' penalty {items}",
            f"runs that measure how held-out ratings are ranked: {_yes(self.ranking)}",
            f"secure sums that show the change of this node alone: {_yes(self.alone_visible)}",
            f"secure sums that show the part of organisations that left: {_yes(self.departed_visible)}",
            f"a new model is used only if it is no worse on held-out ratings: {_yes(self.no_worse)}",
            f"at most {self.runs_per_day:,} new runs a day (UTC); new runs {new}",
        ]

    def _range(self, name: str) -> str:
        return f"{getattr(self, f'min_{name}'):g} to {getattr(self, f'max_{name}'):g}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


DEFAULT = Policy()
ENTRIES = {one.name: one for one in fields(Policy) if one.name not in ("accept", "feedback")}


def read(entries: object, place: str) -> Policy:
    """The policy of a [policy] section; `place` is the file's name, for errors."""
    if not isinstance(entries, Mapping):
        raise DataError(f"{place}: policy must be a section, [policy], got {entries!r}")
    for name in entries:
        if name not in ENTRIES:
            raise DataError(f"{place}: unknown entry {name!r} in [policy]: {_advice(name, ENTRIES)}")
    values: dict[str, Any] = {name: _typed(f"{place}: {name}", name, value) for name, value in entries.items()}
    policy = replace(DEFAULT, **values)
    _check_names(policy, place)
    _check_numbers(policy, place)
    return policy


def template() -> str:
    """The section for a new config.toml: every entry with its default, commented out."""
    lines = ["[policy]", *HEADING]
    for name, one in ENTRIES.items():
        meaning = one.metadata["meaning"]
        lines.append(f"# {name} = {_toml(one.default)}" + (f"  # {meaning}" if meaning else ""))
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)  # the rest is the same as in JSON


def _typed(where: str, name: str, value: object) -> object:
    """The value, if it has its entry's type."""
    kind = type(ENTRIES[name].default)
    if kind is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and (whole or (isinstance(value, float) and math.isfinite(value))):
        return value
    if (kind is int and whole) or (kind is bool and isinstance(value, bool)):
        return value
    expected = {tuple: "a list of names", float: "a number", int: "a whole number", bool: "true or false"}[kind]
    raise DataError(f"{where} must be {expected}, got {value!r}")


def _check_names(policy: Policy, place: str) -> None:
    known = {
        "algorithms": registry.names(),
        "losses": [*losses.BUILT_IN_NAMES, *plugins.names(plugins.LOSSES)],
        "penalties": [*penalties.BUILT_IN_NAMES, *plugins.names(plugins.PENALTIES)],
    }
    for entry, names in known.items():
        for name in getattr(policy, entry):
            if name not in names:
                cure = f"{_advice(name, names)}; a plug-in must be installed here before it can be named"
                raise DataError(f"{place}: {name!r} in {entry} is not known: {cure}")


def _check_numbers(policy: Policy, place: str) -> None:
    for name in ("max_rank", "max_rounds", "max_inner_steps", "runs_per_day"):
        least = 0 if name == "runs_per_day" else 1
        if getattr(policy, name) < least:
            raise DataError(f"{place}: {name} must be at least {least}, got {getattr(policy, name)}")
    for name in PAIRS:
        low, high = getattr(policy, f"min_{name}"), getattr(policy, f"max_{name}")
        if not 0 <= low <= high:
            raise DataError(f"{place}: min_{name} must be at least 0 and at most max_{name}={high:g}, got {low:g}")


def _advice(name: str, known: Iterable[str]) -> str:
    """What was meant, as far as it can be guessed."""
    if name in ABOVE:
        return f"{name} belongs to the top of the file, above [policy]"
    listed = list(known)
    close = get_close_matches(name, listed, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose some of {', '.join(listed)}"
