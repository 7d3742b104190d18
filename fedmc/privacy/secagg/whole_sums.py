"""Sums of whole contributions, over any runs: no two of them may show, subtracted, the contribution of a few.

A member's first contribution to a run, and statistics of its data, depend little on the run. So sums of them over
different sets of members can be subtracted, whatever the run: the sum over all members less the sum over all but one
is that one's contribution. The sets that a member was in divide all members into atoms: those who were always in the
same of these sets. Only the sum over an atom is hidden for good. So a member refuses a set that would leave an atom of
its own sets with fewer than `least` members, unless nothing new is shown: the atom's sum follows from the sums before,
or all of its members accept that sums show their part.

Members are given by their places in the federation's list, which stay the same from run to run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fedmc.errors import DataError

Members = tuple[int, ...]


def atoms(sets: Collection[Members]) -> list[Members]:
    """The members of all sets, divided by the sets that they are in."""
    found: dict[tuple[bool, ...], list[int]] = {}
    for member in sorted({member for one in sets for member in one}):
        found.setdefault(tuple(member in one for one in sets), []).append(member)
    return [tuple(atom) for atom in found.values()]


def check(
    sets: Iterable[Members], new: Members, least: int, visible: Collection[int] = (), judging: Collection[int] = ()
) -> None:
    """Refuse a sum over `new`, after the sums over `sets`, that would leave an atom of fewer than `least` members.

    `visible` are the members that accept that sums show their part, `judging` others who check this sum as well. An
    atom of those is left to them if they know all sets that set it apart: they may know that its sum is no secret.
    """
    known = {tuple(sorted(one)) for one in sets}
    now = tuple(sorted(new))
    if now in known:
        return
    parts = atoms([*known, now])
    small = [atom for atom in parts if len(atom) < least and not set(atom) <= set(visible)]
    small = [atom for atom in small if not follows(known, atom, parts)]
    small = [atom for atom in small if not (set(atom) <= set(judging) and _apart(atom, known, now))]
    if small:
        raise DataError(
            f"with earlier sums over {sorted(known)}, a sum over {now} would show the sum of {small[0]} alone: "
            f"at least {least} members must differ, or none (numbers are places in the list of members, from 0)"
        )


def follows(sets: Collection[Members], atom: Members, parts: Sequence[Members]) -> bool:
    """Whether the sum over an atom can be computed from the sums over these sets, each of which consists of `parts`."""
    rows = np.array([[set(part) <= set(one) for part in parts] for one in sets], np.float64).reshape(-1, len(parts))
    wanted = np.array([[part == atom for part in parts]], np.float64)
    return bool(np.linalg.matrix_rank(np.vstack([rows, wanted])) == np.linalg.matrix_rank(rows)) if len(rows) else False


def _apart(atom: Members, sets: Collection[Members], new: Members) -> bool:
    """Whether the new set, and those that the atom's members were in, set it apart."""
    theirs = [one for one in sets if set(atom) <= set(one)]
    return atom in atoms([*theirs, new])
