"""`fedmc compare` and `fedmc reproduce`"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedmc.cli import options
from fedmc.cli.display import print_table, print_text, progress_bar
from fedmc.cli.parsing import parse_integers, parse_names
from fedmc.data import splits
from fedmc.evaluation import methods, runner, tables
from fedmc.evaluation.paper import EXPERIMENTS, rank_for
from fedmc.evaluation.study import Case, Figure, Panel, Study
from fedmc.evaluation.tables import Line
from fedmc.report.comparison import write_report
from fedmc.report.html import short

Option = typer.Option
HEADINGS = {
    "method": "method", "test_rmse": "test RMSE", "spread": "±", "gap": "% to pooled",
    "rounds_to_1pc": "rounds to 1 %", "megabytes_to_1pc": "MB to 1 %", "seconds": "seconds",
}  # fmt: skip
FIGURE = Figure(
    "comparison",
    "Test RMSE by round and by what travelled",
    (Panel("test_rmse", "round"), Panel("test_rmse", "megabytes")),
)
Seeds = Annotated[
    str, Option(help="Random seeds, separated by commas; each draws a split, an assignment to clients and a start.")
]
Active = Annotated[int, Option(help="Number of clients sampled in each round.")]
Out = Annotated[
    Path | None,
    Option(help="Folder of the results; an unfinished comparison there is resumed.", show_default="comparisons/NAME"),
]


def compare(
    source: options.Source,
    methods: Annotated[
        str | None, Option(help="Methods to compare, separated by commas.", show_default="all, plug-ins too")
    ] = None,
    seeds: Seeds = "1,2,3",
    rank: options.Rank = 10,
    clients: options.Clients = 100,
    active: Active = 10,
    rounds: options.Rounds = 100,
    penalty: Annotated[
        str | None, Option(help="Penalty on user and item factors, for all methods but fedmc-paper.")
    ] = None,
    beta: Annotated[float, Option(help="ADMM penalty parameter of fedmc-paper.")] = 0.3,
    inner_steps: Annotated[int, Option(help="Local steps of fedmc-paper and the baselines.")] = 10,
    test: options.Test = "0.2",
    partition: options.Partition = "uniform",
    measure_every: options.MeasureEvery = 1,
    columns: options.Columns = None,
    query: options.Query = None,
    duplicates: options.Duplicates = "refuse",
    out: Out = None,
) -> None:
    """Run methods with the same rank, split, clients, budget and seeds; write tables, figures and a report.

    An interrupted comparison is resumed when the same command is given again.
    """
    cases = tuple(_case(name, rank, penalty, beta, inner_steps) for name in _names(methods))
    study = Study(
        f"Methods compared, rank {rank}", source, cases, (FIGURE,), parse_integers(seeds, "--seeds"), clients, active,
        rounds, splits.normalise(test) or "random:0", partition, measure_every, parse_names(columns), query, duplicates,
    )  # fmt: skip
    _run(study, out or Path("comparisons") / "compare")


def reproduce(
    experiment: Annotated[
        Literal["convergence", "inner-steps", "sparsity", "budget"],
        typer.Argument(
            help="convergence, inner-steps or sparsity of the paper, or budget (ours).", metavar="EXPERIMENT"
        ),
    ],
    data: Annotated[
        str, Option(help="Ratings: whatever `train` takes, or like:ml-1m for synthetic ones of that size.")
    ] = "demo",
    rank: Annotated[
        int | None, Option(help="Number of latent factors.", show_default="the paper's (5, 8, 13) for its sets, else 5")
    ] = None,
    beta: Annotated[
        float, Option(help="ADMM penalty parameter, which the paper does not state; `convergence` also tries others.")
    ] = 0.3,
    seeds: Seeds = "1,2,3",
    clients: options.Clients = 100,
    active: Active = 10,
    rounds: options.Rounds = 100,
    out: Out = None,
) -> None:
    """Run an experiment of the paper's Section 5, or compare the fast preset within the same budget."""
    study = EXPERIMENTS[experiment](
        data, rank or rank_for(data), beta, seeds=parse_integers(seeds, "--seeds"), clients=clients, active=active,
        rounds=rounds,
    )  # fmt: skip
    _run(study, out or Path("comparisons") / experiment)


def _names(given: str | None) -> list[str]:
    return methods.usual() if given is None else methods.split(given)


def _case(name: str, rank: int, penalty: str | None, beta: float, inner_steps: int) -> Case:
    """The case of a method, with the options that it takes."""
    given: dict[str, object] = {"rank": rank, "penalty_users": penalty, "beta": beta, "inner_steps": inner_steps}
    method = methods.find(name)
    return Case(method.label, name, method.options(given))


def _run(study: Study, folder: Path) -> None:
    runs = len(study.cases) * len(study.seeds)
    with _comparison_bar(runs, study.rounds) as (on_case, on_round):
        outcomes = runner.run(study, folder, on_case, on_round)
    path = write_report(folder)
    _print_lines(study.title, tables.summary(study, outcomes))
    print_text(f"tables, figures and report in {path.parent}: open {path}")


@contextmanager
def _comparison_bar(runs: int, rounds: int) -> Iterator[tuple[Callable[[str, int, bool], None], Callable[[int], None]]]:
    """A bar on stderr for the whole comparison; each run counts as its rounds."""
    with progress_bar("{task.percentage:3.0f} %") as bar:
        task = bar.add_task("preparing", total=runs * rounds)
        done = 0

        def on_case(label: str, seed: int, finished: bool) -> None:
            nonlocal done
            done += finished
            bar.update(task, completed=done * rounds, description=f"{label}, seed {seed}")

        def on_round(number: int) -> None:
            bar.update(task, completed=done * rounds + number)

        yield on_case, on_round


def _print_lines(title: str, lines: Sequence[Line]) -> None:
    rows = [[short(getattr(line, name)) for name in HEADINGS] for line in lines]
    print_table(title, list(HEADINGS.values()), rows)
