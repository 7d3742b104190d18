"""Many rounds of a federation under secure aggregation, whose members join in groups, drop out and come back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.messages import SUM_BITS
from fedmc.audit.observer import Planned
from fedmc.federation.wire import decode
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.secure_world import SecureWorld
from tests.world import read

CLIENTS, GROUP = 10, 5


class Unsteady(SecureWorld):
    """After all have joined, one member is lost in most rounds; all accept to be seen when they come back."""

    def __init__(self, folder):
        super().__init__(folder, CLIENTS, alone=range(CLIENTS))
        self.lost = None

    def exchange(self, contents, max_bytes, needed):
        header = read(next(iter(contents.values())))[1]
        if header.get("task") == "round" and header["round"] > 2:
            number, group = header["round"], sorted(decode(*read(next(iter(contents.values())))).invitation.members)
            self.lost = number % CLIENTS if len(group) == GROUP else None
        answers = super().exchange(contents, max_bytes, needed)
        return {k: answer for k, answer in answers.items() if k != self.lost or header.get("task") != "round"}


@pytest.mark.parametrize("number", [30, pytest.param(1000, marks=[pytest.mark.nightly, pytest.mark.timeout(1500)])])
def test_v_is_that_of_plain_with_members_that_join_drop_out_and_return(number, tmp_path):
    world = Unsteady(tmp_path)
    given = {"active": GROUP, "min_cohort": 3}
    history = list(itertools.islice(rounds(world.engine(), world.settings(**given), last=number), number + 1))
    cohorts = tuple(round.participants for round in history[1:])
    assert {len(cohort) for cohort in cohorts} == {GROUP - 1, GROUP}
    assert set().union(*cohorts[-2 * CLIENTS :]) == set(range(CLIENTS))  # everybody comes back
    plain = world.settings(active=GROUP, privacy="plain", sampler=Planned(cohorts))
    *_, last = itertools.islice(rounds(LocalEngine(world.shards), plain, measure_every=number), number + 1)
    np.testing.assert_allclose(history[-1].V, last.V, rtol=0, atol=1000 * CLIENTS * 2.0 ** -(SUM_BITS + 1))
    assert history[-1].V.tobytes() != last.V.tobytes()
    assert history[-1].diagnostics.train_rmse == pytest.approx(last.diagnostics.train_rmse, abs=1e-5)
