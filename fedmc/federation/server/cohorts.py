"""Which of the asked nodes can form a cohort that hides them: the rules that nodes will check, seen from the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from fedmc.errors import TooFewError
from fedmc.federation.server.members import Members
from fedmc.federation.server.secagg_record import SecAggRecord
from fedmc.privacy.protocol import Privacy
from fedmc.privacy.secagg.rules import Rules, colluders
from fedmc.privacy.secagg.session import NO_SUM

Missing = Callable[[int, int], TooFewError]  # (how many are needed, how many are there)


class Cohorts:
    """The cohorts of one run."""

    def __init__(self, privacy: Privacy, members: Members, record: SecAggRecord, measures: bool) -> None:
        self.members, self.record, self.everybody = members, record, privacy.everybody_needed
        self.measures = measures  # whether the sum holds a measurement
        min_cohort = int(str(privacy.words()["min_cohort"]))
        self.rules = Rules(min_cohort, colluders(members.clients))

    def least(self, cohort: Collection[int], asked: Collection[int], kept: bool) -> int:
        """How many of the cohort must answer in exchange 1: all, if whole contributions or statistics are summed."""
        bases = {self.record.bases.get(member, NO_SUM) for member in cohort}
        first = self.measures and not set(cohort) <= self.record.measured
        if self.everybody or not kept or first or NO_SUM in bases:
            return len(cohort)
        return min(max(self.rules.smallest, min(self.members.quorum, len(asked))), len(cohort))

    def choose(self, cohort: Collection[int], asked: Collection[int], kept: bool, missing: Missing) -> tuple[int, ...]:
        """The members that hide each other; raises what `missing` makes if they are too few."""
        there = sorted(set(cohort) - self.record.misdealt)
        chosen = [member for member in there if self._hidden(member, there, kept)]
        wanted = [member for member in asked if self._hidden(member, sorted(asked), kept)]
        repeat = self.record.session is not None and self.record.session.number == self.record.certified + 1
        beyond = self.record.losses + self.rules.colluding + 1 if repeat else 0
        needed = max(self.least(wanted, asked, kept), self.rules.smallest, beyond)
        if len(chosen) < needed:
            raise missing(needed, len(chosen))
        return tuple(chosen)

    def _hidden(self, member: int, cohort: list[int], kept: bool) -> bool:
        """Whether enough others of the cohort have the same base; who joins or comes back alone waits for company."""
        if not kept:
            return True
        bases = self.record.bases
        sharing = Counter(bases.get(one, NO_SUM) for one in cohort)[bases.get(member, NO_SUM)]
        return self.rules.hides(len(cohort), sharing) or member in self.record.visible
