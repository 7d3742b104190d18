"""The version of the messages between server and nodes. It is apart from the package's version, which says nothing
about what travels.

    protocol 1   fedmc 0.2: requests are not signed; a node demands its own package version in each request
    protocol 2   since fedmc 0.3: requests travel in a signed envelope (`envelope.py`), which names the protocol; secure
                 aggregation takes two exchanges, and only nodes of this protocol can take part in it

A server serves the last two protocols with the same bytes: a node of protocol 1 ignores the envelope. A node takes part
if its protocol is one of those that the server serves, and never acts on a request that is not signed.
"""

from __future__ import annotations

from typing import NamedTuple

from fedmc import __version__

PROTOCOL = 2
OLDEST = PROTOCOL - 1  # the oldest that a server of this version serves
OLDEST_SECURE = 2  # the oldest that can take part in secure aggregation
VERSION_OF_1 = "0.2.0"  # the package version that nodes of protocol 1 demand


class Served(NamedTuple):
    """The protocols that a server serves."""

    oldest: int = OLDEST
    newest: int = PROTOCOL

    def __str__(self) -> str:
        one = f"protocol {self.newest}"
        return one if self.oldest == self.newest else f"protocols {self.oldest} to {self.newest}"

    @property
    def version(self) -> str:
        """What a request says in `version`: nodes of protocol 1 refuse what is not their own version."""
        return VERSION_OF_1 if self.oldest <= 1 else __version__


DEFAULT = Served()


def mismatch(node: int, served: Served) -> str:
    """Why a node and a server cannot work together, and the cure; for the log of either side."""
    older = "server" if node > served.newest else "node"
    said = f"protocol {node}" if node not in range(served.oldest, served.newest + 1) else "none of them"
    return f"the server speaks {served}, the node {said}: install a newer fedmc at the {older}"
