"""`fedmc audit`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmc.cli.data import PARTITIONS
from fedmc.cli.display import bar_of, print_table, say, warm_up
from fedmc.cli.train import PENALTIES, budget, number, share

Option = typer.Option


def audit(
    source: Annotated[str, typer.Argument(help="Whatever `train` takes, or like:ml-1m, made up.")],
    privacy: Annotated[str, Option(help="plain, secagg, dp or dp+secagg; several with commas.")] = "plain",
    rank: Annotated[int, Option(help="Number of factors.")] = 10,
    clients: Annotated[int, Option(help="Simulated clients that the users are spread over.")] = 10,
    active: Annotated[int | None, Option(help="Clients a round; all, but at most 10, if not given.")] = None,
    rounds: Annotated[int, Option(help="Communication rounds that the server listens to.")] = 10,
    targets: Annotated[int, Option(help="Clients to attack, of those in the first round.")] = 10,
    min_cohort: Annotated[int, Option(help="With secagg: a client hides among at least so many.")] = 10,
    epsilon: Annotated[float, Option(help="With dp: the budget of each user over all rounds.")] = 10.0,
    delta: Annotated[float, Option(help="With dp: below one over the number of users.")] = 1e-6,
    ratings: Annotated[str, Option(help="With dp: the public range of ratings, LOW,HIGH.")] = "1,5",
    preset: Annotated[str, Option(help="fast, or paper: FedMC-ADMM as published.")] = "fast",
    penalty_users: Annotated[str | None, Option(help=f"{PENALTIES}; a + adds.")] = None,
    penalty_items: Annotated[str | None, Option(help="As for users; auto: the users', over the clients.")] = None,
    beta: Annotated[str | None, Option(help="How tightly clients are tied to the shared items, or auto.")] = None,
    inner_steps: Annotated[int | None, Option(help="Steps of each half in a client's round (the paper's N).")] = None,
    method: Annotated[str | None, Option(help="fedmc, fedmavg, fedmgs, fedavg, fedprox or scaffold.")] = None,
    loss: Annotated[str | None, Option(help="square, huber[:DELTA] or logistic.")] = None,
    update: Annotated[str | None, Option(help="linearised, exact or curvature.")] = None,
    sampler: Annotated[str | None, Option(help="uniform, coins, groups or passes.")] = None,
    normalise: Annotated[str | None, Option(help="none, mean or standard.")] = None,
    dtype: Annotated[str, Option(help="float32 or float64.")] = "float64",
    test: Annotated[str, Option(help="Held out as in `train`, and not attacked.")] = "0",
    partition: Annotated[str, Option(help=f"Who is whose user: {PARTITIONS}.")] = "uniform",
    catalogue: Annotated[Path | None, Option(help="The agreed items.")] = None,
    query: Annotated[str | None, Option(help="With a database: the query that gives user, item and rating.")] = None,
    columns: Annotated[str | None, Option(help="Names of the user, item and rating columns, with commas.")] = None,
    duplicates: Annotated[Any, Option(help="A pair that comes twice: refuse, last or mean.", parser=str)] = "refuse",
    seed: Annotated[int, Option(help="Same seed, same clients and messages.")] = 0,
    out: Annotated[Path | None, Option(help="Folder for audit.json and audit.html; may be a run's.")] = None,
    as_json: Annotated[bool, Option("--json", help="End with one line of JSON.")] = False,
) -> None:  # fmt: skip
    """Attack the messages that these settings would really send, and say what a curious server finds out.

    Nothing leaves this machine: the clients are simulated, the attacker is this command. Give it the settings that you
    mean to train with.
    """
    from fedmc.algorithms.settings import Settings
    from fedmc.cli.runs import to_json
    from fedmc.data.prepare import Plan, federation_of
    from fedmc.data.readers.databases import without_password
    from fedmc.report.audit import write_report
    from fedmc.training import memory

    names = tuple(columns.split(",")) if columns else None
    plan = Plan(
        source, names, query, duplicates, catalogue, split=share(test), partition=partition, clients=clients, seed=seed
    )
    made = [
        Settings.preset(
            preset, rank=rank, active=active, method=method, beta=number(beta), loss=loss, penalty_users=penalty_users,
            penalty_items=penalty_items, inner_steps=inner_steps, update=update, sampler=sampler, normalise=normalise,
            dtype=dtype, seed=seed, privacy=mode, min_cohort=min_cohort,
            **budget(mode, epsilon, delta, ratings, max(rounds, 2)),
        )
        for mode in privacy.split(",")
    ]  # fmt: skip
    federation = federation_of(plan, dtype)
    p = len(federation.shards)
    usual = {True: p, False: min(p, 10)}
    made = [settings.replace(active=usual[settings.private] if active is None else active) for settings in made]
    word = memory.check(federation.shards, made[0], rounds, False)
    if word is not None:
        typer.echo(word, err=True)
    warm_up(made[0], federation)
    done = {settings.privacy: _run(federation.shards, settings, rounds, targets) for settings in made}
    for mode, found in done.items():
        _show(mode, found)
    settings = made[0].to_dict() | {"privacy": privacy}
    said = {"source": without_password(source), "clients": p, "rounds": rounds, "partition": partition} | settings
    record = {"settings": said, "modes": {mode: [one.record() for one in found] for mode, found in done.items()}}
    if out is not None:
        say(f"audit kept in {write_report(out, record)}")
    if as_json:
        typer.echo(to_json(record))


def _run(shards: Any, settings: Any, rounds: int, targets: int) -> Any:
    from fedmc.audit.audit import audit

    with bar_of() as bar:
        task = bar.add_task(settings.privacy, total=None)
        return audit(
            shards, settings, number=rounds, targets=targets,
            on_step=lambda words: bar.update(task, description=f"{settings.privacy}: {words}"),
        )  # fmt: skip


def _show(mode: str, found: Any) -> None:
    from fedmc.audit.results import summary

    rows = [
        (one.what, one.sees, f"{one.attack:.4f}", "–" if one.guess is None else f"{one.guess:.4f}",
         f"{one.advantage:+.4f}")
        for one in found
    ]  # fmt: skip
    print_table(f"privacy={mode}", ("the server wants to know", "it sees", "attack", "guess", "advantage"), rows)
    for sentence in (*summary(mode, found), *(f"- {one.what}, from {one.sees}: {one.meaning}" for one in found)):
        say(sentence)
