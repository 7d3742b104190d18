"""`fedmc federation train` and `resume`"""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fedmc.algorithms.presets import usual_update
from fedmc.algorithms.settings import Settings
from fedmc.cli import options
from fedmc.cli.echo import echo
from fedmc.cli.federation_progress import RunName, Server, find_run, follow, report, result_of, run_going_on, run_paths
from fedmc.cli.groups import Budget, Solver
from fedmc.cli.lazy import resolve
from fedmc.cli.tracking import Tracking, check, tracked
from fedmc.errors import reason, require
from fedmc.federation.flower import superlink
from fedmc.federation.node import limits
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.server.warm import check_previous, keep
from fedmc.federation.setup import members, request_key
from fedmc.federation.setup.layout import ServerConfig, load_server
from fedmc.federation.wire import RUN, portable
from fedmc.privacy.secagg.rules import cohort_for
from fedmc.training import warm
from fedmc.training.aggregation import check_everybody, is_masked
from fedmc.training.sampling import sampler_of
from fedmc.training.side import used_by

Option = typer.Option
RANK, ROUNDS = 20, 20  # if nothing else is said
WRITE_REPORT = "fedmc.report.federation:write_report"  # imports matplotlib, so it is loaded only at the end of a run
NO_TRACKING = Tracking()
LATEST = "latest"  # of --from: the last finished run
MAX_NAME = 80  # characters of a run's name, which with a random ending must still be a valid id
Detach = Annotated[bool, Option("--detach", help="Return at once instead of waiting for the end.")]


class Order(NamedTuple):
    """The options of a run besides its settings."""

    rounds: int
    quorum: int | None = None  # all active organisations if not given
    patience: float = 300.0  # seconds
    measure_every: int = 1
    name: str | None = None
    start_from: RunFolder | None = None  # the run to go on from


def train(
    server: Server = Path(),
    rank: Annotated[
        int | None, Option(help="Number of factors.", show_default="20, or as in the run of --from")
    ] = None,
    rounds: Annotated[
        int | None,
        Option(help="Number of communication rounds.", show_default=f"{ROUNDS}, or {warm.ROUNDS} with --from"),
    ] = None,
    update: Annotated[
        options.UpdateName | None,
        Option(
            help="How an organisation updates its copy of the item factors.",
            show_default="with preset fast: exact if all organisations take part in each round, else curvature",
        ),
    ] = None,
    penalty_users: options.PenaltyUsers = None,
    active: Annotated[
        int | None, Option(help="Number of organisations sampled in each round.", show_default="all")
    ] = None,
    quorum: Annotated[
        int | None,
        Option(help="Minimum number of organisations that must answer in a round.", show_default="all active ones"),
    ] = None,
    patience: Annotated[float, Option(help="Seconds that a round waits for late organisations.")] = 300,
    measure_every: options.MeasureEvery = 1,
    ranking: options.Ranking = False,
    privacy: options.Privacy = "secagg",
    min_cohort: Annotated[
        int | None,
        Option(
            help="With secagg: minimum number of honest organisations that a sum is taken over.",
            show_default="all but one, but at most 8",
        ),
    ] = None,
    decoys: options.Decoys = 0.0,
    clip: options.Clip = 0.0,
    run: Annotated[str | None, Option(help="Name of the run.", show_default="the time")] = None,
    start_from: Annotated[
        str | None,
        Option(
            "--from",
            metavar="RUN|latest",
            help="Go on from the model of this run, or of the last finished one, with the nodes' data of now.",
        ),
    ] = None,
    unless_running: Annotated[
        bool, Option("--unless-running", help="If a run is going on, do nothing, with exit code 0.")
    ] = False,
    detach: Detach = False,
    as_json: options.AsJson = False,
    *,
    solver: Solver,
    budget: Budget,
    tracking: Tracking,
) -> None:
    """Train over all organisations and show which are online, working or offline. The run continues if you leave."""
    config = load_server(server)
    _check_tracking(tracking, detach)
    p = len(config.organisations)
    going = run_going_on(config)
    if unless_running and going is not None:
        echo(f"nothing to do: run {going} is going on")
        return
    before = None if start_from is None else _previous(config, start_from)
    if rank is None:
        rank = RANK if before is None else before.plan().settings.rank
    if rounds is None:
        rounds = ROUNDS if before is None else warm.ROUNDS
    settings = Settings.preset(
        solver.preset, rank=rank, active=p if active is None else active, update=update, penalty_users=penalty_users,
        privacy=privacy, clip=clip, ranking=ranking, decoys=decoys,
        min_cohort=cohort_for(p) if min_cohort is None else min_cohort,
        **solver.settings(), **budget.settings(rounds),
    )  # fmt: skip
    usual = usual_update(update, settings.preset_name, everybody=active in (None, p), method=solver.method)
    if usual is not None:
        settings = settings.replace(update=usual)
    folder = create_run(config, settings, Order(rounds, quorum, patience, measure_every, run, before))
    start_run(config, folder, detach, as_json, tracking)


def resume(
    server: Server = Path(),
    run: RunName = None,
    detach: Detach = False,
    as_json: options.AsJson = False,
    *,
    tracking: Tracking,
) -> None:
    """Resume a run that was stopped or broke off; the result is the same, bit for bit, as without the break."""
    config = load_server(server)
    _check_tracking(tracking, detach)
    folder = find_run(config, run)
    state = folder.status()["state"]
    require(state != "running", f"run {folder.path.name} is going on: `fedmc federation status` shows it")
    require(state != "diverged", f"run {folder.path.name} diverged: start a new one with other settings")
    request_key.load(config.folder)  # without it, no node would answer
    (folder.path / "stop").unlink(missing_ok=True)
    start_run(config, folder, detach, as_json, tracking)


def _check_tracking(tracking: Tracking, detach: bool) -> None:
    cure = "leave out --detach"
    require(not (tracking.wanted and detach), f"--mlflow logs for as long as the command follows the run: {cure}")
    check(tracking)


def _previous(config: ServerConfig, name: str) -> RunFolder | None:
    """The run of this name; for LATEST the last finished one, or none if there is none."""
    if name != LATEST:
        return find_run(config, name)
    runs = map(RunFolder, reversed(run_paths(config)))
    found = next((run for run in runs if run.status()["state"] == "finished"), None)
    echo(f"going on from run {found.path.name}" if found else "no run is finished yet: training from scratch", err=True)
    return found


def create_run(config: ServerConfig, settings: Settings, order: Order) -> RunFolder:
    """Check everything, then write the run's plan into a new folder."""
    p = len(config.organisations)
    _check_settings(settings, p, order.rounds)
    quorum = _check_order(order, settings, p)
    superlink.control_port(config)
    request_key.load(config.folder)  # without it, no node would answer
    going = run_going_on(config)
    require(going is None, lambda: f"run {going} is going on: `fedmc federation stop` first, or wait")
    name = order.name or datetime.now().strftime("%Y-%m-%d-%H%M%S")
    valid = re.fullmatch(RUN, name) is not None and len(name) <= MAX_NAME
    require(valid, f"--run takes up to {MAX_NAME} letters, digits, - and _, got {name!r}")
    folder = RunFolder(config.runs / name)
    require(not folder.path.exists(), f"there is a run {name} already: choose another name, or `resume` it")
    catalogue, nodes = config.catalogue(), superlink.registered(config)
    before = None if order.start_from is None else order.start_from.path
    if before is not None:
        check_previous(before, catalogue, settings)
    names, listed = list(config.organisations), members.load(config.folder)
    public = tuple(listed.identities) if is_masked(settings.privacy.mode) else ()  # mode: others need no identities
    new = [one for one in names if one not in nodes]
    require(not new, lambda: f"{new[0]} is not registered yet: wait a few seconds, or start the server")
    folder.write_plan(
        RunPlan(
            f"{name}-{secrets.token_hex(4)}", settings, names, [nodes[one] for one in names], catalogue.hash,
            len(catalogue), order.rounds, order.measure_every, order.patience, quorum, public, config.oldest_protocol,
            "" if before is None else before.name, listed.hash,
        )
    )  # fmt: skip
    members.save(folder.path, listed)
    keep(folder.path, catalogue, before)
    for words in filter(None, (settings.privacy.claim(), settings.privacy.promise(len(names)))):
        typer.echo(words, err=True)
    if catalogue.features is not None and catalogue.features.names:
        unused = "" if used_by(settings) else "; not used in this run, they need preset bayes"
        echo(f"features of the catalogue's items: {catalogue.features.summary()}{unused}", err=True)
    return folder


def _check_settings(settings: Settings, organisations: int, rounds: int) -> None:
    """Refuse settings that this federation cannot run."""
    tuned = not settings.needs_tuning
    require(tuned, "--penalty-users auto needs a simulation: run `fedmc tune` on ratings of your own")
    portable(settings)
    sampler_of(settings, organisations)
    measured = "measure" in settings.privacy.tasks or not settings.ranking
    require(measured, f"with privacy={settings.privacy.mode!r} nodes send no measurements: leave out --ranking")
    settings.privacy.check_run(organisations, settings.active, rounds, full=False)
    check_everybody(settings, simulated=False)
    if settings.privacy.failures_tell:
        limits.check_settings(settings)


def _check_order(order: Order, settings: Settings, organisations: int) -> int:
    """Check the numbers of the order; returns the quorum."""
    require(order.name != LATEST, f"--from {LATEST} means the last finished run: choose another name for --run")
    quorum = settings.active if order.quorum is None else order.quorum
    require(order.rounds >= 1, f"--rounds must be at least 1, got {order.rounds}")
    require(order.patience > 0, f"--patience must be above 0, got {order.patience}")
    require(order.measure_every >= 1, f"--measure-every must be at least 1, got {order.measure_every}")
    require(1 <= quorum <= organisations, f"--quorum must be from 1 to {organisations}, got {quorum}")
    return quorum


def start_run(
    config: ServerConfig, folder: RunFolder, detach: bool, as_json: bool, tracking: Tracking = NO_TRACKING
) -> None:
    """Start the run at the server, and show its progress until it ends."""
    name, told, plan = folder.path.name, len(folder.history()), folder.plan()
    with tracked(tracking, name, plan.settings.privacy) as log:
        log.settings(plan.settings.to_dict() | {"rounds": plan.rounds, "organisations": len(plan.organisations)})
        folder.say(state="starting", why="")
        superlink.run(config, folder.path)
        if detach:
            typer.echo(f"run {name} starts; `fedmc federation status {config.folder}` shows its progress")
            return
        try:
            follow(folder, told, on_history=log.history)
        except KeyboardInterrupt:
            typer.echo(f"run {name} continues without you; `fedmc federation stop {config.folder}` stops it", err=True)
            raise typer.Exit(130) from None
        _write_page(folder)
        log.end(result_of(folder), [folder.path / "report.html"])
        report(folder, as_json)


def _write_page(folder: RunFolder) -> None:
    """Write the run's report.html, to which the operator's page links; a run whose report fails is no less finished."""
    try:
        if folder.history():
            echo(f"report in {resolve(WRITE_REPORT)(folder.path)}", err=True)
    except Exception as error:
        cure = f"`fedmc report {folder.path}` tries again"
        echo(f"the report of run {folder.path.name} was not written: {reason(error)}; {cure}", err=True)
