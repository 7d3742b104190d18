"""`fedmc demo`: federated training on real ratings, compared with the alternatives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from fedmc.algorithms.settings import Settings
from fedmc.cli.display import print_table, print_text, progress_bar
from fedmc.cli.runs import RunFolder
from fedmc.cli.simulate import rounds_bar, warm_up
from fedmc.data import counts, datasets
from fedmc.data.partition import Federation, assign_users, make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random as split
from fedmc.evaluation import baselines, coverage
from fedmc.evaluation.baselines import Baselines
from fedmc.evaluation.coverage import Calibration
from fedmc.model import Model
from fedmc.report.run import write_report
from fedmc.training import simulation
from fedmc.training.simulation import Run
from fedmc.training.stopping import Stop

CLIENTS, ACTIVE, ROUNDS, RANK = 20, 10, 20, 20
LEVEL = 0.9  # of the intervals
WITHIN = 0.001  # part of an error that is no difference
USER, FILM = 1, 318  # of the example: this user has not rated this film


def demo(
    seed: Annotated[int, typer.Option(help="Random seed of the split, the clients and the start.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for model and report; an earlier run there is replaced.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train on 100,004 real film ratings spread over 20 clients, and compare with the alternatives."""
    folder = RunFolder(out, overwrite=True)
    ratings = datasets.demo()
    train, test = split(ratings, 0.2, seed)
    owner = assign_users(len(ratings.users), CLIENTS, seed)
    settings = Settings.preset("bayes", rank=RANK, active=ACTIVE, seed=seed, dtype="float32")
    shards, table = make_shards(train, owner, settings.dtype, test), datasets.titles_of("demo")
    federation = Federation(shards, train.users, train.items, item_table=table)
    typer.echo(settings.privacy.claim(), err=True)
    warm_up(settings, federation)
    with rounds_bar(ROUNDS) as show:
        run = simulation.train(federation, settings, Stop(ROUNDS), measure_every=1, on_round=show)
    beside = compared(run.model, federation)
    intervals = coverage.calibration(run.model, coverage.entries_of(test))
    assert intervals is not None  # the model is Bayesian, and a fifth of the ratings is held out
    _save(folder, settings, run, federation, (intervals, beside))
    federated = simulation.summary(run.history)
    known, sent = beside.values(), f"updates, {federated['bytes_up'] / 1e6:.0f} MB"
    rows = [
        ("biases only, pooled", "every rating", known["biases"]),
        ("each client alone", "nothing", known["alone"]),
        (f"fedmc, {ROUNDS} rounds", sent, federated["test_rmse"]),
        ("the same model, pooled", "every rating", known["pooled"]),
    ]
    _print_result(ratings, rows)
    print_text(_intervals_in_words(run.model, intervals))
    print_text(f"report in {out / 'report.html'}: open it in a browser")
    print_text(f"model saved in {out}: try  fedmc recommend {out} {USER}")


def compared(model: Model, federation: Federation) -> Baselines:
    """The same model for each client alone, and for all ratings in one place, with a progress bar."""
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("baselines", total=CLIENTS + 1)
        step = lambda name: bar.update(task, advance=1, description=name)  # noqa: E731
        found = baselines.compute(model, federation, ROUNDS, on_step=step)
    assert found is not None  # a fifth of the ratings is held out
    return found


def _save(
    folder: RunFolder, settings: Settings, run: Run, federation: Federation, measured: tuple[Calibration, Baselines]
) -> None:
    """Write the run folder, with a report that also shows the alternatives."""
    about: dict[str, str | int] = {"source": "demo", "clients": CLIENTS, "rounds": ROUNDS, "test": "0.2"}
    with folder.staged() as staged:
        staged.write_settings({**settings.to_dict(), **about})
        for round in run.history:
            staged.append(round.record())
        run.model.save(staged.path / "model.npz")
        counts.save(counts.of(federation, events=False), staged.path)
        coverage.save(measured[0], staged.path)
        baselines.save(measured[1], staged.path)
        write_report(staged.path)


def _print_result(ratings: Ratings, rows: list[tuple[str, str, float]]) -> None:
    title = f"{ratings}, {CLIENTS} clients, 20 % held out, rank {RANK}"
    columns = "method", "what leaves a client", "test RMSE (stars)"
    print_table(title, columns, [(name, leaves, f"{rmse:.4f}") for name, leaves, rmse in rows])
    alone, federated, pooled = rows[1][2], rows[2][2], rows[3][2]
    print_text(
        f"Training together without sharing a rating gives an error {_beside(federated, alone)} that of each client "
        f"alone, and {_beside(federated, pooled)} that of the same model on pooled data. "
        "Only updates travelled; user factors and ratings stayed where they were."
    )


def _beside(error: float, other: float) -> str:
    """How an error compares with another, in words that go before it."""
    change = error / other - 1
    if abs(change) < WITHIN:
        return f"within {WITHIN:.1%} of"
    return f"{abs(change):.1%} {'below' if change < 0 else 'above'}"


def _intervals_in_words(model: Model, intervals: Calibration) -> str:
    """What the intervals hold, and one of them as an example."""
    found = intervals.at(LEVEL)
    (rating,), (low,), (high,) = model.interval(USER, FILM, LEVEL)
    return (
        f"{found.in_words()}; they are {found.width:.1f} stars wide on average. For example, user {USER} would rate "
        f"film {FILM} {rating:.1f} ({low:.1f} to {high:.1f} with {100 * LEVEL:.0f} % probability)."
    )
