"""Attacks on runs of the Bayesian model: a server that asks for other tasks, hostile updates, hostile model files."""

from __future__ import annotations

import json
import math
from itertools import islice

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc import FedMC
from fedmc.algorithms import registry
from fedmc.algorithms.messages import Sums
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.errors import Diverged, ModelFileError, TooFewError
from fedmc.federation.server.secagg_session import SecureAsk
from fedmc.model import load
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted
from tests.secure_world import SecureWorld
from tests.world import KINDS

# --- a server that asks for another task to get the same update in a second sum


@pytest.mark.parametrize("kind", ["secagg-bayes", "secagg"])
def test_a_second_task_does_not_give_the_update_of_a_round_again(kind, tmp_path, caplog):
    """The difference of two sums over different members would be one member's update."""
    world = SecureWorld(tmp_path, 8)
    engine = world.engine()
    broadcast = next(rounds(engine, KINDS[kind].replace(active=8))).broadcast
    everybody = SecureAsk(engine.asking, broadcast._replace(task="round", round=1), list(range(8))).run()
    assert everybody.clients == tuple(range(8))
    with pytest.raises(TooFewError, match="0 of 7 nodes take part"):
        SecureAsk(engine.asking, broadcast._replace(task="scale", round=1), list(range(7))).run()
    refusals = [record.getMessage() for record in caplog.records if "refused scale" in record.getMessage()]
    assert len(refusals) == 7
    assert all("has no task scale" in one for one in refusals)


def test_only_admm_has_a_task_beside_the_common_ones():
    with_scale = {name for name in registry.names() if "scale" in registry.find(name).tasks}
    assert with_scale == {"linearised", "explicit", "exact"}
    assert "start" not in registry.find("bayes").tasks | registry.find("gibbs").tasks


# --- a client whose update is hostile


class Poisoned(LocalEngine):
    """The simulation, in which the sum of round 5 has a hostile update in it."""

    def __init__(self, shards, part, change):
        super().__init__(shards)
        self.part, self.change = part, change

    def ask(self, broadcast, clients) -> Sums:
        total = super().ask(broadcast, clients)
        if broadcast.task == "round" and broadcast.round == 5:
            self.change(total.parts[self.part])
        return total


def setting(*place, value):
    return lambda array: array.__setitem__(place, value)


def setting_users(array):
    """The number of users, after the other sums of products of regressors: three and the one, or the one alone."""
    array[0, {13: 0, 31: 9}[array.shape[1]]] = -1e6


HOSTILE = {
    "huge users": ("users", setting(slice(None), value=1e308)),
    "negative number of users": ("users", setting_users),
    "negative squares of regressors": ("users", setting(0, 0, value=-1e6)),
    "huge products of regressors": ("users", setting(0, slice(10), value=1e150)),
    "negative second moments": ("users", setting(0, slice(-9, -3), value=-1e6)),
    "negative error": ("users", setting(0, -3, value=-1e9)),
    "negative number of ratings": ("users", setting(0, -1, value=-1e9)),
    "not a number": ("S", setting(0, 0, value=np.nan)),
    "negative G": ("S", lambda array: array.__imul__(-1000)),
}


@pytest.mark.parametrize("algorithm", ["bayes", "gibbs"])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_update_ends_the_run_with_a_reason_or_does_no_more_than_mislead(case, algorithm):
    """Never a raw exception, and never a broadcast that honest nodes would refuse."""
    shards = make_shards(planted(), np.arange(40) % 4, "float64")
    settings = Settings.preset("bayes", rank=2, active=4, algorithm=algorithm)
    engine = Poisoned(shards, *HOSTILE[case])
    try:
        for round in islice(rounds(engine, settings, measure_every=100), 8):
            settings.make_algorithm().check_broadcast(round.broadcast._replace(task="round"))
    except Diverged as error:
        assert "look for a client that sends wrong updates" in str(error) or "not finite" in str(error)


def test_sums_that_cannot_be_are_refused():
    shards = make_shards(planted(), np.arange(40) % 4, "float64")
    engine = Poisoned(shards, *HOSTILE["negative number of ratings"])
    with pytest.raises(Diverged, match="cannot be sums"):
        list(islice(rounds(engine, Settings.preset("bayes", rank=2, active=4)), 8))


# --- model files

DAMAGE = {
    "noise": lambda array: array * 0,
    "user_precision": lambda array: array * 0,
    "item_precision": lambda array: -array,
    "user_covariances": lambda array: -array,
    "item_covariances": lambda array: array.astype(np.float16),
    "calibration": lambda array: array[:, ::-1],
    "item_mean": lambda array: array[:-1],
    "V": lambda array: array.astype(">f8"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_model_file_with_impossible_numbers_is_refused(name, tmp_path):
    FedMC(2, clients=4, rounds=4).fit(planted()).save(str(tmp_path / "whole.npz"))
    content = dict(np.load(tmp_path / "whole.npz"))
    assert load(tmp_path / "whole.npz").posterior is not None
    np.savez(tmp_path / "bad.npz", **content | {name: DAMAGE[name](content[name])})
    with pytest.raises(ModelFileError, match=name if name != "V" else "V is not finite"):
        load(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    "wrong", [{"rating_range": [math.nan, 5]}, {"rating_range": [5, 1]}, {"mean": 1e300}, {"scale": math.inf}]
)
def test_a_model_file_with_an_impossible_scale_is_refused(wrong, tmp_path):
    FedMC(2, clients=4, rounds=2).fit(planted()).save(str(tmp_path / "whole.npz"))
    content = dict(np.load(tmp_path / "whole.npz"))
    about = json.loads(str(content["about"])) | wrong
    np.savez(tmp_path / "bad.npz", **content | {"about": np.array(json.dumps(about))})
    with pytest.raises(ModelFileError, match="ratings cannot"):
        load(tmp_path / "bad.npz")
