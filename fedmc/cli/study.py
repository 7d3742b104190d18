"""`fedmc study`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedmc.cli.display import counted, print_table, print_text, progress_bar
from fedmc.cli.echo import tell
from fedmc.evaluation import compared
from fedmc.evaluation.plan import Plan
from fedmc.evaluation.plan_file import read_plan
from fedmc.evaluation.studies import Calls, Finished, check_plan, run_plan
from fedmc.evaluation.workers import Task
from fedmc.report.study import REPORT, Results, sentences, write


def study(
    file: Annotated[Path, Argument(help="TOML file of the study: data sets, methods, grids and seeds.")],
    out: Annotated[
        Path | None,
        Option(help="Folder of the results; an unfinished study there is resumed.", show_default="studies/FILE"),
    ] = None,
    jobs: Annotated[int, Option(help="Processes that run cases, each of one thread.")] = 1,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check the file and list the runs, without running them.")
    ] = False,
) -> None:
    """Run the study of a TOML file: methods with grids of settings, on several data sets, over seeds.

    An interrupted study is resumed when the same command is given again; finished runs are kept when methods, values,
    seeds or data sets are added to the file.
    """
    plan = read_plan(file)
    folder = out or Path("studies") / file.stem
    check_plan(plan, folder)
    if dry_run:
        _print_plan(plan)
        return
    results = write(plan, _run(plan, folder, jobs), folder)
    _print(results)


def _run(plan: Plan, folder: Path, jobs: int) -> list[Finished]:
    with progress_bar("{task.completed} of {task.total} runs") as bar:
        shown = bar.add_task("preparing", total=plan.runs)

        def on_done(task: Task, ran: bool) -> None:
            bar.update(shown, advance=1, description=task.name)

        def on_death(task: Task, what: str) -> None:
            tell((f"{task.name}: {what}; it is tried once more",))

        return run_plan(plan, folder, jobs, Calls(on_done=on_done, on_death=on_death))


def _print_plan(plan: Plan) -> None:
    rows = [
        [part.name, case.label, case.method, ", ".join(map(str, part.study.seeds))]
        for part in plan.parts
        for case in part.study.cases
    ]
    print_table(f"{plan.name}: {counted(plan.runs, 'run')}", ["data", "case", "method", "seeds"], rows)


def _print(results: Results) -> None:
    for name, table in results.tables.items():
        rows = [[label, *compared.cells(row)] for label, row in table.rows.items()]
        print_table(f"{name} (n = {table.seeds} seeds)", compared.headings(table), rows)
        for sentence in sentences(name, table):
            print_text(sentence)
    print_text(f"results, tables and report in {results.folder}: open {results.folder / REPORT}")
