"""Ratings, their splits and their shards."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmc.data.loading import as_ratings
from fedmc.data.partition import assign_users, make_shards, owners_from_names
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random as split
from fedmc.errors import DataError, InputError
from tests.conftest import examples, planted

USERS, ITEMS, VALUES = ["b", "a", "b", "c"], [10, 20, 20, 5], [1.0, 0.0, 3.5, -2.0]


def test_every_way_in_gives_the_same_ratings():
    frame = pd.DataFrame({"rating": VALUES, "userId": USERS, "movieId": ITEMS})
    for ratings in (as_ratings((USERS, ITEMS, VALUES)), as_ratings(frame), as_ratings(as_ratings(frame))):
        assert ratings.users.tolist() == ["a", "b", "c"]
        assert ratings.items.tolist() == [5, 10, 20]
        assert ratings.matrix.toarray().tolist() == [[0, 0, 0], [0, 1, 3.5], [-2, 0, 0]]
        assert len(ratings) == 4  # the stored 0 counts


def test_sparse_and_dense_matrices_keep_their_numbering():
    dense = np.array([[1.0, np.nan, 0.0], [np.nan, np.nan, np.nan], [np.nan, 2.0, np.nan]])
    stored = sparse.coo_matrix(([1.0, 0.0, 2.0], ([0, 0, 2], [0, 2, 1])), shape=(3, 3))
    for ratings in (as_ratings(dense), as_ratings(stored), as_ratings(stored.tocsr())):
        assert ratings.users.tolist() == [0, 1, 2]
        assert len(ratings) == 3
        assert ratings.matrix.indptr.tolist() == [0, 2, 2, 3]
        assert ratings.matrix.data.tolist() == [1.0, 0.0, 2.0]


@given(order=st.permutations(range(30)), seed=st.integers(0, 5))
@examples(40)
def test_row_order_changes_nothing(order, seed):
    rng = np.random.default_rng(0)
    cells = rng.permutation(100)[:30]
    table = (
        np.array(["x", "yy", "z"] * 10)[cells // 10 % 30],
        cells % 10 + cells // 10 * 100,
        rng.normal(size=30),
    )
    one, other = (Ratings.from_arrays(*(column[list(o)] for column in table)) for o in (range(30), order))
    for a, b in ((one, other), *zip(split(one, 0.3, seed), split(other, 0.3, seed), strict=True)):
        assert a.users.tolist() == b.users.tolist()
        assert a.items.tolist() == b.items.tolist()
        assert (a.matrix != b.matrix).nnz == 0
        assert a.matrix.data.tolist() == b.matrix.data.tolist()


def test_split_and_shards_cover_every_rating_once():
    ratings = planted()
    rest, share = split(ratings, 0.25, 3)
    assert len(share) == round(0.25 * len(ratings))
    assert ((rest.matrix + share.matrix) != ratings.matrix).nnz == 0
    assert len(rest) + len(share) == len(ratings)
    owner = assign_users(len(ratings.users), 7, 0)
    shards = make_shards(rest, owner, "float64", share)
    assert sorted(np.concatenate([s.users for s in shards])) == list(range(len(ratings.users)))
    assert {len(s.users) for s in shards} <= {5, 6}
    assert sum(s.by_user.nnz for s in shards) == len(rest)
    assert sum(s.test.nnz for s in shards) == len(share)
    for s in shards:
        assert (s.by_item != s.by_user.T).nnz == 0
        assert s.by_user.indices.dtype == s.by_user.indptr.dtype == s.by_item.indices.dtype == np.int32
        assert np.array_equal(s.by_user.toarray(), rest.matrix[s.users].toarray())


def test_duplicates():
    table = ["a", "a", "a", "b"], [1, 1, 1, 1], [1.0, 2.0, 6.0, 4.0]
    with pytest.raises(DataError, match=r"2 ratings repeat.*user a, item 1.*duplicates='last' or duplicates='mean'"):
        as_ratings(table)
    assert as_ratings(table, duplicates="last").matrix.toarray().tolist() == [[6], [4]]
    assert as_ratings(table, duplicates="mean").matrix.toarray().tolist() == [[3], [4]]
    with pytest.raises(InputError, match="unknown way"):
        as_ratings(table, duplicates="first")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (([], [], []), "empty"),
        ((["a"], [1, 2], [3.0]), "equally long"),
        ((["a"], [1], ["x"]), "must be numbers"),
        ((["a", "b"], [1, 2], [3.0, np.nan]), r"rating 2 \(user b, item 2\) is nan"),
        ((["a"], [1], [np.inf]), "is inf"),
        (([1.5], [1], [2.0]), "whole numbers or strings"),
        (([None], [1], [2.0]), "user id 1 is missing"),
        ((np.zeros((2, 2)), [1, 2], [1, 2]), "one-dimensional"),
        ("text", "cannot read ratings from a str"),
        ((np.array([1, "1"], dtype=object), [1, 2], [1.0, 2.0]), "look alike"),
        ((["a"], [1], [1e16]), "must lie within"),
        ((pd.Series([1, pd.NA], dtype=object), [1, 2], [1.0, 2.0]), "user id 2 is missing"),
    ],
)
def test_bad_tables(table, message):
    with pytest.raises(DataError, match=message):
        as_ratings(table)


def test_ids_keep_their_kind():
    assert as_ratings((np.array([3.0, 1.0]), ["x", "y"], [1, 2])).users.tolist() == [1, 3]
    assert as_ratings((np.array([3, "a"], dtype=object), [1, 2], [1, 2])).users.tolist() == ["3", "a"]
    assert as_ratings((np.array([2**63, 1], dtype=np.uint64), [1, 2], [1, 2])).users.tolist() == ["1", str(2**63)]
    assert as_ratings((np.array([b"\xff", b"a"]), [1, 2], [1, 2])).users.tolist() == ["\\xff", "a"]
    assert as_ratings((np.array([3, 2], dtype=object), [1, 2], [1, 2])).users.dtype == np.int64


def test_partition_bounds():
    with pytest.raises(InputError, match=r"more clients \(5\) than users \(4\)"):
        assign_users(4, 5, 0)
    with pytest.raises(InputError, match="at least 1, got 0"):
        assign_users(4, 0, 0)
    with pytest.raises(DataError, match="one client per user"):
        owners_from_names(["a"], 2)
    ratings = as_ratings((["a", "b"], [1, 1], [1.0, 2.0]))
    with pytest.raises(DataError, match="client 1 has no training ratings"):
        make_shards(ratings.with_entries(np.array([True, False])), np.array([0, 1]), "float64")
    with pytest.raises(InputError, match="below 1, got 1"):
        split(ratings, 1.0, 0)
