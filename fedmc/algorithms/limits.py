"""The bounds of a run's settings, by name. A server may choose any settings within them; nodes refuse all others."""

from __future__ import annotations

from collections.abc import Mapping

from fedmc.errors import InputError, quoted, require, unknown
from fedmc.types import MAX_CLIENTS, MAX_NUMBER, MAX_SEED, MIN_POSITIVE, number, switch, text, whole

MAX_RANK = 1_000  # a solve costs rank^3 for each row
MAX_INNER_STEPS = 1_000  # each may be a pass over all ratings
INTEGERS = {
    "rank": (1, MAX_RANK),
    "inner_steps": (1, MAX_INNER_STEPS),
    "active": (1, MAX_CLIENTS),
    "seed": (0, MAX_SEED),
}
SWITCHES = ("passes", "biases", "fold_in", "implicit", "ranking")
TEXTS = ("preset_name", "algorithm", "loss", "penalty_users", "penalty_items", "sampler")
NAMED = (*TEXTS, "privacy", "method", "update")  # in words, never as objects
CHOICES: dict[str, tuple[str, ...]] = {
    "fit_users_to": ("W", "V"),
    "normalise": ("none", "mean", "standard"),
    "start": ("uniform", "normal"),
    "entry": ("all", "first-turn"),
    "empty_rounds": ("server-step", "skip"),
    "update_users": ("drawn", "all"),
    "dtype": ("float32", "float64"),
}


def check(settings: Mapping[str, object]) -> None:
    """Refuse a setting of a wrong type or beyond its bounds."""
    for name, (low, high) in INTEGERS.items():
        whole(name, settings[name], low, high)
    for name in SWITCHES:
        switch(name, settings[name])
    for name in TEXTS:
        if isinstance(settings[name], str):  # else an object of the user's own
            text(name, settings[name])
    _check_numbers(settings)
    for name, allowed in CHOICES.items():
        if settings[name] not in allowed:
            raise unknown(name, settings[name], allowed)


def _check_numbers(settings: Mapping[str, object]) -> None:
    if settings["beta"] != "auto":
        number("beta, unless 'auto',", settings["beta"], MIN_POSITIVE, MAX_NUMBER)
    number("beta_scale", settings["beta_scale"], MIN_POSITIVE, MAX_NUMBER)
    dual = number("dual_step", settings["dual_step"], 0, 2)
    require(0 < dual < 2, f"dual_step must lie between 0 and 2, got {dual}")
    extrapolation = number("extrapolation", settings["extrapolation"], 0, 1)
    require(extrapolation < 1, f"extrapolation must be at least 0 and below 1, got {extrapolation}")
    for name in ("entry_penalty", "start_scale"):
        number(name, settings[name], MIN_POSITIVE, 1)


def check_words(words: object) -> None:
    """Refuse settings in words that are not plain values by name."""
    if not isinstance(words, Mapping):
        raise InputError(f"settings must be values by name, got {quoted(words)}")
    for name, value in words.items():
        text("the name of a setting", name)
        require(isinstance(value, str | int | float), lambda n=name, v=value: f"{quoted(n)} cannot be {quoted(v)}")  # type: ignore[misc]
        if name in NAMED:
            text(name, value)
