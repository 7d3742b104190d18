"""Processes of one thread each that run the cases of studies. The parent writes the outcomes.

A worker ends by itself when its parent is gone, at the next round at the latest. One that dies is replaced, and its
task is tried once more.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, cast

from fedmc.errors import FedmcError, reason, require
from fedmc.evaluation import mapped
from fedmc.evaluation.harness import Parts
from fedmc.evaluation.iterates import Iterates
from fedmc.evaluation.outcomes import Outcome
from fedmc.evaluation.runner import parts_of, run_case
from fedmc.evaluation.study import Case, Study
from fedmc.evaluation.watching import clients_of
from fedmc.kernels import threads
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Round

THREADS = (threads.VARIABLE, *(f"{name}_NUM_THREADS" for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")))
TRIES = 2
GRACE = 5.0  # seconds for a process to end by itself
Record = dict[str, object]


class Task(NamedTuple):
    """One case under one seed."""

    part: str  # the name of the study
    study: Study
    case: Case
    seed: int
    key: str
    data: Path  # the mapped ratings
    iterates: Path | None = None  # where V of each round goes
    clients: bool = False  # whether to report what each client did

    @property
    def name(self) -> str:
        return f"{self.part}, {self.case.label}, seed {self.seed}"


class Watch(NamedTuple):
    """What is told while cases run; all are called in the parent."""

    on_round: Callable[[Task, Record], object]
    on_client: Callable[[Task, Record], object]
    on_death: Callable[[Task, str], object]
    on_done: Callable[[Task, Outcome], object]


class WorkerError(FedmcError):
    """A case ended its process twice."""


class _Worker:
    """A process, and the task that it has."""

    def __init__(self) -> None:
        here, there = multiprocessing.get_context("spawn").Pipe()
        self.connection: Connection = here
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
        with _one_thread():
            process.start()
        there.close()
        self.process: BaseProcess = process
        self.task: Task | None = None
        self.failure: str | None = None

    def give(self, task: Task) -> None:
        self.task = task
        with suppress(OSError):  # it is dead: noticed when its answer is waited for
            self.connection.send(task)

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def run_tasks(tasks: Sequence[Task], jobs: int, watch: Watch) -> None:
    """Run the tasks over so many processes; `on_done` gets each outcome in the parent."""
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    waiting, tries = deque(tasks), dict.fromkeys((task.name for task in tasks), 0)
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.task for worker in workers):
            workers += [_Worker() for _ in range(min(jobs - len(workers), len(waiting)))]
            for worker in workers:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            busy = {worker.connection: worker for worker in workers if worker.task is not None}
            for ready in wait(list(busy)):
                worker = busy[cast(Connection, ready)]
                if not _heard(worker, watch):
                    workers.remove(worker)
                    waiting.appendleft(_lost(worker, tries, watch))
    finally:
        for worker in workers:
            worker.close()


def _heard(worker: _Worker, watch: Watch) -> bool:
    """Pass on what a worker said; False if it is dead or failed."""
    assert worker.task is not None
    try:
        kind, content = worker.connection.recv()
    except (EOFError, OSError):
        return False
    if kind == "round":
        watch.on_round(worker.task, content)
    elif kind == "client":
        watch.on_client(worker.task, content)
    elif kind == "failed":
        worker.failure = content
        return False
    elif kind == "done":
        task, worker.task = worker.task, None
        watch.on_done(task, content)
    return True


def _lost(worker: _Worker, tries: dict[str, int], watch: Watch) -> Task:
    """The task of a dead worker, to be tried again."""
    task = worker.task
    assert task is not None
    worker.process.join(GRACE)
    worker.close()
    how = worker.failure or f"its process ended with code {worker.process.exitcode}"
    tries[task.name] += 1
    cure = "a process that is killed (-9) often lacks memory: use fewer --jobs; in a script, call study() below if "
    again = f"{task.name}: {how}, {TRIES} times; {cure}__name__ == '__main__'. All outcomes so far are kept"
    require(tries[task.name] < TRIES, again, WorkerError)
    watch.on_death(task, how)
    return task


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that are started inside have one thread, in BLAS too, which reads this when it is loaded."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection) -> None:
    """A worker: run tasks until the parent is gone. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    opened: tuple[Path, int, Parts] | None = None
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            task: Task = connection.recv()
            try:
                if opened is None or opened[:2] != (task.data, task.seed):
                    opened = task.data, task.seed, parts_of(task.study, mapped.load(task.data), task.seed)
                outcome = _run(task, opened[2], connection)
            except FedmcError as error:
                outcome = Outcome(task.case.label, task.case.method, task.seed, task.key, [], None, str(error))
            except Exception as error:  # of a plug-in, or for lack of memory: the parent says so
                connection.send(("failed", f"its process failed, {reason(error)}"))
                return
            connection.send(("done", outcome))


def _run(task: Task, parts: Parts, connection: Connection) -> Outcome:
    iterates = Iterates()

    def on_round(round: Round, engine: LocalEngine) -> None:
        connection.send(("round", round.record()))
        if task.clients:
            for record in clients_of(round, engine):
                connection.send(("client", record))
        if task.iterates is not None:
            iterates.add(round)

    outcome = run_case(task.study, task.case, task.seed, task.key, parts, on_round)
    if task.iterates is not None and iterates.numbers:
        iterates.save(task.iterates)
    return outcome
