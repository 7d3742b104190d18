"""Who takes part in a round of secure aggregation: enough to hide among, and newcomers among as many newcomers.

What a newcomer adds is all of its contribution, beside which the changes of those who are in are small: alone it would
stand out in the sum. So newcomers wait for each other, and a few that would be left over are taken along.
"""

from __future__ import annotations

from collections.abc import Iterable, Set


def cohort(drawn: Iterable[int], joined: Set[int], clients: int, least: int, number: int) -> tuple[int, ...]:
    """The drawn clients, made up to at least `least` of them in round `number`; () where that cannot be had."""
    chosen = set(drawn)
    newcomers = admitted(chosen - joined, set(range(clients)) - joined, least)
    taking_part = (chosen & joined) | newcomers
    others = sorted(joined - taking_part)
    turned = others[number % max(len(others), 1) :] + others[: number % max(len(others), 1)]
    taking_part |= set(turned[: max(least - len(taking_part), 0)])
    return tuple(sorted(taking_part)) if len(taking_part) >= least else ()


def admitted(drawn: Set[int], waiting: Set[int], least: int) -> set[int]:
    """At least `least` of the waiting ones, those drawn first; or nobody."""
    if not drawn or len(waiting) < least:
        return set()
    rest = sorted(waiting - drawn)
    taken = set(drawn) | set(rest[: max(least - len(drawn), 0)])
    left = waiting - taken
    return taken | left if len(left) < least else taken
