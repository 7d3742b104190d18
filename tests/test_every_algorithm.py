"""Every algorithm in a federation, in process: plain and under secure aggregation, to the simulation's bits."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms import registry
from fedmc.algorithms.settings import Settings
from fedmc.federation.server import checkpoint
from fedmc.training.fixed_point import FixedPointState
from tests.world import NODES, RUN, KilledError, World, local

ALGORITHMS = [name for name in registry.names() if name != "dp"]  # whose noise is never drawn twice: test_private_runs
MODES = {
    "plain": {"active": 2},
    "secagg": {"active": 3, "privacy": "secagg", "min_cohort": 3},
}
ROUNDS = 3
KILLS = [
    "node 1 after it stored round, before its reply leaves",
    "the server after its checkpoint",
    "node 2 before it computes open",  # the last two: in secure sums only
    "node 0 after it stored open, before its reply leaves",
]


class UnluckyWorld(World):
    """Each of KILLS happens once, as soon as the first round is counted."""

    def __init__(self, folder, quorum):
        super().__init__(folder, quorum=quorum)
        self.left = list(KILLS)

    def tick(self, where):
        begun = self.path.exists() and checkpoint.load(self.path).checkpoint.number >= 1
        if begun and where in self.left:
            self.left.remove(where)
            raise KilledError(where)


def settings_of(algorithm, mode):
    everybody = {"active": NODES} if algorithm in ("gibbs", "ials-blocks") else {}  # which refuse less
    return Settings.preset("fast", rank=3, algorithm=algorithm, **MODES[mode] | everybody)


def check_same(found, expected):
    assert found.number == expected.number
    assert found.broadcast.V.tobytes() == expected.broadcast.V.tobytes()
    assert found.server.seen == expected.server.seen
    assert (found.server.S is None) == (expected.server.S is None)
    if expected.server.S is not None:
        assert found.server.S.tobytes() == expected.server.S.tobytes()
    arrays = found.broadcast.shared.arrays
    assert arrays.keys() == expected.broadcast.shared.arrays.keys()
    for name, array in expected.broadcast.shared.arrays.items():
        assert arrays[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_bits_as_the_simulation(algorithm, mode, tmp_path):
    settings = settings_of(algorithm, mode)
    expected = local(settings, ROUNDS)[1]
    world = World(tmp_path)
    check_same(world.finish(settings, ROUNDS), expected)
    world.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_bits_after_nodes_and_the_server_were_killed(algorithm, mode, tmp_path):
    settings = settings_of(algorithm, mode).replace(active=NODES)
    engine, expected = local(settings, ROUNDS)
    world = UnluckyWorld(tmp_path, NODES)
    check_same(world.finish(settings, ROUNDS), expected)
    check_states(world, engine.states, settings.make_algorithm())
    assert world.left == (KILLS[2:] if mode == "plain" else [])
    world.close()


def check_states(world, states, algorithm):
    """What nodes keep on disk is what simulated clients remember."""
    for client, expected in enumerate(states):
        found = world.stores[client].get(RUN, "committed", algorithm)
        assert found.round == ROUNDS
        check_same_state(found.state, expected)


def check_same_state(found, expected):
    """A node under secure aggregation also remembers which measurement of it is counted; all else is the same."""
    if isinstance(found, FixedPointState):
        found = found._replace(measured=found.measured[:0]) if len(found.whole) else found.inner
    assert type(found) is type(expected)
    for one, other in zip(flattened(found), flattened(expected), strict=True):
        assert one.tobytes() == other.tobytes()


def flattened(state):
    """The arrays of a state, also of one within another."""
    for value in state:
        if isinstance(value, tuple):
            yield from flattened(value)
        else:
            yield np.asarray(value)
