"""The history of an estimator's training: as a DataFrame, and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import fedmc
from fedmc.errors import InputError
from fedmc.parameters import UnfittedError
from fedmc.problem.quality import ranking_in_words
from fedmc.training.rounds import Round

PARTS = {"test": "test ratings", "validation": "validation ratings", "train": "training ratings"}

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def in_words(rounds: Sequence[Round]) -> dict[str, object]:
    """How training ended: the number of rounds, and the last measurements of what was held out and of training."""
    found: dict[str, object] = {"rounds": rounds[-1].number}
    for part, of in PARTS.items():
        known = (getattr(round.diagnostics, f"{part}_rmse") for round in reversed(rounds))
        error = next((value for value in known if value is not None), None)
        if error is not None:
            found[f"RMSE of {of}"] = f"{error:.4f}"
    ranked = (round.diagnostics.ranking for round in reversed(rounds))
    return found | ranking_in_words(next((one for one in ranked if one), {}))


class History:
    """Inherit from this class; `fit` sets `rounds_`."""

    rounds_: list[Round]

    @property
    def history_(self) -> DataFrame:
        """One row for each round, with the numbers that were measured in it; needs pandas."""
        try:
            import pandas
        except ImportError:
            cure = "pip install 'fedmc[sklearn]'; rounds_ has the same numbers without it"
            raise InputError(f"history_ is a pandas DataFrame, and pandas is not installed: {cure}") from None
        return pandas.DataFrame([round.record() for round in self._told()]).set_index("number").rename_axis("round")

    def plot_history(self, measure: str | None = None) -> Figure:
        """A figure of a measure by round, such as "train_rmse", "validation_rmse", "objective" or "bound".

        By default the best known one: of what was held out, else of the training ratings.
        """
        return fedmc.plot_history(self._told(), measure)

    def _told(self) -> list[Round]:
        if not hasattr(self, "rounds_"):
            raise UnfittedError("this FedMC is not fitted yet: call fit first")
        return self.rounds_
