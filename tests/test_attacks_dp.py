"""Attacks on differential privacy: noise that switches itself off, and budgets that are forgotten.

The server chooses every setting; whoever runs a node, or its backups, can lose or restore any file.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="needs the extra `flower`")
pytest.importorskip("dp_accounting", reason="needs the extra `dp`")

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.private import own_noise
from fedmc.errors import FedmcError, InputError
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.server.running import conduct
from fedmc.federation.wire import decode, decode_reply, from_bytes, to_bytes
from fedmc.privacy.dp import mechanism
from fedmc.privacy.dp.ledger import Ledger
from fedmc.training.rounds import rounds
from tests.conftest import examples
from tests.world import CATALOGUE, ITEMS, KEYS, KINDS, NODES, SIGNER, Between, World, engine_on, name_of, read

DELTA = 1e-6


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("attacks"))
    with closing(made):
        yield made


@pytest.fixture(scope="module")
def asked(world):
    """The bytes of an honest request for round 1, which nobody has answered yet."""
    wire = Between(world, lambda stage, client, reply: None)
    with pytest.raises(FedmcError):
        list(itertools.islice(rounds(engine_on(wire, run="honest"), KINDS["dp"]), 2))
    return next(content for stage, client, content, _ in wire.seen if client == 1)


def answer(world, asked, **settings):
    """What node 1 answers to this request with other settings, in a run of their own."""
    arrays, header = read(asked)
    number = len(list(world.folder.glob("try-*")))
    (world.folder / f"try-{number}").touch()
    changed = header["settings"] | settings
    content = to_bytes(arrays, header | {"run": f"try-{number}", "settings": changed, "settings_hash": None})
    return decode_reply(*from_bytes(world.ask(1, content)))


# --- the noise cannot be switched off


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 1e-30, "delta": 1e-30},  # the noise overflowed, and cost nothing
        {"epsilon": 1e-12},
        {"epsilon": math.inf},
        {"epsilon": 1e6},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": True},
        {"epsilon": "5"},
        {"epsilon": [5.0]},
        {"epsilon": 10**400},
        {"epsilon": 10**4000},
        {"delta": 1e-300},
        {"delta": 0.999999},
        {"delta": math.nan},
        {"delta": False},
        {"dp_rounds": 20_000},  # took a node's time with the square of it
        {"dp_rounds": 10**9},
        {"dp_rounds": 3.0},
        {"dp_rounds": math.nan},
        {"dp_rounds": True},
        {"dp_rounds": "3"},
        {"ratings_from": -math.inf},
        {"ratings_to": math.inf},
        {"ratings_to": 1e300},
        {"ratings_to": 1.0 + 1e-15},
        {"ratings_from": math.nan},
        {"ratings_to": True},
        {"ratings_to": 10**400},
        {"rating_range": [1, 2, 3]},
        {"rating_range": "15"},
        {"rating_range": {"1": 5}},
        {"rank": 2.0},
        {"rank": 201},
    ],
    ids=lambda settings: json.dumps(settings)[:40],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a node has no such filter
def test_a_server_cannot_choose_noise_out_of_bounds(world, asked, settings):
    """It is refused in words, at once, before the ledger is asked, and the node goes on."""
    before, began = world.nodes[1].ledger.multipliers(), time.monotonic()
    reply = answer(world, asked, **settings)
    assert reply.sums is None
    assert reply.status in ("wrong-settings", "malformed"), reply.status
    assert world.nodes[1].ledger.multipliers() == before
    assert time.monotonic() - began < 1


def test_without_noise_is_for_simulations_and_the_node_says_so(world, asked, caplog):
    assert answer(world, asked, epsilon=math.inf).status == "wrong-settings"
    assert "epsilon=inf adds no noise: it is for simulations" in caplog.text
    assert KINDS["dp"].replace(epsilon=math.inf).privacy.epsilon == math.inf


wild = st.one_of(
    st.floats(), st.integers(), st.booleans(), st.text(max_size=3), st.sampled_from([10**400, -(10**400), [], {}, [1]]),
    st.floats(1e-4, 1e4), st.integers(0, 2000), st.floats(0, 1),
)  # fmt: skip


def allowed(name, value):
    """What the documentation says is accepted."""
    kinds = int if name in ("dp_rounds", "rank") else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    low, high = {
        "epsilon": (0.01, 1000), "delta": (1e-12, 0.1), "dp_rounds": (2, 1000), "rank": (1, 200),
        "ratings_from": (-1e6, 5 - 1e-6), "ratings_to": (1 + 1e-6, 1e6),
    }[name]  # fmt: skip
    return low <= value <= high or (name == "epsilon" and value == math.inf)


NAMES = ("epsilon", "delta", "dp_rounds", "rank", "ratings_from", "ratings_to")


@examples(400)
@given(name=st.sampled_from(NAMES), value=wild)
def test_settings_accept_what_is_documented_and_nothing_else(name, value):
    if allowed(name, value):
        KINDS["dp"].replace(**{name: value})
    else:
        with pytest.raises((InputError, TypeError) if name == "rank" else InputError):  # a node says the same of both
            KINDS["dp"].replace(**{name: value})


@examples(20)
@given(
    epsilon=st.floats(math.log(0.01), math.log(1000)).map(math.exp).map(lambda e: min(max(e, 0.01), 1000.0)),
    delta=st.floats(math.log(1e-12), math.log(0.1)).map(math.exp).map(lambda d: min(max(d, 1e-12), 0.1)),
    number=st.integers(2, 1000),
    rank=st.integers(1, 200),
    ends=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).filter(lambda ends: ends[1] - ends[0] >= 1e-6),
    kind=st.sampled_from(["dp", "dp+secagg"]),
    data=st.data(),
)
def test_accepted_settings_have_their_noise_and_the_ledger_charges_it(
    tmp_path_factory, epsilon, delta, number, rank, ends, kind, data
):
    """10^5 draws deviate as calibrated within 5 %; a run's charge is the accountant's within 1e-3."""
    settings = KINDS[kind].replace(
        epsilon=epsilon, delta=delta, dp_rounds=number, rank=rank, ratings_from=ends[0], ratings_to=ends[1]
    )
    algorithm, broadcast = settings.make_algorithm(), broadcast_of(settings)
    round = data.draw(st.integers(1, number))
    multiplier = algorithm.noise_multiplier(broadcast._replace(round=round))
    noise = own_noise(broadcast._replace(round=round))
    assert noise == pytest.approx(multiplier / math.sqrt(3 if kind == "dp+secagg" else 1))
    drawn = mechanism.noised(np.zeros(100_000), noise)
    assert drawn.std() == pytest.approx(noise, rel=0.05)
    assert abs(drawn.mean()) < 0.05 * noise
    plan = [algorithm.noise_multiplier(broadcast._replace(round=one)) for one in range(1, number + 1)]
    assert mechanism.spent(plan, delta) == pytest.approx(epsilon, abs=1e-3)
    with Ledger(tmp_path_factory.mktemp("one") / "ledger", 1000.0, delta) as ledger:
        for count, one in enumerate(plan[:2], 1):
            before = ledger.spent()
            ledger.release(str(count), one, lambda: b"noised")
            assert ledger.spent() == pytest.approx(accounted(plan[:count], delta), abs=1e-3)
            assert ledger.spent() > before - 1e-7  # what the accountant's search leaves open
            assert ledger.spent() > 0


@pytest.mark.parametrize("epsilon", [0.01, 1000.0])
@pytest.mark.parametrize("delta", [1e-12, 0.1])
@pytest.mark.parametrize("number", [2, 1000])
def test_every_plan_within_the_bounds_has_noise_within_them(epsilon, delta, number):
    settings = KINDS["dp"].replace(epsilon=epsilon, delta=delta, dp_rounds=number)
    for round in (1, number):
        noise = settings.make_algorithm().noise_multiplier(broadcast_of(settings)._replace(round=round))
        assert 0.01 <= noise <= 1e5


def accounted(multipliers, delta):
    """The accountant's epsilon: Gaussian releases compose to one of noise (sum of 1/s^2)^-1/2."""
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    with np.errstate(divide="ignore"):
        return get_epsilon_gaussian(sum(one**-2 for one in multipliers) ** -0.5, delta)


def broadcast_of(settings):
    scaling = settings.make_algorithm().scaling(settings)
    assert math.isfinite(scaling.mean)
    assert scaling.scale > 0
    return Broadcast("round", 1, NODES, settings, np.zeros((ITEMS, settings.width)), scaling)


@pytest.mark.parametrize("std", [1e11, 1e20, 1e300, math.inf, math.nan])
def test_noise_that_integers_cannot_hold_is_refused(std):
    """It became one and the same constant on every number."""
    with pytest.raises(InputError, match="nothing is released"):
        mechanism.noised(np.zeros(1000), std)


@pytest.mark.parametrize("value", [2.0**34, -(2.0**34), 1e300, math.inf, math.nan])
def test_values_that_integers_cannot_hold_are_refused(value):
    with pytest.raises(InputError, match="nothing is released"):
        mechanism.noised(np.array([0.0, value]), 1.0)
    assert mechanism.noised(np.array([2.0**33.9]), 1.0)[0] == pytest.approx(2.0**33.9)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, 1e-9, 1e16, math.inf, math.nan, True, "4", None])
def test_a_ledger_records_no_noise_out_of_bounds(multiplier, tmp_path):
    with Ledger(tmp_path / "ledger", 3.0, DELTA) as ledger:
        with pytest.raises(InputError, match="noise multiplier must"):
            ledger.release("run/1", multiplier, lambda: b"one")
        assert ledger.multipliers() == []


@pytest.mark.parametrize(("epsilon", "delta"), [(math.inf, DELTA), (math.nan, DELTA), (True, DELTA), (1.0, 0.0)])
def test_a_ledger_has_a_budget_that_can_be_spent(epsilon, delta, tmp_path):
    with pytest.raises(InputError):
        Ledger(tmp_path / "ledger", epsilon, delta)
    assert not (tmp_path / "ledger").exists()


def test_a_release_is_never_free(tmp_path):
    """With a large delta, the accountant charges the first releases nothing."""
    with Ledger(tmp_path / "ledger", 3.0, 0.1) as ledger:
        for number in range(1, 5):
            before = ledger.spent()
            ledger.release(f"run/{number}", 1e4, lambda: b"noised")
            assert before < ledger.spent() < 1e-3


# --- the ledger cannot be forgotten

BUDGET = (3.5, DELTA)
LARGE = KINDS["dp"].replace(epsilon=2.2, dp_rounds=2)  # two runs fit the budget, three do not
SMALL = LARGE.replace(epsilon=0.2)  # fits beside the two
AGES = ("old", "new", "missing")
LEDGER, STATE, WAL = "ledger-0", "node-0/state.sqlite", "node-0/state.sqlite-wal"


class Federation:
    """Four nodes and an honest server whose folder keeps what it received, all in one folder."""

    def __init__(self, folder, budget=BUDGET):
        self.folder = folder
        (folder / "server" / "runs").mkdir(parents=True, exist_ok=True)
        self.world = World(folder / "nodes", budget=budget)
        self.wire = Between(self.world)

    def run(self, name, settings, wire=None):
        """Conduct a run of two rounds; returns why it failed, or None."""
        folder = RunFolder(self.folder / "server" / "runs" / name)
        public = tuple(key.public_key().public_bytes_raw().hex() for key in KEYS)
        names = [name_of(k) for k in range(NODES)]
        numbers = list(range(NODES))
        folder.write_plan(RunPlan(name, settings, names, numbers, CATALOGUE, ITEMS, 2, 1, 10.0, NODES, public))
        try:
            conduct(folder, wire or self.wire, SIGNER)
        except FedmcError as error:
            return str(error)
        return None

    def received(self):
        """The noise multipliers of what node 0 released to the server."""
        found = {}
        for stage, client, content, reply in self.wire.seen:
            said = from_bytes(reply)[1]
            if client == 0 and stage == "round" and said["status"] == "ok" and said.get("stage") != "keys":
                request = decode(*read(content))
                broadcast = request.broadcast
                found[request.key] = broadcast.settings.make_algorithm().noise_multiplier(broadcast)
        return list(found.values())

    def copy(self, name):
        """Copies of node 0's files while the node is at work."""
        for file in (LEDGER, STATE, WAL):
            if (self.world.folder / file).exists():
                target = self.folder / name / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.world.folder / file, target)


class History:
    """A federation after two runs: node 0's files after the first (old) and the second (new), and what it released."""

    def __init__(self, folder, settings):
        self.folder, self.settings = folder / "history", settings
        made = Federation(self.folder)
        with closing(made.world):
            assert made.run("first", settings) is None
            made.copy("old")
            made.world.revive(0)
            assert made.run("second", settings) is None
            made.copy("new")
        self.spent = made.received()

    def restored(self, folder, ages, lying=False):
        """The same federation on other disks, with node 0's files of these ages."""
        shutil.copytree(self.folder, folder)
        for file in (LEDGER, STATE, WAL, STATE + "-shm"):
            (folder / "nodes" / file).unlink(missing_ok=True)
        for file, age in ages.items():
            if age != "missing" and (self.folder / age / file).exists():
                shutil.copy(self.folder / age / file, folder / "nodes" / file)
        if lying:
            for file in (folder / "server").glob("releases*"):
                file.unlink()
        return Federation(folder)


def attempt(history, folder, ages, lying=False):
    """Restore these files and train on; returns whether a small run was refused, and epsilon over all releases."""
    total = mechanism.spent(history.spent, DELTA)
    try:
        made = history.restored(folder, ages, lying)
    except FedmcError as error:
        assert "fedmc node ledger" in str(error) or "cannot be used" in str(error)
        return "refused at the start", total
    with closing(made.world):
        small = made.run("small", SMALL.replace(privacy=history.settings.privacy.mode, min_cohort=3))
        made.run("large", history.settings)
        return small, mechanism.spent(history.spent + made.received(), DELTA)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return History(tmp_path_factory.mktemp("dp"), LARGE)


@pytest.mark.parametrize("state", AGES)
@pytest.mark.parametrize("ledger", AGES)
def test_no_copy_of_ledger_and_state_spends_more_than_the_budget(history, tmp_path, ledger, state):
    """Every combination under an honest server: within the budget, and only the newest files are accepted."""
    refused, total = attempt(history, tmp_path / "again", {LEDGER: ledger, STATE: state, WAL: state})
    assert total <= BUDGET[0]
    assert (refused is None) == (ledger == state == "new"), refused
    if refused is not None and ledger == state:  # only the server knows
        assert "ledger-behind" in refused


@pytest.mark.slow
@pytest.mark.parametrize("ages", list(itertools.product(AGES, repeat=3)), ids="-".join)
def test_no_mixture_of_single_files_does_either(history, tmp_path, ages):
    """Ledger, database and its write-ahead log, copied from a node at work, each of any age."""
    refused, total = attempt(history, tmp_path / "again", dict(zip((LEDGER, STATE, WAL), ages, strict=True)))
    assert total <= BUDGET[0]
    assert refused is not None or ages[0] == "new"
    assert refused is None or ages != ("new", "new", "new")


@pytest.mark.parametrize("state", AGES)
@pytest.mark.parametrize("ledger", AGES)
def test_under_a_server_that_lies_only_both_rolled_back_together_are_not_noticed(history, tmp_path, ledger, state):
    """The one case that nobody can notice: ledger and state are of one age, and the server denies the rest."""
    ages = {LEDGER: ledger, STATE: state, WAL: state}
    refused, total = attempt(history, tmp_path / "again", ages, lying=True)
    assert (refused is None) == (ledger == state)
    assert (total > BUDGET[0]) == (ledger == state != "new")


@pytest.mark.slow
def test_shared_noise_is_not_forgotten_either(tmp_path):
    history = History(tmp_path, LARGE.replace(privacy="dp+secagg", min_cohort=3))
    for age in AGES:
        refused, total = attempt(history, tmp_path / age, dict.fromkeys((LEDGER, STATE, WAL), age))
        assert (refused is None) == (age == "new")
        assert total <= BUDGET[0]


def test_two_copies_of_a_node_do_not_share_a_budget_twice(history, tmp_path):
    """The same folder on two machines: what one has released, the other refuses to release again."""
    newest = {LEDGER: "new", STATE: "new", WAL: "new"}
    one = history.restored(tmp_path / "one", newest)
    with closing(one.world):
        assert one.run("small", SMALL) is None
        shutil.copytree(one.folder / "server", tmp_path / "server")  # there is one server
    other = history.restored(tmp_path / "other", newest)
    shutil.rmtree(other.folder / "server")
    (tmp_path / "server").rename(other.folder / "server")
    with closing(other.world):
        assert "ledger-behind" in other.run("another", SMALL)


@pytest.mark.parametrize("file", [LEDGER, STATE])
def test_a_file_that_goes_while_the_node_runs_is_missed(history, tmp_path, file):
    made = history.restored(tmp_path / "again", {LEDGER: "new", STATE: "new", WAL: "new"})
    with closing(made.world):
        (made.world.folder / file).rename(tmp_path / "away")
        assert "ledger-behind" in made.run("small", SMALL)
        assert made.received() == []


def test_a_release_that_the_server_never_got_leaves_no_room_for_another(tmp_path):
    """Heights alone would: the ledger is ahead of the server by the lost release, and can be rolled back by as much."""
    made = Federation(tmp_path / "made")
    with closing(made.world):
        lost = Between(made.world, lambda stage, client, reply: None)
        assert "no answer in time" in made.run("lost", SMALL, lost)
        made.world.revive(0)
        made.copy("old")
        made.world.revive(0)
        assert made.run("first", LARGE) is None
    history = made.received()
    for file in (LEDGER, STATE, WAL, STATE + "-shm"):
        (made.world.folder / file).unlink(missing_ok=True)
        if (made.folder / "old" / file).exists():
            shutil.copy(made.folder / "old" / file, made.world.folder / file)
    again = Federation(made.folder)
    with closing(again.world):
        assert "ledger-behind" in again.run("second", SMALL)
    assert len(history) == 2


# --- files of the version before


WRITTEN = Path(__file__).parent / "fixtures" / "ledgers"


def of_before(folder, ledger="ledger-0"):
    """Node 0 of the version before, after two of three rounds."""
    shutil.copytree(WRITTEN / "node-0", folder / "nodes" / "node-0")
    shutil.copy(WRITTEN / ledger, folder / "nodes" / "ledger-0")
    return Federation(folder, (5.0, DELTA))


def test_what_the_version_before_spent_stays_spent(tmp_path):
    """Its ledger gets an id and a chain and is paired with its state; from then on, neither can be lost."""
    made = of_before(tmp_path / "made")
    spent = mechanism.spent(made.world.nodes[0].ledger.multipliers(), DELTA)
    with closing(made.world):
        assert made.world.nodes[0].ledger.head().height == 2
        assert 2.5 < made.world.nodes[0].ledger.spent() == pytest.approx(spent)
        assert made.run("small", SMALL) is None
        assert "over-budget" in made.run("large", KINDS["dp"].replace(dp_rounds=2))
        assert made.world.nodes[0].ledger.head().height == 5
        assert spent < made.world.nodes[0].ledger.spent() <= 5.0
    for lost in (LEDGER, STATE):
        copy = Path(shutil.copytree(made.folder, tmp_path / lost.replace("/", "-")))
        (copy / "nodes" / lost).unlink()
        with pytest.raises(FedmcError, match="fedmc node ledger"):
            Federation(copy)


def test_a_release_whose_noise_had_overflowed_costs_everything(tmp_path):
    made = of_before(tmp_path / "made", "overflowed")
    with closing(made.world):
        assert made.world.nodes[0].ledger.spent() == math.inf
        assert "over-budget" in made.run("small", SMALL)
