"""`fedmc train`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmc.cli.data import PARTITIONS
from fedmc.cli.display import Interrupt, progress_of_rounds, progress_of_trials, show_summary, warm_up

Option = typer.Option
PENALTIES = "none, l2:W, l1:W, elastic-net:L1,L2, non-negative, box:LO,HI or group-l2:W"


def train(
    source: Annotated[str, typer.Argument(help="A file, folder, archive, database, named or prepared set, or `demo`.")],
    rank: Annotated[int, Option(help="Number of factors.")] = 10,
    clients: Annotated[int, Option(help="Simulated clients that the users are spread over.")] = 10,
    active: Annotated[int | None, Option(help="Clients a round; all, but at most 10, if not given.")] = None,
    rounds: Annotated[int | None, Option(help="Communication rounds; 50, or 19 with dp, if not given.")] = None,
    preset: Annotated[str, Option(help="fast, or paper: FedMC-ADMM as published.")] = "fast",
    penalty_users: Annotated[str | None, Option(help=f"{PENALTIES}; a + adds. auto: l2, its weight chosen.")] = None,
    penalty_items: Annotated[str | None, Option(help="As for users; auto: the users', over the clients.")] = None,
    beta: Annotated[str | None, Option(help="How tightly clients are tied to the shared items, or auto.")] = None,
    inner_steps: Annotated[int | None, Option(help="Steps of each half in a client's round (the paper's N).")] = None,
    method: Annotated[str | None, Option(help="fedmc, fedmavg, fedmgs, fedavg, fedprox or scaffold.")] = None,
    loss: Annotated[str | None, Option(help="square, huber[:DELTA] or logistic.")] = None,
    update: Annotated[str | None, Option(help="linearised, exact or curvature.")] = None,
    sampler: Annotated[str | None, Option(help="uniform, coins, groups or passes.")] = None,
    normalise: Annotated[str | None, Option(help="none, mean or standard.")] = None,
    privacy: Annotated[str, Option(help="What the server would see: plain, secagg, dp or dp+secagg.")] = "plain",
    min_cohort: Annotated[int, Option(help="With secagg: the fewest to hide among.")] = 10,
    epsilon: Annotated[float, Option(help="With dp: the budget of each user over all rounds.")] = 10.0,
    delta: Annotated[float, Option(help="With dp: below one over the number of users.")] = 1e-6,
    ratings: Annotated[str, Option(help="With dp: the public range of ratings, LOW,HIGH.")] = "1,5",
    clip: Annotated[float, Option(help="In plain: a change counts up to so many times the median one; 0: all.")] = 0.0,
    dtype: Annotated[str, Option(help="float32 or float64.")] = "float64",
    test: Annotated[str, Option(help="Held out to test on: a share, last:K, leave:K or date:YYYY-MM-DD.")] = "0.2",
    validation: Annotated[str, Option(help="Held out of the rest, for --patience.")] = "0",
    partition: Annotated[str, Option(help=f"Who is whose user: {PARTITIONS}.")] = "uniform",
    catalogue: Annotated[Path | None, Option(help="The agreed items.")] = None,
    unknown_items: Annotated[Any, Option(help="Outside of the catalogue: refuse or drop.", parser=str)] = "refuse",
    query: Annotated[str | None, Option(help="With a database: the query that gives user, item and rating.")] = None,
    patience: Annotated[int | None, Option(help="Stop after so many rounds without a better validation RMSE.")] = None,
    tolerance: Annotated[float | None, Option(help="Stop when both relative residuals are below.")] = None,
    seconds: Annotated[float | None, Option(help="Stop after so many seconds of updates.")] = None,
    diagnostics: Annotated[bool, Option("--diagnostics", help="Also what the theory speaks of (slower).")] = False,
    measure_every: Annotated[int | None, Option(help="Rounds between measurements; few if not given.")] = None,
    spill: Annotated[Path | None, Option(help="Keep the clients' states in files here, not in memory.")] = None,
    columns: Annotated[str | None, Option(help="Names of the user, item and rating columns, with commas.")] = None,
    duplicates: Annotated[Any, Option(help="A pair that comes twice: refuse, last or mean.", parser=str)] = "refuse",
    seed: Annotated[int, Option(help="Same seed, same bits.")] = 0,
    out: Annotated[Path | None, Option(help="Run folder; runs/TIME if not given.")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing run folder.")] = False,
    report: Annotated[bool, Option("--report", help="Also write report.html and figures into the run folder.")] = False,
    as_json: Annotated[bool, Option("--json", help="End with one line of JSON.")] = False,
) -> None:  # fmt: skip
    """Train a model over simulated clients and keep it in a run folder.

    Ctrl-C stops after the round and keeps the run.
    """
    from fedmc.algorithms.settings import DP_ROUNDS, Settings
    from fedmc.cli.runs import RunFolder, to_json
    from fedmc.data.prepare import Plan, federation_of
    from fedmc.data.readers.databases import without_password
    from fedmc.errors import InputError, require
    from fedmc.privacy.claims import claim
    from fedmc.training import memory, simulation
    from fedmc.training.stopping import Stop

    if report:
        from fedmc.report.run import write_report
    if rounds is None:
        rounds = DP_ROUNDS if privacy.startswith("dp") else 50
    folder = RunFolder(out, overwrite)
    names = tuple(columns.split(",")) if columns else None
    plan = Plan(
        source,
        names,
        query,
        duplicates,
        catalogue,
        unknown_items,
        share(test),
        share(validation),
        partition,
        clients,
        seed,
    )
    settings = Settings.preset(
        preset, rank=rank, active=active, method=method, beta=number(beta), loss=loss, penalty_users=penalty_users,
        penalty_items=penalty_items, inner_steps=inner_steps, update=update, sampler=sampler, normalise=normalise,
        dtype=dtype, seed=seed, privacy=privacy, min_cohort=min_cohort, clip=clip,
        **budget(privacy, epsilon, delta, ratings, rounds),
    )  # fmt: skip
    require(measure_every is None or measure_every >= 1, f"measure_every must be at least 1, got {measure_every}")
    stop = Stop(rounds, tolerance, seconds, patience)
    if patience is not None and plan.validation is None:
        raise InputError("--patience needs validation ratings: add --validation 0.1")
    federation = federation_of(plan, settings.dtype)
    if federation.report is not None:
        typer.echo(f"dropped: {federation.report}", err=True)
    p = len(federation.shards)
    usual = p if settings.private else min(p, 10)
    settings = settings.replace(active=usual if active is None else active)
    settings.make_sampler(p)
    word = memory.check(federation.shards, settings, rounds, spill is not None)
    if word is not None:
        typer.echo(word, err=True)

    said = {"source": without_password(source), "clients": p, "rounds": rounds, "partition": partition}
    typer.echo(claim(settings), err=True)
    with folder.staged() as staged, Interrupt() as interrupt:
        staged.write_settings(settings.to_dict() | said | {"test": test, "validation": validation})
        if settings.undecided:
            settings = _choose(federation, settings)
            staged.write_settings(settings.to_dict() | said | {"test": test, "validation": validation})
        warm_up(settings, federation)
        with progress_of_rounds(rounds) as show:

            def on_round(round: Any) -> None:
                staged.append(round.record())
                show(round)

            run = simulation.train(
                federation, settings, stop, measure_every=measure_every, full=diagnostics, spill=spill,
                on_round=on_round, interrupted=interrupt,
            )  # fmt: skip
        run.model.save(staged.path / "model.npz")
        if report:
            write_report(staged.path)
    summary = simulation.summary(run.history) | {"clients": p, "rank": rank, "preset": preset, "out": str(folder.path)}
    if interrupt() or run.diverged is not None:
        summary["stopped"] = "interrupted" if run.diverged is None else "diverged"
    show_summary(summary, folder.path)
    if report:
        typer.echo(f"report in {folder.path / 'report.html'}")
    if as_json:
        typer.echo(to_json(summary))
    if run.diverged is not None:
        raise run.diverged


def _choose(federation: Any, settings: Any) -> Any:
    """The settings with a penalty that the clients' held-out ratings chose, and a word on what that took."""
    from fedmc.training import tuning

    budget = tuning.Budget()
    each = budget.rounds_of_a_trial(settings, len(federation.shards))
    cost = f"at most {budget.trials} trials of {each} rounds"
    typer.echo(f"choosing the penalty on {budget.share:.0%} of each client's ratings: {cost}", err=True)
    warm_up(settings, federation)
    with progress_of_trials(budget.trials) as show:
        trials = tuning.choose(federation.shards, settings, budget, on_trial=show)
    best = tuning.best(trials)
    words = tuning.in_words(best.weight)
    typer.echo(f"chosen after {len(trials)} trials: {words}, validation RMSE {best.validation_rmse:.4f}", err=True)
    return settings.replace(penalty_users=words)


def share(text: str) -> str | None:
    """A split in words; a plain number is a random share, and 0 is none."""
    try:
        number = float(text)
    except ValueError:
        return text
    return f"random:{number}" if number else None


def budget(privacy: str, epsilon: float, delta: float, ratings: str, rounds: int) -> dict[str, Any]:
    """The settings of differential privacy, where it is asked for."""
    from fedmc.errors import InputError

    if not privacy.startswith("dp"):
        return {}
    try:
        low, high = (float(part) for part in ratings.split(","))
    except ValueError:
        raise InputError(f"--ratings takes two numbers, LOW,HIGH, got {ratings!r}") from None
    return {"epsilon": epsilon, "delta": delta, "dp_rounds": rounds, "ratings_from": low, "ratings_to": high}


def number(text: str | None) -> float | str | None:
    from fedmc.errors import InputError

    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"beta must be a number above 0 or 'auto', got {text!r}") from None
