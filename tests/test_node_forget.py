"""`fedmc node forget`: what goes, what the next run's sums are, interruptions, and what the command says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.data import catalogue as catalogues
from fedmc.data.catalogue import Catalogue
from fedmc.data.leaving import shard_without
from fedmc.data.partition import make_shards
from fedmc.data.prepared import open_prepared
from fedmc.errors import DataError
from fedmc.federation.node import forget as forgetting
from fedmc.federation.node import forgotten
from fedmc.federation.node.forgotten import Forgotten
from fedmc.federation.node.organisation import open_folder, ratings_hash
from fedmc.federation.node.store import Store
from fedmc.federation.server import warm
from fedmc.federation.server.run_folder import RunPlan
from fedmc.federation.setup import founding
from fedmc.federation.setup.layout import load_node
from fedmc.model import load
from fedmc.privacy.dp.ledger import Ledger, LostReleaseError
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.command import fedmc
from tests.conftest import planted
from tests.test_every_algorithm import ALGORITHMS, settings_of
from tests.test_federation_side import NAMES, OWN, conducted, configure, planned, processes, users_of
from tests.test_federation_side import settings_of as run_settings
from tests.test_federation_warm import gone_on_from
from tests.world import KINDS, KilledError, World

GONE = {"south": ["person-001", "person-021"], "west": ["person-003"]}  # of organisations without features
SOME = "person-005"  # another of the south
STEPS = ("_states", "_releases", "_shard", "_models", "_leftovers")


def named(text: str) -> str:
    """A table whose user ids are names instead of numbers."""
    head, *rows = text.splitlines()
    cells = (row.partition(",") for row in rows)
    return "\n".join([head, *(f"person-{int(user):03},{rest}" for user, _, rest in cells), ""])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A federation of four organisations after a run."""
    root, ratings = tmp_path_factory.mktemp("federation"), planted()
    Catalogue.of(ratings.items).save(root / "catalogue.json")
    accept = ["plain", "secagg"]
    founding.init(root / "made", NAMES, founding.Address("localhost"), items=root / "catalogue.json", accept=accept)
    for k, name in enumerate(NAMES):
        folder, rows = root / "made" / name, ["user,item,rating"]
        for user in users_of(k):
            line = ratings.matrix[[user]]
            rows += [f"{user},{item},{value:.2f}" for item, value in zip(line.indices, line.data, strict=True)]
        (folder / "ratings.csv").write_text(named("\n".join(rows)))
        configure(folder, OWN[name].entries, {file: named(text) for file, text in OWN[name].files.items()})
    run(root / "made", "a")
    return root / "made"


def run(made, name, kind="plain", previous=""):
    settings = run_settings(kind)
    catalogue = catalogues.load(made / "server" / "catalogue.json")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "tests.test_federation_side.RunPlan",
            lambda *plan: RunPlan(*plan)._replace(items=len(catalogue), start_from=previous),
        )
        folder = planned(made, settings, name)
    warm.keep(folder.path, catalogue, made / "server" / "runs" / previous if previous else None)
    with processes(made) as nodes:
        return conducted(made, folder, nodes)


@pytest.fixture
def made(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "made")
    return tmp_path / "made"


def forget(folder, *words):
    done = fedmc("node", "forget", folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(folder, *words):
    done = fedmc("node", "forget", folder, *words)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def holds(folder: Path, *patterns: bytes) -> set[Path]:
    """The files in which one of these occurs, other than the organisation's own."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".csv"]
    return {path.relative_to(folder) for path in files if any(one in path.read_bytes() for one in patterns)}


def ids_in_files(*ids: str) -> list[bytes]:
    return [one.encode(code) for one in ids for code in ("utf-8", "utf-32-le")]


# --- the sums of the next run


@pytest.mark.parametrize("kind", ["plain", "secagg"])
def test_the_next_run_is_that_of_a_federation_that_never_had_the_users(made, kind, tmp_path):
    """From the same V on, beside organisations whose tables never had these users: the same sum and V, bit by bit."""
    never = tmp_path / "never"
    shutil.copytree(made, never)
    for name, users in GONE.items():
        for table in (never / name).glob("*.csv"):
            lines = table.read_text().splitlines(keepends=True)
            table.write_text("".join(line for line in lines if line.partition(",")[0] not in users))
        shutil.rmtree(never / name / "state")
        assert fedmc("node", "refresh", never / name).returncode == 0
        forget(made / name, *users)
    found, expected = run(made, "b", kind, "a"), run(never, "b", kind, "a")
    assert found.server.S.tobytes() == expected.server.S.tobytes()
    assert found.broadcast.V.tobytes() == expected.broadcast.V.tobytes()
    for name, users in GONE.items():
        assert not np.isin(users, load(made / name / "model.npz").users).any()
        assert not holds(made / name, *ids_in_files(*users))


def test_with_the_users_the_next_run_is_another_one(made, tmp_path):
    shutil.copytree(made, tmp_path / "with")
    forget(made / "west", *GONE["west"])
    assert (
        run(made, "b", "plain", "a").server.S.tobytes() != run(tmp_path / "with", "b", "plain", "a").server.S.tobytes()
    )


def test_two_runs_from_one_model_differ_by_the_persons_part_alone():
    """Which the documentation warns of: the server sees what a person rated if nothing else has changed."""
    settings = KINDS["curvature"]
    previous = gone_on_from(settings)
    shards = make_shards(planted(), np.arange(40) % 4, "float64")
    gone = np.arange(len(shards[0].users)) == 2

    def first_sum(*of_clients):
        states = []
        for one in rounds(LocalEngine(of_clients), settings, on_checkpoint=states.append, previous=previous):
            if one.number == 1:
                return states[-1].server.S
        raise AssertionError

    before, after = first_sum(*shards), first_sum(shard_without(shards[0], gone), *shards[1:])
    differ = np.flatnonzero((before != after).reshape(15, -1).any(axis=1))
    assert differ.tolist() == shards[0].by_user[[2]].indices.tolist()
    assert len(differ) < 15


# --- what goes


def test_ids_factors_and_ratings_leave_the_files(made):
    folder, users = made / "south", GONE["south"]
    before = load(folder / "model.npz")
    rows = np.flatnonzero(np.isin(before.users, users))
    factors = [before.U[row].tobytes() for row in rows]
    assert len(rows) == 2
    assert holds(folder, *ids_in_files(*users)) >= {Path("model.npz"), Path("shard/client-000000.shard")}
    assert Path("state/state.sqlite") in holds(folder, *committed_rows(folder, rows))
    patterns = [*factors, *ids_in_files(*users), *committed_rows(folder, rows)]
    written = (folder / "models" / "run-a.npz").stat().st_mtime_ns
    said = forget(folder, *users, "--json")
    assert not holds(folder, *patterns)
    facts = json.loads(said.splitlines()[-1])
    assert (facts["models"], facts["runs"], facts["users"], facts["also_seen"]) == (2, 1, 2, 4)
    assert (folder / "models" / "run-a.npz").stat().st_mtime_ns == written
    after = load(folder / "model.npz")
    assert len(after.users) == len(before.users) - 2
    pairs = after.users, np.arange(len(after.users)) % 15
    assert np.array_equal(after.predict(*pairs), before.predict(*pairs))
    for path in ("model.npz", "models/run-a.npz", "shard", forgotten.FILE):
        assert (folder / path).stat().st_mode & 0o077 == 0
    assert "unknown user" in fedmc("node", "recommend", folder, users[0]).stderr


def committed_rows(folder, rows) -> list[bytes]:
    """Rows of these users' factors in the state of the run, as they lie on disk."""
    with Store(folder / "state") as store:
        state = store.get("run-a", "committed", run_settings("plain").make_algorithm()).state
    return [np.ascontiguousarray(state.U[row]).tobytes() for row in rows] if state is not None else []


STATES = {name: settings_of(name, "plain") for name in ALGORITHMS} | {
    kind: KINDS[kind] for kind in ("secagg", "secagg-exact", "secagg-bayes", "clipped", "dp", "dp+secagg")
}


@pytest.mark.parametrize("kind", STATES)
def test_nothing_of_any_algorithms_state_stays(kind, tmp_path):
    """Rows of users, and what is kept by item or in a reply, of which a single person may be the author."""
    world = World(tmp_path)
    world.finish(STATES[kind], 2)
    store, folder = world.stores[0], tmp_path / "node-0"
    with store.reading() as database:
        blobs = [bytes(one) for row in database.execute("SELECT state, reply FROM states") for one in row if one]
    pieces = {blob[at : at + 24] for blob in blobs for at in range(0, len(blob) - 24, 24)}
    pieces = {piece for piece in pieces if len(set(piece)) > 8}
    before = {piece for piece in pieces if holds(folder, piece)}
    assert len(before) > 0.9 * len(pieces) > 3  # all but those across two pages
    assert forgetting._states(store, ()) == 1
    assert holds(folder, *pieces) == set()
    world.close()


def test_masked_replies_go_too(tmp_path):
    world = World(tmp_path)
    world.finish(KINDS["secagg"], 1)
    with world.stores[0].reading() as database:
        replies = [bytes(one) for (one,) in database.execute("SELECT reply FROM secagg WHERE reply IS NOT NULL")]
    assert replies
    forgetting._states(world.stores[0], ())
    with world.stores[0].reading() as database:
        assert database.execute("SELECT count(*) FROM secagg WHERE reply IS NOT NULL").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM secagg").fetchone() == (1,)
    assert all(not holds(tmp_path / "node-0", one[-64:]) for one in replies)
    world.close()


def test_the_bytes_of_releases_go_and_the_budget_stays_spent(tmp_path):
    path, secret = tmp_path / "ledger.sqlite", b"a sum over users " * 20
    with Ledger(path, 5.0, 1e-6) as ledger:
        ledger.release("run/1", 9.0, lambda: secret)
        spent, head = ledger.spent(), ledger.head()
        assert holds(tmp_path, secret)
        ledger.drop_contents()
        assert not holds(tmp_path, secret)
        assert (ledger.spent(), ledger.head()) == (spent, head)
        with pytest.raises(LostReleaseError, match="none of before a user was forgotten"):
            ledger.release("run/1", 9.0, lambda: b"again")
        assert ledger.release("run/2", 9.0, lambda: b"next") == b"next"
    with Ledger(path, 5.0, 1e-6) as ledger:  # the chain holds
        assert ledger.head().height == 2


def test_the_budget_is_mentioned_where_there_is_one(made):
    south = made / "south"
    assert "privacy budget" not in forget(south, GONE["south"][0])
    config = south / "config.toml"
    config.write_text("epsilon = 3.0\n" + config.read_text())
    assert "stays spent" in forget(south, SOME)


# --- interruptions


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_removal_that_is_killed_is_finished_later(made, step, after, monkeypatch, tmp_path):
    folder, users = made / "south", GONE["south"]
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    forget(whole, *users)
    work = getattr(forgetting, step)

    def dies(*arguments):
        if after:
            work(*arguments)
        raise KilledError

    monkeypatch.setattr(forgetting, step, dies)
    with pytest.raises(KilledError):
        fedmc("node", "forget", folder, *users)
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"interrupted: finish it with `fedmc node forget .* --again`"):
        open_folder(load_node(folder))
    assert "a removal was interrupted" in forget(folder, "--list")
    forget(folder, *([] if after else users), *(["--again"] if after else []))
    assert not holds(folder, *ids_in_files(*users))
    assert ratings_hash(folder / "shard") == ratings_hash(whole / "shard")
    assert (folder / "model.npz").read_bytes() == (whole / "model.npz").read_bytes()
    open_folder(load_node(folder))
    assert forget(folder, "--list").startswith("2 users")


def test_killed_before_the_list_is_written_nothing_has_changed(made, monkeypatch):
    folder, before = made / "south", ratings_hash(made / "south" / "shard")

    def dies(*arguments):
        raise KilledError

    monkeypatch.setattr(forgotten, "save", dies)
    with pytest.raises(KilledError):
        fedmc("node", "forget", folder, SOME)
    monkeypatch.undo()
    assert open_folder(load_node(folder)).ratings == before
    assert SOME in load(folder / "model.npz").users


def test_killed_while_the_new_copy_takes_the_place_of_the_old_one(made):
    """Between the two renames there is no copy: the source is read again, without the users."""
    folder = made / "south"
    known = forgotten.load(load_node(folder)).adding([SOME])
    forgotten.save(load_node(folder), known)
    shutil.copytree(folder / "shard", folder / "shard.part")
    (folder / "shard").rename(folder / "shard.old")
    forget(folder, "--again")
    assert not (folder / "shard.old").exists()
    assert SOME not in open_folder(load_node(folder)).prepared.ids[0]
    assert not holds(folder, *ids_in_files(SOME))


def test_what_killed_processes_left_is_deleted(made):
    folder = made / "south"
    for name in ("check-x1", "shard.part", "shard.old-2"):
        shutil.copytree(folder / "shard", folder / name)
    shutil.copy(folder / "model.npz", folder / "models" / "run-a.npz.part")
    forget(folder, SOME)
    assert not holds(folder, *ids_in_files(SOME))


def test_a_backup_that_was_put_back_is_noticed_and_cleaned(made, tmp_path):
    folder = made / "south"
    shutil.copytree(folder / "shard", tmp_path / "shard")
    forget(folder, SOME)
    shutil.rmtree(folder / "shard")
    shutil.copytree(tmp_path / "shard", folder / "shard")
    done = fedmc("node", "check", folder)
    assert done.returncode == 2
    assert "holds 1 users who were forgotten here: remove them with" in done.stderr
    forget(folder, "--again")
    assert SOME not in open_folder(load_node(folder)).prepared.ids[0]


# --- what is remembered


def test_a_source_that_still_holds_the_user_is_read_without_it(made):
    folder = made / "south"
    forget(folder, SOME)
    for command in (("refresh",), ("check", "--reread")):
        done = fedmc("node", command[0], folder, *command[1:])
        assert done.returncode == 0, done.stderr
        assert "forgotten users (1): " in done.stderr
        assert "delete them from the source, too" in done.stderr
        assert not holds(folder, *ids_in_files(SOME))
    assert "other data" not in done.stdout
    assert SOME in (folder / "ratings.csv").read_text()  # the organisation's own


def test_a_number_and_its_text_are_the_same_user():
    known = Forgotten(b"salt" * 4).adding(["17"])
    assert known.mask(np.array([7, 17, 171])).tolist() == [False, True, False]
    assert known.mask(np.array(["17", "017"])).tolist() == [True, False]
    assert Forgotten(b"another salt 123").adding(["17"]).users != known.users


def test_a_damaged_list_lets_nobody_in(made):
    folder = made / "south"
    forget(folder, SOME)
    (folder / forgotten.FILE).write_text("{}")
    done = fedmc("node", "refresh", folder)
    assert done.returncode == 2
    assert "forgotten.json cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


# --- what is refused


def test_what_is_refused_changes_nothing(made):
    folder = made / "south"
    before = ratings_hash(folder / "shard")
    said = refused(folder, "person-0010")
    assert "there is no user 'person-0010'" in said
    assert "person-001, person-005" in said
    assert "name the users" in refused(folder)
    assert "name the users" in refused(folder, SOME, "--list")
    assert "nobody was forgotten" in refused(folder, "--again")
    assert "nobody else is left" in refused(folder, *(f"person-{user:03}" for user in users_of(NAMES.index("south"))))
    with Store(folder / "state"):
        assert "in use by another process" in refused(folder, SOME)
    assert forget(folder, "--list").startswith("0 users")
    assert (ratings_hash(folder / "shard"), (folder / forgotten.FILE).exists()) == (before, False)


def test_a_run_that_goes_on_is_ended_only_if_asked(made):
    folder = made / "south"
    with Store(folder / "state") as store:
        store.begun_with("run-b", "data", "settings")
    said = refused(folder, SOME)
    assert "a run is going on here (run-b)" in said
    assert "--end-runs" in said
    assert SOME in load(folder / "model.npz").users
    assert "ended for good, at this node: run run-b" in forget(folder, SOME, "--end-runs")
    with Store(folder / "state") as store:
        assert store.ended("run-b").status == "changed-ratings"
        assert store.ended("run-a") is None
    forget(folder, GONE["south"][0])  # it is over now


def test_a_reader_of_the_state_is_waited_for_and_named(made, monkeypatch):
    folder = made / "south"
    monkeypatch.setattr(Store, "erase", lambda store: False)
    assert "another process reads it" in refused(folder, SOME)
    monkeypatch.undo()
    forget(folder, "--again")


def test_a_model_that_cannot_be_read_is_named(made):
    folder = made / "south"
    (folder / "models" / "run-a.npz").write_bytes(b"no model")
    assert "delete " in (said := refused(folder, SOME))
    assert "run-a.npz" in said
    (folder / "models" / "run-a.npz").unlink()
    forget(folder, SOME)


def test_prepared_data_are_the_organisations_own(made):
    folder = made / "south"
    shutil.copytree(folder / "shard", folder / "prepared")
    shutil.rmtree(folder / "shard")
    config = folder / "config.toml"
    text = config.read_text().replace('"ratings.csv"', '"prepared"').replace('also_seen = "views.csv"\n', "")
    config.write_text(text)
    assert "prepare " in (said := forget(folder, SOME))
    assert "(now: 1)" in said
    assert SOME in open_prepared(folder / "prepared").ids[0]
    done = fedmc("node", "check", folder)
    assert done.returncode == 2
    assert "prepare it again without them" in done.stderr


def test_the_address_of_a_database_is_not_printed(made):
    config = made / "south" / "config.toml"
    config.write_text(config.read_text().replace('"ratings.csv"', '"postgresql://me:secret@db/shop"'))
    assert "secret" not in (said := forget(made / "south", SOME))
    assert "delete them from the database" in said


def test_what_is_said(made):
    said = forget(made / "south", SOME)
    for words in ("forgotten at south: person-005", "factors of items, here and at all others", "backups", "--from"):
        assert words in said
    assert "2 pairs also seen" in said
    assert "1 runs" in said
