"""What a run did, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from fedmc.evaluation.baselines import Baselines
from fedmc.problem.ranking import beside
from fedmc.report.legends import NDCG
from fedmc.report.run_folder import Finished, Record
from fedmc.report.title import organisations

OF_RATINGS = (
    "Here a list of the most popular items matches better: a model of ratings knows how much users like what they "
    "rate, not what they turn to next. For that, train on events (--feedback implicit)."
)
UNMEASURED = "the model was not measured on held-out {what}: hold some out (--test) to see how {does}."


def describe(run: Finished) -> list[str]:
    """The results of the run."""
    last = run.history.last
    error, on = last.get("test_rmse"), "ratings it has not seen: its typical error"
    if error is None and "train_rmse" in last:
        error, on = last["train_rmse"], "the ratings it was trained on; that on new ones is usually higher"
    if error is None:
        first = _ranking({**last, **run.ranked}, "test", "validation")
    else:
        first = f"the model has an RMSE of {error:.4f} {run.unit} on {on}."
    said = [f"After {last['number']} rounds {first}"]
    return said if run.baselines is None else [*said, *against(run.baselines, last.get("test_rmse"), run.unit)]


def against(found: Baselines, error: float | None, unit: str) -> list[str]:
    """The model beside the baselines."""
    of_errors = found.measure == "rmse"
    what, unit = ("error", f" {unit}") if of_errors else ("NDCG@20", "")
    said = []
    if found.biases is not None and error is not None:
        told = f"Predictions by averages of users and items (biases only) have an {what} of {found.biases:.4f}{unit}"
        said.append(f"{told}: the model's error is {change(error, found.biases)}.")
    if found.alone is not None and found.together is not None:
        told = f"Organisations that train alone have an {what} of {found.alone:.4f}{unit}"
        said.append(f"{told}: together, it is {change(found.together, found.alone)}{_where(found)}.")
    if found.pooled is not None:
        told = "The same model on all data in one place, which organisations may not be able to share,"
        said.append(f"{told} has an {what} of {found.pooled:.4f}{unit}.")
    return said


def _where(found: Baselines) -> str:
    """At how many organisations the model of all is better."""
    sign, number = (-1 if found.measure == "rmse" else 1), len(found.clients)
    better = sum(sign * (one.together - one.alone) > 0 for one in found.clients)
    if not number:
        return ""
    side = "lower" if sign < 0 else "higher"
    where = f"all {number:,} of them" if better == number else f"{better:,} of {number:,}"
    return f", and {side} at {where}"


def change(value: float, base: float) -> str:
    """How much a value is above or below another one."""
    if base == 0:
        return f"{value:.4f} instead of 0"
    share = 100 * (value / base - 1)
    return "the same" if round(abs(share), 1) == 0 else f"{abs(share):.1f} % {'higher' if share > 0 else 'lower'}"


def traffic(run: Finished) -> str:
    """What travelled, how long the updates took, and what the server saw."""
    up, down = (sum(record[name] for record in run.history.rounds) / 1e6 for name in ("bytes_up", "bytes_down"))
    seconds = sum(record["seconds"] for record in run.history.rounds)
    return (
        f"{organisations(run.settings)} sent {up:,.1f} MB and received {down:,.1f} MB in all; the updates took "
        f"{seconds:,.1f} seconds. {run.privacy.server_saw()} Ratings, events and user factors (what the model knows of "
        "each user) never left a client."
    )


def ranking(run: Finished) -> list[str]:
    """How the model ranks what was held out."""
    record = {**run.history.last, **run.ranked}
    found = _ranking(record, "test", "validation")
    said = [found[:1].upper() + found[1:], NDCG]
    own, popular = (record.get(name) for name in ("test_ndcg_20", "test_popular_ndcg_20"))
    if not run.events and isinstance(own, float) and isinstance(popular, float) and own < popular:
        said.append(OF_RATINGS)
    return said


def _ranking(record: Mapping[str, object], *parts: str) -> str:
    part = next((part for part in parts if f"{part}_ndcg_20" in record), None)
    if part is None:
        return UNMEASURED.format(what="events", does="it ranks")
    ndcg, recall = (beside(record, part, name) for name in ("ndcg_20", "recall_20"))
    return f"the model ranks what it has not seen with an NDCG@20 of {ndcg} and a Recall@20 of {recall}."


def certificate(record: Record) -> str:
    """Whether the convergence theorem covers this run."""
    if record.get("bound") is not None:
        return "The theorem is about FedMC-ADMM. The progress of a Bayesian model shows in its evidence bound."
    needed = record.get("beta_needed")
    if needed is None:
        return "Not worked out in this run: `fedmc train --diagnostics` adds it."
    text = f"With the constants measured so far the theorem requires beta above {needed:.3g}."
    if record.get("certified"):
        return f"{text} This run's beta is: its convergence is certified."
    return f"{text} It does not certify this run: beta is smaller, or the theorem does not cover its settings."
