"""Groups of options that several commands share: a command takes a group as one parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_type_hints

from typer import Option

from fedmc.cli import options
from fedmc.cli.parsing import DPSettings, parse_beta, parse_dp, parse_names
from fedmc.data.addresses import without_password
from fedmc.data.forms import Wide, form_of

if TYPE_CHECKING:
    from fedmc.data.prepare import Plan  # help must be fast


@dataclass(frozen=True)
class Group:
    """Inherit from this class, as a dataclass whose fields are annotated like parameters of a command."""


@dataclass(frozen=True)
class Solver(Group):
    """Options of the problem and the algorithm."""

    preset: options.Preset = "bayes"
    penalty_items: options.PenaltyItems = None
    beta: options.Beta = None
    inner_steps: options.InnerSteps = None
    method: options.Method = None
    loss: options.Loss = None
    sampler: options.Sampler = None
    empty_rounds: Annotated[
        Literal["server-step", "skip"] | None,
        Option(
            help="With FedMC-ADMM: what the server does in a round that nobody takes part in: its step, as in the "
            "paper, or nothing.",
            show_default="server-step",
        ),
    ] = None
    update_users: Annotated[
        Literal["drawn", "all"] | None,
        Option(
            help="With fedmavg: whose U a round updates: that of the sampled clients, or of all, as in the paper.",
            show_default="drawn",
        ),
    ] = None
    normalise: options.Normalise = None
    implicit: options.Implicit = None
    dtype: options.Dtype = "float64"
    seed: options.Seed = 0

    def settings(self) -> dict[str, object]:
        """The keyword arguments of `Settings.preset`, without the preset's name."""
        given: dict[str, object] = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "preset"}
        return given | {"beta": parse_beta(self.beta)}


@dataclass(frozen=True)
class Budget(Group):
    """Options of differential privacy; other modes ignore them."""

    epsilon: options.Epsilon = 10.0
    delta: options.Delta = 1e-6
    ratings: options.RatingRange = "1,5"

    def settings(self, rounds: int) -> DPSettings:
        return parse_dp(self.epsilon, self.delta, self.ratings, rounds)


@dataclass(frozen=True)
class Form(Group):
    """Options for a table that is a matrix."""

    wide: Annotated[
        bool | None,
        Option(
            "--wide/--long",
            help="--wide: a matrix with a row for each user and a column for each item (--columns may name the column "
            "of users). --long: each row is one rating, even if the table looks like a matrix.",
            show_default="long; what looks like a matrix is refused",
        ),
    ] = None
    missing: Annotated[
        str | None,
        Option(
            help="With --wide: the numbers that mean that there is no rating, such as 99 or 99,-1, or none. Empty "
            "cells, NaN and NA always do.",
            metavar="NUMBERS",
        ),
    ] = None

    def chosen(self) -> Wide | bool | None:
        """How the table is read: as a matrix, as rows of ratings, or as it looks."""
        return form_of(self.wide, self.missing)


@dataclass(frozen=True)
class Table(Group):
    """Options for reading a source and assigning its users to clients."""

    clients: options.Clients = 10
    partition: options.Partition = "uniform"
    catalogue: options.Catalogue = None
    query: options.Query = None
    columns: options.Columns = None
    duplicates: options.Duplicates = "refuse"

    @property
    def names(self) -> tuple[str, ...] | None:
        return parse_names(self.columns)


@dataclass(frozen=True)
class Side(Group):
    """Options for what is known besides the ratings."""

    user_features: options.UserFeatures = None
    items: options.Items = None
    also_seen: options.AlsoSeen = None
    categorical: options.Categorical = None
    times: options.Times = False

    @property
    def names(self) -> tuple[str, ...]:
        return parse_names(self.categorical) or ()

    def settings(self) -> dict[str, str]:
        """The given options, for settings.toml."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: without_password(str(value)) for name, value in given.items() if value}

    def added_to(self, plan: Plan) -> Plan:
        """The plan with these files."""
        plan = plan._replace(user_features=self.user_features, items=self.items, also_seen=self.also_seen)
        return plan._replace(categorical=self.names, times=self.times)


@dataclass(frozen=True)
class Events(Group):
    """Options for reading a source as events instead of ratings."""

    feedback: options.Feedback = None
    confidence: options.Confidence = None
    confidence_scale: options.ConfidenceScale = None
    event: options.Event = None
    weights: options.EventWeights = None
    min_events: options.MinEvents = 1
    min_rating: options.MinRating = None
    recency: options.Recency = True

    def settings(self) -> dict[str, str]:
        """The given options besides `feedback` and the scale, for settings.toml."""
        names = ("confidence", "event", "weights", "min_events", "min_rating", "recency")
        given = {name: getattr(self, name) for name in names}
        usual = {"min_events": 1, "recency": True}
        return {name: str(value) for name, value in given.items() if value != usual.get(name)}

    def given(self) -> str | None:
        """The flag of an option that is given and has a meaning for events only."""
        named = "confidence_scale" if self.confidence_scale is not None else next(iter(self.settings()), None)
        flags = {"weights": "event-weights", "recency": "no-recency"}
        return named and f"--{flags.get(named, named.replace('_', '-'))}"


@dataclass(frozen=True)
class Reporting(Group):
    """Options for the report of a run."""

    report: Annotated[bool, Option("--report", help="Also write report.html and figures into the run folder.")] = False
    title: Annotated[str | None, Option(help="Title of the report.", show_default="the name of the data set")] = None
    baselines: Annotated[
        bool,
        Option(
            "--baselines",
            help="Also train each client alone (at most 50 of them), and the same model on all data in one place, to "
            "compare with. Takes longer than the run.",
        ),
    ] = False

    def settings(self) -> dict[str, str]:
        """The title, for settings.toml."""
        return {} if self.title is None else {"title": self.title}


@dataclass(frozen=True)
class Carrier(Group):
    """Options for what carries a simulation."""

    engine: Annotated[
        Literal["local", "ray"],
        Option(help="What carries the simulation: this process (local), or worker processes that Ray runs (ray)."),
    ] = "local"
    address: Annotated[
        str | None,
        Option(
            help="With --engine ray: a running Ray cluster, or auto for the one that this machine belongs to.",
            metavar="HOST:PORT",
            show_default="a new one on this machine",
        ),
    ] = None
    workers: Annotated[
        int | None,
        Option(help="With --engine ray: worker processes.", show_default="one for each CPU, at most 8 on a machine"),
    ] = None
    shared: Annotated[
        Path | None,
        Option(help="With --engine ray on several machines: a folder that all of them see."),
    ] = None


@dataclass(frozen=True)
class Filters(Group):
    """Options for which items may be recommended."""

    only: options.Only = None
    exclude: options.Exclude = None
    category: options.Category = None
    items: options.CategoryTable = None


def expanded(function: Callable[..., object]) -> Callable[..., object]:
    """The function with each option of its groups as a separate parameter, as Typer needs it."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Group)}
    parameters: list[Parameter] = []
    for one in signature(function).parameters.values():
        if one.name in groups:
            parameters += _of_group(groups[one.name])
        else:
            parameters.append(one.replace(annotation=hints[one.name], kind=Parameter.KEYWORD_ONLY))

    @wraps(function)
    def command(**given: object) -> object:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        return function(**given)

    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _of_group(group: type[Group]) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = Parameter.KEYWORD_ONLY
    return [Parameter(one.name, kind, default=one.default, annotation=hints[one.name]) for one in fields(group)]
