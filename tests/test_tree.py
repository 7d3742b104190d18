"""The fixed tree of sums: any division of the clients among workers gives the same bits."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmc.algorithms.messages import Rows, Sums, add_up
from fedmc.training import tree
from fedmc.training.tree import MIN_BLOCK, Piece, Share, condensed, pieces, total

HEIGHT = 5


def replies_of(clients: list[int], seed: int = 0) -> list[tuple[int, Sums]]:
    """A reply for each client: a dense part, and some rows, of very different sizes, so that every order shows."""
    rng = np.random.default_rng(seed)
    found = []
    for client in clients:
        rows = np.flatnonzero(rng.random(HEIGHT) < 0.5).astype(np.int32)
        dense, sparse = (rng.normal(size=(n, 2)) * 10.0 ** rng.integers(-8, 8) for n in (HEIGHT, len(rows)))
        found.append((client, Sums.of(dense=dense, sparse=Rows(rows, sparse, HEIGHT))))
    return found


def bits(sums: Sums) -> dict[str, bytes]:
    return {name: sums[name].tobytes() for name in sums.parts}


def by_workers(clients: list[int], cuts: list[int]) -> list[Piece]:
    """What workers send that hold the clients between the cuts."""
    found, replies = [], dict(replies_of(clients))
    for start, stop in zip([0, *cuts], [*cuts, len(clients)], strict=True):
        some, share = clients[start:stop], Share.all(len(clients)).after(start)
        blocks = share.blocks(some)
        own = [Piece(client, blocks[client], replies[client]) for client in some]
        found += condensed(own, share.whole(len(some)))
    return found


@settings(deadline=None, max_examples=30)  # the first sum compiles
@given(st.data())
def test_any_division_among_workers_gives_the_same_bits(data):
    asked = data.draw(st.integers(1, 40 * MIN_BLOCK))
    clients = [7 * client + 3 for client in range(asked)]
    cuts = sorted(data.draw(st.lists(st.integers(0, asked), max_size=5)))
    expected = total(pieces(replies_of(clients), clients))
    found = total(by_workers(clients, cuts))
    assert bits(found) == bits(expected)
    assert found.sent == expected.sent == sum(sums.sent for _, sums in replies_of(clients))


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_whole_blocks_are_those_of_which_no_client_is_elsewhere(asked, one, other):
    first, end = sorted((min(one, asked), min(other, asked)))
    share, everyone = Share.all(asked).after(first), Share.all(asked).blocks(range(asked))
    here = {block for place, block in everyone.items() if first <= place < end}
    elsewhere = {block for place, block in everyone.items() if not first <= place < end}
    assert set(share.whole(end - first)) - elsewhere == here - elsewhere
    assert not set(share.whole(end - first)) & elsewhere


def test_up_to_16_clients_are_a_chain():
    clients = list(range(MIN_BLOCK))
    replies = replies_of(clients)
    assert bits(total(pieces(replies, clients))) == bits(add_up(sums for _, sums in replies))


def test_blocks_are_added_as_a_binary_tree():
    clients = list(range(5 * MIN_BLOCK))
    replies = [sums for _, sums in replies_of(clients)]
    b = [add_up(replies[k : k + MIN_BLOCK]) for k in range(0, len(replies), MIN_BLOCK)]

    def plus(*sums: Sums) -> Sums:
        return reduce(lambda left, right: add_up([left, right]), sums)

    expected = plus(plus(plus(b[0], b[1]), plus(b[2], b[3])), b[4])
    assert bits(total(pieces(replies_of(clients), clients))) == bits(expected)


@pytest.mark.parametrize("asked", [1, 16, 17, 1024, 1025, 100_000])
def test_there_are_at_most_64_blocks(asked):
    assert len(set(Share.all(asked).blocks(range(asked)).values())) <= tree.MAX_BLOCKS


def test_a_worker_with_many_clients_sends_few_pieces():
    clients = list(range(64 * MIN_BLOCK))
    assert len(by_workers(clients, [len(clients) // 2])) == 2
    assert len(by_workers(clients, [])) == 1
