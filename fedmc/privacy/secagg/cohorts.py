"""The cohort of a round of secure aggregation: a fixed group of at least `least` clients.

A row of a cohort's sum that is exactly zero proves that nobody in the cohort rated the item. If cohorts were drawn
anew, such proofs would add up over the rounds until they name single clients (`fedmc.audit.group_testing`). So clients
are divided into groups once and for all, and whole groups take turns. The division depends only on the number of
clients, on `least` and on how many take part in a round: not on the seed, the round or the run. Runs with another
number of clients a round use unions of the same smallest groups.

A newcomer adds its whole contribution, while the other clients add small changes: a single newcomer would stand out in
the sum. A group joins together at its first turn. In a federation, whoever comes back alone after an absence waits for
others with the same last sum (`rules.Rules.hides`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

Group = tuple[int, ...]


class Turn(NamedTuple):
    """A round, before it is known whom to ask."""

    number: int
    drawn: Group  # by the sampler
    clients: int
    active: int  # about so many shall take part


@lru_cache
def groups(clients: int, active: int, least: int) -> tuple[Group, ...]:
    """The groups in the order of their turns; each has about `active` clients, and at least `least` if that many are.

    Clients with neighbouring numbers are together: in a federation, neighbours in the list of organisations.
    """
    number = max(clients // least, 1)
    smallest = np.array_split(np.arange(clients), number)
    together = min(max(round(active * number / clients), 1), number)  # so many of the smallest groups in a round
    turns = np.array_split(np.arange(number), -(-number // together))
    return tuple(tuple(int(client) for part in turn for client in smallest[part]) for turn in turns)


def cohort(turns: Sequence[Group], least: int, number: int) -> Group:
    """The clients of round `number`: the group whose turn it is, or () if they would not be hidden."""
    group = turns[(number - 1) % len(turns)]
    return group if len(group) >= least else ()
