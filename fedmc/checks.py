"""The parameters of an estimator that are no settings of the algorithm: refused if of a wrong type or out of bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import cast

import numpy as np

from fedmc.algorithms.limits import MAX_RANK
from fedmc.data.rows import check_columns
from fedmc.errors import InputError, quoted, require, unknown
from fedmc.privacy.protocol import check_kind
from fedmc.training.stopping import OnRound
from fedmc.types import MAX_CLIENTS, MAX_NUMBER, MAX_ROUND, MAX_SEED, MIN_POSITIVE, number, switch, text, whole

RandomState = int | np.random.RandomState | np.random.Generator | None
WHOLE = {"clients": (1, MAX_CLIENTS), "rounds": (0, MAX_ROUND), "seed": (0, MAX_SEED)}
OPTIONAL_WHOLE = {"active": (1, MAX_CLIENTS), "patience": (1, MAX_ROUND), "measure_every": (1, MAX_ROUND)}
OPTIONAL_NUMBERS = ("tolerance", "seconds")  # above 0
DRAWN = 2**31 - 1  # seeds that a generator chooses from
SWITCHES = ("recency", "warm_start", "full_diagnostics")
CHOICES = {"feedback": ("explicit", "implicit"), "duplicates": ("refuse", "last", "mean")}


def check(params: Mapping[str, object]) -> None:
    """Refuse a parameter that no run can have, before any work; `Settings` checks those of the algorithm."""
    check_rank(params["rank"])
    for name, (low, high) in WHOLE.items():
        whole(name, params[name], low, high)
    for name, (low, high) in OPTIONAL_WHOLE.items():
        if params[name] is not None:
            whole(name, params[name], low, high)
    for name in OPTIONAL_NUMBERS:
        if params[name] is not None:
            number(name, params[name], MIN_POSITIVE, MAX_NUMBER)
    share = number("validation", params["validation"], 0, 1)
    require(share < 1, f"validation must be below 1, got {share:g}: it is the share of ratings that is held out")
    for name in SWITCHES:
        switch(name, params[name])
    for name, allowed in CHOICES.items():
        if params[name] not in allowed:
            raise unknown(name, params[name], allowed)
    if params["confidence"] is not None:
        text("confidence", params["confidence"])
    check_columns(params["columns"])
    check_kind(params["privacy"])
    _check_verbose(params["verbose"])
    callbacks(cast(OnRound, params["on_round"]))


def check_rank(rank: object) -> None:
    if isinstance(rank, str):
        found = f"got {quoted(rank)}: use rank=20, the default, if in doubt"
        require(rank == "auto", f"rank must be a whole number from 1 to {MAX_RANK} or 'auto', {found}")
    else:
        whole("rank", rank, 1, MAX_RANK)


def _check_verbose(verbose: object) -> None:
    level = int(verbose) if isinstance(verbose, bool | np.bool_) else verbose
    whole("verbose (0 silent, 1 progress, 2 each round)", level, 0, 2)


def callbacks(on_round: OnRound | Sequence[OnRound] | None) -> list[OnRound]:
    """The functions to call after each round."""
    several = on_round if isinstance(on_round, Sequence) and not isinstance(on_round, str) else [on_round]
    found = []
    for one in several:
        if callable(one):
            found.append(one)
        elif one is not None:
            cure = "a function takes one argument, such as on_round=lambda round: round.seconds > 60"
            raise InputError(
                f"on_round must be a function of a Round, or a list of functions, got {quoted(one)}: {cure}"
            )
    return found


def drawn_seed(seed: int, random_state: RandomState) -> int:
    """The seed of a run: `seed` or, if given, the `random_state`, from which a generator draws a new one each time."""
    if random_state is None:
        return seed
    require(seed == 0, f"seed={seed} and random_state={quoted(random_state)} are both given: leave one of them out")
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(DRAWN))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(DRAWN))
    kinds = "None, a whole number, a numpy RandomState or a Generator"
    good = isinstance(random_state, Integral) and not isinstance(random_state, bool)
    require(good, f"random_state must be {kinds}, got {quoted(random_state)}")
    return whole("random_state", random_state, 0, MAX_SEED)
