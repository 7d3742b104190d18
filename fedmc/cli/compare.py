"""`fedmc compare`, `fedmc reproduce`, `fedmc report`"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmc.cli.data import PARTITIONS
from fedmc.cli.display import bar_of, print_table, say
from fedmc.cli.train import share

Option = typer.Option
DEFAULT = "fedmc,fedmc-exact,fedmc-paper,fedmavg,fedmgs,fedavg,fedprox,scaffold,pooled,pooled-prox,alone,biases"
Seeds = Annotated[str, Option(help="Seeds of split, clients and start, with commas.")]
Out = Annotated[Path | None, Option(help="Folder of the results; one that holds the same plan is gone on with.")]


def compare(
    source: Annotated[str, typer.Argument(help="A file, folder, archive, database, named set, or `demo`.")],
    methods: Annotated[str, Option(help="With commas between.")] = DEFAULT,
    seeds: Seeds = "1,2,3",
    rank: Annotated[int, Option(help="Number of factors, the same for all.")] = 10,
    clients: Annotated[int, Option(help="Simulated clients that the users are spread over.")] = 100,
    active: Annotated[int, Option(help="Clients a round.")] = 10,
    rounds: Annotated[int, Option(help="Communication rounds.")] = 100,
    penalty: Annotated[str | None, Option(help="Of users and items, for all but fedmc-paper.")] = None,
    beta: Annotated[float, Option(help="Of fedmc-paper.")] = 0.3,
    inner_steps: Annotated[int, Option(help="Local steps of the methods that take steps.")] = 10,
    test: Annotated[str, Option(help="Held out to test on: a share, last:K, leave:K or date:YYYY-MM-DD.")] = "0.2",
    partition: Annotated[str, Option(help=f"Who is whose user: {PARTITIONS}.")] = "uniform",
    measure_every: Annotated[int, Option(help="Rounds between measurements.")] = 1,
    out: Out = None,
) -> None:  # fmt: skip
    """Run methods on the same rank, split, clients, budget and seeds, and write tables, figures and a report.

    A plan that was interrupted goes on where it stopped when it is given again.
    """
    from fedmc.evaluation.study import CENTRAL, FEDERATED, Case, Figure, Panel, Study

    cases = []
    for name in methods.split(","):
        options: dict[str, Any] = {"rank": rank}
        if name == "fedmc-paper":
            options |= {"beta": beta, "inner_steps": inner_steps}
        elif penalty is not None and name != "biases":
            options["penalty_users"] = penalty
        if name in FEDERATED and not name.startswith("fedmc"):
            options["inner_steps"] = inner_steps
        cases.append(Case((FEDERATED | CENTRAL).get(name, name), name, options))
    figure = Figure("comparison", "Test RMSE by round and by what travelled", (
        Panel("test_rmse", "round"), Panel("test_rmse", "megabytes"),
    ))  # fmt: skip
    study = Study(
        f"Methods compared, rank {rank}", source, tuple(cases), (figure,), _seeds(seeds), clients, active, rounds,
        share(test) or "random:0", partition, measure_every,
    )  # fmt: skip
    _run(study, out or Path("comparisons") / "compare")


def reproduce(
    experiment: Annotated[str, typer.Argument(help="convergence, inner-steps, sparsity, or budget (ours).")],
    data: Annotated[str, Option(help="What to run on: whatever `train` takes, or like:ml-1m, made up.")] = "demo",
    rank: Annotated[int | None, Option(help="The paper's for its sets (5, 8, 13), else 5, if not given.")] = None,
    beta: Annotated[float, Option(help="The paper does not state it; `convergence` shows others beside it.")] = 0.3,
    seeds: Seeds = "1,2,3",
    clients: Annotated[int, Option(help="Simulated clients.")] = 100,
    active: Annotated[int, Option(help="Clients a round.")] = 10,
    rounds: Annotated[int, Option(help="Communication rounds.")] = 100,
    out: Out = None,
) -> None:  # fmt: skip
    """The experiments of the paper's Section 5, and the same budget with the fast preset."""
    from fedmc.errors import unknown
    from fedmc.evaluation.paper import EXPERIMENTS, rank_for

    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, EXPERIMENTS)
    study = EXPERIMENTS[experiment](
        data, rank or rank_for(data), beta, seeds=_seeds(seeds), clients=clients, active=active, rounds=rounds
    )
    _run(study, out or Path("comparisons") / experiment)


def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, or the folder of a comparison.")],
) -> None:
    """Write report.html, and the figures as PNG, PDF and SVG, into the folder."""
    from fedmc.report import comparison, run

    made = comparison if (folder / "study.json").exists() else run
    typer.echo(f"report in {made.write_report(folder)}")


def _run(study: Any, folder: Path) -> None:
    from fedmc.evaluation import runner, tables
    from fedmc.report.comparison import write_report

    runs = len(study.cases) * len(study.seeds)
    with _progress(runs, study.rounds) as (on_case, on_round):
        outcomes = runner.run(study, folder, on_case, on_round)
    path = write_report(folder)
    _show(study.title, tables.summary(study, outcomes))
    say(f"tables, figures and report in {path.parent}: open {path}")


@contextmanager
def _progress(runs: int, rounds: int) -> Iterator[tuple[Callable[[str, int, bool], None], Callable[[int], None]]]:
    """A bar on stderr for the whole plan, with the time left; a run counts as its rounds."""
    with bar_of("{task.percentage:3.0f} %") as bar:
        task = bar.add_task("preparing", total=runs * rounds)
        done = [0]

        def on_case(label: str, seed: int, finished: bool) -> None:
            done[0] += finished
            bar.update(task, completed=done[0] * rounds, description=f"{label}, seed {seed}")

        def on_round(number: int) -> None:
            bar.update(task, completed=done[0] * rounds + number)

        yield on_case, on_round


def _show(title: str, lines: list[Any]) -> None:
    from fedmc.report.html import short

    headings = {
        "method": "method", "test_rmse": "test RMSE", "spread": "±", "gap": "% to pooled",
        "rounds_to_1pc": "rounds to 1 %",
        "megabytes_to_1pc": "MB to 1 %", "seconds": "seconds",
    }  # fmt: skip
    rows = [[short(getattr(line, name)) for name in headings] for line in lines]
    print_table(title, list(headings.values()), rows)


def _seeds(words: str) -> tuple[int, ...]:
    from fedmc.errors import InputError

    try:
        return tuple(int(seed) for seed in words.split(","))
    except ValueError:
        raise InputError(f"--seeds takes whole numbers with commas between, got {words!r}") from None
