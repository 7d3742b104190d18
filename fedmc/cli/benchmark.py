"""`fedmc benchmark`: tasks with fixed splits, entries of methods and submissions, tables of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.display import print_text, progress_bar
from fedmc.cli.parsing import parse_integers
from fedmc.data.files import write_whole
from fedmc.errors import require
from fedmc.evaluation.benchmark import hashes, results, running, tasks
from fedmc.evaluation.benchmark.running import Ran
from fedmc.evaluation.benchmark.tasks import Task
from fedmc.evaluation.compared import heading, number
from fedmc.evaluation.methods import find
from fedmc.evaluation.study import Case

Option = typer.Option
LOGS = "logs"
Name = Annotated[str, typer.Argument(help="Name of a task, as `fedmc benchmark list` shows it.", metavar="TASK")]
Seeds = Annotated[
    str,
    Option(
        help="Random seeds, separated by commas; each draws a split and the clients.", envvar="FEDMC_BENCHMARK_SEEDS"
    ),
]


def list_tasks() -> None:
    """List the tasks."""
    for task in tasks.ALL:
        typer.echo(f"{task.name:22} {task.feedback:8} {task.about}; {_budget(task)}")


def show(name: Name, seeds: Seeds = "1,2,3") -> None:
    """Show a task and the SHA-256 of its splits, to compare two machines."""
    task = tasks.find(name)
    print_text(f"{task.name}: {task.about}; {task.feedback} feedback; {_budget(task)}")
    print_text(f"source {task.source}, held out {task.test}, clients {task.partition}, {task.active} in each round")
    for seed in parse_integers(seeds, "--seeds"):
        parts = task.parts(seed)
        found, known = hashes.hashes_of(parts), hashes.published(name, seed)
        state = "not published" if known is None else "as published" if known == found else "NOT AS PUBLISHED"
        print_text(f"seed {seed}: {len(parts.train):,} for training, {len(parts.test):,} held out ({state})")
        for part, digest in found.items():
            print_text(f"  {part:8} {digest}")


def run(
    name: Name,
    method: Annotated[str | None, Option(help="Method of `fedmc compare`, or a plug-in's algorithm.")] = None,
    submission: Annotated[
        Path | None, Option(help="Python file with a function predict(given); it runs in a process of its own.")
    ] = None,
    seeds: Seeds = "1,2,3",
    rank: Annotated[int | None, Option(help="Number of latent factors of the method.")] = None,
    penalty: Annotated[str | None, Option(help="Penalty on user and item factors of the method.")] = None,
    time_limit: Annotated[float, Option(help="Seconds that a submission may take for each seed.")] = running.TIME_LIMIT,
    out: Annotated[Path, Option(help="Folder of the results; others there stay.")] = Path("benchmark"),
) -> None:
    """Enter a method or a submission in a task; write one JSON file for each seed."""
    task, numbers = tasks.find(name), parse_integers(seeds, "--seeds")
    require([method, submission].count(None) == 1, "say what to enter: --method NAME or --submission FILE, one of them")
    require(time_limit > 0, f"--time-limit must be above 0 seconds, got {time_limit:g}")
    for seed in numbers:
        if submission is not None:
            chosen = rank is None and penalty is None
            require(chosen, "--rank and --penalty are for a method: a submission has its own")
            ran = running.run_submission(task, submission, seed, time_limit)
        else:
            ran = _method(task, case_of(task, str(method), rank, penalty), seed)
        _keep(ran, out)


def case_of(task: Task, name: str, rank: int | None, penalty: str | None) -> Case:
    """The method with the options that it takes; its label names those that are given."""
    kind = find(name)
    require(
        task.feedback in kind.feedback, f"{task.name} has {task.feedback} feedback, and {name} does not learn from it"
    )
    given: dict[str, object] = {"rank": rank, "penalty_users": penalty}
    chosen = kind.options(given)
    unused = [key for key, value in given.items() if value is not None and key not in chosen]
    flag = {"rank": "--rank", "penalty_users": "--penalty"}
    require(not unused, lambda: f"{flag[unused[0]]} has no effect on {name}: leave it out")
    return Case(", ".join([name, *(f"{key}={value}" for key, value in chosen.items())]), name, chosen)


def table(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results.", metavar="DIR...")],
) -> None:
    """Print the results in these folders as Markdown tables; results of different splits are refused."""
    typer.echo(results.tables(results.load(folders), tasks.MEASURES), nl=False)


def _method(task: Task, case: Case, seed: int) -> Ran:
    with progress_bar("{task.completed} of {task.total} rounds") as bar:
        shown = bar.add_task(f"{case.label}, seed {seed}", total=task.rounds)
        return running.run_method(task, case, seed, lambda number: bar.update(shown, completed=number))


def _keep(ran: Ran, folder: Path) -> None:
    result = ran.result
    path = results.save(result, ran.seconds, folder)
    if ran.printed:
        (folder / LOGS).mkdir(exist_ok=True)
        write_whole((folder / LOGS / path.name).with_suffix(".txt"), ran.printed.encode())
    values = [f"{heading(name)} {number(value)}" for name, value in result.measures.items()]
    print_text(f"{result.entry}, seed {result.seed}: {', '.join(values) or result.failed}; {path}")


def _budget(task: Task) -> str:
    return f"{task.rounds} rounds, {task.megabytes:g} MB"
