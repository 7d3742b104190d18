"""`fedmc tune`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fedmc.algorithms.settings import Settings
from fedmc.cli import options
from fedmc.cli.display import print_table
from fedmc.cli.groups import Table
from fedmc.cli.parsing import parse_integers
from fedmc.cli.runs import to_json
from fedmc.cli.simulate import set_active, trials_bar, warm_up
from fedmc.data import splits
from fedmc.data.prepare import Plan, federation_of
from fedmc.training import tuning
from fedmc.training.tuning import Trial

Option = typer.Option


def tune(
    source: options.Source,
    ranks: Annotated[str, Option(help="Ranks to try, separated by commas.")] = "5,10,20",
    trials: Annotated[int, Option(help="Maximum number of penalty weights to try for each rank.")] = 6,
    rounds: Annotated[
        int | None, Option(help="Communication rounds of each trial.", show_default="four passes over the clients")
    ] = None,
    validation: Annotated[str, Option(help="Share of each client's ratings to validate on.")] = "0.1",
    active: options.Active = None,
    test: options.Test = "0.2",
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    *,
    table: Table,
) -> None:
    """Choose rank and penalty by the error on ratings that the clients hold out. Test ratings play no part.

    Give `fedmc train` the same --test and --seed: it then tests on the ratings that were put aside here.
    """
    chosen_ranks = sorted(set(parse_integers(ranks, "--ranks")))
    budget = tuning.Budget(trials, rounds, splits.parse_share(validation))
    plan = Plan(
        source, table.names, table.query, table.duplicates, table.catalogue, split=test, partition=table.partition,
        clients=table.clients, seed=seed,
    )  # fmt: skip
    settings = Settings.preset("fast", rank=max(chosen_ranks), active=active, penalty_users="auto", seed=seed)
    federation = federation_of(plan, settings.dtype)
    settings = set_active(settings, active, len(federation.shards))
    each = budget.rounds_of_a_trial(settings, len(federation.shards))
    typer.echo(f"at most {trials} trials of {each} rounds for each of {len(chosen_ranks)} rank(s)", err=True)
    warm_up(settings, federation)
    with trials_bar(trials * len(chosen_ranks)) as show:
        done = tuning.choose(federation.shards, settings, budget, chosen_ranks, show)
    best = tuning.best(done)
    penalty = tuning.in_words(best.weight)
    _print_trials(done, best)
    typer.echo(f"chosen: --rank {best.rank} --penalty-users {penalty}")
    if as_json:
        result = {"rank": best.rank, "penalty_users": penalty, "validation_rmse": best.validation_rmse}
        typer.echo(to_json(result | {"trials": [trial._asdict() for trial in done]}))


def _print_trials(trials: Sequence[Trial], best: Trial) -> None:
    ordered = sorted(trials, key=lambda trial: (trial.rank, trial.weight))
    rows = [
        (str(t.rank), f"{t.weight:.4g}", f"{t.validation_rmse:.4f}", str(t.rounds), f"{t.bytes_up / 1e6:,.1f}",
         f"{t.seconds:.1f}")
        for t in ordered
    ]  # fmt: skip
    columns = "rank", "l2 weight", "validation RMSE", "rounds", "MB up", "seconds"
    print_table("RMSE on ratings that the clients held out", columns, rows, ordered.index(best))
