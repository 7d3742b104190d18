"""The engine over workers gives the bits of the local engine: every algorithm, any number of workers, any loss."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fedmc import FedMC
from fedmc.algorithms import registry
from fedmc.algorithms.objectives import Objective
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.errors import DataError, Diverged, InputError
from fedmc.training import tree
from fedmc.training.distributed import library, worker
from fedmc.training.distributed.engine import divided
from fedmc.training.distributed.hosts import WorkerError
from fedmc.training.engines import Local, OnRay, as_engine, chosen_engine
from fedmc.training.local import LocalEngine
from tests.command import fedmc
from tests.conftest import planted
from tests.distributed_world import bits_of_states, engine_here, history
from tests.test_algorithms import PLAIN, SECAGG, settings_of

ROUNDS = 3
CLIENTS = 7  # in blocks of 2
CLIPPED = {"active": 3, "clip": 2.0}
FATES = ("lost before", "lost after", "result lost")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(tree, "MIN_BLOCK", 2)
    monkeypatch.setattr(worker, "KEPT", 0)  # pages are dropped after every reply


def shards_of(clients: int = CLIENTS, dtype: str = "float64"):
    return make_shards(planted(), np.arange(40) % clients, dtype)


def expected_of(shards, settings: Settings, objectives=None, **given):
    engine = LocalEngine(shards, objectives=objectives)
    found = history(engine, settings, ROUNDS, **given)
    return found, bits_of_states(engine), set(engine.joined)


def found_in(engine, settings: Settings, **given):
    return history(engine, settings, ROUNDS, **given), bits_of_states(engine), set(engine.joined)


CASES = [
    *((name, preset, PLAIN) for name in registry.names() for preset in ("paper", "fast")),
    *((name, "fast", SECAGG) for name in registry.names()),
    *((name, "fast", CLIPPED) for name in registry.names() if registry.find(name).cumulative and name != "gibbs"),
]


@pytest.mark.parametrize(
    ("name", "preset", "given"), CASES, ids=["-".join([one[0], one[1], *map(str, one[2])]) for one in CASES]
)
def test_every_algorithm_gives_the_bits_of_the_local_engine(name, preset, given, tmp_path):
    settings = settings_of(name, preset, given)
    if settings.active == 4:  # all those of the other tests
        settings = settings.replace(active=CLIENTS)
    shards = shards_of()
    expected = expected_of(shards, settings)
    for workers in (1, 2, 3):
        with engine_here(shards, tmp_path / str(workers), workers) as engine:
            assert len(engine.workers) == workers
            assert found_in(engine, settings) == expected


@pytest.mark.parametrize("preset", ["paper", "fast", "bayes"])
def test_floats_of_32_bits(preset, tmp_path):
    shards, settings = shards_of(dtype="float32"), Settings.preset(preset, rank=2, active=5, dtype="float32")
    with engine_here(shards, tmp_path, 3) as engine:
        assert found_in(engine, settings) == expected_of(shards, settings)


@pytest.mark.parametrize("seed", range(20))
def test_losses_at_random_moments_change_no_bit(seed, tmp_path):
    """Each call may lose its worker, before or after its effect, or only its result."""
    chance = random.Random(seed)
    given = ({}, {"privacy": "secagg", "min_cohort": 3, "active": CLIENTS}, {"clip": 2.0})[seed % 3]
    preset = ("paper", "fast", "bayes")[seed // 3 % 3] if "clip" not in given else "fast"
    settings = Settings.preset(preset, **{"rank": 2, "active": 5} | given)
    shards = shards_of()

    def fate() -> str:
        return chance.choice(FATES) if chance.random() < 0.12 else "ok"

    with engine_here(shards, tmp_path, 3, fate) as engine:
        assert found_in(engine, settings) == expected_of(shards, settings)
        assert engine._hosts.losses > 1


@pytest.mark.parametrize("fate", ["ok", *FATES])
def test_a_rollback_restores_the_states_before_the_round(fate, tmp_path):
    shards, settings = shards_of(), Settings.preset("fast", rank=2, active=5)
    local, told = LocalEngine(shards), iter([])
    with engine_here(shards, tmp_path, 3, lambda: next(told, "ok")) as engine:
        for one in (local, engine):
            history(one, settings, 2)
        before = bits_of_states(local)
        told = iter([fate] * 2)
        for one in (local, engine):
            one.rollback()
        assert bits_of_states(local) == bits_of_states(engine) != before
        assert local.joined == engine.joined
        with engine_here(shards, tmp_path, 3) as again:  # from the checkpoints alone
            assert bits_of_states(again) == bits_of_states(local)


def test_checkpoints_are_merged(tmp_path):
    shards, settings = shards_of(), Settings.preset("fast", rank=2, active=5)
    with engine_here(shards, tmp_path, 2) as engine:
        history(engine, settings, 30)
        held = [len(list((tmp_path / f"worker-{k}").glob("*"))) for k in range(2)]
        assert max(held) < 10
        with engine_here(shards, tmp_path, 2) as again:
            assert bits_of_states(again) == bits_of_states(engine)


def test_users_of_clients_that_are_not_drawn(tmp_path):
    settings = Settings.preset("fast", rank=2, active=3, algorithm="fedmavg", update_users="all", inner_steps=2)
    shards = shards_of()
    with engine_here(shards, tmp_path, 3) as engine:
        assert found_in(engine, settings) == expected_of(shards, settings)


def test_objectives_of_single_clients(tmp_path):
    settings, shards = Settings.preset("fast", rank=2, active=5), shards_of()
    own = {1: Objective(penalty_users="l2:3"), 5: Objective(penalty_users="l2:0.5")}
    with engine_here(shards, tmp_path, 3, objectives=own) as engine:
        assert found_in(engine, settings) == expected_of(shards, settings, own)
        assert found_in(engine, settings)[0] != expected_of(shards, settings)[0]


def test_a_run_that_diverges_says_so(tmp_path):
    settings = Settings.preset("paper", rank=2, active=5, privacy="secagg", min_cohort=3, beta=1e-9)
    said = []
    for make in (lambda: LocalEngine(shards_of()), None):
        with pytest.raises(Diverged) as error:
            if make is not None:
                history(make(), settings, 40)
            else:
                with engine_here(shards_of(), tmp_path, 3) as engine:
                    history(engine, settings, 40)
        said.append((str(error.value), error.value.round))
    assert said[0] == said[1]


def test_a_worker_that_is_lost_again_and_again_is_an_error(tmp_path):
    told = iter(["ok"] * 3)
    with (
        pytest.raises(WorkerError, match="a worker was lost 5 times"),
        engine_here(shards_of(), tmp_path, 2, lambda: next(told, "lost before")) as engine,
    ):
        history(engine, Settings.preset("fast", rank=2, active=5), 3)


def test_a_worker_that_cannot_read_its_shards_says_which_file(tmp_path):
    with (
        engine_here(shards_of(), tmp_path, 2) as engine,
        pytest.raises(DataError, match=r"cannot read .*worker-0.shards.*all machines"),
    ):
        (tmp_path / "worker-0.shards").unlink()
        history(engine, Settings.preset("fast", rank=2, active=5), 1)


@pytest.mark.parametrize(("clients", "workers"), [(1, 1), (7, 7), (7, 3), (40, 6)])
def test_each_worker_holds_consecutive_clients(clients, workers):
    shards = shards_of(clients)
    ranges = divided(shards, workers)
    assert [client for one in ranges for client in one] == list(range(clients))
    assert len(ranges) == workers
    assert min(map(len, ranges)) >= 1
    held = [sum(shards[k].by_user.nnz for k in one) for one in ranges]
    largest = max(shard.by_user.nnz + len(shard.users) for shard in shards)
    assert max(held) <= sum(held) / workers + 2 * largest + 40


def test_ray_that_is_not_installed_is_an_error_with_the_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package ray: pip install 'fedmc\[ray\]'"):
        FedMC(2, engine="ray").fit(planted())
    said = fedmc("train", "demo", "--engine", "ray", cwd=tmp_path)
    assert said.returncode == 2
    assert "pip install 'fedmc[ray]'" in said.stderr


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at '127.0.0.1:1'.*ray start --head"),
        ("nonsense", "HOST:PORT"),
        ("ray://there:10001", "HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_an_error_with_the_cure(address, told):
    with pytest.raises(InputError, match=told), OnRay(address).open(shards_of(), None, {}):
        pass


def test_engines_are_values():
    assert as_engine("local") == chosen_engine("local", None, None, None) == Local()
    assert chosen_engine("ray", "a:1", 3, None) == OnRay("a:1", 3)
    assert as_engine(OnRay(workers=2)) == OnRay(workers=2)
    with pytest.raises(InputError, match="choose one of local, ray"):
        as_engine("spark")
    with pytest.raises(InputError, match="workers is for Ray"):
        chosen_engine("local", None, 3, None)
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        OnRay(workers=0)
    with pytest.raises(InputError, match="spill is for the local engine"):
        OnRay().spilling("somewhere")
