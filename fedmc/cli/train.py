"""`fedmc train`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.settings import Settings
from fedmc.cli import options
from fedmc.cli.ablation import ablate
from fedmc.cli.as_before import as_before
from fedmc.cli.baselines import Compared, compared_with
from fedmc.cli.choosing import choose_rank, parse_rank, tune_penalty
from fedmc.cli.echo import echo, tell
from fedmc.cli.feedback import Decided, check_fits, decide, preset_of, wanted_by
from fedmc.cli.groups import Budget, Carrier, Events, Form, Reporting, Side, Solver, Table
from fedmc.cli.lazy import resolve
from fedmc.cli.objectives import ObjectivesFile, fitting, read_objectives
from fedmc.cli.runs import RunFolder, Staged, model_path
from fedmc.cli.simulate import Interrupt, check_memory, rounds_bar, set_active, warm_up
from fedmc.cli.tracking import Log, Tracking, tracked
from fedmc.cli.trained import Done, tell_done
from fedmc.data import counts
from fedmc.data.addresses import without_password
from fedmc.data.partition import Federation
from fedmc.data.prepare import Plan, federation_of
from fedmc.errors import require
from fedmc.evaluation import coverage, final
from fedmc.evaluation.baselines import Baselines
from fedmc.model import Model, load
from fedmc.privacy import modes
from fedmc.privacy.protocol import DP_ROUNDS, ROUNDS
from fedmc.training import ablation, ranks, simulation, warm
from fedmc.training.ablation import Variant
from fedmc.training.engines import EngineChoice, chosen_engine, engine_of
from fedmc.training.ranks import Rank
from fedmc.training.rounds import Round
from fedmc.training.sampling import sampler_of
from fedmc.training.side import usable
from fedmc.training.simulation import Run
from fedmc.training.stopping import Stop

Option = typer.Option
POPULAR = "test_popular_ndcg_20"  # measured in training if the server knows which items are popular
LOGGED = ("report.html", "settings.toml", "history.jsonl")  # files of a run that MLflow gets: nothing about users
WRITE_REPORT = "fedmc.report.run:write_report"  # imports matplotlib, so it is loaded only for --report


class Job(NamedTuple):
    """The checked input of a training run."""

    federation: Federation
    settings: Settings
    rank: Rank
    stop: Stop
    about: dict[str, str | int]  # entries of settings.toml besides the settings
    measure_every: int | None
    diagnostics: bool
    reporting: Reporting
    ablation: bool
    start_from: Model | None
    objectives: dict[int, Objective]
    engine: EngineChoice


def train(
    source: options.Source,
    rank: options.FoundRank = "20",
    active: options.Active = None,
    rounds: Annotated[
        int | None,
        Option(
            help="Number of communication rounds.",
            show_default=f"{ROUNDS}, {DP_ROUNDS} with dp, {warm.ROUNDS} with --from",
        ),
    ] = None,
    penalty_users: options.TunedPenaltyUsers = None,
    objectives: ObjectivesFile = None,
    update: options.Update = None,
    privacy: options.Privacy = "plain",
    min_cohort: options.MinCohort = 8,
    decoys: options.Decoys = 0.0,
    clip: options.Clip = 0.0,
    test: Annotated[
        str,
        Option(
            help=f"Ratings or events to hold out for testing: {options.SPLITS}; users:S holds out a share of the users "
            "and folds them in after training; 0 for none."
        ),
    ] = "0.2",
    validation: Annotated[
        str, Option(help="Ratings to hold out of the rest for --patience; written like --test.")
    ] = "0",
    unknown_items: options.UnknownItems = "refuse",
    patience: Annotated[
        int | None,
        Option(help="Stop after this many rounds without a better validation RMSE; with events, NDCG@10."),
    ] = None,
    tolerance: Annotated[
        float | None, Option(help="Stop when the primal and the dual residual, relative to V, are below this.")
    ] = None,
    seconds: Annotated[float | None, Option(help="Stop after this many seconds of updates.")] = None,
    ranking: options.Ranking = False,
    diagnostics: Annotated[
        bool, Option("--diagnostics", help="Also record residuals, stationarity, certificate and rate (slower).")
    ] = False,
    measure_every: Annotated[
        int | None, Option(help="Measure every so many rounds.", show_default="as often as costs little")
    ] = None,
    spill: Annotated[Path | None, Option(help="Keep the clients' states in this folder instead of in memory.")] = None,
    start_from: Annotated[
        Path | None,
        Option(
            "--from", metavar="RUN",
            help="Go on from the model of this run folder. SOURCE holds all ratings, old and new.",
        ),
    ] = None,
    out: Annotated[Path | None, Option(help="Run folder to create.", show_default="runs/TIME")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing run folder.")] = False,
    ablated: Annotated[
        bool,
        Option(
            "--ablation",
            help="Also find out what each part of the model is worth: short runs without it, validated on a tenth of "
            "each client's ratings.",
        ),
    ] = False,
    as_json: options.AsJson = False,
    *,
    solver: Solver,
    budget: Budget,
    table: Table,
    form: Form,
    side: Side,
    events: Events,
    reporting: Reporting,
    tracking: Tracking,
    carrier: Carrier,
) -> None:  # fmt: skip
    """Train a model over simulated clients and save it in a run folder.

    Ctrl-C stops after the current round and saves the run.
    """
    trained = None if start_from is None else load(model_path(start_from))
    if rounds is None:
        rounds = modes.parse(privacy, {}).default_rounds if trained is None else warm.ROUNDS
    rank, solver = as_before(trained, rank, solver)
    engine = engine_of(chosen_engine(**vars(carrier)), spill)
    folder = RunFolder(out, overwrite)
    plan = side.added_to(Plan(
        source, table.names, table.query, table.duplicates, table.catalogue, unknown_items, test, validation,
        table.partition, table.clients, solver.seed, wide=form.chosen(),
    ))  # fmt: skip
    wanted = parse_rank(rank)
    decided = decide(plan, events, wanted_by(events, solver.preset, solver.method))
    preset = preset_of(decided, fitting(solver.preset, diagnostics or tolerance is not None, objectives))
    settings = Settings.preset(
        preset, rank=ranks.first(wanted), active=active, penalty_users=penalty_users, update=update, privacy=privacy,
        min_cohort=min_cohort, decoys=decoys, clip=clip, ranking=ranking,
        **solver.settings(), **budget.settings(rounds),
    )  # fmt: skip
    _check(settings, decided, wanted, ablated, trained)
    decided = decided._replace(plan=decided.plan._replace(titles_only=usable(settings, decided.plan.side).titles_only))
    _check_plan(plan, patience, measure_every)
    federation, settings = _open(decided, settings, active, rounds, engine)
    about: dict[str, str | int] = {"source": without_password(source), "clients": len(federation.shards)}
    about |= {"rounds": rounds, "partition": table.partition, "test": test, "validation": validation}
    about |= side.settings() | _about_events(events, federation) | reporting.settings()
    about |= {name: str(path) for name, path in (("start_from", start_from), ("objectives", objectives)) if path}
    own = read_objectives(objectives, federation, settings)
    how = measure_every, diagnostics, reporting, ablated, trained, own, engine
    job = Job(federation, settings, wanted, Stop(rounds, tolerance, seconds, patience), about, *how)
    with tracked(tracking, folder.path.name, settings.privacy) as log:
        done = _train(job, folder, log)
        log.end(done.summary(), [folder.path / name for name in LOGGED])
        tell_done(done, folder.path, reporting.report, as_json)
        if done.run.diverged is not None:
            raise done.run.diverged


def _check_plan(plan: Plan, patience: int | None, measure_every: int | None) -> None:
    """Refuse a patience without anything to validate on, and measurements every zero rounds."""
    require(measure_every is None or measure_every >= 1, f"measure_every must be at least 1, got {measure_every}")
    known = patience is None or plan.validation_split is not None
    require(known, "--patience needs validation ratings: add --validation 0.1")


def _check(settings: Settings, decided: Decided, rank: Rank, ablated: bool, trained: Model | None) -> None:
    """Refuse settings that do not fit the data, what was asked for, or the model to go on from."""
    if rank == ranks.AUTO:
        ranks.check(settings)
    check_fits(settings, decided)
    if trained is not None:
        warm.check(trained.settings, settings)
    if ablated:
        ablation.check(settings)


def _about_events(events: Events, federation: Federation) -> dict[str, str]:
    """How events were read, for settings.toml; nothing of ratings."""
    scale = federation.confidence_scale
    return {} if scale is None else {"feedback": "implicit", "confidence_scale": scale} | events.settings()


def _open(
    decided: Decided, settings: Settings, active: int | None, rounds: int, engine: EngineChoice
) -> tuple[Federation, Settings]:
    """The clients, and the settings with `active` filled in; all checks run before anything is written."""
    federation = federation_of(decided.plan, settings.dtype, decided.ratings)
    if federation.report is not None:
        echo(f"dropped: {federation.report}", err=True)
    tell(federation.notes)
    settings = set_active(settings, active, len(federation.shards))
    sampler_of(settings, len(federation.shards))
    check_memory(federation, settings, rounds, engine)
    return federation, settings


def _train(job: Job, folder: RunFolder, log: Log) -> Done:
    """Train and write the run into the folder."""
    typer.echo(job.settings.privacy.claim(), err=True)
    with folder.staged() as staged, Interrupt() as interrupt:
        settings = _write_settings(staged, job)
        log.settings({**settings.to_dict(), **job.about})
        warm_up(settings, job.federation)
        with rounds_bar(job.stop.rounds) as show:

            def on_round(round: Round) -> None:
                line = round.record()
                staged.append(line)
                log.round(line)
                show(round)

            run = simulation.train(
                job.federation, settings, replace(job.stop, interrupted=interrupt), measure_every=job.measure_every,
                full=job.diagnostics,
                engine=job.engine, on_round=on_round, start_from=job.start_from, objectives=job.objectives,
            )  # fmt: skip
        run.model.save(staged.path / "model.npz")
        intervals = coverage.calibration(run.model, coverage.held_out_of(job.federation))
        if intervals is not None:
            coverage.save(intervals, staged.path)
        measured = run.history[-1].diagnostics.ranking or {}
        ranking = {} if POPULAR in measured else final.final_ranking(run.model, job.federation)
        if ranking:
            final.save(ranking, staged.path)
        counts.save(counts.of(job.federation, run.model.settings.make_algorithm().of_events), staged.path)
        beside = _beside(run, job, staged.path, interrupt)
        ended, worth = interrupt(), list[Variant]()
        if job.ablation and not ended and run.diverged is None:
            worth = ablate(job.federation, settings, staged.path, interrupt)
        if job.reporting.report:
            resolve(WRITE_REPORT)(staged.path)
    return Done(run, ended, intervals, worth, ranking, beside)


def _beside(run: Run, job: Job, folder: Path, interrupt: Interrupt) -> Baselines | None:
    """The baselines of a run that ended; a client alone has no model to go on from, so it gets all rounds."""
    if run.diverged is not None:
        return None
    rounds = job.stop.rounds if job.start_from is None else max(job.stop.rounds, ROUNDS)
    compared = Compared(run.model, job.federation, rounds, job.objectives)
    return compared_with(compared, folder, job.reporting.baselines, interrupt)


def _write_settings(staged: Staged, job: Job) -> Settings:
    """Write settings.toml, and again after rank or penalty were chosen; returns the final settings."""
    settings = job.settings
    staged.write_settings({**settings.to_dict(), **job.about})
    if job.rank == ranks.AUTO:
        settings = choose_rank(job.federation, settings)
        check_memory(job.federation, settings, job.stop.rounds, job.engine)
    if settings.needs_tuning:
        settings = tune_penalty(job.federation, settings)
    if settings is not job.settings:
        staged.write_settings({**settings.to_dict(), **job.about})
    return settings
