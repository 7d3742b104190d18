"""`fedmc audit`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedmc.algorithms.settings import Settings
from fedmc.audit import audit as attacks
from fedmc.audit.results import Finding, summary
from fedmc.cli import options
from fedmc.cli.display import print_table, print_text, progress_bar
from fedmc.cli.echo import tell
from fedmc.cli.feedback import check_fits, decide, preset_of, wanted_by
from fedmc.cli.groups import Budget, Events, Form, Solver, Table
from fedmc.cli.runs import to_json
from fedmc.cli.simulate import check_memory, set_active, warm_up
from fedmc.data.addresses import without_password
from fedmc.data.partition import Shard
from fedmc.data.prepare import Plan, federation_of
from fedmc.report.audit import AuditRecord, write_report
from fedmc.training.engines import Local

Option = typer.Option
HEADINGS = ("the server wants to know", "it sees", "attack", "guess", "advantage")


def audit(
    source: options.Source,
    privacy: Annotated[
        str, Option(help="Privacy mode: plain, secagg, dp or dp+secagg; several separated by commas.")
    ] = "plain",
    rank: options.Rank = 20,
    active: options.Active = None,
    rounds: Annotated[int, Option(help="Number of communication rounds that the server observes.")] = 10,
    targets: Annotated[int, Option(help="Number of clients to attack, of those in the first round.")] = 10,
    absences: Annotated[
        int, Option(help="With secagg: also attack a run in which each client misses this many of its rounds.")
    ] = 0,
    min_cohort: options.MinCohort = 8,
    decoys: options.Decoys = 0.0,
    penalty_users: options.PenaltyUsers = None,
    update: options.Update = None,
    test: Annotated[str, Option(help="Ratings to hold out as in `train`; they are not attacked.")] = "0",
    out: Annotated[Path | None, Option(help="Folder for audit.json and audit.html; may be a run folder.")] = None,
    as_json: options.AsJson = False,
    *,
    solver: Solver,
    budget: Budget,
    table: Table,
    form: Form,
    events: Events,
) -> None:
    """Attack the messages that these settings would send, and report what a curious server finds out.

    Nothing leaves this machine: the clients are simulated, and the attacker is this command. Give it the settings
    that you intend to train with.
    """
    plan = Plan(
        source, table.names, table.query, table.duplicates, table.catalogue, split=test, partition=table.partition,
        clients=table.clients, seed=solver.seed, wide=form.chosen(),
    )  # fmt: skip
    decided = decide(plan, events, wanted_by(events, solver.preset, solver.method))
    preset = preset_of(decided, solver.preset)
    made = [
        Settings.preset(
            preset, rank=rank, active=active, penalty_users=penalty_users, update=update, privacy=mode,
            min_cohort=min_cohort, decoys=decoys, **solver.settings(), **budget.settings(max(rounds, 2)),
        )
        for mode in privacy.split(",")
    ]  # fmt: skip
    for settings in made:
        check_fits(settings, decided)
    federation = federation_of(decided.plan, solver.dtype, decided.ratings)
    tell(federation.notes)
    made = [set_active(settings, active, len(federation.shards)) for settings in made]
    check_memory(federation, made[0], rounds, Local())
    warm_up(made[0], federation)
    found = {
        settings.privacy.mode: _attack(federation.shards, settings, rounds, targets, absences) for settings in made
    }
    for mode, findings in found.items():
        _print_findings(mode, findings)
    about = {"source": without_password(source), "clients": len(federation.shards), "rounds": rounds}
    record: AuditRecord = {
        "settings": about | {"partition": table.partition} | made[0].to_dict() | {"privacy": privacy},
        "modes": {mode: [one.record() for one in findings] for mode, findings in found.items()},
    }
    if out is not None:
        print_text(f"audit saved in {write_report(out, record)}")
    if as_json:
        typer.echo(to_json(record))


def _attack(shards: Sequence[Shard], settings: Settings, rounds: int, targets: int, absences: int) -> list[Finding]:
    with progress_bar() as bar:
        task = bar.add_task(settings.privacy.mode, total=None)

        def on_step(step: str) -> None:
            bar.update(task, description=f"{settings.privacy.mode}: {step}")

        return attacks.audit(shards, settings, number=rounds, targets=targets, absences=absences, on_step=on_step)


def _print_findings(mode: str, findings: list[Finding]) -> None:
    rows = [
        (one.what, one.sees, f"{one.attack:.4f}", "–" if one.guess is None else f"{one.guess:.4f}",
         f"{one.advantage:+.4f}")
        for one in findings
    ]  # fmt: skip
    print_table(f"privacy={mode}", HEADINGS, rows)
    details = (f"- {one.what}, from {one.sees}: {one.meaning}" for one in findings)
    for sentence in (*summary(mode, findings), *details):
        print_text(sentence)
