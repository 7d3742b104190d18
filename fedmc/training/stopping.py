"""Stopping rules: `until` ends the rounds of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedmc.errors import require
from fedmc.training.rounds import Round

OnRound = Callable[[Round], object]  # called after each round; True ends the run


@dataclass(frozen=True)
class Stop:
    """The stopping rules, of which the first to apply ends the run; None switches a rule off."""

    rounds: int = 100
    tolerance: float | None = None  # on both residuals, relative to ||V||; needs full diagnostics
    seconds: float | None = None  # of updates
    patience: int | None = None  # rounds without a better validation RMSE or, of events, validation NDCG@10
    interrupted: Callable[[], bool] = lambda: False  # asked after every round

    def __post_init__(self) -> None:
        require(self.rounds >= 0, f"rounds must be at least 0, got {self.rounds}")
        require(self.tolerance is None or self.tolerance > 0, f"tolerance must be above 0, got {self.tolerance}")
        require(self.seconds is None or self.seconds > 0, f"the time budget must be above 0 s, got {self.seconds}")
        require(
            self.patience is None or self.patience >= 1,
            f"patience must be at least 1 round, got {self.patience}",
        )


def until(rounds: Iterable[Round], stop: Stop) -> Iterator[Round]:
    """The rounds up to and including the first that meets a rule of `stop`."""
    spent, best, best_round = 0.0, np.inf, 0
    for round in rounds:
        yield round
        spent += round.seconds
        validation = _validation_loss(round)
        if validation is not None and validation < best:
            best, best_round = validation, round.number
        waited = round.number - best_round if validation is not None else 0
        if (
            round.number >= stop.rounds
            or stop.interrupted()
            or (stop.seconds is not None and spent >= stop.seconds)
            or (stop.patience is not None and waited >= stop.patience)
            or (stop.tolerance is not None and _settled(round, stop.tolerance))
        ):
            return


def tell(round: Round, on_round: OnRound | Sequence[OnRound]) -> bool:
    """Call each of these functions; whether one of them returned True."""
    answers = [one(round) for one in ([on_round] if callable(on_round) else on_round)]
    return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)


def _validation_loss(round: Round) -> float | None:
    """What patience waits for to fall: the validation RMSE or, of events, minus the validation NDCG@10."""
    found = round.diagnostics
    if found.validation_rmse is not None:
        return found.validation_rmse
    ndcg = (found.ranking or {}).get("validation_ndcg_10")
    return None if ndcg is None else -ndcg


def _settled(round: Round, tolerance: float) -> bool:
    """Whether the root mean square of ||W_i - V|| and the step of V are both at most tolerance times ||V||."""
    primal, dual = round.diagnostics.primal_residual, round.diagnostics.dual_residual
    if primal is None or dual is None or not round.participants:
        return False
    size = float(np.linalg.norm(round.V))
    clients = float(np.sqrt(round.clients))
    beta = float(np.mean(round.beta))
    return primal <= tolerance * clients * size and dual <= tolerance * clients * beta * size
