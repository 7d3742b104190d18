"""A refusal: the status that the server gets, and the reason and the cure, which stay at the node.

They go to the node's log and to its journal, from which `fedmc node status` shows the last ones.
"""

from __future__ import annotations

import logging
import time

from fedmc.errors import printable
from fedmc.federation.logs import with_fields
from fedmc.federation.node.journal import Journal, Refusal
from fedmc.federation.node.store import StoreError
from fedmc.federation.statuses import CURES

log = logging.getLogger("fedmc.node")


class RefusedError(Exception):
    """The node does not do what it was asked. `cure` is for the organisation, where the reason does not hold one."""

    def __init__(self, status: str, reason: str, cure: str = "") -> None:
        super().__init__(status)
        self.status, self.reason, self.cure = status, reason, cure

    def log(self, what: str) -> None:
        """Write the one line that says why something was refused."""
        cure, fields = self.cure and f": {self.cure}", with_fields(what=what, status=self.status)
        words = printable(what), self.status, printable(self.reason), printable(cure)
        log.warning("refused %s (%s): %s%s", *words, extra=fields)


class Refusals:
    """Writes each refusal to the log and to the journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def add(self, refused: RefusedError, what: str, run: str = "") -> None:
        refused.log(what)
        now, cure = time.time(), refused.cure or CURES.get(refused.status, "")
        texts = map(one_line, (run, what, refused.status, refused.reason, cure))
        try:
            self.journal.refuse(Refusal(now, now, 1, *texts))
        except StoreError as error:  # what was refused changes nothing here, so the node need not stop
            log.warning("`fedmc node status` will not show this refusal: %s", error)


def one_line(text: str, most: int = 500) -> str:
    """The text's start without line breaks and other characters that do not print: a server chose parts of it."""
    return printable(text[:most])
