"""A round of a federation's run in words and as fields of a log line.

Both hold what a line of history.jsonl holds, and nothing else; the fields hold what the words say, as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmc.federation.logs import Field
from fedmc.problem.quality import quality, shown


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


def in_fields(line: Mapping[str, Any], rounds: int) -> dict[str, Field]:
    """The numbers of `in_words`, with the digits that it shows."""
    spent = line.get("epsilon")
    fields: dict[str, Field] = {"round": line["number"], "rounds": rounds, **shown(line)}
    if spent is not None:
        fields["epsilon"] = float(f"{spent:.3g}")
    megabytes = {f"megabytes_{way}": round(line[f"bytes_{way}"] / 1e6, 2) for way in ("up", "down")}
    return fields | {"seconds": round(line["seconds"], 1), **megabytes, "took_part": len(line["participants"])}
