"""A refusal: the status that the server gets, and the reason, which stays in the node's own log."""

from __future__ import annotations

import logging

from fedmc.errors import printable

log = logging.getLogger("fedmc.node")


class RefusedError(Exception):
    """The node does not do what it was asked; raised with the status and the reason."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(status)
        self.status, self.reason = status, reason

    def log(self, what: str) -> None:
        """Write the one line that says why something was refused."""
        log.warning("refused %s (%s): %s", printable(what), self.status, printable(self.reason))
