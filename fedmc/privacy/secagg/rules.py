"""Which cohorts hide a member: the bounds of the promise (`session`), and the defaults.

    n    members of a cohort
    c    members that may collude with the server: one is assumed from 4 members on
    d    members that may be lost in exchange 2: one up to 10 members, a tenth above

A member takes part only if n - c >= max(min_cohort, 2, 2d + 1): `min_cohort` counts honest members. A repeat with
fewer members must also have n - c above the d of every session of that sum before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedmc.errors import DataError

SMALLEST_COHORT = 3  # of two honest members, each can subtract its own part
DEFAULT_COHORT = 8


class Rules(NamedTuple):
    """What a member demands of the sums that it takes part in."""

    min_cohort: int
    colluding: int  # c: of the whole federation, so that it does not shrink with a cohort
    alone: bool = False  # it accepts sums that show its own change, if it joins or comes back alone

    @property
    def smallest(self) -> int:
        """The smallest set of members with `min_cohort` honest ones."""
        return self.min_cohort + self.colluding

    def honest(self, members: int) -> int:
        """The honest ones of so many members, at least."""
        return members - self.colluding

    def check(self, members: int, losses: int) -> None:
        """Refuse a cohort that cannot keep the promise."""
        honest, least = members - self.colluding, max(self.min_cohort, 2, 2 * losses + 1)
        if losses < 0 or honest < least:
            raise DataError(
                f"a cohort of {members} members, {self.colluding} of whom may collude and {losses} may be lost, has "
                f"{honest} honest ones: at least {least} are needed"
            )

    def hides(self, members: int, sharing: int) -> bool:
        """Whether so many members that share a base hide each other's first or late contribution."""
        return self.alone or sharing >= self.smallest or sharing == members


def colluders(members: int) -> int:
    """How many of a federation's members are assumed to collude with the server."""
    return 1 if members > SMALLEST_COHORT else 0


def losses_of(members: int) -> int:
    """The losses in exchange 2 that a cohort of this size tolerates by default."""
    return 1 if members <= 10 else members // 10


def cohort_for(members: int) -> int:
    """The default `min_cohort` of a federation with so many members."""
    return max(SMALLEST_COHORT, min(DEFAULT_COHORT, members - colluders(members)))


def smallest_group(members: int, min_cohort: int) -> int:
    """The smallest cohort of a federation with so many members that has `min_cohort` honest ones."""
    return min_cohort + colluders(members)


def promise(members: int, min_cohort: int) -> str:
    """What a federation with so many members promises, as a sentence."""
    group = smallest_group(members, min_cohort)
    helped = "even if one of them works together with the server" if colluders(members) else "if none helps the server"
    return (
        f"with {members} organisations: every sum covers at least {min_cohort} honest ones, {helped}; it takes {group} "
        f"of them, of whom {losses_of(group)} may be lost while the sum is unmasked"
    )


def exceptions(names: Sequence[str]) -> str:
    """The members that a federation's promise leaves out, as a sentence; empty if there are none."""
    listed = ", ".join(names)
    return f"except {listed}: by own consent, secure sums may show the part of {listed} alone" if names else ""
