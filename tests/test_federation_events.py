"""Federations on events: the simulation's bits, what a node's config.toml says, and who refuses which run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.settings import Settings
from fedmc.cli.federation_progress import report
from fedmc.data import catalogue as catalogues
from fedmc.data.catalogue import Catalogue
from fedmc.errors import TooFewError
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.setup import founding, members
from fedmc.model import load
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.command import fedmc
from tests.test_federation_side import NAMES, check_same, conducted, processes

USERS, ITEMS, ROUNDS = 40, 15, 3
KINDS = {"plain": {"privacy": "plain"}, "secagg": {"privacy": "secagg", "min_cohort": 3}}
EVENTS = 'feedback = "implicit"\n'


def settings_of(kind="plain", **more):
    return Settings.preset(more.pop("preset", "implicit"), rank=2, active=len(NAMES), **KINDS[kind], **more)


def table_of(k, header="user,item", value=lambda user, item: ""):
    """A user has the items next to its own number, so that neighbours are alike."""
    rows = [
        f"{user},{(user + step) % ITEMS}{value(user, step)}"
        for user in range(k, USERS, len(NAMES))
        for step in (0, 1, 2, 4)
    ]
    return "\n".join([header, *rows, ""])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("federation")
    Catalogue.of(np.arange(ITEMS)).save(root / "catalogue.json")
    accept = ["plain", "secagg"]
    founding.init(root / "made", NAMES, founding.Address("localhost"), items=root / "catalogue.json", accept=accept)
    for k, name in enumerate(NAMES):
        configure(root / "made" / name, EVENTS + 'test = "leave:1"\n', table_of(k))
    return root / "made"


def configure(folder, entries, table):
    config = folder / "config.toml"
    text = config.read_text().replace('source = ""', 'source = "events.csv"')
    config.write_text(text.partition("# test =")[0] + f"# test =\n{entries}")
    (folder / "events.csv").write_text(table)


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def planned(made, settings, name="a"):
    server, p = made / "server", len(NAMES)
    hash = catalogues.load(server / "catalogue.json").hash
    public = tuple(members.load(server).identities)
    folder = RunFolder(server / "runs" / name)
    folder.write_plan(RunPlan(f"run-{name}", settings, NAMES, list(range(p)), hash, ITEMS, ROUNDS, 1, 5.0, p, public))
    return folder


def simulated(opened, settings):
    shards = [replace(one.prepared.shards[0], client=k) for k, one in enumerate(opened)]
    states = []
    for round in rounds(LocalEngine(shards), settings, on_checkpoint=states.append):
        if round.number == ROUNDS:
            return states[-1], round
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_as_the_simulation(kind, copied, capsys):
    settings = settings_of(kind)
    folder = planned(copied, settings)
    with processes(copied) as nodes:
        expected, last = simulated(nodes.opened, settings)
        check_same(conducted(copied, folder, nodes), expected)
        assert all((one.prepared.shards[0].by_user.data == 1).all() for one in nodes.opened)
    found = folder.history()[-1]
    assert found["test_ndcg_20"] == pytest.approx(last.diagnostics.ranking["test_ndcg_20"], abs=1e-6)
    assert "test_rmse" not in found
    report(folder, as_json=True)
    said = capsys.readouterr().out
    assert f"NDCG@20 {found['test_ndcg_20']:.4f} (popularity " in said
    assert "RMSE" not in said
    assert json.loads(said.splitlines()[-1])["test_recall_20"] == found["test_recall_20"]
    model = load(copied / "north" / "model.npz")
    assert model.rating_range is None
    assert len(np.unique(model.recommend(model.users, 5)[1])) > 5


def test_the_node_commands(copied):
    with processes(copied) as nodes:
        conducted(copied, planned(copied, settings_of()), nodes)
    north = copied / "north"
    done = fedmc("node", "check", north, "--reread")
    assert "events: 40 user-item pairs of 10 users" in done.stderr
    assert "north: 30 events of 10 users" in done.stderr
    shown = fedmc("node", "recommend", north, 0, "-n", 3, "--exclude", "5,6", "--only", "5,6,7,8,99")
    assert shown.returncode == 0, shown.stderr
    assert [line.split(",")[2] for line in shown.stdout.splitlines()[1:]] in (["7", "8"], ["8", "7"])
    assert "1 of 5 ids of --only are no items of the model, such as 99" in shown.stderr
    shown = fedmc("node", "similar", north, 3, "-n", 2)
    assert shown.stdout.splitlines()[0] == "item,rank,similar,cosine"
    assert len(shown.stdout.splitlines()) == 3


def test_amounts_count_by_the_scale_that_is_entered(copied):
    table = table_of(0, "user,item,event,hours", lambda user, step: f",{'view' if step else 'buy'},{1 + step}")
    entries = EVENTS + 'event_weights = {view = 1, buy = 5}\nconfidence = "hours"\nconfidence_scale = "linear:2"\n'
    configure(copied / "north", entries, table)
    with processes(copied) as nodes:
        values = nodes.opened[0].prepared.shards[0].by_user.data
        assert sorted(set(values.tolist())) == [1 + 2 * x for x in (2, 3, 5)]
        check_same(conducted(copied, planned(copied, settings_of()), nodes), simulated(nodes.opened, settings_of())[0])
    configure(copied / "north", entries.replace("linear:2", "log"), table)
    done = fedmc("node", "check", copied / "north")
    assert done.returncode == 2
    assert "read as events by scale linear:2" in done.stderr
    assert "says events by scale log: read them again (--reread)" in done.stderr


def test_amounts_without_a_scale_count_one_each_and_it_is_said(copied):
    configure(copied / "north", EVENTS, table_of(0) + table_of(0).partition("\n")[2])
    done = fedmc("node", "check", copied / "north")
    assert done.returncode == 0, done.stderr
    assert "the amounts differ, and each pair counts 1" in done.stderr
    assert 'confidence_scale = "log", the same in every organisation, would count them' in done.stderr


def rated(user, step):
    return f",{1 + (user + step) % 5}"


def test_a_node_refuses_a_run_on_what_it_does_not_have(copied):
    configure(copied / "west", "", table_of(3, "user,item,rating", rated))
    runs = {"events": (settings_of(), "west"), "ratings": (settings_of(preset="fast"), "north")}
    with processes(copied) as nodes:
        for name, (settings, _) in runs.items():
            with pytest.raises(TooFewError, match="wrong-feedback"):
                conducted(copied, planned(copied, settings, name), nodes)
    for name, (_, node) in runs.items():
        shown = " ".join(fedmc("node", "status", copied / node).stdout.split())
        assert f"learns from {name}, and this node's data were read as" in shown
        assert "[ratings] of config.toml" in shown


def test_ratings_that_look_like_events_are_told(copied):
    configure(copied / "west", "", table_of(3, "user,item,rating", lambda user, step: ",1"))
    done = fedmc("node", "check", copied / "west")
    assert done.returncode == 0, done.stderr
    assert "they look like events, not ratings (every value is 1)" in done.stderr
    configure(copied / "west", "", table_of(3))
    done = fedmc("node", "check", copied / "west", "--reread")
    assert done.returncode == 2
    assert 'enter feedback = "implicit" under [ratings]' in done.stderr


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ('feedback = "both"', "feedback must be one of"),
        ('confidence = "hours"', "confidence is about events, not ratings"),
        (EVENTS + 'confidence = "hours"', "confidence needs confidence_scale, the same in every organisation"),
        (EVENTS + 'event_weights = "view=1"', "event_weights needs confidence_scale"),
        (EVENTS + 'event_weights = "view"', "'view' is not the weight of an event type"),
        (EVENTS + 'event_weights = {view = "much"}', "config.toml: "),
        (EVENTS + 'confidence_scale = "cube"', "unknown confidence 'cube'"),
        (EVENTS + "confidence = 3", "confidence must be a text, got 3"),
        (EVENTS + 'event = "type"', "needs the weights of its types"),
        (EVENTS + 'min_rating = "four"', "config.toml: "),
        (EVENTS + "min_events = 5", "min_events counts users and items over all organisations"),
    ],
)
def test_entries_that_cannot_be_used(entries, message, copied):
    configure(copied / "north", entries + "\n", table_of(0))
    done = fedmc("node", "check", copied / "north")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
