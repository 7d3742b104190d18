"""A round of a federation's run in words. They hold what a line of history.jsonl holds, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmc.problem.quality import quality


def in_words(line: Mapping[str, Any], rounds: int) -> str:
    """A line of history: the round, its measurements, seconds, megabytes, and how many organisations took part."""
    spent = line.get("epsilon")
    parts = (
        quality(line),
        "" if spent is None else f"epsilon {spent:.3g}",
        f"{line['seconds']:.1f} s",
        f"{line['bytes_up'] / 1e6:.2f} MB up",
        f"{line['bytes_down'] / 1e6:.2f} MB down",
        f"{len(line['participants'])} took part",
    )
    return f"round {line['number']} of {rounds}: " + ", ".join(part for part in parts if part)
