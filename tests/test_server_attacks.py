"""The audit's attacks of a malicious server: they find nothing, but do so where a protection is taken out."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.settings import Settings
from fedmc.audit.observer import watch
from fedmc.audit.server_attacks import of_server
from fedmc.data.datasets import load_source
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.synthetic import Recipe, make_ratings
from fedmc.errors import Diverged
from fedmc.privacy.secagg import member
from fedmc.training.secure_sums import MaskedSum, SecureSum


def attacked(preset="fast", probes=40, **given):
    ratings = make_ratings(Recipe(24, 3000, 500, rank=3, scale=(1.0, 5.0, 1.0)))
    shards = make_shards(ratings, assign_users(24, 6, 0), "float64")
    settings = Settings.preset(preset, rank=3, active=6, privacy="secagg", min_cohort=5, **given)
    broadcast = watch(shards, settings, (0,), 2).sums[-1].broadcast
    return of_server(shards, broadcast, probes)


@pytest.mark.parametrize("given", [{}, {"update": "exact"}, {"preset": "bayes"}])
def test_a_malicious_server_finds_nothing(given):
    oracle, sessions, subtraction = attacked(**given)
    assert oracle.attack == oracle.guess == 0.5
    assert sessions.attack == subtraction.attack == 0
    assert "0 of 5 members agree" in sessions.meaning
    assert "member's count for 0 of 6 members" in subtraction.meaning


def test_the_oracle_works_where_failures_are_told(monkeypatch):
    """A client that fails if and only if it rated the item that V is about."""
    work = SecureSum.reply

    def failing(self, shard, state, broadcast):
        probed = broadcast.V.any(axis=1).nonzero()[0]
        if len(probed) == 1 and probed[0] in shard.rated:
            raise Diverged(1, "numbers", "cure")
        return work(self, shard, state, broadcast)

    monkeypatch.setattr(MaskedSum, "reply", failing)
    assert attacked()[0].attack > 0.8


def test_two_sessions_work_where_repeats_are_not_checked(monkeypatch):
    monkeypatch.setattr(member, "_check_repeat", lambda *given: None)
    assert attacked()[1].attack == 1


def test_subtraction_works_where_measurements_are_whole(monkeypatch):
    monkeypatch.setattr(MaskedSum, "reply", SecureSum.reply)
    assert attacked()[2].attack == 1


@pytest.mark.nightly
@pytest.mark.realdata
@pytest.mark.parametrize("preset", ["fast", "bayes"])
def test_a_thousand_probes_on_movielens_100k(preset, data_folder):
    ratings = load_source(str(data_folder / "ml-100k" / "u.data"))
    shards = make_shards(ratings, assign_users(len(ratings.users), 40, 0), "float64")
    settings = Settings.preset(preset, rank=10, active=10, privacy="secagg")
    broadcast = watch(shards, settings, (0,), 4).sums[-1].broadcast
    oracle, _, subtraction = of_server(shards[:10], broadcast, 1000)
    assert abs(oracle.advantage) <= 0.02
    assert subtraction.attack == 0
