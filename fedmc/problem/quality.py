"""Measurements of a model in words, for progress bars, logs and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from fedmc.problem.ranking import beside

RANKING = {"ndcg_20": "NDCG@20", "recall_20": "Recall@20"}  # shown of events, beside popularity's
PARTS = ("test", "validation")


def ranking_in_words(found: Mapping[str, object]) -> dict[str, str]:
    """NDCG@20 and Recall@20 beside those of popularity, by label; of the test or, without one, of the validation."""
    part = next((part for part in PARTS if f"{part}_ndcg_20" in found), None)
    if part is None:
        return {}
    return {f"{part} {label}": beside(found, part, name) for name, label in RANKING.items()}


def shown(measured: Mapping[str, object]) -> dict[str, float]:
    """The numbers that `quality` shows of a line of history, with its digits; popularity's are left out."""
    part = next((part for part in PARTS if f"{part}_ndcg_20" in measured), None)
    ranked = {} if part is None else {name: measured[f"{part}_{name}"] for name in RANKING}
    found = {"rmse": _rmse(measured)} | ranked
    return {name: round(float(cast(float, value)), 4) for name, value in found.items() if value is not None}


def _rmse(measured: Mapping[str, object]) -> object:
    errors = (measured.get("test_rmse"), measured.get("train_rmse"))
    return next((error for error in errors if error is not None), None)


def quality(measured: Mapping[str, object]) -> str:
    """How good a model is, for a progress bar: an RMSE, ranking metrics, or both."""
    ranking = measured.get("ranking")
    ranked = ranking_in_words(measured if ranking is None else cast(Mapping[str, object], ranking))
    rmse = _rmse(measured)
    told = [] if rmse is None else [f"RMSE {rmse:.4f}"]
    return "  ".join([*told, *(f"{label.partition(' ')[2]} {value}" for label, value in ranked.items())])
