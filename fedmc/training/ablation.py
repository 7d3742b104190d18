"""What each part of a Bayesian model is worth: the validation error with everything, and without each part.

Each client holds out a tenth of its training ratings, as for tuning. Each variant is a short run from scratch on the
rest. Only sums of squared errors leave a client.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard
from fedmc.errors import Diverged, InputError, require
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.stopping import Stop, until
from fedmc.training.tuning import held_out, rounds_of_a_pass
from fedmc.types import Array

ROUNDS, PASSES = 20, 10  # of a run, at least: the first passes of a Bayesian run learn neither noise nor priors
SHARE = 0.1  # of each client's ratings, held out
FILE = "ablation.json"  # in a run folder
COLUMNS = ("left out", "validation RMSE", "worse by")
EXPLAINED = (
    "Each row is a short run on nine tenths of each client's training ratings, measured on the others. A part is worth "
    "what the error grows by without it; test ratings play no part."
)
NOTHING, ALL = "nothing", "all of these"  # names of what is left out


class Variant(NamedTuple):
    """A model without a part: its validation RMSE, and by how many percent that is above the RMSE with everything."""

    without: str
    validation_rmse: float
    loss: float
    seconds: float

    @property
    def worse(self) -> str:
        """The loss in words; none of the model with everything."""
        return "" if self.without == NOTHING else f"{self.loss:+.2f} %"

    def in_words(self) -> str:
        found = f"validation RMSE {self.validation_rmse:.4f}"
        return (
            f"with everything: {found}"
            if self.without == NOTHING
            else f"without {self.without}: {found} ({self.worse})"
        )


class Inputs(NamedTuple):
    """What a run is made of."""

    shards: Sequence[Shard]
    settings: Settings
    item_features: Array | None = None


Change = Callable[[Inputs], Inputs | None]  # the inputs without a part; None if they do not have it


def _without_implicit(given: Inputs) -> Inputs | None:
    return given._replace(settings=given.settings.replace(implicit=False)) if given.settings.implicit else None


def _without_events(given: Inputs) -> Inputs | None:
    if not given.settings.implicit or all(shard.also_seen is None for shard in given.shards):
        return None  # events enter by the implicit terms
    return given._replace(shards=[replace(shard, also_seen=None) for shard in given.shards])


def _without_user_features(given: Inputs) -> Inputs | None:
    if all(shard.features is None for shard in given.shards):
        return None
    return given._replace(shards=[replace(shard, features=None) for shard in given.shards])


def _without_item_features(given: Inputs) -> Inputs | None:
    return None if given.item_features is None else given._replace(item_features=None)


def _without_days(given: Inputs) -> Inputs | None:
    if all(shard.days is None for shard in given.shards):
        return None
    return given._replace(shards=[replace(shard, days=None) for shard in given.shards])


PARTS: Mapping[str, Change] = {
    "who rated what": _without_implicit,
    "events without a rating": _without_events,
    "user features": _without_user_features,
    "item features": _without_item_features,
    "biases by day": _without_days,
}


def check(settings: Settings) -> None:
    """Refuse another model than the Bayesian one, which has no such parts."""
    algorithm = settings.make_algorithm()
    reason = f"an ablation needs the algorithm of preset 'bayes', got {algorithm.name!r}: leave it out"
    require(algorithm.uses_side, reason)


def ablation(
    shards: Sequence[Shard],
    settings: Settings,
    item_features: Array | None = None,
    *,
    number: int | None = None,
    on_variant: Callable[[Variant], None] = lambda variant: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Variant]:
    """The model with everything, without each of its parts, and without all of them; if interrupted, what is done.

    Each makes `number` rounds; by default 20, or ten passes over the clients.
    """
    check(settings)
    kept = Inputs(held_out(shards, SHARE, settings.seed), settings, item_features)
    number = number or rounds_of_a_variant(settings, len(shards))
    found: list[Variant] = []
    for without, given in variants(kept).items():
        began = time.perf_counter()
        rmse = _validation_rmse(given, number, interrupted)
        if interrupted():
            break
        best = found[0].validation_rmse if found else rmse
        loss = 100 * (rmse / best - 1) if math.isfinite(best) else math.nan
        found.append(Variant(without, rmse, loss, time.perf_counter() - began))
        on_variant(found[-1])
    return found


def rounds_of_a_variant(settings: Settings, clients: int) -> int:
    return max(ROUNDS, PASSES * rounds_of_a_pass(settings, clients))


def variants(given: Inputs) -> dict[str, Inputs]:
    """The inputs of each run, by what they leave out."""
    without = {name: change(given) for name, change in PARTS.items()}
    found = {NOTHING: given} | {name: one for name, one in without.items() if one is not None}
    if len(found) > 2:
        found[ALL] = reduce(lambda one, change: change(one) or one, PARTS.values(), given)
    return found


def _validation_rmse(given: Inputs, number: int, interrupted: Callable[[], bool]) -> float:
    """The validation RMSE of a run; infinite if it diverges."""
    engine = LocalEngine(given.shards, item_features=given.item_features)
    found = math.inf
    try:
        running = rounds(engine, given.settings, measure_every=number, last=number)
        for round in until(running, Stop(number, interrupted=interrupted)):
            measured = round.diagnostics.validation_rmse
            found = found if measured is None else measured
    except Diverged:
        return math.inf
    return found


# --- tables and files


def rows(found: Sequence[Variant]) -> list[tuple[str, str, str]]:
    """The variants as lines of a table with these COLUMNS."""
    return [(one.without, f"{one.validation_rmse:.4f}", one.worse) for one in found]


def record(found: Sequence[Variant]) -> list[dict[str, str | float | None]]:
    """The variants for JSON, which has no infinite numbers."""
    return [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in one._asdict().items()
        }
        for one in found
    ]


def save(found: Sequence[Variant], folder: Path) -> None:
    """Write the variants into a run folder."""
    (folder / FILE).write_text(json.dumps({"variants": record(found)}, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> list[Variant]:
    """The variants in a run folder; none if there was no ablation."""
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        return [_variant(one) for one in json.loads(path.read_text(encoding="utf-8"))["variants"]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged: {error}; remove it to go without") from None


def _variant(stored: Mapping[str, object]) -> Variant:
    absent = {"validation_rmse": math.inf, "loss": math.nan}
    words = {name: absent.get(name) if value is None else value for name, value in stored.items()}
    found = Variant(**words)  # type: ignore[arg-type]
    numbers = found.validation_rmse, found.loss, found.seconds
    right = isinstance(found.without, str) and all(isinstance(number, int | float) for number in numbers)
    require(right, f"{found} is no variant")
    return found
