"""`fedmc compare` and `fedmc reproduce`"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedmc.algorithms.settings import Feedback
from fedmc.cli import options
from fedmc.cli.display import print_table, print_text, progress_bar
from fedmc.cli.echo import tell
from fedmc.cli.feedback import Decided, decide
from fedmc.cli.groups import Events, Form
from fedmc.cli.parsing import parse_integers, parse_names
from fedmc.cli.tracking import Log, Tracking, tracked
from fedmc.data import splits
from fedmc.data.addresses import without_password
from fedmc.data.feedback import default_confidence
from fedmc.data.given import scaled
from fedmc.data.prepare import Plan, load_table
from fedmc.data.prepared_events import AUTO, events_in_words
from fedmc.data.ratings import Ratings
from fedmc.errors import require
from fedmc.evaluation import runner, tables
from fedmc.evaluation.methods import find, split, usual
from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.paper import EXPERIMENTS, rank_for
from fedmc.evaluation.study import GOALS, NDCG, Case, Figure, Panel, Study, StudyOptions
from fedmc.evaluation.tables import Line
from fedmc.problem.ranking import CUTOFFS
from fedmc.report import comparison
from fedmc.report.comparison import ranking_table, write_report
from fedmc.report.html import short

Option = typer.Option
HEADINGS = {
    "method": "method", "test_rmse": "test RMSE", "test_ndcg_20": "NDCG@20", "spread": "±", "gap": "% to pooled",
    "rounds_to_1pc": "rounds to 1 %", "megabytes_to_1pc": "MB to 1 %", "seconds": "seconds", "cpu_seconds": "CPU s",
    "cpu_seconds_to_common": "CPU s to common objective", "seconds_to_common": "s to common objective",
}  # fmt: skip
LOGGED = ("clients", "active", "rounds", "partition", "test", "seeds", "measure_every")  # what MLflow gets of a study
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
    *,
    form: Form,
    events: Events,
    tracking: Tracking,
) -> None:
    """Run methods with the same rank, split, clients, budget and seeds; write tables, figures and a report.

    An interrupted comparison is resumed when the same command is given again.
    """
    given = None if methods is None else split(methods)
    plan = Plan(source, parse_names(columns), query, duplicates, split=test, partition=partition, wide=form.chosen())
    decided = decide(plan, events, _wanted(events, given or []))
    feedback: Feedback = "implicit" if decided.events else "explicit"
    cure = "--methods ials:ALPHA0,LAMBDA gives the weights of iALS"
    require(not decided.events or penalty is None, f"--penalty {penalty} is for ratings, not for events: {cure}")
    cases = tuple(_case(name, rank, penalty, beta, inner_steps) for name in given or usual(feedback))
    study = Study(
        f"Methods compared, rank {rank}", source, cases, (_figure(feedback),), parse_integers(seeds, "--seeds"),
        clients, active, rounds, splits.normalise(test) or "random:0", partition, measure_every, parse_names(columns),
        query, duplicates, decided.plan.events, events.confidence_scale, plan.wide,
    )  # fmt: skip
    folder = out or Path("comparisons") / "compare"
    runner.check_folder(folder, study)
    with tracked(tracking, folder.name) as log:
        log.settings({name: getattr(study, name) for name in LOGGED} | {"source": without_password(source)})
        _log(log, study, _run(study, folder, _table(decided, study)), folder)


def reproduce(
    experiment: Annotated[
        Literal["convergence", "inner-steps", "sparsity", "published", "scenario", "size", "budget", "all"],
        typer.Argument(
            help="convergence, inner-steps or sparsity of the paper's Section 5; scenario, of its Figure 1; published, "
            "the choices of its authors' code; size, for large data; budget (ours); or all.",
            metavar="EXPERIMENT",
        ),
    ],
    data: Annotated[
        str,
        Option(
            help="Ratings: whatever `train` takes, prepared shards too, or like:ml-1m for synthetic ones of that size."
        ),
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
    partition: Annotated[
        str | None,
        Option(help=f"Users of each client: {options.PARTITIONS}.", show_default="uniform; scenario: power:1"),
    ] = None,
    out: Out = None,
) -> None:
    """Run experiments of the paper, with its authors' choices too, or the fast preset within the same budget.

    An interrupted experiment is resumed when the same command is given again.
    """
    given: StudyOptions = {
        "seeds": parse_integers(seeds, "--seeds"), "clients": clients, "active": active, "rounds": rounds,
    }  # fmt: skip
    if partition is not None:
        given["partition"] = partition
    every = experiment == "all"
    chosen = list(EXPERIMENTS) if every else [experiment]
    studies = [EXPERIMENTS[name](data, rank or rank_for(data), beta, **given) for name in chosen]
    folders = [(out or Path("comparisons")) / name if every else out or Path("comparisons") / name for name in chosen]
    for study, folder in zip(studies, folders, strict=True):
        runner.check_folder(folder, study)
    table = runner.table_of(studies[0])
    tell(table.notes)
    for study, folder in zip(studies, folders, strict=True):
        _run(study, folder, table)


def _table(decided: Decided, study: Study) -> Ratings:
    """The ratings or amounts; what was guessed about them is told on stderr."""
    if decided.events:
        return _events(decided.plan)
    ratings = runner.table_of(study) if decided.ratings is None else decided.ratings
    tell(ratings.notes)
    return ratings


def _events(plan: Plan) -> Ratings:
    """The amounts of a plan's events; how they were read is told on stderr, and which rows were left out."""
    amounts = load_table(plan)
    scale = default_confidence(amounts.matrix.data) if plan.confidence_scale in (None, AUTO) else plan.confidence_scale
    words = events_in_words(amounts, scaled(amounts, scale), str(scale), plan.reason, plan.recency)
    tell((*words, *amounts.notes))
    return amounts


def _wanted(events: Events, given: Sequence[str]) -> Feedback | None:
    """What the options want: `--feedback`, or what all methods that are given learn from."""
    if events.feedback is not None or not given:
        return events.feedback
    learn = [find(name).feedback for name in given]
    kinds: tuple[Feedback, ...] = ("explicit", "implicit")
    common = [kind for kind in kinds if all(kind in one for one in learn)]
    return common[0] if len(common) == 1 else None


def _figure(feedback: Feedback) -> Figure:
    goal = GOALS[feedback]
    panels = Panel(goal.measure, "round"), Panel(goal.measure, "megabytes")
    return Figure("comparison", f"{goal.name[:1].upper()}{goal.name[1:]} by round and by what travelled", panels)


def _case(name: str, rank: int, penalty: str | None, beta: float, inner_steps: int) -> Case:
    """The case of a method, with the options that it takes."""
    given: dict[str, object] = {"rank": rank, "penalty_users": penalty, "beta": beta, "inner_steps": inner_steps}
    method = find(name)
    return Case(method.label, name, method.options(given))


def _log(log: Log, study: Study, outcomes: Sequence[Outcome], folder: Path) -> None:
    """The results, and a run below for each method and seed."""
    log.end({}, [folder / name for name in ("report.html", "summary.csv")])
    cases = {case.label: case for case in study.cases}
    for outcome in outcomes:
        settings = cases[outcome.label].settings(outcome.seed, study.active)
        one = log.child(f"{outcome.label}, seed {outcome.seed}", settings.privacy)
        one.settings(settings.to_dict() | {"method": outcome.method})
        for row in outcome.rows:
            one.round(row | {"number": row["round"]})
        one.end(outcome.rows[-1] if outcome.rows else {})
        one.close("FAILED" if outcome.diverged or outcome.refused else "FINISHED")


def _run(study: Study, folder: Path, table: Ratings | None = None) -> list[Outcome]:
    runs = len(study.cases) * len(study.seeds)
    with _comparison_bar(runs, study.rounds) as (on_case, on_round):
        outcomes = runner.run(study, folder, on_case, on_round, table)
    path = write_report(folder)
    _print_lines(study, tables.summary(study, outcomes))
    print_text(f"tables, figures and report in {path.parent}: open {path}")
    return outcomes


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


def _print_lines(study: Study, lines: Sequence[Line]) -> None:
    """The summary, of events also the ranking metrics at each cutoff, and which methods were not run."""
    ran = [line for line in lines if line.refused is None]
    records = [line.record() for line in ran]
    named = HEADINGS | {name: comparison.HEADINGS[name] for name in study.drawn}
    order = (name for name in comparison.headings_of(study) if name in named)
    shown = [name for name in order if any(record.get(name) is not None for record in records)]
    rows = [[short(record.get(name)) for name in shown] for record in records]
    print_table(study.title, [named[name] for name in shown], rows)
    if study.goal is NDCG and any(line.ranking for line in ran):
        for cutoff in CUTOFFS:
            headings, cells = ranking_table(ran, cutoff)
            print_table(f"ranking metrics at {cutoff}", headings, [list(map(short, row)) for row in cells])
    for line in lines:
        if line.refused is not None:
            print_text(f"{line.method} was not run: {line.refused}")
