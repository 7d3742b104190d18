"""The order in which replies are added: a fixed tree over the clients that are asked, the same in every engine.

Floating-point sums depend on their order. So that one process, many workers and a federation's server get the same
bits, the order is a function of the number of clients that are asked, and of nothing else:

    blocks    the clients, by their numbers, in at most 64 blocks of at least 16 consecutive ones; a block's replies are
              added one after the other
    tree      the sums of blocks 0 and 1 are added, those of 2 and 3, then both of these, and so on

Up to 16 clients are one block: a plain chain. A worker that holds all clients of some blocks may add them up itself,
and further, up to the largest subtrees of which it holds every block (`condensed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import NamedTuple

from fedmc.algorithms.messages import Sums, add_up

MIN_BLOCK = 16  # clients: a tree of single ones would add dense sums where a chain adds a client's few rows
MAX_BLOCKS = 64  # dense sums that are added


class Share(NamedTuple):
    """The place of some consecutive clients among all that are asked."""

    first: int  # how many of those asked have smaller numbers
    asked: int
    size: int  # of a block

    @classmethod
    def all(cls, asked: int) -> Share:
        return cls(0, asked, max(MIN_BLOCK, -(-asked // MAX_BLOCKS)))

    def after(self, first: int) -> Share:
        """The place of clients before whom there are so many."""
        return self._replace(first=first)

    def blocks(self, clients: Sequence[int]) -> dict[int, int]:
        """The block of each of these clients, who are in ascending order."""
        return {client: (self.first + place) // self.size for place, client in enumerate(clients)}

    def whole(self, count: int) -> range:
        """The blocks all of whose clients are among the `count` of this share."""
        end = self.first + count
        return range(-(-self.first // self.size), -(-end // self.size) if end == self.asked else end // self.size)


class Piece(NamedTuple):
    """A part of a sum: a reply of one or more clients of a block, or the sum of whole blocks."""

    client: int  # the first whose reply it holds
    block: int  # the first
    sums: Sums
    level: int | None = None  # it is the sum of 2^level blocks; None: replies, to be added to others of the block


def pieces(replies: Iterable[tuple[int, Sums]], clients: Sequence[int]) -> Iterator[Piece]:
    """The replies of all `clients` as pieces; both are in ascending order."""
    blocks = Share.all(len(clients)).blocks(clients)
    return (Piece(client, blocks[client], sums) for client, sums in replies)


def condensed(found: Iterable[Piece], whole: range | None = None) -> list[Piece]:
    """The same sum in as few pieces as possible, given that all replies of the blocks `whole` are here."""
    stack: list[Piece] = []
    for (block, level), some in groupby(found, lambda piece: (piece.block, piece.level)):
        if level is None and whole is not None and block not in whole:
            stack += some
        elif level is None:
            first = next(some)
            added = add_up(piece.sums for piece in chain([first], some))
            _push(stack, Piece(first.client, block, added, 0))
        else:
            _push(stack, next(some))
    return stack


def total(found: Iterable[Piece]) -> Sums:
    """The sum of all pieces, which are in ascending order."""
    stack = condensed(found)
    while len(stack) > 1:
        right, left = stack.pop(), stack.pop()
        stack.append(left._replace(sums=_added(left.sums, right.sums)))
    return _owned(stack[0].sums)


def _push(stack: list[Piece], piece: Piece) -> None:
    """Put a subtree on the stack, and join it with its left sibling while that is there."""
    while stack and piece.level is not None and _siblings(stack[-1], piece):
        left = stack.pop()
        piece = Piece(left.client, left.block, _added(left.sums, piece.sums), piece.level + 1)
    stack.append(piece)


def _siblings(left: Piece, right: Piece) -> bool:
    if right.level is None or left.level != right.level:
        return False
    width = 1 << right.level
    return left.block + width == right.block and left.block % (2 * width) == 0


def _added(left: Sums, right: Sums) -> Sums:
    """left + right, in the arrays of `left` unless they may only be read."""
    return add_up([right], _owned(left))


def _owned(sums: Sums) -> Sums:
    """The sum in arrays that may be written."""
    if all(sums[name].flags.writeable for name in sums.parts):
        return sums
    return replace(sums, parts={name: sums[name].copy() for name in sums.parts})
