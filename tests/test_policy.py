"""An organisation's policy at its node, in process: bounds, runs a day, approval, and what is written down about it."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.presets import PRESETS
from fedmc.algorithms.settings import Settings
from fedmc.cli.federation_train import _check_settings
from fedmc.data.partition import make_shards
from fedmc.errors import DataError, InputError, TooFewError
from fedmc.federation.node import journal, overview
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store
from fedmc.federation.secagg_messages import keys_of, read_stage
from fedmc.federation.server import approval
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.server.running import conduct
from fedmc.federation.setup import policy as policies
from fedmc.federation.setup.layout import NodeConfig
from fedmc.federation.setup.policy import DEFAULT, Policy
from fedmc.federation.statuses import AWAITING_APPROVAL, CURES, OK, STATUS
from fedmc.federation.wire import Request, decode_reply, encode, from_bytes, hash_of, to_bytes
from fedmc.privacy.dp.ledger import Ledger
from fedmc.privacy.secagg.member import MemberState
from fedmc.problem.scaling import Scaling
from tests.conftest import examples, planted
from tests.test_running import V_of, plan
from tests.world import CATALOGUE, ITEMS, NODES, RUN, SIGNER, World, invitation, local, name_of, sealed, trust_of

NOON = 1_700_000_000 - 1_700_000_000 % 86400 + 43200.0
SETTINGS = Settings.preset("fast", rank=3, active=NODES)
SHARD = make_shards(planted(), np.arange(40) % NODES, "float64")[0]


class Office:
    """One organisation's node in a folder, at a time of day that tests choose."""

    def __init__(self, folder, **policy):
        self.config = NodeConfig(folder, "north", "localhost:1", "ratings.csv", policy=Policy(**policy))
        self.now, self.shard, self.store = NOON, SHARD, None
        self.restart()

    def restart(self):
        if self.store is not None:
            self.store.close()
        self.store = Store(self.config.path("state"))
        ledger = Ledger(self.config.folder / "ledger", 5.0, 1e-6)
        self.node = Node(self.shard, CATALOGUE, self.store, trust=trust_of(0), policy=self.config.policy, ledger=ledger)
        self.node.terms = self.node.terms._replace(now=lambda: self.now)

    def ask(self, run=RUN, settings=SETTINGS, round=0, task="moments", **changes):
        """The status that the server gets."""
        V = np.zeros((ITEMS, settings.width))
        request = Request(run, 0, Broadcast(task, round, NODES, settings, V, Scaling()), -1, CATALOGUE)
        return self.status(to_bytes(*encode(request._replace(**changes))))

    def status(self, content):
        return decode_reply(*from_bytes(self.node.answer_bytes(sealed(0, content)))).status

    def begun(self):
        return [row[0] for row in self.store._database.execute("SELECT run FROM runs ORDER BY run")]

    def state(self, run=RUN):
        return next(one.state for one in overview.look(self.config).runs if one.run == run)


@pytest.fixture
def office(tmp_path):
    made = []

    def make(**policy):
        made.append(Office(tmp_path / "north", **policy))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


# --- bounds

ITEMS_L2 = {"penalty_items": "l2:1"}
BOUNDS = [
    ({"max_rank": 5}, {"rank": 5}, {"rank": 6}, "rank is 6, this organisation accepts at most 5: raise max_rank"),
    ({"max_inner_steps": 7}, {"inner_steps": 7}, {"inner_steps": 8}, "inner_steps is 8, .* at most 7: raise max_inner"),
    ({"max_beta": 2.0}, {"beta": 2.0}, {"beta": 2.001}, "beta is 2.001, .* at most 2: raise max_beta"),
    ({"min_beta": 0.5}, {"beta": 0.5}, {"beta": 0.49}, "beta is 0.49, .* at least 0.5: lower min_beta"),
    ({"max_beta": 2.0}, {"beta": "auto", "beta_scale": 2}, {"beta": "auto", "beta_scale": 3}, "beta_scale is 3"),
    ({"max_penalty_users": 10.0}, {"penalty_users": "l2:10"}, {"penalty_users": "l2:10.1"}, "users' penalty is 10.1"),
    ({"max_penalty_users": 2.0}, {"penalty_users": "l1:2"}, {"penalty_users": "elastic-net:1,1.5"}, "penalty is 2.5"),
    ({"max_penalty_users": 2.0}, {"penalty_users": "group-l2:2"} | ITEMS_L2, {"penalty_users": "l1:3"}, "penalty is 3"),
    ({"max_penalty_users": 4.0}, {"penalty_users": "l1:4"}, {"penalty_users": "group-l2:5"} | ITEMS_L2, "penalty is 5"),
    ({}, {"penalty_users": "l2:1e-6"}, {"penalty_users": "l2:9e-7"}, "9e-07, .* at least 1e-06: lower min_penalty_u"),
    ({}, {"penalty_users": "box:0,5"}, {"penalty_users": "none"}, "users' penalty is 0, .* at least 1e-06"),
    ({}, {"penalty_users": "box:-1e6,1e6"}, {"penalty_users": "box:-1e6,2e6"}, "users' penalty is 0, "),
    ({}, {"penalty_users": "non-negative+l1:0.1"}, {"penalty_users": "non-negative"}, "users' penalty is 0, "),
    ({}, {"entry_penalty": 1e-6}, {"entry_penalty": 1e-9}, "users' penalty times entry_penalty is 1e-09, .* at least"),
    ({"min_penalty_items": 1.0}, {"penalty_items": "l2:1"}, {"penalty_items": "none"}, "items' penalty is 0"),
    ({"min_penalty_items": 1.0}, {"penalty_users": "l2:4"}, {"penalty_users": "l2:3"}, "items' penalty is 0.75"),
    ({"max_penalty_items": 2.0}, {"penalty_items": "l2:2"}, {"penalty_items": "l2:3"}, "items' penalty is 3"),
    ({"algorithms": ("exact",)}, {}, {"algorithm": "fedavg"}, "'fedavg' is not one of the algorithms .*, exact"),
    ({"algorithms": ("fedprox",)}, {"algorithm": "fedprox:0.2"}, {}, "'exact' is not one of the algorithms"),
    ({"losses": ("huber",)}, {"loss": "huber:0.5"}, {"loss": "square"}, "'square' is not one of the losses"),
    ({"penalties": ("l2",)}, {}, {"penalty_users": "l2:1+l1:1"}, "'l1' is not one of the penalties"),
    ({"ranking": False}, {}, {"ranking": True}, "measures how held-out ratings are ranked, .*: set ranking = true"),
    ({"penalties": ("l2",)}, {}, {"penalty_items": "box:0,1"}, "'box' is not one of the penalties"),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "inside", "outside", "said"), BOUNDS)
def test_a_setting_just_inside_and_just_outside(office, caplog, policy, inside, outside, said):
    made = office(**policy)
    assert made.ask("outside", settings_with(**outside)) == "wrong-policy"
    assert re.search(said, caplog.text), caplog.text
    assert "config.toml" in caplog.text
    assert made.begun() == []
    assert made.ask("inside", settings_with(**inside)) == OK
    assert made.begun() == ["inside"]


def settings_with(entry_penalty=1.0, **more):
    base = {"penalty_users": "l2:1", "penalty_items": "auto", "algorithm": "exact", "rank": 3}
    return Settings.preset("fast", **{**base, **more}).replace(entry_penalty=entry_penalty)


def test_rounds_just_inside_and_just_outside(office, caplog):
    made = office(max_rounds=5)
    assert [made.ask(round=number) for number in (-1, 0, 5, 6)] == ["malformed", OK, OK, "wrong-policy"]
    assert "the round is 6, this organisation accepts at most 5: raise max_rounds" in caplog.text
    dp = [Settings.preset("fast", rank=2, active=NODES, privacy="dp", dp_rounds=number) for number in (5, 6)]
    scaling = dp[0].make_algorithm().scaling(dp[0])
    for settings, status in zip(dp, ("ok", "wrong-policy"), strict=True):
        V = np.zeros((ITEMS, settings.width))
        request = Request("dp", 0, Broadcast("round", 1, NODES, settings, V, scaling), -1, CATALOGUE)
        assert made.status(to_bytes(*encode(request._replace(run=f"dp-{status}")))) == status
    assert "dp_rounds is 6" in caplog.text
    assert made.node.ledger._file.execute("SELECT count(*) FROM releases").fetchone() == (1,)


def test_numbers_beyond_any_float_are_refused_too(office):
    made = office()
    for number in (10**400, -(10**400)):
        assert made.ask(round=number) == "malformed"


def test_a_stricter_policy_also_holds_for_a_run_that_has_begun(office):
    made = office()
    assert made.ask() == OK
    made.node.terms = made.node.terms._replace(policy=Policy(max_rank=2))
    assert made.ask() == "wrong-policy"


def test_ranking_is_told_to_whoever_approves_and_cannot_be_added_to_a_run(office):
    made = office(approve=True)
    asked = SETTINGS.replace(ranking=True)
    assert made.ask("with", asked) == made.ask("without") == "awaiting-approval"
    described = {run: "ranking metrics" in made.store.journal.known(run).description for run in ("with", "without")}
    assert described == {"with": True, "without": False}
    overview.decide(made.config, "without", approved=True)
    assert made.ask("without") == OK
    assert made.ask("without", asked, task="measure") == "wrong-settings"


@pytest.mark.parametrize("mode", ["dp", "dp+secagg"])
def test_ranking_is_no_release_of_differential_privacy(office, mode):
    settings = Settings.preset("fast", rank=2, active=NODES, privacy=mode, min_cohort=3, ranking=True)
    assert asked_of(office(), "run", settings, "measure", {}) == "wrong-privacy"
    with pytest.raises(InputError, match="nodes send no measurements: leave out --ranking"):
        _check_settings(settings, NODES, 5)
    _check_settings(settings.replace(ranking=False), NODES, 5)


DOCUMENTED = ("l2:0.1", "l1:0.01", "elastic-net:0.1,0.2", "box:0,5", "non-negative+l1:0.01", "group-l2:1", "l2:2")
MODES = ({}, {"privacy": "secagg"}, {"privacy": "dp"}, {"privacy": "dp+secagg"}, {"clip": 2.0})


def test_presets_and_documented_settings_are_inside_of_the_defaults(office):
    made = office(runs_per_day=1000)
    given = [(preset, mode) for preset in PRESETS for mode in MODES if preset == "fast" or not mode.get("privacy")]
    given += [("fast", {"penalty_users": penalty, "penalty_items": "l2:1"}) for penalty in DOCUMENTED]
    given += [("fast", {"algorithm": name}) for name in DEFAULT.algorithms if name != "dp"]
    statuses = Counter()
    for number, (preset, more) in enumerate(given):
        settings = Settings.preset(preset, rank=10, active=NODES, min_cohort=3, **more)
        secure = {"invitation": invited(made.node, f"run-{number}")} if settings.privacy.mode == "secagg" else {}
        task = "round" if settings.privacy.mode.startswith("dp") else "moments"
        found = asked_of(made, f"run-{number}", settings, task, secure)
        statuses[found] += 1
    assert not {"wrong-policy", "too-many-runs"} & statuses.keys()
    assert statuses["ok"] > 20


def asked_of(made, run, settings, task, more):
    V = np.zeros((ITEMS, settings.width))
    request = Request(run, 0, Broadcast(task, 1, NODES, settings, V, Scaling()), -1, CATALOGUE)
    content = sealed(0, to_bytes(*encode(request._replace(**more))))
    return from_bytes(made.node.answer_bytes(content))[1]["status"]


def invited(node, run):
    """An invitation that the node can act on, with keys that it has made."""
    keys, _ = keys_of(read_stage(node._member(node.trust.identity)._keys(run, MemberState())).arrays)
    return invitation(run=run, known={0: keys})


# --- runs a day


def test_runs_a_day_over_restarts_and_midnight(office, caplog):
    made = office(runs_per_day=2)
    assert [made.ask(run) for run in ("a", "b", "c")] == [OK, OK, "too-many-runs"]
    assert "2 runs began here today (UTC), this organisation accepts 2 a day: wait for tomorrow" in caplog.text
    made.restart()
    assert [made.ask(run) for run in ("c", "a", "b")] == ["too-many-runs", OK, OK]
    midnight = NOON + 43200
    made.now = midnight - 0.001
    assert made.ask("c") == "too-many-runs"
    made.now = midnight
    assert [made.ask(run) for run in ("c", "d", "e", "a")] == [OK, OK, "too-many-runs", OK]
    made.restart()
    assert made.ask("e") == "too-many-runs"
    made.now = NOON  # the clock was set back: nothing is gained
    assert made.ask("e") == "too-many-runs"
    assert made.begun() == ["a", "b", "c", "d"]


def test_no_new_runs_at_all(office):
    assert office(runs_per_day=0).ask() == "too-many-runs"


def test_a_run_that_began_before_there_was_a_policy_goes_on(office):
    made = office(runs_per_day=0, approve=True)
    made.store.begun_with(RUN, "", hash_of(SETTINGS))
    assert made.ask() == OK
    assert made.ask("another") == "awaiting-approval"
    assert made.state() == "active"
    overview.decide(made.config, RUN, approved=False)
    assert made.ask() == "rejected"


# --- approval


def test_a_new_run_waits_for_a_person_also_over_restarts(office, caplog):
    made = office(approve=True)
    assert made.ask() == "awaiting-approval"
    assert f"`fedmc node approve {RUN} FOLDER`" in caplog.text
    assert made.begun() == []
    assert made.state() == "awaiting approval"
    (waiting,) = overview.waiting(made.config)
    assert (waiting.run, waiting.asked) == (RUN, NOON)
    for words in ("curvature", "rank 3", "4 organisations", "privacy plain", "l2:10", "loss square", "10 inner steps"):
        assert words in waiting.description
    made.restart()
    assert made.ask() == "awaiting-approval"
    overview.decide(made.config, RUN, approved=True)  # while the node runs
    assert overview.waiting(made.config) == []
    assert made.state() == "approved"
    made.restart()
    assert made.ask() == OK
    assert made.ask("another") == "awaiting-approval"
    assert made.state() == "active"
    made.restart()
    assert made.ask(round=1) == OK


def test_a_person_rejects_a_run_before_it_begins_and_in_its_midst(office, caplog):
    made = office(approve=True)
    assert made.ask() == "awaiting-approval"
    overview.decide(made.config, RUN, approved=False)
    assert made.ask() == "rejected"
    made.restart()
    assert made.ask() == "rejected"
    assert made.state() == "rejected"
    overview.decide(made.config, RUN, approved=True)
    assert made.ask() == OK
    overview.decide(made.config, RUN, approved=False)
    assert made.ask(round=1) == "rejected"
    assert f"`fedmc node approve {RUN} FOLDER`" in caplog.text


def test_an_approval_is_bound_to_the_settings(office):
    made = office(approve=True)
    assert made.ask() == "awaiting-approval"
    other = SETTINGS.replace(seed=1)
    assert made.ask(settings=other) == "wrong-settings"  # what a person sees in the list stays what they approve
    (waiting,) = overview.waiting(made.config)
    assert waiting.settings == hash_of(SETTINGS)
    assert not made.store.journal.decide(waiting._replace(settings=hash_of(other)), journal.APPROVED)
    overview.decide(made.config, RUN, approved=True)
    assert made.ask(settings=other) == "wrong-settings"
    made.restart()
    assert made.ask(settings=other) == "wrong-settings"
    assert made.begun() == []
    assert made.ask() == OK


def test_only_runs_that_were_asked_for_can_be_decided(office):
    made = office()
    with pytest.raises(InputError, match="no run 'nothing' here: `fedmc node approve --list FOLDER`"):
        overview.decide(made.config, "nothing", approved=True)
    assert made.ask() == OK
    with pytest.raises(InputError, match="does not wait for approval"):
        overview.decide(made.config, RUN, approved=True)


def test_a_server_that_names_many_runs_fills_no_disk(office, monkeypatch, caplog):
    monkeypatch.setattr(journal, "MAX_WAITING", 3)
    made = office(approve=True)
    assert {made.ask(f"run-{number}") for number in range(6)} == {"awaiting-approval"}
    assert [one.run for one in overview.waiting(made.config)] == ["run-0", "run-1", "run-2"]
    assert "too many runs wait for approval" in caplog.text
    assert "`fedmc node reject --all FOLDER`" in caplog.text
    overview.decide(made.config, "run-0", approved=False)
    assert made.ask("run-5") == "awaiting-approval"
    assert "run-5" in [one.run for one in overview.waiting(made.config)]


def test_what_a_server_writes_into_settings_is_one_short_line_for_the_person(office):
    made = office(approve=True)
    settings = Settings.preset("fast", rank=3, active=NODES, penalty_users="l2:1" + " " * 900)
    assert made.ask(settings=settings) == "awaiting-approval"
    (waiting,) = overview.waiting(made.config)
    assert waiting.description.isprintable()
    assert len(waiting.description) < 600


# --- the server's side


def approving_world(folder, when):
    """A world whose nodes want approval: node 1's organisation gives it at the `when`-th refusal, others at once."""
    world = World(folder, policy=Policy(approve=True))
    exchange, refused = world.exchange, Counter()

    def approve(contents, *more):
        answers = exchange(contents, *more)
        for client, answer in answers.items():
            if approval.status_of(answer) == AWAITING_APPROVAL:
                refused[client] += 1
                if client != 1 or refused[client] == when:
                    approve_at(world, client)
        return answers

    world.exchange = approve
    return world


def approve_at(world, client):
    book = world.stores[client].journal
    assert book.decide(book.known(RUN), journal.APPROVED)


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(approval, "PAUSE", 0.01)
    made = RunFolder(tmp_path / "run")
    made.write_plan(plan()._replace(patience=5.0))
    return made


def test_the_server_waits_for_approval_and_says_so(run_folder, tmp_path):
    said, say = [], run_folder.say
    run_folder.say = lambda **words: (said.append(words), say(**words))
    conduct(run_folder, approving_world(tmp_path / "world", when=4), SIGNER)
    waiting = [words["awaiting_approval"] for words in said if "awaiting_approval" in words]
    assert waiting == [[], [name_of(k) for k in range(NODES)], [name_of(1)], []]
    assert run_folder.status()["state"] == "finished"
    assert V_of(run_folder).tobytes() == local(plan().settings, 4)[1].broadcast.V.tobytes()


def test_without_approval_the_run_ends_with_the_cure_and_can_be_resumed(run_folder, tmp_path):
    (run_folder.path / "plan.json").unlink()
    run_folder.path.rmdir()
    run_folder.write_plan(plan()._replace(patience=0.05))
    world = approving_world(tmp_path / "world", when=-1)
    with pytest.raises(TooFewError, match=r"3 of 4 nodes took part.*node 1: awaiting-approval: .*`fedmc node approve"):
        conduct(run_folder, world, SIGNER)
    status = run_folder.status()
    assert status["state"] == "failed"
    assert status["awaiting_approval"] == [name_of(1)]
    assert "then `resume`" in status["why"]
    approve_at(world, 1)
    conduct(run_folder, world, SIGNER)
    assert run_folder.status()["state"] == "finished"
    assert run_folder.status()["awaiting_approval"] == []
    assert V_of(run_folder).tobytes() == local(plan().settings, 4)[1].broadcast.V.tobytes()


def test_answers_that_are_no_refusals_are_not_waited_for():
    for content in (b"", b"PK\x03\x04" + b"\0" * 50, b"x" * 20_000, to_bytes({}, {"stage": "share"})):
        assert approval.status_of(content) != AWAITING_APPROVAL


# --- whatever a server sends


class TouchedError(Exception):
    """Ratings would have been read."""


class Guard:
    """In place of a shard: gives the few facts that checks need, and reports whoever wants more."""

    test = validation = None
    users = SHARD.users

    def __init__(self, touched):
        self._touched = touched
        self.by_user = type("ByUser", (), {"shape": SHARD.by_user.shape})

    def __getattr__(self, name):
        self._touched()
        raise TouchedError(name)


STRICT = Policy(
    accept=("plain", "secagg", "dp"), algorithms=("exact", "curvature", "fedprox", "dp"), losses=("square", "huber"),
    penalties=("l2", "l1", "non-negative", "none"), max_rank=5, max_rounds=9, max_inner_steps=20, min_beta=0.1,
    max_beta=10.0, max_penalty_users=100.0, min_penalty_users=0.01, max_penalty_items=50.0, runs_per_day=10**6,
)  # fmt: skip
NUMBER = st.one_of(st.sampled_from([0, -1, 1e-30, 1e-9, 0.1, 1, 5, 9, 20, 1e4, 1e300, math.nan, math.inf]), st.floats())
SPEC = st.one_of(
    st.sampled_from(["l2:1", "l2:0.01", "l2:1e-12", "l1:200", "none", "auto", "box:0,1", "group-l2:1", "fixed:0=1"]),
    st.builds("l2:{!r}".format, st.floats(0, 1e4)),
    st.builds("non-negative + l1:{!r}".format, st.floats(0, 1e4)),
)
WORDS = {
    "rank": st.one_of(st.integers(1, 12), NUMBER), "inner_steps": st.one_of(st.integers(1, 40), NUMBER),
    "beta": st.one_of(st.just("auto"), NUMBER), "beta_scale": NUMBER,
    "entry_penalty": st.sampled_from([0, 1e-30, 1e-9, 0.001, 0.3, 1]),
    "penalty_users": SPEC, "penalty_items": SPEC,
    "algorithm": st.sampled_from(["exact", "curvature", "fedprox:0.2", "fedavg", "linearised", "scaffold", "dp"]),
    "loss": st.sampled_from(["square", "huber:0.5", "logistic", "nonsense"]),
    "privacy": st.sampled_from(["plain", "secagg", "dp", "dp+secagg"]), "dp_rounds": st.sampled_from([2, 9, 10, 30]),
    "normalise": st.sampled_from(["none", "standard"]),
}  # fmt: skip
CHANGES = st.lists(st.one_of(*(st.tuples(st.just(name), WORDS[name]) for name in WORDS)), max_size=3).map(dict)
TASK = st.sampled_from(["round", "round", "round", "moments", "scale", "start", "measure", "finish", "nothing"])
ROUND = st.one_of(st.just(1), st.integers(1, 9), st.integers(-2, 15))
BASES = {
    "exact": {"update": "exact"},
    "curvature": {},
    "dp": {"privacy": "dp", "dp_rounds": 9},
    "long dp": {"privacy": "dp", "dp_rounds": 10},
    "secagg": {"privacy": "secagg"},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A node with a strict policy whose shard and ledger only report that somebody reached them."""
    made = Office(tmp_path_factory.mktemp("guarded"))
    made.reached = []
    made.shard = Guard(lambda: made.reached.append("shard"))
    made.restart()
    made.node.ledger.release = lambda *more: made.reached.append("ledger")
    made.node.terms = made.node.terms._replace(policy=STRICT)
    made.node._origins = ["a hash of the shard"]
    made.seen = Counter()
    yield made
    assert made.seen["reached"] > 20
    assert made.seen["wrong-policy"] > 20
    assert made.seen["masked"] > 5
    made.store.close()


@given(st.sampled_from(sorted(BASES)), CHANGES, TASK, ROUND, st.sampled_from([0, 0, 0, 1]), st.integers(1, 5))
@examples(400)
def test_nothing_outside_reaches_the_ledger_or_the_shard(guarded, base, changes, task, round, odd, clients):
    """The server is free to choose every word of the settings."""
    settings = Settings.preset("fast", rank=3, active=NODES, min_cohort=3, **BASES[base])
    guarded.seen["all"] += 1
    number = clients if odd else NODES
    scaling = settings.make_algorithm().scaling(settings) or Scaling()
    broadcast = Broadcast(task, round, number, settings, np.zeros((ITEMS, settings.width)), scaling)
    run = f"run-{guarded.seen['all']}"
    arrays, header = encode(Request(run, 0, broadcast, -1, CATALOGUE, invitation=invited(guarded.node, run)))
    words = header["settings"] | changes
    header |= {"settings": words, "settings_hash": None}
    if words["privacy"].endswith("secagg") == bool(odd):
        header["invitation"] = None
        del arrays["invitation"]
    width = words["rank"] + 2 if isinstance(words["rank"], int) else settings.width
    guarded.reached.clear()
    content = sealed(0, to_bytes(arrays | {"V": np.zeros((ITEMS, width))}, header))
    reply = from_bytes(guarded.node.answer_bytes(content))[1]
    guarded.seen[reply["status"]] += 1
    if guarded.reached:
        guarded.seen["reached"] += 1
        assert inside(words, round, number), (words, reply)
    masked = reply.get("stage") == "masked"  # in a secure sum, that it failed is not told
    guarded.seen["masked"] += masked
    quiet = task == "finish" and words["privacy"] != "plain"  # nor how the end of a run went
    silent = (masked and guarded.reached == ["shard"]) or (quiet and inside(words, round, number))
    assert reply["status"] != OK or silent


def inside(words, round, clients):
    """The strict policy once more, from the words alone."""
    users, items = weight(words["penalty_users"], 0), weight(words["penalty_items"], clients, words["penalty_users"])
    beta = words["beta_scale"] if words["beta"] == "auto" else words["beta"]
    return (
        words["privacy"] in STRICT.accept
        and words["algorithm"].partition(":")[0] in STRICT.algorithms
        and words["loss"].partition(":")[0] in STRICT.losses
        and 1 <= words["rank"] <= 5
        and 0 <= round <= 9
        and words.get("dp_rounds", 0) * words["privacy"].startswith("dp") <= 9
        and 1 <= words["inner_steps"] <= 20
        and 0.1 <= beta <= 10
        and users * words["entry_penalty"] >= 0.01
        and users <= 100
        and items <= 50
    )


def weight(spec, clients, users=""):
    """Of l1 and l2; infinite, if the spec names anything else."""
    if spec == "auto":
        return weight(users, 0) / clients if clients else 10.0
    if spec == "none":
        return 0.0
    found = re.fullmatch(r"(?:non-negative \+ )?l[12]:(.*)", spec)
    return float(found[1]) if found else math.inf


# --- what is written down


def test_every_status_has_a_cure_for_the_organisation():
    assert CURES.keys() == STATUS.keys() - {OK}


def test_refusals_are_kept_with_reason_and_cure_while_the_node_runs(office):
    made = office(max_rank=2)
    made.ask("a-run")
    made.node.answer_bytes(sealed(0, b"nothing"))
    made.ask("b-run", catalogue="other")
    newest, middle, oldest = overview.look(made.config).refusals
    assert (oldest.run, oldest.status, oldest.what) == ("a-run", "wrong-policy", "moments 0 of run a-run")
    assert oldest.reason == "rank is 3, this organisation accepts at most 2"
    assert oldest.cure.startswith("raise max_rank in [policy] of config.toml")
    assert (middle.status, middle.cure) == ("malformed", CURES["malformed"])
    assert (newest.run, newest.status) == ("b-run", "wrong-catalogue")


def test_refusals_are_bounded_in_number_and_size(office, monkeypatch):
    monkeypatch.setattr(journal, "MAX_REFUSALS", 5)
    made = office(max_rank=2)
    for number in range(12):
        made.ask(f"run-{number}")
    for _ in range(3):
        made.ask("again")
    header = {"run": "x\n" * 10_000, "version": "\x1b[31m" * 10_000}
    made.node.answer_bytes(sealed(0, to_bytes({}, header)))
    rows = made.store._database.execute("SELECT run, times FROM refusals ORDER BY number").fetchall()
    assert [times for _, times in rows] == [1, 1, 1, 3, 1]
    assert [run for run, _ in rows][:4] == ["run-9", "run-10", "run-11", "again"]
    last = overview.look(made.config).refusals[0]
    assert all(text.isprintable() and len(text) <= 500 for text in last[3:])


def test_a_refusal_that_cannot_be_written_down_is_still_a_refusal(office, caplog):
    made = office(max_rank=2)
    made.store._database.execute("DROP TABLE refusals")
    assert made.ask() == "wrong-policy"
    assert "will not show this refusal" in caplog.text


def test_an_overview_of_runs(office, tmp_path):
    made = office()
    assert overview.look(made.config).runs == []
    made.ask("first")
    made.now += 60
    made.ask("second")
    made.store.end("second", ("diverged", "too large"))
    made.now += 60
    made.ask("third", task="finish", settings=SETTINGS)
    found = overview.look(made.config).runs
    assert [(one.run, one.state, one.why) for one in found] == [
        ("third", "finished", ""),
        ("second", "ended", "diverged: too large"),
        ("first", "active", ""),
    ]
    made.store.close()
    assert overview.look(made.config).runs == found  # also of a node that is not running
    made.store = None
    made.restart()
    empty = NodeConfig(tmp_path / "south", "south", "localhost:1", "ratings.csv")
    assert overview.look(empty) == (None, None, [], [])
    assert overview.waiting(empty) == []


# --- config.toml


def test_the_template_shows_every_entry_with_its_default():
    lines = policies.template().splitlines()
    text = "\n".join(line.removeprefix("# ") for line in lines if " = " in line)
    found = tomllib.loads(text)
    assert found.keys() == policies.ENTRIES.keys()
    assert policies.read(found, "config.toml") == DEFAULT == policies.read({}, "config.toml")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"max_ranks": 3}, "unknown entry 'max_ranks' in [policy]: did you mean 'max_rank'?"),
        ({"aprove": True}, "did you mean 'approve'?"),
        ({"accept": ["plain"]}, "accept belongs to the top of the file, above [policy]"),
        ({"whatever": 1}, "choose some of algorithms, losses"),
        ({"max_rank": 2.5}, "max_rank must be a whole number, got 2.5"),
        ({"max_rank": True}, "max_rank must be a whole number, got True"),
        ({"max_rank": 0}, "max_rank must be at least 1, got 0"),
        ({"runs_per_day": -1}, "runs_per_day must be at least 0, got -1"),
        ({"approve": "yes"}, "approve must be true or false, got 'yes'"),
        ({"max_beta": math.inf}, "max_beta must be a number, got inf"),
        ({"min_beta": 5, "max_beta": 2}, "min_beta must be at least 0 and at most max_beta=2, got 5"),
        ({"min_penalty_users": -1}, "min_penalty_users must be at least 0"),
        ({"algorithms": "exact"}, "algorithms must be a list of names, got 'exact'"),
        ({"algorithms": ["exakt"]}, "'exakt' in algorithms is not known: did you mean 'exact'?"),
        ({"losses": ["own"]}, "a plug-in must be installed here before it can be named"),
        ({"penalties": ["negative"]}, "'negative' in penalties is not known: did you mean 'non-negative'?"),
        (5, "policy must be a section, [policy], got 5"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(entries, said):
    with pytest.raises(DataError) as error:
        policies.read(entries, "config.toml")
    assert said in str(error.value)
