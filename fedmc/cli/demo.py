"""`fedmc demo`: the product's main job on real ratings, beside what one would do without it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedmc.cli.display import progress_of_rounds

CLIENTS, ACTIVE, ROUNDS, RANK = 20, 10, 30, 5


def demo(
    seed: Annotated[int, typer.Option(help="Of the split, the clients and the start.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the model goes.")] = Path("runs/demo-model.npz"),
) -> None:
    """Train on 100,004 real film ratings spread over 20 clients, and compare with the alternatives."""
    from fedmc import datasets, training
    from fedmc.baselines.pooled import alone_rmse, bias_rmse, pooled_rmse
    from fedmc.partition import Federation, assign_users, make_shards
    from fedmc.settings import Settings
    from fedmc.splits import at_random as split
    from fedmc.stopping import Stop

    ratings = datasets.demo()
    train, test = split(ratings, 0.2, seed)
    owner = assign_users(len(ratings.users), CLIENTS, seed)
    settings = Settings.preset("fast", rank=RANK, active=ACTIVE, seed=seed)
    with progress_of_rounds(ROUNDS) as show:
        federation = Federation(make_shards(train, owner, settings.dtype, test), train.users, train.items)
        run = training.train(federation, settings, Stop(ROUNDS), on_round=show)
    out.parent.mkdir(parents=True, exist_ok=True)
    run.model.save(out)
    federated = training.summary(run.history)
    rows = [
        ("biases only, pooled", "every rating", bias_rmse(train, test)),
        ("each client alone", "nothing", alone_rmse(train, test, owner, settings)),
        (f"fedmc, {ROUNDS} rounds", f"sums, {federated['bytes_up'] / 1e6:.0f} MB", federated["test_rmse"]),
        ("pooled ALS, to convergence", "every rating", pooled_rmse(train, test, settings)),
    ]
    _show(ratings, rows, out)


def _show(ratings: object, rows: list[tuple[str, str, float]], out: Path) -> None:
    console = Console()
    table = Table(title=f"{ratings}, {CLIENTS} clients, 20 % held out, rank {RANK}")
    table.add_column("method")
    table.add_column("what leaves a client")
    table.add_column("test RMSE (stars)", justify="right")
    for name, leaves, rmse in rows:
        table.add_row(name, leaves, f"{rmse:.4f}")
    console.print(table)
    alone, federated, pooled = rows[1][2], rows[2][2], rows[3][2]
    better = "less" if federated < alone else "more"
    against = f"{abs(federated / pooled - 1):.1%} {'below' if federated < pooled else 'above'}"
    console.print(
        f"Training together without sharing a rating errs {abs(1 - federated / alone):.1%} {better} than each client "
        f"alone, and ends {against} the same model on pooled data. "
        "Only changes to sums over each item travelled; user factors and ratings stayed where they were.",
        soft_wrap=True,
    )
    console.print(f"model kept in {out}: try  fedmc recommend {out} 1", soft_wrap=True, highlight=False)
