"""`fedmc train`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fedmc.algorithms.settings import Settings
from fedmc.cli import options
from fedmc.cli.display import print_summary
from fedmc.cli.echo import echo
from fedmc.cli.groups import Budget, Solver, Table
from fedmc.cli.lazy import resolve
from fedmc.cli.runs import RunFolder, Staged, to_json
from fedmc.cli.simulate import Interrupt, check_memory, rounds_bar, set_active, trials_bar, warm_up
from fedmc.data.addresses import without_password
from fedmc.data.partition import Federation
from fedmc.data.prepare import Plan, federation_of
from fedmc.errors import InputError, require
from fedmc.privacy import modes
from fedmc.privacy.protocol import DP_ROUNDS, ROUNDS
from fedmc.training import simulation, tuning
from fedmc.training.rounds import Round
from fedmc.training.sampling import sampler_of
from fedmc.training.simulation import Run
from fedmc.training.stopping import Stop

Option = typer.Option
WRITE_REPORT = "fedmc.report.run:write_report"  # imports matplotlib, so it is loaded only for --report


class Job(NamedTuple):
    """The checked input of a training run."""

    federation: Federation
    settings: Settings
    stop: Stop
    about: dict[str, str | int]  # entries of settings.toml besides the settings
    measure_every: int | None
    diagnostics: bool
    spill: Path | None
    report: bool


def train(
    source: options.Source,
    rank: options.Rank = 20,
    active: options.Active = None,
    rounds: Annotated[
        int | None,
        Option(help="Number of communication rounds.", show_default=f"{ROUNDS}, or {DP_ROUNDS} with dp"),
    ] = None,
    penalty_users: options.TunedPenaltyUsers = None,
    update: options.Update = None,
    privacy: options.Privacy = "plain",
    min_cohort: options.MinCohort = 10,
    clip: options.Clip = 0.0,
    test: options.Test = "0.2",
    validation: Annotated[
        str, Option(help="Ratings to hold out of the rest for --patience; written like --test.")
    ] = "0",
    unknown_items: options.UnknownItems = "refuse",
    patience: Annotated[
        int | None, Option(help="Stop after this many rounds without a better validation RMSE.")
    ] = None,
    tolerance: Annotated[
        float | None, Option(help="Stop when the primal and the dual residual, relative to V, are below this.")
    ] = None,
    seconds: Annotated[float | None, Option(help="Stop after this many seconds of updates.")] = None,
    diagnostics: Annotated[
        bool, Option("--diagnostics", help="Also record residuals, stationarity and the certificate (slower).")
    ] = False,
    measure_every: Annotated[
        int | None, Option(help="Measure every so many rounds.", show_default="as often as costs little")
    ] = None,
    spill: Annotated[Path | None, Option(help="Keep the clients' states in this folder instead of in memory.")] = None,
    out: Annotated[Path | None, Option(help="Run folder to create.", show_default="runs/TIME")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing run folder.")] = False,
    report: Annotated[bool, Option("--report", help="Also write report.html and figures into the run folder.")] = False,
    as_json: options.AsJson = False,
    *,
    solver: Solver,
    budget: Budget,
    table: Table,
) -> None:  # fmt: skip
    """Train a model over simulated clients and save it in a run folder.

    Ctrl-C stops after the current round and saves the run.
    """
    if rounds is None:
        rounds = modes.parse(privacy, {}).default_rounds
    folder = RunFolder(out, overwrite)
    plan = Plan(
        source, table.names, table.query, table.duplicates, table.catalogue, unknown_items, test, validation,
        table.partition, table.clients, solver.seed,
    )  # fmt: skip
    settings = Settings.preset(
        solver.preset, rank=rank, active=active, penalty_users=penalty_users, update=update, privacy=privacy,
        min_cohort=min_cohort, clip=clip, **solver.settings(), **budget.settings(rounds),
    )  # fmt: skip
    require(measure_every is None or measure_every >= 1, f"measure_every must be at least 1, got {measure_every}")
    stop = Stop(rounds, tolerance, seconds, patience)
    if patience is not None and plan.validation_split is None:
        raise InputError("--patience needs validation ratings: add --validation 0.1")
    federation, settings = _open(plan, settings, active, rounds, spill is not None)
    p = len(federation.shards)
    about: dict[str, str | int] = {"source": without_password(source), "clients": p, "rounds": rounds}
    about |= {"partition": table.partition, "test": test, "validation": validation}
    run, interrupted = _train(Job(federation, settings, stop, about, measure_every, diagnostics, spill, report), folder)
    summary = simulation.summary(run.history) | {
        "clients": p,
        "rank": rank,
        "preset": solver.preset,
        "out": str(folder.path),
    }
    if interrupted or run.diverged is not None:
        summary["stopped"] = "interrupted" if run.diverged is None else "diverged"
    print_summary(summary, folder.path)
    if report:
        typer.echo(f"report in {folder.path / 'report.html'}")
    if as_json:
        typer.echo(to_json(summary))
    if run.diverged is not None:
        raise run.diverged


def _open(plan: Plan, settings: Settings, active: int | None, rounds: int, spill: bool) -> tuple[Federation, Settings]:
    """The clients, and the settings with `active` filled in; all checks run before anything is written."""
    federation = federation_of(plan, settings.dtype)
    if federation.report is not None:
        echo(f"dropped: {federation.report}", err=True)
    settings = set_active(settings, active, len(federation.shards))
    sampler_of(settings, len(federation.shards))
    check_memory(federation, settings, rounds, spill)
    return federation, settings


def _train(job: Job, folder: RunFolder) -> tuple[Run, bool]:
    """Train and write the run into the folder; returns the run and whether Ctrl-C ended it."""
    typer.echo(job.settings.privacy.claim(), err=True)
    with folder.staged() as staged, Interrupt() as interrupt:
        settings = _write_settings(staged, job)
        warm_up(settings, job.federation)
        with rounds_bar(job.stop.rounds) as show:

            def on_round(round: Round) -> None:
                staged.append(round.record())
                show(round)

            run = simulation.train(
                job.federation, settings, replace(job.stop, interrupted=interrupt), measure_every=job.measure_every,
                full=job.diagnostics,
                spill=job.spill, on_round=on_round,
            )  # fmt: skip
        run.model.save(staged.path / "model.npz")
        if job.report:
            resolve(WRITE_REPORT)(staged.path)
    return run, interrupt()


def _write_settings(staged: Staged, job: Job) -> Settings:
    """Write settings.toml, and again after the penalty was tuned; returns the final settings."""
    settings = job.settings
    staged.write_settings({**settings.to_dict(), **job.about})
    if settings.needs_tuning:
        settings = _tune_penalty(job.federation, settings)
        staged.write_settings({**settings.to_dict(), **job.about})
    return settings


def _tune_penalty(federation: Federation, settings: Settings) -> Settings:
    """The settings with the l2 penalty that has the lowest error on ratings that the clients hold out."""
    budget = tuning.Budget()
    each = budget.rounds_of_a_trial(settings, len(federation.shards))
    cost = f"at most {budget.trials} trials of {each} rounds"
    typer.echo(f"tuning the penalty on {budget.share:.0%} of each client's ratings: {cost}", err=True)
    warm_up(settings, federation)
    with trials_bar(budget.trials) as show:
        trials = tuning.choose(federation.shards, settings, budget, on_trial=show)
    best = tuning.best(trials)
    penalty = tuning.in_words(best.weight)
    typer.echo(f"chosen after {len(trials)} trials: {penalty}, validation RMSE {best.validation_rmse:.4f}", err=True)
    return settings.replace(penalty_users=penalty)
