"""A run's history.jsonl, read as it grows: each line once, and only the sums that a page shows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fedmc.federation.pages.clean import number, parsed, whole

AT_ONCE = 4 * 2**20  # bytes of one look
LONGEST = 2**16  # bytes of a line; longer ones are left out
POINTS = 400  # of a curve; beyond, every second point is left out
RECENT = 50  # rounds by which the next ones are estimated
MEASURES = {  # of each kind, the first that there is
    "RMSE": ("test_rmse", "validation_rmse", "train_rmse"),
    "NDCG@20": ("test_ndcg_20", "validation_ndcg_20"),
}


class Curve(NamedTuple):
    label: str  # such as "test RMSE"
    points: list[tuple[int, float]]  # round and value


@dataclass
class History:
    """What is known of the file so far."""

    path: Path
    place: int = 0  # bytes read
    file: int = 0  # inode
    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    epsilon: float | None = None
    seconds: list[float] = field(default_factory=list)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    written: float = 0.0  # when a line was added last

    def look(self) -> None:
        """Read what was added; all of it, if the file is another one."""
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self.file or found.st_size < self.place:
                    self.__init__(self.path, file=found.st_ino)  # type: ignore[misc]
                file.seek(self.place)
                content, self.written = file.read(AT_ONCE), found.st_mtime
        except OSError:
            return
        end = content.rfind(b"\n") + 1
        if not end and len(content) > LONGEST:  # not a line of ours
            end = len(content)
        self.place += end
        for line in content[:end].splitlines():
            if len(line) <= LONGEST:
                self._add(parsed(line))

    def _add(self, line: dict[str, Any]) -> None:
        if "number" not in line:
            return
        self.rounds = max(self.rounds, whole(line["number"]))
        self.bytes_up += whole(line.get("bytes_up"))
        self.bytes_down += whole(line.get("bytes_down"))
        spent, seconds = number(line.get("epsilon")), number(line.get("seconds"))
        self.epsilon = self.epsilon if spent is None else spent
        if seconds is not None and whole(line["number"]):
            self.seconds = [*self.seconds, seconds][-RECENT:]
        for name in (one for several in MEASURES.values() for one in several):
            value = number(line.get(name))
            if value is not None:
                points = self.curves.setdefault(name, [])
                points.append((whole(line["number"]), value))
                if len(points) > POINTS:
                    del points[1:-1:2]

    def shown(self) -> list[Curve]:
        """A curve for each kind of measure that there is."""
        found = (
            (kind, next((name for name in several if name in self.curves), "")) for kind, several in MEASURES.items()
        )
        return [Curve(f"{name.partition('_')[0]} {kind}", list(self.curves[name])) for kind, name in found if name]

    @property
    def pace(self) -> float | None:
        """The median of a round's seconds."""
        return median(self.seconds) if self.seconds else None
