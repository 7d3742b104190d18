"""Features of items and users, and events without a rating, in a federation: the simulation's bits, what a node's
config.toml says, what identifies a node's data, and what its model holds."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc import FedMC
from fedmc.algorithms.settings import Settings
from fedmc.data import catalogue as catalogues
from fedmc.data.catalogue import Catalogue
from fedmc.data.features import features_of
from fedmc.data.partition import make_shards, narrow
from fedmc.errors import DataError, TooFewError
from fedmc.federation.node.files import known_titles
from fedmc.federation.node.organisation import make_node, open_folder, ratings_hash
from fedmc.federation.node.store import Store
from fedmc.federation.server import checkpoint
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.server.running import conduct
from fedmc.federation.server.secagg_session import SecureAsk
from fedmc.federation.server.signing import Signer
from fedmc.federation.setup import founding, layout, members, request_key
from fedmc.model import load
from fedmc.training import members as clients
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.command import fedmc
from tests.conftest import planted
from tests.secure_world import SecureWorld
from tests.world import ITEMS, KINDS, NODES, ROUNDS, KilledError, World, request_of

RNG = np.random.default_rng(5)
ITEM_FEATURES = RNG.normal(size=(ITEMS, 2))


def with_side():
    """Shards of which 0 and 2 have features of their users, and 0 and 1 events without a rating."""
    rng, found = np.random.default_rng(6), []
    for shard in make_shards(planted(), np.arange(40) % NODES, "float64"):
        if shard.client in (0, 2):
            shard = replace(shard, features=rng.normal(size=(len(shard.users), 3)))
        if shard.client in (0, 1):
            seen = sparse.csr_array((rng.random(shard.by_user.shape) < 0.2).astype(np.int8))
            shard = replace(shard, also_seen=narrow(seen))
        found.append(shard)
    return found


SHARDS = with_side()
EVERYBODY = {
    "plain": KINDS["bayes"].replace(active=NODES),
    "secagg": KINDS["secagg-bayes"],
}


class SideWorld(World):
    """A federation in process whose nodes hold side information, and whose server has features of the items.

    It kills at each of these places, one after the other, after it has passed a number of them.
    """

    item_features = ITEM_FEATURES

    def __init__(self, folder, quorum=1, kills=()):
        self.kills = [list(one) for one in kills]
        super().__init__(folder, quorum=quorum)

    def tick(self, where):
        if self.kills and self.kills[0][0] in where:
            self.kills[0][1] -= 1
            if self.kills[0][1] < 0:
                self.kills.pop(0)
                raise KilledError(where)

    def node(self, client):
        self.shards[client] = SHARDS[client]
        return super().node(client)


def simulated(settings, shards=SHARDS, item_features=ITEM_FEATURES, number=ROUNDS):
    states = []
    for round in rounds(LocalEngine(shards, item_features=item_features), settings, on_checkpoint=states.append):
        if round.number == number:
            return states[-1]
    raise AssertionError


def check_same(found, expected, where=""):
    assert found.server.S.tobytes() == expected.server.S.tobytes(), where
    assert found.broadcast.V.tobytes() == expected.broadcast.V.tobytes(), where


@pytest.mark.parametrize("kind", ["bayes", "secagg-bayes"])
def test_the_same_bits_as_the_simulation(kind, tmp_path):
    expected = simulated(KINDS[kind])
    without = simulated(KINDS[kind], item_features=None)
    assert expected.broadcast.V.tobytes() != without.broadcast.V.tobytes()
    check_same(SideWorld(tmp_path, quorum=2).finish(KINDS[kind]), expected)


KILLS = {
    "plain": [
        ("the server after node 1 replied to pattern", 2),  # in the third of five steps
        ("node 2 after it stored pattern", 1),
        ("the server after node 3 replied to pattern", 3),
        ("node 0 before it computes round", 0),
        ("the server before its checkpoint", 0),
        ("node 3 after it stored round", 0),
        ("the server after its checkpoint", 0),
    ],
    "secagg": [
        ("the server after node 3 replied to pattern", 2),
        ("the server after node 2 replied to open", 0),
        ("node 1 after it stored pattern", 0),
        ("the server before its checkpoint", 0),
        ("the server after node 1 replied to open", 1),
        ("the server after its checkpoint", 0),
    ],
}


@pytest.mark.parametrize("kind", EVERYBODY)
def test_killed_between_the_steps_of_the_start_and_in_rounds_it_ends_with_the_same_bits(kind, tmp_path):
    world = SideWorld(tmp_path, NODES, KILLS[kind])
    world.measure_every = 3
    check_same(world.finish(EVERYBODY[kind], 3), simulated(EVERYBODY[kind], number=3))
    assert world.kills == []


# --- folders of organisations

NAMES = ["north", "south", "east", "west"]


class Own(NamedTuple):
    """What an organisation adds to its ratings: text for config.toml, and files."""

    entries: str = ""
    files: dict[str, str] = {}


def users_of(k):
    return range(k, 40, len(NAMES))


def users_table(k, more=""):
    rows = [
        f"{user},{20 + user % 7},{'a' if user % 3 else 'b'},{user % 12 // 4}{more and ',' + more}"
        for user in users_of(k)
    ]
    return "\n".join(["user,age,kind,code" + (",extra" if more else ""), *rows, ""])


def events_table(k):
    return "\n".join(["user,item", *(f"{user},{(user + step) % ITEMS}" for user in users_of(k) for step in (1, 5)), ""])


OWN = {
    "north": Own(
        'user_features = "users.csv"\ncategorical = ["code"]\nalso_seen = "views.csv"\n',
        {"users.csv": users_table(0), "views.csv": events_table(0)},
    ),
    "south": Own('also_seen = "views.csv"\n', {"views.csv": events_table(1)}),
    "east": Own('user_features = "users.csv"\n', {"users.csv": users_table(2)}),
    "west": Own(),
}


def items_table(folder, last="2001"):
    rows = [f"{item},Film {item},{1990 + item % 9},{'x|y' if item % 2 else 'y|z'}" for item in range(ITEMS)]
    table = folder / "movies.csv"
    table.write_text("\n".join(["movieId,title,year,genres", *rows, f"99,New,{last},x", ""]))
    return features_of(table, "item")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folders of a federation whose catalogue holds a table of items, one of them without ratings."""
    root = tmp_path_factory.mktemp("federation")
    ratings = planted()
    Catalogue.of(ratings.items).with_table(items_table(root)).save(root / "catalogue.json")
    accept = ["plain", "secagg"]
    founding.init(root / "made", NAMES, founding.Address("localhost"), items=root / "catalogue.json", accept=accept)
    for k, name in enumerate(NAMES):
        folder, rows = root / "made" / name, ["user,item,rating"]
        for user in users_of(k):
            line = ratings.matrix[[user]]
            rows += [f"{user},{item},{value:.2f}" for item, value in zip(line.indices, line.data, strict=True)]
        (folder / "ratings.csv").write_text("\n".join([*rows, ""]))
        configure(folder, *OWN[name])
    return root / "made"


def configure(folder, entries, files):
    config = folder / "config.toml"
    text = config.read_text().replace('source = ""', 'source = "ratings.csv"')
    config.write_text(text.partition("# test =")[0] + f"# test =\n{entries}")
    for name, content in files.items():
        (folder / name).write_text(content)


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


class Process:
    """The processes of all nodes, as `fedmc node start` makes them, and the wire to them."""

    def __init__(self, made, reread=False):
        self.configs = [layout.load_node(made / name) for name in NAMES]
        self.stores = [Store(config.path("state")) for config in self.configs]
        self.opened = [open_folder(config, reread) for config in self.configs]
        self.nodes = [make_node(*one) for one in zip(self.configs, self.opened, self.stores, strict=True)]

    def exchange(self, contents, max_bytes, needed):
        return {client: self.nodes[client].answer_bytes(content) for client, content in contents.items()}


@contextmanager
def processes(made, reread=False):
    found = Process(made, reread)
    try:
        yield found
    finally:
        for store in found.stores:
            store.close()


def settings_of(kind, **more):
    chosen = {"plain": {"privacy": "plain"}, "secagg": {"privacy": "secagg", "min_cohort": 3}}[kind]
    return Settings.preset(more.pop("preset", "bayes"), rank=2, active=len(NAMES), **chosen, **more)


def planned(made, settings, name="a", number=4):
    server = made / "server"
    hash, p = catalogues.load(server / "catalogue.json").hash, len(NAMES)
    public = tuple(members.load(server).identities)
    folder = RunFolder(server / "runs" / name)
    folder.write_plan(
        RunPlan(f"run-{name}", settings, NAMES, list(range(p)), hash, ITEMS + 1, number, 1, 5.0, p, public)
    )
    return folder


def conducted(made, folder, wire):
    conduct(folder, wire, Signer(request_key.load(made / "server")), made / "server" / "catalogue.json")
    return checkpoint.load(folder.path / "server.npz").checkpoint


def in_one_process(opened, settings, number=4):
    """The simulation, with each client on its own: clients with different numbers of features cannot be batched."""
    shards = [replace(one.prepared.shards[0], client=k) for k, one in enumerate(opened)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clients, "BATCH", 0)
        return simulated(settings, shards, opened[0].prepared.catalogue.item_features, number)


@pytest.mark.parametrize("kind", ["plain", "secagg"])
def test_a_run_over_folders_of_which_some_have_features_and_events(kind, copied):
    settings = settings_of(kind)
    folder = planned(copied, settings)
    with processes(copied) as nodes:
        expected = in_one_process(nodes.opened, settings)
        check_same(conducted(copied, folder, nodes), expected)
        shards = [one.prepared.shards[0] for one in nodes.opened]
    assert folder.status()["has_model"] == NAMES
    assert [None if shard.features is None else shard.features.shape[1] for shard in shards] == [6, None, 4, None]
    for name, shard in zip(NAMES, shards, strict=True):
        model = load(copied / name / "model.npz")
        known = model.bayesian("a test")
        assert (known.home is None) == (shard.features is None)
        if shard.features is not None:
            assert known.home.shape == (shard.features.shape[1], 3)
            assert np.abs(known.home).max() > 0
        assert known.directions is not None
        assert known.item_weights.shape == (4, 3)
        assert 99 in model.items  # no one has rated it: its factors come from its features
        assert np.isfinite(model.predict(np.repeat(model.users, 2), np.tile([0, 99], len(model.users)))).all()
    everyone = {name: load(copied / name / "model.npz") for name in ("south", "west")}
    assert everyone["south"].V.tobytes() == everyone["west"].V.tobytes()


def test_the_node_command_tells_what_it_read_and_predicts(copied):
    done = fedmc("node", "check", copied / "north")
    assert done.returncode == 0, done.stderr
    assert "user features: 10 rows, 6 features (age, 2 kind, 3 code)" in done.stderr
    assert "10 of 10 users have a row" in done.stderr
    assert "also seen: 20 events" in done.stderr
    assert "6 features of each user, 20 pairs also seen; catalogue" in done.stderr
    again = fedmc("node", "check", copied / "north")
    assert "6 features of each user, 20 pairs also seen; catalogue" in again.stderr
    with processes(copied) as nodes:
        conducted(copied, planned(copied, settings_of("plain"), number=4), nodes)
    shown = fedmc("node", "predict", copied / "north", 0, 99, "--interval", "0.9")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0] == "user,item,prediction,low,high,title"
    assert shown.stdout.splitlines()[1].startswith("0,99,")
    assert shown.stdout.splitlines()[1].endswith(",New")


@pytest.mark.parametrize("preset", ["bayes", "fast"])
def test_the_node_commands_show_the_titles_of_the_catalogue(preset, copied):
    with processes(copied) as nodes:
        conducted(copied, planned(copied, settings_of("plain", preset=preset), number=3), nodes)
    north = copied / "north"
    titles = {"3": "Film 3", "5": "Film 5", "99": "New"}
    for words in [("recommend", 0, "--only", "film 3,Film 5,new", "--include-seen"), ("predict", 0, "film 3", 5)]:
        shown = fedmc("node", words[0], north, *words[1:])
        assert shown.returncode == 0, shown.stderr
        lines = [line.split(",") for line in shown.stdout.splitlines()[1:]]
        assert len(lines) == (3 if words[0] == "recommend" else 2)
        for line in lines:
            assert line[-1] == titles[line[2 if words[0] == "recommend" else 1]]
    similar = fedmc("node", "similar", north, "film 3", "-n", 2, "--json")
    assert all(one["title"] == f"Film {one['similar']}" or one["title"] == "New" for one in json.loads(similar.stdout))
    assert "'film 3': item 3, Film 3" in similar.stderr
    assert fedmc("node", "find", north, "FILM 3").stdout == "item,title\n3,Film 3\n"
    several = fedmc("node", "similar", north, "film")
    assert several.returncode == 2
    assert "'film' may be 15 items, the first 10 above" in several.stderr
    if preset == "bayes":
        shown = fedmc("node", "explain", north, 0, "film 3")
        assert "item 3 (Film 3)" in shown.stdout, shown.stderr


def test_other_algorithms_ignore_what_they_do_not_use(copied):
    with processes(copied) as nodes:
        for number, more in enumerate([{"preset": "fast"}, {"algorithm": "gibbs"}, {"implicit": False}]):
            settings = settings_of("plain", **more)
            found = conducted(copied, planned(copied, settings, str(number), 3), nodes)
            check_same(found, in_one_process(nodes.opened, settings, 3), more)
            assert "item_features" not in found.broadcast.shared.arrays


# --- the catalogue


def test_a_run_resumes_without_the_table_that_it_began_with(copied, tmp_path):
    """The server's state holds it; before there is a checkpoint, the catalogue must be the run's."""
    settings, path = settings_of("plain"), copied / "server" / "catalogue.json"
    kept = path.read_bytes()
    folder = planned(copied, settings, number=4)
    with processes(copied) as nodes:
        expected = in_one_process(nodes.opened, settings, 4)

        for task, number in [("pattern", 3), ("pattern", 5)]:
            nodes.exchange = killed_at(nodes, task, number)
            with pytest.raises(KilledError):
                conducted(copied, folder, nodes)
        catalogues.load(path).with_table(items_table(tmp_path, last="1950")).save(path)
        with pytest.raises(
            DataError, match="is no longer the catalogue of run run-a: restore it and `fedmc federation"
        ):
            conducted(copied, folder, nodes)
        path.write_bytes(kept)
        nodes.exchange = killed_at(nodes, "round", 2)
        with pytest.raises(KilledError):
            conducted(copied, folder, nodes)
        path.unlink()
        del nodes.exchange
        check_same(conducted(copied, folder, nodes), expected)


def test_a_node_with_another_table_refuses_and_says_what_to_do(copied, tmp_path):
    """Only one value of the table differs; the items are the same."""
    path = copied / "west" / "catalogue.json"
    ours = catalogues.load(path)
    Catalogue(ours.items).with_table(items_table(tmp_path, last="1950")).save(path)
    folder = planned(copied, settings_of("plain"), number=1)
    with processes(copied) as nodes, pytest.raises(TooFewError, match="wrong-catalogue"):
        conducted(copied, folder, nodes)
    shown = fedmc("node", "status", copied / "west").stdout
    assert "(wrong-catalogue)" in shown
    assert "put the server's catalogue.json here, then `fedmc node start --reread`" in shown
    shutil.copy(copied / "server" / "catalogue.json", path)
    done = fedmc("node", "check", copied / "west")
    assert done.returncode == 2
    assert "was prepared with another catalogue" in done.stderr
    assert fedmc("node", "check", copied / "west", "--reread").returncode == 0


# --- config.toml


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("user_features = 3", "user_features must be the path of a file"),
        ('user_features = ""', "user_features must be the path of a file"),
        ('also_seen = ["views.csv"]', "also_seen must be the path of a file"),
        ('also_seen = "postgresql://me:secret@db/shop"', "also_seen must be the path of a file"),
        ('user_features = "nowhere.csv"', "nowhere.csv"),
        ('also_seen = "nowhere.csv"', "nowhere.csv"),
        ('categorical = "code"', "categorical must be a list of columns"),
        ('categorical = ["code"]', "categorical names columns of user_features, which is not given"),
        ('user_features = "users.csv"\ncategorical = ["colour"]', "there is no column 'colour' of categories"),
        ('user_features = "others.csv"', "has none of the 10 users of the ratings"),
        ('user_features = "twice.csv"', "has a row already"),
        ('also_seen = "unseen.csv"', "none of the 1 events is of a user and an item of the ratings"),
        ('user_feature = "users.csv"', "unknown entry 'user_feature'"),
    ],
)
def test_what_cannot_be_read_is_refused(entries, message, copied):
    files = {
        "others.csv": "user,age\nx,1\ny,2\n",
        "twice.csv": users_table(0) + "0,3,a,1\n",
        "unseen.csv": "user,item\n777,1\n",
    }
    configure(copied / "north", entries + "\n", files)
    for command in ("check", "start"):
        done = fedmc("node", command, copied / "north")
        assert done.returncode == 2, done.stderr
        assert message in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr
        assert "secret" not in done.stderr
    assert not (copied / "north" / "shard").exists()


def test_prepared_shards_hold_their_own(copied):
    north = copied / "north"
    words = ["--user-features", north / "users.csv", "--catalogue", north / "catalogue.json", "--out", north / "own"]
    assert fedmc("prepare", north / "ratings.csv", *words).returncode == 0
    text = (north / "config.toml").read_text().replace('source = "ratings.csv"', 'source = "own"')
    (north / "config.toml").write_text(text)
    done = fedmc("node", "check", north)
    assert done.returncode == 2
    assert "own is prepared and holds its features and events: give user_features to `fedmc prepare`" in done.stderr
    configure(north, "", {})
    done = fedmc("node", "check", north)
    assert done.returncode == 0
    assert "4 features of each user; catalogue" in done.stderr


def test_entries_take_effect_when_the_files_are_read_again(copied):
    west = copied / "west"
    assert "of each user" not in fedmc("node", "check", west).stderr
    before = ratings_hash(west / "shard")
    configure(west, 'user_features = "users.csv"\n', {"users.csv": users_table(3)})
    shown = fedmc("node", "check", west).stderr
    assert "user_features was changed in config.toml after the ratings were read: the entry takes effect" in shown
    assert ratings_hash(west / "shard") == before
    shown = fedmc("node", "check", west, "--reread").stderr
    assert "was changed" not in shown
    assert "4 features of each user; catalogue" in shown


# --- what identifies a node's data


def killed_at(nodes, task, number):
    """The wire, until the server asks for this."""

    def exchange(contents, *more):
        broadcast = request_of(contents).broadcast
        if (broadcast.task, broadcast.round) == (task, number):
            raise KilledError(task)
        return Process.exchange(nodes, contents, *more)

    return exchange


def test_a_run_does_not_go_on_with_other_events_or_features(copied):
    folder, north = planned(copied, settings_of("plain"), number=2), copied / "north"
    with processes(copied) as nodes:
        nodes.exchange = killed_at(nodes, "round", 2)
        with pytest.raises(KilledError):
            conducted(copied, folder, nodes)
    for changed in ("views.csv", "users.csv"):
        text = (north / changed).read_text()
        (north / changed).write_text(text.replace("\n0,1\n", "\n0,7\n").replace("\n0,20,", "\n0,60,"))
        with processes(copied, reread=True) as nodes, pytest.raises(TooFewError, match="changed-ratings"):
            conducted(copied, folder, nodes)
        (north / changed).write_text(text)
    assert "(changed-ratings)" in fedmc("node", "status", north).stdout
    with processes(copied, reread=True) as nodes:
        conducted(copied, folder, nodes)
    assert folder.status()["state"] == "finished"


def test_new_features_do_not_free_contributions_that_were_summed(tmp_path, caplog):
    """Counts in them are the same as before: over other members, sums would show whoever is missing."""
    world, everybody = SecureWorld(tmp_path, 8), list(range(8))

    def read_again(ratings):
        for client in everybody:
            world.revive(client)
            world.nodes[client].terms = world.nodes[client].terms._replace(ratings=ratings)

    read_again("at first")
    start = next(rounds(world.engine(), KINDS["secagg-bayes"].replace(active=8))).broadcast
    for client in everybody:
        features = np.random.default_rng(client).normal(size=(len(world.shards[client].users), 2))
        world.shards[client] = replace(world.shards[client], features=features)
    read_again("with features")
    update = start._replace(task="round", round=1)
    with pytest.raises(TooFewError, match="0 of 7 nodes take part"):
        SecureAsk(world.engine(run="another-run").asking, update, everybody[:-1]).run()
    assert sum("would show the sum of (7,) alone" in record.getMessage() for record in caplog.records) == 7
    assert SecureAsk(world.engine(run="a-third-run").asking, update, everybody).run().clients == tuple(everybody)


def test_an_own_table_of_titles_where_the_catalogue_has_none(copied):
    """It reaches the model and the commands, changes no number, and may be missing only where it is not named."""
    ratings = planted()
    with processes(copied) as nodes:
        conducted(copied, planned(copied, settings_of("plain"), number=2), nodes)
    plain = load(copied / "north" / "model.npz")
    rows = [f'{item},"Own {item}"' for item in (*ratings.items.tolist(), 99)]
    table = "\n".join(["id,title", *rows, ""])
    for name in NAMES:
        configure(copied / name, f'items = "own.csv"\n{OWN[name][0]}', {"own.csv": table})
    with processes(copied) as nodes:
        conducted(copied, planned(copied, settings_of("plain"), "b", 2), nodes)
    both = load(copied / "north" / "model.npz")
    assert both.title_of([3, 99]).tolist() == ["Film 3", "New"]  # those of the catalogue come first
    assert both.V.tobytes() == plain.V.tobytes()
    configure(copied / "north", 'items = "nowhere.csv"\n', {})
    for command in ("check", "start"):
        done = fedmc("node", command, copied / "north")
        assert done.returncode == 2
        assert "there is no file nowhere.csv" in done.stderr


def test_own_titles_of_a_catalogue_without_a_table(copied, tmp_path):
    north = copied / "north"
    ratings = planted()
    bare = Catalogue(ratings.items)
    bare.save(tmp_path / "bare.json")
    (north / "own.csv").write_text("id,title\n" + "".join(f"{item},Own {item}\n" for item in ratings.items))
    config = layout.load_node(north)
    assert known_titles(config, bare) is None
    assert known_titles(replace(config, items="own.csv"), bare)[3] == "Own 3"
    FedMC(2, clients=2, rounds=1).fit(ratings).model_.save(north / "model.npz")  # a model of an earlier run
    (north / "catalogue.json").write_bytes((tmp_path / "bare.json").read_bytes())
    assert fedmc("node", "recommend", north, 0).stdout.startswith("user,rank,item,score\n")
    configure(north, 'items = "own.csv"\n', {})
    for words in (("recommend", 0), ("similar", "own 3"), ("predict", 0, "own 3"), ("find", "own 3")):
        shown = fedmc("node", words[0], north, *words[1:])
        assert shown.returncode == 0, shown.stderr
        assert "Own " in shown.stdout
