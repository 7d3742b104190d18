"""`fedmc tune`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmc.cli.data import PARTITIONS
from fedmc.cli.display import print_table, progress_of_trials, warm_up
from fedmc.cli.train import share

Option = typer.Option


def tune(
    source: Annotated[str, typer.Argument(help="A file, folder, archive, database, named or prepared set, or `demo`.")],
    ranks: Annotated[str, Option(help="Ranks to try, with commas.")] = "5,10,20",
    trials: Annotated[int, Option(help="At most so many weights for each rank.")] = 6,
    rounds: Annotated[int | None, Option(help="Rounds a trial; four passes over the clients if not given.")] = None,
    validation: Annotated[float, Option(help="Share of each client's ratings to judge by.")] = 0.1,
    clients: Annotated[int, Option(help="Simulated clients that the users are spread over.")] = 10,
    active: Annotated[int | None, Option(help="Clients a round; all, but at most 10, if not given.")] = None,
    partition: Annotated[str, Option(help=f"Who is whose user: {PARTITIONS}.")] = "uniform",
    test: Annotated[str, Option(help="Put aside and never looked at: a share, last:K, leave:K or date:D.")] = "0.2",
    catalogue: Annotated[Path | None, Option(help="The agreed items.")] = None,
    query: Annotated[str | None, Option(help="With a database: the query that gives user, item and rating.")] = None,
    columns: Annotated[str | None, Option(help="Names of the user, item and rating columns, with commas.")] = None,
    duplicates: Annotated[Any, Option(help="A pair that comes twice: refuse, last or mean.", parser=str)] = "refuse",
    seed: Annotated[int, Option(help="Same seed, same choice.")] = 0,
    as_json: Annotated[bool, Option("--json", help="End with one line of JSON.")] = False,
) -> None:  # fmt: skip
    """Choose rank and penalty on ratings that the clients hold out of their own; the test ratings play no part.

    Give `fedmc train` the same --test and --seed, and what was put aside here is what it is tested on.
    """
    from fedmc.algorithms.settings import Settings
    from fedmc.cli.runs import to_json
    from fedmc.data.prepare import Plan, federation_of
    from fedmc.training import tuning

    numbers = _ranks(ranks)
    budget = tuning.Budget(trials, rounds, validation)
    names = tuple(columns.split(",")) if columns else None
    plan = Plan(
        source, names, query, duplicates, catalogue, split=share(test), partition=partition, clients=clients, seed=seed
    )
    settings = Settings.preset("fast", rank=max(numbers), active=active, penalty_users="auto", seed=seed)
    federation = federation_of(plan, settings.dtype)
    p = len(federation.shards)
    settings = settings.replace(active=min(p, 10) if active is None else active)
    each = budget.rounds_of_a_trial(settings, p)
    typer.echo(f"at most {trials} trials of {each} rounds for each of {len(numbers)} rank(s)", err=True)
    warm_up(settings, federation)
    with progress_of_trials(trials * len(numbers)) as show:
        done = tuning.choose(federation.shards, settings, budget, numbers, show)
    chosen = tuning.best(done)
    _show(done, chosen)
    words = tuning.in_words(chosen.weight)
    typer.echo(f"chosen: --rank {chosen.rank} --penalty-users {words}")
    if as_json:
        best = {"rank": chosen.rank, "penalty_users": words, "validation_rmse": chosen.validation_rmse}
        typer.echo(to_json(best | {"trials": [trial._asdict() for trial in done]}))


def _show(trials: list[Any], chosen: Any) -> None:
    ordered = sorted(trials, key=lambda trial: (trial.rank, trial.weight))
    rows = [
        (str(t.rank), f"{t.weight:.4g}", f"{t.validation_rmse:.4f}", str(t.rounds), f"{t.bytes_up / 1e6:,.1f}",
         f"{t.seconds:.1f}")
        for t in ordered
    ]  # fmt: skip
    columns = "rank", "l2 weight", "validation RMSE", "rounds", "MB up", "seconds"
    print_table("RMSE on ratings that the clients held out", columns, rows, ordered.index(chosen))


def _ranks(words: str) -> list[int]:
    from fedmc.errors import InputError

    try:
        return sorted({int(rank) for rank in words.split(",")})
    except ValueError:
        raise InputError(f"--ranks takes whole numbers with commas between, got {words!r}") from None
