"""What a submission is given, and how its answer is scored: training ratings and test pairs go out, values stay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedmc.errors import require
from fedmc.evaluation.benchmark.boundary import SubmissionError
from fedmc.evaluation.benchmark.hashes import lines_of
from fedmc.evaluation.benchmark.tasks import DEPTH, LEVEL, Task
from fedmc.evaluation.harness import Measured, Parts, ranking_of
from fedmc.kernels.ranking import NONE
from fedmc.types import Array

NUMBER = 8  # bytes of a number in an answer


def hand_out(task: Task, parts: Parts, given: Path) -> None:
    """Write the training part by client, the pairs whose ratings are asked for, and `task.json`."""
    clients = given / "clients"
    clients.mkdir()
    count = int(parts.owner.max()) + 1
    of_entries = parts.owner[parts.train.rows()]
    for client in range(count):
        mine = lines_of(parts.train.with_entries(of_entries == client))
        (clients / f"{client}.csv").write_text("user,item,rating\n" + mine)
    users, items = parts.train.matrix.shape
    about = {"task": task.name, "feedback": task.feedback, "users": users, "items": items, "clients": count}
    if task.events is None:
        (given / "test.csv").write_text("user,item\n" + lines_of(parts.test, values=False))
        about |= {"pairs": len(parts.test), "level": LEVEL}
    else:
        about |= {"depth": DEPTH}
    (given / "task.json").write_text(json.dumps(about, indent=1))


def open_to_all(given: Path) -> None:
    """Let another user read what is given, whatever the umask."""
    for path in (given, *given.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def most_bytes(task: Task, parts: Parts) -> int:
    """The size of the largest answer that can be right."""
    return NUMBER * (3 * len(parts.test) if task.events is None else DEPTH * len(parts.train.users))


def score(task: Task, parts: Parts, content: bytes) -> Measured:
    """The measures of an answer; refused if it has not the form that the task asks for."""
    fits = len(content) % NUMBER == 0
    require(fits, f"the answer must be numbers of {NUMBER} bytes, got {len(content):,} bytes", SubmissionError)
    numbers = np.frombuffer(content, "<f8")
    return _errors(numbers, parts) if task.events is None else _ranking(numbers, parts)


def _errors(numbers: Array, parts: Parts) -> Measured:
    count = len(parts.test)
    require(
        len(numbers) in (count, 3 * count),
        f"the answer must have {count:,} predictions, one for each line of test.csv, or {count:,} rows of prediction, "
        f"low and high; got {len(numbers):,} numbers",
        SubmissionError,
    )
    finite = np.isfinite(numbers)
    place = int(np.argmin(finite)) // (len(numbers) // count)
    require(bool(finite.all()), f"predictions must be finite: that of pair {place + 1} is not", SubmissionError)
    rows, truth = numbers.reshape(count, -1), parts.test.matrix.data
    found = {"test_rmse": float(np.sqrt(np.mean(np.square(rows[:, 0] - truth))))}
    if rows.shape[1] == 1:
        return found
    low, high = rows[:, 1].astype(np.float32), rows[:, 2].astype(np.float32)  # ratings are float32 too
    wrong = np.flatnonzero(low > high)
    require(
        not len(wrong), lambda: f"an interval must have low <= high: that of pair {wrong[0] + 1} has not",
        SubmissionError,
    )  # fmt: skip
    inside = (low <= truth) & (truth <= high)
    return found | {"coverage": float(inside.mean()), "width": float(np.mean(rows[:, 2] - rows[:, 1]))}


def _ranking(numbers: Array, parts: Parts) -> Measured:
    users, items = parts.train.matrix.shape
    require(
        len(numbers) == users * DEPTH,
        f"the answer must have {users:,} rows (users) of {DEPTH} items, {users * DEPTH:,} numbers, got "
        f"{len(numbers):,}",
        SubmissionError,
    )
    known = (numbers == np.floor(numbers)) & (numbers >= NONE) & (numbers < items)
    place = int(np.argmin(known)) // DEPTH
    require(
        bool(known.all()),
        f"recommended items must be numbers from 0 to {items - 1}, or {NONE} for none: user {place} has another",
        SubmissionError,
    )
    top = numbers.reshape(users, DEPTH).astype(np.int64)
    by_item = np.sort(top, axis=1)
    twice = ((by_item[:, 1:] == by_item[:, :-1]) & (by_item[:, 1:] != NONE)).any(axis=1)
    require(
        not twice.any(), f"an item may be recommended once: user {int(np.argmax(twice))} has one twice", SubmissionError
    )
    found = ranking_of(top.astype(np.int32), parts)
    return {name: found[name] for name in ("test_ndcg_10", "test_recall_20")}
