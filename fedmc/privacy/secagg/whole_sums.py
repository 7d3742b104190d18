"""Sums of whole contributions, over any runs: no two of them may show, subtracted, the contribution of a few.

A member's first contribution to a run, and statistics of its data, depend little on the run. So sums of them over
different sets of members can be subtracted, whatever the run: the sum over all members less the sum over all but one
is that one's contribution. The sets that a member was in divide all members into atoms: those who were always in the
same of these sets. Only the sum over an atom is hidden for good. So a member refuses a set that would leave an atom of
its own sets with fewer than `least` members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fedmc.errors import DataError

Members = tuple[int, ...]


def atoms(sets: Collection[Members]) -> list[Members]:
    """The members of all sets, divided by the sets that they are in."""
    found: dict[tuple[bool, ...], list[int]] = {}
    for member in sorted({member for one in sets for member in one}):
        found.setdefault(tuple(member in one for one in sets), []).append(member)
    return [tuple(atom) for atom in found.values()]


def check(sets: Iterable[Members], new: Members, least: int) -> None:
    """Refuse a sum over `new`, after the sums over `sets`, that would leave an atom of fewer than `least` members."""
    known = {tuple(sorted(one)) for one in sets}
    now = tuple(sorted(new))
    if now in known:
        return
    small = [atom for atom in atoms([*known, now]) if len(atom) < least]
    if small:
        raise DataError(
            f"with earlier sums over {sorted(known)}, a sum over {now} would show the sum of {small[0]} alone: "
            f"at least {least} members must differ, or none"
        )
