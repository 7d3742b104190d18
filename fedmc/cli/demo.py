"""`fedmc demo`: federated training on real ratings, compared with the alternatives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.algorithms.settings import Settings
from fedmc.cli.display import print_table, print_text
from fedmc.cli.runs import RunFolder
from fedmc.cli.simulate import rounds_bar, warm_up
from fedmc.data import datasets
from fedmc.data.partition import Federation, assign_users, make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random as split
from fedmc.evaluation import coverage
from fedmc.evaluation.coverage import Calibration
from fedmc.evaluation.pooled import alone_rmse, bias_rmse, pooled_rmse
from fedmc.model import Model
from fedmc.report.run import write_report
from fedmc.training import simulation
from fedmc.training.simulation import Run
from fedmc.training.stopping import Stop

CLIENTS, ACTIVE, ROUNDS, RANK = 20, 10, 20, 20
LEVEL = 0.9  # of the intervals
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
    federation = Federation(make_shards(train, owner, settings.dtype, test), train.users, train.items)
    typer.echo(settings.privacy.claim(), err=True)
    warm_up(settings, federation)
    with rounds_bar(ROUNDS) as show:
        run = simulation.train(federation, settings, Stop(ROUNDS), measure_every=1, on_round=show)
    least_squares = Settings.preset("fast", rank=RANK, active=ACTIVE, seed=seed, dtype="float32")
    others = {
        "biases only, pooled": bias_rmse(train, test),
        "each client alone": alone_rmse(train, test, owner, least_squares),
        "pooled ALS, to convergence": pooled_rmse(train, test, least_squares),
    }
    intervals = coverage.calibration(run.model, coverage.entries_of(test))
    assert intervals is not None  # the model is Bayesian, and a fifth of the ratings is held out
    _save(folder, settings, run, others, intervals)
    federated = simulation.summary(run.history)
    leaves = ("every rating", "nothing", "every rating")
    rows = [(name, what, rmse) for (name, rmse), what in zip(others.items(), leaves, strict=True)]
    sent = f"updates, {federated['bytes_up'] / 1e6:.0f} MB"
    rows.insert(2, (f"fedmc, {ROUNDS} rounds", sent, federated["test_rmse"]))
    _print_result(ratings, rows)
    print_text(_intervals_in_words(run.model, intervals))
    print_text(f"report in {out / 'report.html'}: open it in a browser")
    print_text(f"model saved in {out}: try  fedmc recommend {out} {USER}")


def _save(folder: RunFolder, settings: Settings, run: Run, others: dict[str, float], intervals: Calibration) -> None:
    """Write the run folder, with a report that also shows the alternatives."""
    about: dict[str, str | int] = {"source": "demo", "clients": CLIENTS, "rounds": ROUNDS, "test": "0.2"}
    with folder.staged() as staged:
        staged.write_settings({**settings.to_dict(), **about})
        for round in run.history:
            staged.append(round.record())
        run.model.save(staged.path / "model.npz")
        coverage.save(intervals, staged.path)
        write_report(staged.path, others)


def _print_result(ratings: Ratings, rows: list[tuple[str, str, float]]) -> None:
    title = f"{ratings}, {CLIENTS} clients, 20 % held out, rank {RANK}"
    columns = "method", "what leaves a client", "test RMSE (stars)"
    print_table(title, columns, [(name, leaves, f"{rmse:.4f}") for name, leaves, rmse in rows])
    alone, federated, pooled = rows[1][2], rows[2][2], rows[3][2]
    side = "below" if federated < alone else "above"
    against = f"{abs(federated / pooled - 1):.1%} {'below' if federated < pooled else 'above'}"
    print_text(
        f"Training together without sharing a rating gives an error {abs(1 - federated / alone):.1%} {side} that of "
        f"each client alone, and {against} that of least squares on pooled data. "
        "Only updates travelled; user factors and ratings stayed where they were."
    )


def _intervals_in_words(model: Model, intervals: Calibration) -> str:
    """What the intervals hold, and one of them as an example."""
    found = intervals.at(LEVEL)
    (rating,), (low,), (high,) = model.interval(USER, FILM, LEVEL)
    return (
        f"{found.in_words()}; they are {found.width:.1f} stars wide on average. For example, user {USER} would rate "
        f"film {FILM} {rating:.1f} ({low:.1f} to {high:.1f} with {100 * LEVEL:.0f} % probability)."
    )
