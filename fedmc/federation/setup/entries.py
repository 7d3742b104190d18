"""Entries of [ratings] in an organisation's config.toml: events instead of ratings, and what is known besides.

The confidence of an event must mean the same in every organisation, and no node sees the amounts of the others. So
`confidence_scale` is never chosen from an organisation's own amounts: it is "none" (each pair counts 1), or what is
entered, which the organisations agree on. Where amounts are asked for, by `confidence` or `event_weights`, it must be
entered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from fedmc.data.addresses import is_stored
from fedmc.data.feedback import EventOptions, confidence, parse_weights
from fedmc.errors import DataError, FedmcError, quoted, require
from fedmc.federation.logs import LOG_FORMATS
from fedmc.problem import losses, penalties
from fedmc.types import whole

FEEDBACK = ("explicit", "implicit")
DEFAULT_SCALE = "none"
AGREE = "the same in every organisation"


@dataclass(frozen=True, kw_only=True)
class EventEntries:
    """How to read events."""

    feedback: str = "explicit"  # ratings; or "implicit": events such as purchases, clicks and plays
    event: str | None = None
    event_weights: str | Mapping[str, float] = field(default_factory=dict)
    confidence: str | None = None
    confidence_scale: str | None = None
    min_rating: float | None = None
    recency: bool = True  # whether a user's recent events count more in the organisation's model, if they have times

    @property
    def of_events(self) -> bool:
        return self.feedback == "implicit"

    @property
    def scale(self) -> str:
        return DEFAULT_SCALE if self.confidence_scale is None else self.confidence_scale

    def event_options(self) -> EventOptions | None:
        """How the readers take them; None for ratings."""
        if not self.of_events:
            return None
        weights = self.event_weights
        parsed = parse_weights(weights) if isinstance(weights, str) else dict(weights)
        return EventOptions(self.confidence, self.event, parsed, 1, self.min_rating, self.recency)


def check_local(where: str, ratings: Mapping[str, object]) -> None:
    """Refuse what no organisation can do on its own."""
    require(
        "min_events" not in ratings,
        f"{where}: min_events counts users and items over all organisations, and a node knows only its own: leave it "
        "out, or leave out users with few events in your own table",
        DataError,
    )


def check_events(where: str, given: EventEntries) -> None:
    """Refuse entries about events that have no meaning, and amounts without a scale that all agree on."""
    require(
        given.feedback in FEEDBACK, f"{where}: feedback must be one of {FEEDBACK}, got {given.feedback!r}", DataError
    )
    named = {
        "event": given.event, "event_weights": given.event_weights, "confidence": given.confidence,
        "confidence_scale": given.confidence_scale, "min_rating": given.min_rating,
        "recency": None if given.recency is True else given.recency,
    }  # fmt: skip
    entered = [name for name, value in named.items() if value not in (None, {}, "")]
    if not given.of_events:
        cure = 'add feedback = "implicit", or leave it out'
        require(not entered, lambda: f"{where}: {entered[0]} is about events, not ratings: {cure}", DataError)
        return
    known = isinstance(given.recency, bool)
    require(known, f"{where}: recency must be true or false, got {quoted(given.recency)}", DataError)
    for name in ("event", "confidence", "confidence_scale"):
        text = named[name]
        known = text is None or (isinstance(text, str) and text.strip() != "")
        require(known, f"{where}: {name} must be a text, got {quoted(text)}", DataError)
    try:
        given.event_options()
        confidence([1.0], given.scale)
    except (FedmcError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: {error}") from None
    amounts = next((name for name in ("confidence", "event_weights") if name in entered), None)
    require(
        amounts is None or given.confidence_scale is not None,
        f"{where}: {amounts} needs confidence_scale, {AGREE}: none (each pair counts 1), log, log:A,E or linear:A",
        DataError,
    )


def check_side(where: str, items: object, user_features: object, also_seen: object, columns: object) -> None:
    """Refuse tables of items, features and events without a rating that are not named as files or in a storage."""
    for name, path in (("items", items), ("user_features", user_features), ("also_seen", also_seen)):
        named = path is None or (isinstance(path, str) and path.strip() != "" and _is_place(path))
        example = f'such as {name} = "{name}.csv"'  # what was given could be an address with a password
        require(named, f"{where}: {name} must be the path of a file, {example}", DataError)
    require(
        isinstance(columns, list | tuple) and all(isinstance(one, str) for one in columns),
        f'{where}: categorical must be a list of columns, such as categorical = ["occupation"], got {columns!r}',
        DataError,
    )
    has_table = not columns or user_features is not None
    require(has_table, f"{where}: categorical names columns of user_features, which is not given", DataError)


def _is_place(path: str) -> bool:
    return "://" not in path or is_stored(path)


def check_objective(where: str, given: object) -> dict[str, str]:
    """The entries of [objective]: the organisation's own penalty and loss, by their specs."""
    known = ("penalty_users", "loss")
    named = isinstance(given, Mapping) and all(isinstance(value, str) for value in given.values())
    cure = f'{where}: [objective] has {" and ".join(known)}, such as penalty_users = "l2:5"'
    require(named, lambda: f"{cure}, got {quoted(given)}", DataError)
    found = dict(cast(Mapping[str, str], given))
    strange = next((name for name in found if name not in known), None)
    require(strange is None, f"{cure}; {strange!r} is not an entry of it", DataError)
    try:
        for name, spec in found.items():
            penalties.parse(spec) if name == "penalty_users" else losses.parse(spec)
    except FedmcError as error:
        raise DataError(f"{where}: [objective]: {error}") from None
    return found


def check_watching(where: str, page_port: int, log_format: str) -> None:
    """Refuse a port of the page, or a format of the log, that there is not."""
    whole(f"{where}: page_port", page_port, 0, 65535)
    known = isinstance(log_format, str) and log_format in LOG_FORMATS
    require(known, f"{where}: log_format must be one of {', '.join(LOG_FORMATS)}, got {log_format!r}", DataError)
