"""A person known to several organisations: the numbers that the claim and the documentation give."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("dp_accounting", reason="needs the extra `dp`")

from fedmc.algorithms.private import counts
from fedmc.data.partition import make_shards
from fedmc.privacy.dp.several import epsilon_of
from fedmc.privacy.modes import DP, DPSecAgg
from tests.conftest import planted

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "differential-privacy.md"


def test_the_table_in_the_documentation():
    section = PAGE.read_text(encoding="utf-8").partition("## A person known to several")[2].partition("\n## ")[0]
    rows = [re.findall(r"[0-9.]+", line) for line in section.splitlines() if re.match(r"\| [0-9]", line)]
    assert len(rows) == 3
    for epsilon, *found in rows:
        for said, (known_to, shared) in zip(found, ((2, False), (3, False), (2, True), (3, True)), strict=True):
            assert float(said) == pytest.approx(epsilon_of(known_to, float(epsilon), 1e-6, shared), abs=0.006)


@pytest.mark.parametrize("kind", [DP, DPSecAgg])
def test_the_claim_says_it(kind):
    privacy = kind(epsilon=1.0, delta=1e-6)
    two, three = (epsilon_of(k, 1.0, 1e-6, privacy.noise_shared) for k in (2, 3))
    assert f"For a person known to two clients epsilon is {two:.3g}, to three {three:.3g}" in privacy.claim()
    assert epsilon_of(1, 1.0, 1e-6, privacy.noise_shared) == pytest.approx(1.0)


def test_a_person_at_two_clients_moves_their_sum_twice_as_far():
    """Why shared noise counts k times: the parts of one person at two clients can be the same."""
    ratings = planted(users=20, items=8)
    both = [make_shards(ratings, np.zeros(20, int), "float64")[0] for _ in range(2)]
    without = planted(users=20, items=8)
    without = make_shards(without, np.r_[1, np.zeros(19, int)], "float64")[0]  # all but the first user
    move = np.linalg.norm(sum(counts(one) for one in both) - 2 * counts(without))
    assert move == pytest.approx(2.0)
