"""Parsers of option values that have several parts."""

from __future__ import annotations

from typing import Literal, TypedDict

from fedmc.errors import InputError


class DPSettings(TypedDict, total=False):
    """The settings of differential privacy."""

    epsilon: float
    delta: float
    dp_rounds: int
    ratings_from: float
    ratings_to: float


def parse_names(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas."""
    return tuple(text.split(",")) if text else None


def parse_integers(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{option} takes whole numbers separated by commas, got {text!r}") from None


def parse_beta(text: str | None) -> float | Literal["auto"] | None:
    if text is None or text == "auto":
        return None if text is None else "auto"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"beta must be a number above 0 or 'auto', got {text!r}") from None


def parse_dp(epsilon: float, delta: float, ratings: str, rounds: int) -> DPSettings:
    """The settings of differential privacy, which other modes ignore."""
    try:
        low, high = (float(part) for part in ratings.split(","))
    except ValueError:
        raise InputError(f"--ratings takes two numbers, LOW,HIGH, got {ratings!r}") from None
    return {"epsilon": epsilon, "delta": delta, "dp_rounds": rounds, "ratings_from": low, "ratings_to": high}
