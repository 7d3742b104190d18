"""A run folder, as its report reads it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict

from fedmc.data import counts
from fedmc.data.counts import Counts
from fedmc.errors import FedmcError, InputError
from fedmc.evaluation import baselines, coverage, final
from fedmc.evaluation.baselines import Baselines
from fedmc.evaluation.coverage import Calibration
from fedmc.model import Model, load
from fedmc.privacy import modes
from fedmc.privacy.protocol import Privacy
from fedmc.report.best import Best, best_of

MEASURES = (  # by which the best round is chosen: the first that there is
    "validation_rmse", "validation_ndcg_10", "test_rmse", "test_ndcg_20", "train_rmse",
)  # fmt: skip


class Record(TypedDict, total=False):
    """A line of history.jsonl: the fields of every round, and those of measured rounds only."""

    number: int
    seconds: float
    bytes_up: int
    bytes_down: int
    objective: float | None
    bound: float | None
    train_rmse: float
    test_rmse: float | None
    beta_needed: float | None
    beta_suggested: float | None
    certified: bool | None
    min_dist2: float | None
    dist2_bound: float | None
    dist2_slope: float | None
    epsilon: float | None


class History(NamedTuple):
    """A run: all rounds, the measured ones, and the curve with cumulative bytes and seconds."""

    rounds: Sequence[Record]
    measured: Sequence[Record]
    curve: list[dict[str, float | None]]  # the measured rounds, with bytes and seconds since the start

    @property
    def last(self) -> Record:
        return self.measured[-1]

    def best(self) -> Best | None:
        """The curve by which the best round is chosen."""
        for name in MEASURES:
            pairs = ((float(line["number"]), _number(line, name)) for line in self.measured)
            found = [(number, value) for number, value in pairs if value is not None]
            if found:
                return best_of(name, found)
        return None


class Finished(NamedTuple):
    """What a run folder holds."""

    folder: Path
    settings: Mapping[str, object]
    history: History
    counts: Counts | None
    baselines: Baselines | None
    intervals: Calibration | None
    ranked: Mapping[str, float]  # ranking metrics that were computed at the end
    model: Model | None

    @property
    def clients(self) -> int:
        return int(str(self.settings.get("clients", 1)))

    @property
    def events(self) -> bool:
        return self.settings.get("feedback") == "implicit" or bool(self.counts and self.counts.events)

    @property
    def privacy(self) -> Privacy:
        words = {name: value for name, value in self.settings.items() if name in modes.WORDS}
        return modes.parse(str(self.settings.get("privacy", "plain")), words)

    @property
    def model_in_range(self) -> Model | None:
        """The model with the range of ratings; if it does not tell any itself, that of the data."""
        model, found = self.model, self.counts
        if model is None or model.rating_range is not None or found is None:
            return model
        if found.lowest is None or found.highest is None:
            return model
        return replace(model, rating_range=(found.lowest, found.highest))

    @property
    def unit(self) -> str:
        """What ratings are counted in."""
        ends = (None, None) if self.counts is None else (self.counts.lowest, self.counts.highest)
        if ends == (None, None) and self.model is not None and self.model.rating_range is not None:
            ends = self.model.rating_range
        return unit_of(*ends)


def unit_of(low: float | None, high: float | None) -> str:
    """Stars, if ratings end at 5 of them; else points."""
    return "stars" if low is not None and low >= 0 and high == 5 else "points"


def read(folder: Path) -> Finished:
    """Read a run folder; a model that cannot be opened, or is not there, is left out."""
    settings, history = _settings_and_history(folder)
    about = counts.load(folder), baselines.load(folder), coverage.load(folder), final.load(folder)
    return Finished(folder, settings, history, *about, _model(folder))


def _model(folder: Path) -> Model | None:
    try:
        return load(folder / "model.npz")
    except (FedmcError, OSError):  # a model with custom objects needs these again
        return None


def _settings_and_history(folder: Path) -> tuple[dict[str, object], History]:
    try:
        settings = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))
        lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
        rounds: list[Record] = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is not a run folder: {error}") from None
    measured: list[Record] = []
    curve: list[dict[str, float | None]] = []
    up, down, seconds = 0, 0, 0.0
    for record in rounds:
        up, down, seconds = up + record["bytes_up"], down + record["bytes_down"], seconds + record["seconds"]
        if "objective" in record:
            measured.append(record)
            rmse = {"train_rmse": record.get("train_rmse"), "test_rmse": record.get("test_rmse")}
            point = {"objective": record["objective"], "round": record["number"], "up": up, "down": down}
            curve.append({**rmse, **point, "seconds": seconds})
    if not measured:
        raise InputError(f"{folder} holds no measured round")
    return settings, History(rounds, measured, curve)


def _number(line: Mapping[str, object], name: str) -> float | None:
    found = line.get(name)
    return float(found) if isinstance(found, int | float) else None
