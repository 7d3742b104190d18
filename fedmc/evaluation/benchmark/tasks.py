"""The tasks of the benchmark: a source, clients, a split by seed, and a budget of rounds and bytes.

A task has everything but the method. Splits and clients depend on the seed alone, and their hashes are published in
`hashes`, so that two machines can tell whether they solve the same task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedmc.algorithms.settings import Feedback
from fedmc.data import synthetic
from fedmc.data.datasets import load_source, occupations
from fedmc.data.feedback import EventOptions
from fedmc.data.given import scale_of, scaled
from fedmc.data.ratings import Ratings
from fedmc.errors import unknown
from fedmc.evaluation.harness import Parts
from fedmc.evaluation.runner import parts_of
from fedmc.evaluation.study import Case, Study

VERSION = 1  # of the tasks: a change of any of them begins a new one
LEVEL = 0.9  # of intervals
DEPTH = 20  # items that are recommended to each user
LIKED = EventOptions(min_rating=4, recency=False)  # ratings from 4 on are events
BY_OCCUPATION = "column:occupation"
MEASURES: Mapping[Feedback, tuple[str, ...]] = {  # the first one counts
    "explicit": ("test_rmse", "coverage", "width"),
    "implicit": ("test_ndcg_10", "test_recall_20"),
}


@dataclass(frozen=True)
class Task:
    """Ratings or events of clients, of which a part is held out."""

    name: str
    about: str
    source: str
    read: Callable[[int], Ratings]  # by the seed
    events: EventOptions | None = None  # None: an explicit task
    test: str = "random:0.2"
    partition: str = "uniform"
    clients: int = 20  # of artificial partitions
    active: int = 10
    rounds: int = 30
    megabytes: float = 100.0  # in both directions

    @property
    def feedback(self) -> Feedback:
        return "explicit" if self.events is None else "implicit"

    @property
    def measures(self) -> tuple[str, ...]:
        return MEASURES[self.feedback]

    def study(self, case: Case, seed: int) -> Study:
        """The task as a study of one case and one seed, which measures every round."""
        return Study(
            self.name, self.source, (case,), (), (seed,), self.clients, self.active, self.rounds, self.test,
            self.partition, events=self.events,
        )  # fmt: skip

    def parts(self, seed: int) -> Parts:
        """The split and the clients of a seed."""
        table = self.read(seed)
        ratings = scaled(table, scale_of(table, self.events, None))
        return parts_of(self.study(Case("any", "popularity"), seed), ratings, seed)

    def record(self) -> dict[str, object]:
        """What a result says about its task."""
        names = ("name", "source", "feedback", "test", "partition", "active", "rounds", "megabytes")
        return {name: getattr(self, name) for name in names} | {"version": VERSION}


def find(name: str) -> Task:
    """The task of this name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def _named(source: str, events: EventOptions | None, seed: int) -> Ratings:
    return load_source(source, events=events)


def _by_occupation(source: str, events: EventOptions | None, seed: int) -> Ratings:
    """The clients are the occupations of the users."""
    table = load_source(source, events=events)
    names, owner = np.unique(occupations(source, table.users), return_inverse=True)
    return replace(table, groups=(names, owner))


def _planted(seed: int) -> Ratings:
    recipe = synthetic.Recipe(600, 300, 20_000, rank=5, noise=0.5, seed=seed, scale=(1.0, 5.0, 0.5))
    return synthetic.make_ratings(recipe)


def _task(name: str, about: str, source: str, events: EventOptions | None = None, **more: object) -> Task:
    read = _by_occupation if more.get("partition") == BY_OCCUPATION else _named
    return Task(name, about, source, partial(read, source, events), events, **more)  # type: ignore[arg-type]


ALL = (
    _task("films", "demo set, 20 clients of power-law sizes", "demo", partition="power:1", megabytes=2000.0),
    _task("films-ranking", "films with 4 stars or more, 20 clients of Dirichlet sizes", "demo", LIKED,
          partition="dirichlet:0.5", megabytes=250.0),
    _task("departments", "lecturers of InstEval, the departments are the clients", "insteval",
          partition="column:dept", active=7, megabytes=500.0),
    Task("planted", "factors planted anew for each seed, 20 clients of Dirichlet sizes", "synthetic", _planted,
         partition="dirichlet:0.5", megabytes=100.0),
    _task("occupations-100k", "MovieLens 100K, the 21 occupations are the clients", "ml-100k",
          partition=BY_OCCUPATION, megabytes=400.0),
    _task("occupations-1m", "MovieLens 1M, the 21 occupations are the clients", "ml-1m",
          partition=BY_OCCUPATION, megabytes=1000.0),
    _task("occupations-1m-ranking", "MovieLens 1M, 4 stars or more, the 21 occupations are the clients", "ml-1m",
          LIKED, partition=BY_OCCUPATION, megabytes=200.0),
)  # fmt: skip
TASKS = {task.name: task for task in ALL}
