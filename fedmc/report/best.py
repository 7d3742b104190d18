"""The best round of a run: of a curve by round, the lowest error or the highest ranking metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Best(NamedTuple):
    """The curve of a measure and its best round."""

    label: str  # such as "test RMSE"
    points: Sequence[tuple[float, float]]
    best: tuple[float, float]

    @property
    def number(self) -> int:
        return int(self.best[0])

    def in_words(self, unit: str = "") -> str:
        """Which round was best, and how the model that was kept does."""
        (_, value), (last, now) = self.best, self.points[-1]
        unit = unit and f" {unit}"
        if self.best == self.points[-1]:
            end = ", the last measured one"
        else:
            end = f"; the model is that of round {last:.0f}, with {now:.4f}{unit}"
        return f"The best {self.label} is {value:.4f}{unit}, in round {self.number}{end}."

    @property
    def chosen_by(self) -> str:
        """What a reader must know of a best round that no validation data chose."""
        part = self.label.partition(" ")[0]
        if part == "validation":
            return "The best round is marked. It is the best by the validation data, which are not the test data."
        said = f"The best round is marked. It is the best by the {part} data: there are no validation data"
        return f"{said}. The model is that of the last round, so its figures were not picked by this mark."


def best_of(name: str, points: Sequence[tuple[float, float]]) -> Best:
    """The best round of a measure such as "test_rmse" or "validation_ndcg_10"."""
    part, _, measure = name.partition("_")
    error = measure == "rmse"
    label = f"{part} {'RMSE' if error else measure.upper().replace('_', '@')}"
    return Best(label, points, min(points, key=lambda point: point[1] if error else -point[1]))
