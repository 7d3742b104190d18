"""The cohort of a round of secure aggregation: at least `least` clients, and no newcomers or at least `least` of them.

A newcomer adds its whole contribution, while the other clients add small changes: a single newcomer would stand out in
the sum. So newcomers wait for each other, and if too few would remain for a later round, they are admitted as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Set


def cohort(drawn: Iterable[int], joined: Set[int], clients: int, least: int, number: int) -> tuple[int, ...]:
    """The drawn clients of round `number`, filled up to at least `least` clients; () if that is impossible."""
    chosen = set(drawn)
    newcomers = admitted(chosen - joined, set(range(clients)) - joined, least)
    taking_part = (chosen & joined) | newcomers
    others = sorted(joined - taking_part)
    turned = others[number % max(len(others), 1) :] + others[: number % max(len(others), 1)]
    taking_part |= set(turned[: max(least - len(taking_part), 0)])
    return tuple(sorted(taking_part)) if len(taking_part) >= least else ()


def admitted(drawn: Set[int], waiting: Set[int], least: int) -> set[int]:
    """At least `least` of the waiting newcomers, including all that were drawn; or none."""
    if not drawn or len(waiting) < least:
        return set()
    rest = sorted(waiting - drawn)
    taken = set(drawn) | set(rest[: max(least - len(drawn), 0)])
    left = waiting - taken
    return taken | left if len(left) < least else taken
