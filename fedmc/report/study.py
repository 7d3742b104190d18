"""A study from a file: run it, and write its tables and its page.

results.parquet   every measured round of every run     times.parquet   its seconds
tables.md, tables.tex   means, spreads and tests        report.html     tables and curves
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedmc.data.files import write_whole
from fedmc.evaluation import compared, tidy
from fedmc.evaluation.compared import Compared
from fedmc.evaluation.plan import Plan
from fedmc.evaluation.plan_file import plan_of, read_plan
from fedmc.evaluation.studies import Calls, Finished, Told, run_plan
from fedmc.report import html
from fedmc.report.comparison import cases_in_words, settings_in_words
from fedmc.report.figures import panels

REPORT, MARKDOWN, LATEX = "report.html", "tables.md", "tables.tex"


class Results(NamedTuple):
    """A finished study: the folder of its files, its rows as in results.parquet, and a table for each data set."""

    folder: Path
    rows: dict[str, list[Any]]  # columns by name
    tables: dict[str, Compared]


def study(
    plan: str | Path | Mapping[str, Any],
    folder: str | Path,
    *,
    jobs: int = 1,
    on_round: Told | None = None,
    on_client: Told | None = None,
) -> Results:
    """Run the study of a TOML file, or of a dictionary with the same sections, and write its results into a folder.

    Runs that are there already are not repeated; so a study that was interrupted goes on, and one may gain methods
    and seeds. `jobs` processes of one thread each run the cases, and the files are the same for every number of them.

    `on_round` is called with each round of each run, and `on_client` with each client of each round, as dictionaries
    of numbers with the names of data set and case. What runs already finished before is not told again. In a script,
    call this function below `if __name__ == "__main__":`, since each process imports the script.
    """
    chosen = plan_of(plan) if isinstance(plan, Mapping) else read_plan(plan)
    calls = Calls(on_client=on_client)
    return write(
        chosen, run_plan(chosen, Path(folder), jobs, calls._replace(on_round=on_round or calls.on_round)), Path(folder)
    )


def write(plan: Plan, finished: Sequence[Finished], folder: Path) -> Results:
    """Write the tables and the page of a study; all but the times are the same for the same outcomes."""
    rows = tidy.results(finished)
    tidy.write(rows, folder / tidy.RESULTS)
    tidy.write(tidy.times(finished), folder / tidy.TIMES)
    tables = {
        part.name: compared.compared(part.study, outcomes, plan.measures_of(part.study)) for part, outcomes in finished
    }
    texts = [compared.markdown(name, table) for name, table in tables.items()]
    write_whole(folder / MARKDOWN, "\n".join([f"# {plan.name}\n", *texts, compared.CAVEAT + "\n"]).encode())
    write_whole(folder / LATEX, "\n".join(compared.latex(name, table) for name, table in tables.items()).encode())
    body = [html.summary(_summary(tables)), *(_section(one, tables[one.part.name]) for one in finished)]
    body.append(html.section("Made with", html.pairs(html.versions())))
    about = f"{plan.runs:,} runs, {len(plan.parts)} data sets and budgets. {compared.CAVEAT}"
    write_whole(folder / REPORT, html.page(plan.name, about, body).encode())
    return Results(folder, rows, tables)


def _summary(tables: Mapping[str, Compared]) -> list[str]:
    return [sentence for name, table in tables.items() for sentence in sentences(name, table)]


def sentences(name: str, table: Compared) -> list[str]:
    """What a table says about its first measure, and which runs failed."""
    best = next(((label, row[0]) for label, row in table.rows.items() if row[0].best), None)
    if best is None:
        return [f"{name}: {note}" for note in table.notes]
    label, cell = best
    word = "lowest" if table.measures[0] in compared.LOWER else "highest"
    how = "every other method differs" if cell.bold else "the tests do not tell it from every other method"
    value = compared.shown(cell, "{}", "±")
    said = f"{name}: {label} has the {word} {compared.heading(table.measures[0])}, {value}; {how} (5 %)."
    return [said, *(f"{name}: {note}" for note in table.notes)]


def _section(one: Finished, table: Compared) -> str:
    study = one.part.study
    rows = [[label, *compared.cells(row)] for label, row in table.rows.items()]
    drawings = (html.drawing(panels(figure, one.outcomes), figure.title) for figure in study.figures)
    return html.section(
        one.part.name,
        html.table(compared.headings(table), rows, sorts=False),
        *drawings,
        html.folded("What was run", html.pairs(settings_in_words(study))),
        html.folded("Settings of each method", cases_in_words(study)),
    )
