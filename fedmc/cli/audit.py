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
from fedmc.cli.parsing import parse_beta, parse_dp, parse_names
from fedmc.cli.runs import to_json
from fedmc.cli.simulate import check_memory, set_active, warm_up
from fedmc.data.partition import Shard
from fedmc.data.prepare import Plan, federation_of
from fedmc.data.readers.databases import without_password
from fedmc.report.audit import AuditRecord, write_report

Option = typer.Option
HEADINGS = ("the server wants to know", "it sees", "attack", "guess", "advantage")


def audit(
    source: options.Source,
    privacy: Annotated[
        str, Option(help="Privacy mode: plain, secagg, dp or dp+secagg; several separated by commas.")
    ] = "plain",
    rank: options.Rank = 10,
    clients: options.Clients = 10,
    active: options.Active = None,
    rounds: Annotated[int, Option(help="Number of communication rounds that the server observes.")] = 10,
    targets: Annotated[int, Option(help="Number of clients to attack, of those in the first round.")] = 10,
    min_cohort: options.MinCohort = 10,
    epsilon: options.Epsilon = 10.0,
    delta: options.Delta = 1e-6,
    ratings: options.RatingRange = "1,5",
    preset: options.Preset = "fast",
    penalty_users: options.PenaltyUsers = None,
    penalty_items: options.PenaltyItems = None,
    beta: options.Beta = None,
    inner_steps: options.InnerSteps = None,
    method: options.Method = None,
    loss: options.Loss = None,
    update: options.Update = None,
    sampler: options.Sampler = None,
    normalise: options.Normalise = None,
    dtype: options.Dtype = "float64",
    test: Annotated[str, Option(help="Ratings to hold out as in `train`; they are not attacked.")] = "0",
    partition: options.Partition = "uniform",
    catalogue: options.Catalogue = None,
    query: options.Query = None,
    columns: options.Columns = None,
    duplicates: options.Duplicates = "refuse",
    seed: options.Seed = 0,
    out: Annotated[Path | None, Option(help="Folder for audit.json and audit.html; may be a run folder.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Attack the messages that these settings would send, and report what a curious server finds out.

    Nothing leaves this machine: the clients are simulated, and the attacker is this command. Give it the settings
    that you intend to train with.
    """
    plan = Plan(
        source, parse_names(columns), query, duplicates, catalogue, split=test, partition=partition, clients=clients,
        seed=seed,
    )  # fmt: skip
    made = [
        Settings.preset(
            preset, rank=rank, active=active, method=method, beta=parse_beta(beta), loss=loss,
            penalty_users=penalty_users, penalty_items=penalty_items, inner_steps=inner_steps, update=update,
            sampler=sampler, normalise=normalise, dtype=dtype, seed=seed, privacy=mode, min_cohort=min_cohort,
            **parse_dp(epsilon, delta, ratings, max(rounds, 2)),
        )
        for mode in privacy.split(",")
    ]  # fmt: skip
    federation = federation_of(plan, dtype)
    made = [set_active(settings, active, len(federation.shards)) for settings in made]
    check_memory(federation, made[0], rounds)
    warm_up(made[0], federation)
    found = {settings.privacy.mode: _attack(federation.shards, settings, rounds, targets) for settings in made}
    for mode, findings in found.items():
        _print_findings(mode, findings)
    about = {"source": without_password(source), "clients": len(federation.shards), "rounds": rounds}
    record: AuditRecord = {
        "settings": about | {"partition": partition} | made[0].to_dict() | {"privacy": privacy},
        "modes": {mode: [one.record() for one in findings] for mode, findings in found.items()},
    }
    if out is not None:
        print_text(f"audit saved in {write_report(out, record)}")
    if as_json:
        typer.echo(to_json(record))


def _attack(shards: Sequence[Shard], settings: Settings, rounds: int, targets: int) -> list[Finding]:
    with progress_bar() as bar:
        task = bar.add_task(settings.privacy.mode, total=None)

        def on_step(step: str) -> None:
            bar.update(task, description=f"{settings.privacy.mode}: {step}")

        return attacks.audit(shards, settings, number=rounds, targets=targets, on_step=on_step)


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
