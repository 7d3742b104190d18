"""A round that takes the contributions of members that leave out of a run's sum: they send minus their own, in whole
steps, and all others zeros. So the sum of the others is left, exactly.

No rating is read. The sum of this round is that of what is taken out, so the leaving members must be enough to hide
each other, or accept that their part shows (`privacy.secagg.whole_sums`). A member takes its part out only if its own
organisation said so (`fedmc node leave --take-out`).
"""

from __future__ import annotations

import json
from pathlib import Path

from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.state import State
from fedmc.data.files import write_whole
from fedmc.errors import DataError
from fedmc.federation.node.refusals import RefusedError
from fedmc.federation.setup.statements import Departure
from fedmc.federation.wire import Request
from fedmc.training.fixed_point import is_taken_out, taken_out

FILE = "leave.json"


def save(folder: Path, organisation: str, left: Departure) -> Path:
    """Write an organisation's statement that it leaves, for the federation's coordinator and for its own node."""
    path = folder / FILE
    write_whole(path, json.dumps({"organisation": organisation, "left": list(left)}, indent=1).encode() + b"\n")
    return path


def load(path: Path) -> tuple[str, Departure]:
    """The statement of an organisation."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        take_out, visible, proof = found["left"]
        return str(found["organisation"]), Departure(take_out is True, visible is True, str(proof))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{path} is not a statement of `fedmc node leave`: {error}") from None


def stated(folder: Path) -> Departure | None:
    """What this organisation said about leaving, if it did."""
    return load(folder / FILE)[1] if (folder / FILE).exists() else None


def check_in(request: Request, before: State | None) -> None:
    """Refuse a run that this node took its part out of: its next change would be its whole contribution, alone."""
    if is_taken_out(before, schema_of(request.broadcast, len(request.broadcast.V))):
        raise RefusedError("wrong-round", "this organisation's part was taken out of this run", "ask for a new run")


def reply(request: Request, own: int, left: Departure | None, before: State | None) -> tuple[State | None, bytes]:
    """The next state of member `own`, and the whole numbers with which it answers."""
    leaves, wants = own in request.leaving, left is not None and left.take_out
    if leaves and not wants:
        cure = "`fedmc node leave --take-out`, if that is so"
        raise RefusedError("wrong-member", "the server says that this organisation takes its part out", cure)
    try:
        state, words = taken_out(before, schema_of(request.broadcast, len(request.broadcast.V)), leaves)
    except DataError as error:
        raise RefusedError("lost-state", f"{error}: restore the newest state folder") from None
    return state, words.tobytes()
