"""Small things from outside that must not do much: messages, names, passwords, tokens, and files that pile up."""

from __future__ import annotations

import json
import logging
import math
import os
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, RecordDict

from fedmc.algorithms import limits
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.cli.federation_demo import set_up
from fedmc.data.loading import read_source
from fedmc.data.partition import make_shards
from fedmc.errors import DataError, InputError
from fedmc.federation.flower.records import NAME, PLACE, unpack
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Entry, Store
from fedmc.federation.secagg_messages import Stage, encode_stage, open_arrays, read_stage
from fedmc.federation.server.run_folder import RunFolder
from fedmc.federation.setup.layout import load_node
from fedmc.federation.setup.policy import Policy
from fedmc.federation.wire import HEADER, Invitation, Request, decode_reply, encode, from_bytes, to_bytes
from fedmc.model import Model
from fedmc.problem import losses, penalties
from fedmc.problem.scaling import Scaling
from tests.command import fedmc
from tests.conftest import examples, planted
from tests.mutations import EXTREMES, MEMORY, Message, described, npy, packed
from tests.world import CATALOGUE, KINDS, World, engine_on, sealed, trust_of

TERABYTES = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
FORGED = "x\n2030-01-01 00:00:00,000 INFO a line that nobody wrote \x1b[2J\x9b31m\u2028\u202e"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


def request(kind="paper", **changes):
    """A request to node 0 for the first round of a run."""
    settings = KINDS[kind]
    asked = Broadcast("measure", 0, 4, settings, np.zeros((15, settings.width)))
    return Request("a-run", 0, asked, -1, CATALOGUE)._replace(**changes)


def asked(header=None, settings=None, **changes):
    """The bytes of such a request with other fields in its header."""
    arrays, said = encode(request(**changes))
    said["settings"] = said["settings"] | (settings or {})
    return to_bytes(arrays, json.loads(json.dumps(said)) | (header or {}))


def status(node, content):
    """The status of the answer to what the server signs; fails if it takes more memory than a message may."""
    signed = sealed(0, content)
    tracemalloc.start(1)
    try:
        answer = node.answer_bytes(signed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY + len(content)
    arrays, header = from_bytes(answer)
    return read_stage(answer).status if "stage" in header else decode_reply(arrays, header).status


# --- messages


@pytest.mark.parametrize(
    "description",
    [
        TERABYTES,
        TERABYTES.replace("1000000000000,", "4611686018427387904, 4"),
        TERABYTES.replace("<f8", "|O").replace("1000000000000", "45"),
        "-" * 9000 + "1",
        "",
    ],
    ids=["terabytes", "overflow", "objects", "deep", "none"],
)
def test_the_description_of_an_array_is_not_believed(world, description):
    message = Message(asked())
    message.raw["V"] = described(description, bytes(360))
    assert status(world.nodes[0], packed(message.entries())) == "malformed"
    message = Message(asked())
    message.raw[HEADER] = described(description, bytes(360))
    assert status(world.nodes[0], packed(message.entries())) == "malformed"


def test_neither_is_that_of_flowers_arrays():
    record = RecordDict({PLACE: ArrayRecord({NAME: Array("uint8", (1,), "numpy.ndarray", described(TERABYTES, b"x"))})})
    with pytest.raises(ValueError, match="8000000000000 bytes was announced, 1 are there"):
        unpack(record)


@pytest.mark.parametrize(
    "text",
    [
        b'{"version": "0.2.0", "round": ' + b"[" * 100_000,
        b'{"round": 1, "round": 2}',
        b'{"version": "0.2.0", "a": [' + b"[]," * 300_000 + b"[]]}",
        b'{"round": ' + b"9" * 4000 + b"}",
    ],
    ids=["deep", "twice", "many", "digits"],
)
def test_a_strange_header_is_refused(world, text):
    message = Message(asked())
    message.raw[HEADER] = npy(np.frombuffer(text, np.uint8))
    assert status(world.nodes[0], packed(message.entries())) == "malformed"


def test_a_long_list_of_entries_takes_no_memory(world):
    one, count = b"PK\x01\x02" + bytes(42), 300_000
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(one) * count, 0, 0)
    assert status(world.nodes[0], one * count + end) == "malformed"


def test_an_entry_that_comes_twice_is_refused(world):
    entries = Message(asked()).entries()
    assert status(world.nodes[0], packed([*entries, entries[-1]])) == "malformed"


@pytest.mark.parametrize(
    "fields",
    [
        {"round": 10**400}, {"round": True}, {"round": "1"}, {"round": 1.5}, {"round": 2**40}, {"client": [0]},
        {"clients": 10**18}, {"clients": 0}, {"counted": 2**63 - 1}, {"full": "no"}, {"mean": 0.0},
        {"mean": "0x1p2000"},
        {"factor": "nan"}, {"factor": "0x1p+3"}, {"run": "\ud800"}, {"run": ["a-run"]}, {"task": "x" * 2000},
        {"catalogue": 7}, {"invitation": True}, {"invitation": list(range(20_000))}, {"invitation": {"V": 1}},
        {"scale": "0x1p-1074"},
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_field_of_another_type_or_size_is_refused(world, fields):
    assert status(world.nodes[0], asked(fields)) == "malformed"


KEYS_OF_1 = [1, 1, "0" * 64, "1" * 64, False, "2" * 128]
LAST = [0, "", "", [], []]  # of an invitation: losses, two hashes, certificates and proofs
ODD_INVITATIONS = {
    "nothing": b"", "no list": b"7", "a text": b'"' + b"x" * 100 + b'"', "an object": b"{}", "short": b"[1, 1]",
    "number": [10**30, 1, [], *LAST], "text for a number": ["1", 1, [], *LAST], "below zero": [1, -1, [], *LAST],
    "switch": [True, 1, [], *LAST], "fraction": [1.5, 1, [], *LAST],
    "not a number": [math.nan, 1, [], *LAST],
    "member": [1, 1, [[[10**30, *KEYS_OF_1[1:]], 0]], *LAST], "base": [1, 1, [[KEYS_OF_1, -1]], *LAST],
    "short key": [1, 1, [[[1, 1, "00", *KEYS_OF_1[3:]], 0]], *LAST],
    "no hexadecimal": [1, 1, [[[1, 1, "x" * 64, *KEYS_OF_1[3:]], 0]], *LAST],
    "hash": [1, 1, [], 0, "00", "", [], []], "certificate": [1, 1, [], 0, "", "", [[1]], []],
    "proof": [1, 1, [], 0, "", "", [], [[]]], "many": [1, 1, [[KEYS_OF_1, 0]] * 20_000, *LAST],
    "deep": b"[" * 100_000 + b"]" * 100_000, "lists": b"[" + b"[]," * 2_000_000 + b"[]]",
    "digits": b"9" * 10_000_000,
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD_INVITATIONS)
def test_an_invitation_of_another_form_is_refused(world, odd):
    given = ODD_INVITATIONS[odd]
    blob = np.frombuffer(given if isinstance(given, bytes) else json.dumps(given).encode(), np.uint8)
    arrays, header = encode(request("secagg", invitation=Invitation()))
    assert status(world.nodes[0], to_bytes(arrays | {"invitation": blob}, header)) == "malformed"


def test_an_invitation_is_an_array_of_bytes_that_is_announced(world):
    arrays, header = encode(request("secagg", invitation=Invitation()))
    assert status(world.nodes[0], to_bytes(arrays, header)) == "ok"
    assert status(world.nodes[0], to_bytes(arrays, header | {"invitation": None})) == "malformed"
    for odd in (arrays["invitation"][None], arrays["invitation"].astype(np.int64), np.zeros(0)):
        assert status(world.nodes[0], to_bytes(arrays | {"invitation": odd}, header)) == "malformed"


def opening(text, **changes):
    """A message of exchange 2 to node 0, with this text for the heads."""
    arrays = open_arrays(bytes(32), []) | {"heads": np.frombuffer(text, np.uint8)} | changes
    return encode_stage(Stage("a-run", 0, "open", arrays))


@pytest.mark.parametrize("heads", [b"[]," * 2_000_000, b"1," * 10_000_000, b'["",{}],' * 500_000])
def test_a_stage_with_a_million_members_takes_no_memory(world, heads):
    assert status(world.nodes[0], opening(b"[" + heads[:-1] + b"]")) == "not-hidden"


def test_a_stage_of_another_form_is_refused(world):
    node = world.nodes[0]
    for content in (
        opening(b"[" * 100_000), opening(b"9" * 10_000_000), opening(b"[[]]"), opening(b"\xff"),
        opening(b"[]", heads=np.arange(2_000_000)), opening(b"[]", heads=np.zeros((3, 3), np.uint8)),
        opening(b"[]", session=np.arange(2)), opening(b"[]", session=np.zeros(33, np.uint8)),
        encode_stage(Stage("a-run", 0, "open", {"file": np.arange(2)})),
    ):  # fmt: skip
        assert status(node, content) == "not-hidden"
    for stage, client in (("keys", 0), ("masked", 0), ("opened", 0), ("confirm", 0), ("open", 1), ("open", 10**5)):
        assert status(node, encode_stage(Stage("a-run", client, stage, {}))) == "no-session"


def test_a_small_request_for_a_huge_reply_is_refused(tmp_path):
    """V of 3 MB at rank 1,000; the Gram matrices of 400 items would be 1.6 GB."""
    settings = Settings.preset("fast", rank=1000, update="curvature", active=1)
    shard = make_shards(planted(items=400), np.zeros(40, int), "float64")[0]
    with Store(tmp_path / "state") as store:
        V = np.zeros((400, settings.width))
        content = to_bytes(*encode(Request("a", 0, Broadcast("round", 1, 1, settings, V), -1, CATALOGUE)))
        assert (
            status(Node(shard, CATALOGUE, store, trust=trust_of(0), policy=Policy(max_rank=1000)), content)
            == "wrong-settings"
        )


# --- settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inner_steps", 10**9), ("inner_steps", 1001), ("inner_steps", 2.5), ("inner_steps", True),
        ("inner_steps", "10"),
        ("rank", 1001), ("rank", 10**400), ("rank", True), ("seed", 2**64), ("seed", 10**400), ("seed", 0.5),
        ("active", 10**9), ("active", True), ("active", math.nan), ("beta", 1e13), ("beta", True), ("beta", 10**400),
        ("beta_scale", math.inf), ("beta_scale", math.nan), ("beta_scale", "2"), ("dual_step", "1"),
        ("extrapolation", False), ("entry_penalty", 1e-300), ("passes", 1), ("biases", "yes"), ("fold_in", 0.0),
        ("penalty_users", "l2:1e13"), ("penalty_users", "box:-1e300,1"), ("penalty_users", "fixed:0=nan"),
        ("penalty_users", "fixed:0=1e300"), ("penalty_users", "l2:" + "1" * 2000), ("penalty_users", ["l2:1"]),
        ("loss", "huber:1e300"), ("loss", "huber:inf"), ("loss", 5), ("algorithm", "fedprox:inf"),
        ("algorithm", "fedprox:1e300"), ("algorithm", {}), ("preset_name", "a\nb"), ("preset_name", "a" * 2000),
        ("clip", 1e300), ("clip", True), ("sampler", 3),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_setting_beyond_its_bounds_is_refused(world, name, value):
    with pytest.raises(InputError, match=r"must|cannot|at most|needs"):
        Settings.from_dict(KINDS["paper"].to_dict() | {name: value})
    assert status(world.nodes[0], asked(settings={name: value})) in ("malformed", "wrong-settings")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(EXTREMES),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@given(st.sampled_from(sorted(KINDS["secagg"].to_dict())), VALUES)
@examples(400)
def test_any_value_of_a_setting_is_refused_or_within_bounds(name, value):
    """Whatever JSON holds: settings that are the same again from their own words, or an InputError; nothing else."""
    words = KINDS["secagg"].to_dict() | {name: value}
    try:
        limits.check_words(words)
        made = Settings.from_dict(words)
    except InputError:
        return
    assert Settings.from_dict(made.to_dict()).to_dict() == made.to_dict()
    for setting, (low, high) in limits.INTEGERS.items():
        assert type(getattr(made, setting)) is int
        assert low <= getattr(made, setting) <= high


@pytest.mark.parametrize("value", [10**9, 10**400, True, 4.5, math.inf, "5"], ids=lambda value: str(value)[:20])
def test_a_cohort_beyond_its_bounds_is_refused(value):
    with pytest.raises(InputError, match="min_cohort must be"):
        Settings.from_dict(KINDS["secagg"].to_dict() | {"min_cohort": value})


def test_an_error_names_the_value_and_the_bound():
    for make, said in (
        (lambda: Settings.preset("paper", inner_steps=5000), "inner_steps must be at most 1000, got 5000"),
        (lambda: Settings.preset("paper", seed=2**64), f"seed must be at most {2**63 - 1}, got {2**64}"),
        (lambda: penalties.l1(1e20), "the l1 weight must be a number from 0 to 1e+12, got 1e+20"),
        (lambda: losses.parse("huber:1e20"), "Huber's delta must be a number from 1e-12 to 1e+12, got 1e+20"),
    ):
        with pytest.raises(InputError) as caught:
            make()
        assert said in str(caught.value)


# --- logs and terminals


def is_printable(text, kept="\n"):
    return all(one.isprintable() or one in kept for one in text)


@pytest.mark.parametrize("name", ["run", "task", "version", "catalogue", "stage", "round"])
def test_a_name_from_outside_forges_no_line_in_the_log(world, caplog, capsys, name):
    from fedmc.cli.logs import log_to_stderr

    before = logging.getLogger("fedmc").handlers[:]
    log_to_stderr()
    try:
        world.ask(0, asked({name: FORGED}))
        logging.getLogger("fedmc.node").error("a reason: %s", FORGED)
    finally:
        logging.getLogger("fedmc").handlers = before
    assert all(is_printable(record.getMessage(), "") for record in caplog.records[:-1])
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 2
    assert is_printable(said)


def test_a_traceback_forges_no_line(tmp_path):
    """Every line but the first is indented, so that none looks like a record."""
    folder = RunFolder(tmp_path)
    logger = logging.getLogger("fedmc")
    before = logger.handlers[:]
    folder.log_to_file()
    try:
        try:
            raise ValueError(FORGED)
        except ValueError:
            logging.getLogger("fedmc.server").exception("it failed")
    finally:
        logger.handlers[-1].close()
        logger.handlers = before
    first, *rest = (tmp_path / "run.log").read_text(encoding="utf-8").split("\n")[:-1]
    assert first.endswith("it failed")
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert is_printable("\n".join(rest))


def test_what_nodes_say_reaches_the_operators_terminal_quoted(tmp_path):
    set_up(tmp_path / "made", planted())
    run = tmp_path / "made" / "server" / "runs" / "a"
    run.mkdir()
    (run / "plan.json").write_text("{}")
    absent = [{"round": 1, "organisation": "north", "why": FORGED, "client": 0}]
    (run / "status.json").write_text(json.dumps({"state": "failed", "round": 1, "why": FORGED, "absent": absent}))
    done = fedmc("federation", "status", tmp_path / "made" / "server")
    assert done.returncode == 0, done.stderr
    assert "a line that nobody wrote" in done.stdout
    assert is_printable(done.stdout)
    error = fedmc("info", "no\x1b[31m")
    assert error.returncode == 2
    assert is_printable(error.stderr)


def test_a_reply_forges_nothing_in_the_servers_log(caplog):
    engine = engine_on(None)
    broadcast = request().broadcast
    engine.asking.leave_out(0, broadcast, f"refused: {FORGED}")
    assert is_printable(engine.absent[0].why, "")
    assert is_printable(caplog.records[0].getMessage(), "")


# --- passwords and tokens

PIECES = ("Zq7", "xK9", "vW3")  # what must not be seen of a password
SIGNS = "/?#@:%&=+ []'\"\\\n\t;,!$é%2F"


@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4),
    st.lists(st.text(SIGNS, max_size=3), min_size=5),
    st.data(),
)
@examples(150)
def test_a_password_is_hidden_whatever_it_holds(pieces, signs, data):
    """Put in any of the places where an address can hold one, raw as a user might type it."""
    pytest.importorskip("adbc_driver_postgresql", reason="needs the extra `postgres`")
    password = signs[0] + "".join(piece + sign for piece, sign in zip(pieces, signs[1:], strict=False))
    place = data.draw(st.sampled_from(["user", "query", "other scheme", "long"]))
    source = {
        "user": f"postgresql://me:{password}@127.0.0.1:1/db",
        "query": f"postgresql://127.0.0.1:1/db?user=me&password={password.replace('&', '')}",
        "other scheme": f"mysql://me:{password}@127.0.0.1:1/db",
        "long": f"postgresql://me:{password}{'x' * 5000}@127.0.0.1:1/db",
    }[place]
    said = []
    with pytest.raises(DataError) as caught:
        read_source(source, query="select 1" if place != "other scheme" else None)
    said.append(str(caught.value))
    with pytest.raises(DataError) as caught:
        read_source(source)
    said.append(str(caught.value))
    assert not any(piece in text for piece in PIECES for text in said), (source, said)


def test_a_password_is_neither_shown_nor_stored_by_commands(tmp_path):
    secret = "Zq7/xK9?vW3#Zq7"
    set_up(tmp_path / "made", planted())
    north = tmp_path / "made" / "north"
    lines = [line for line in (north / "config.toml").read_text().splitlines() if not line.startswith("source")]
    (north / "config.toml").write_text("\n".join([*lines, f'source = "postgresql://me:{secret}@127.0.0.1:1/db"']))
    source = f"postgresql://me:{secret}@127.0.0.1:1/db"
    for words in (("node", "check", north), ("train", source), ("train", source, "--query", "select 1")):
        done = fedmc(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert not any(piece in done.stdout + done.stderr for piece in PIECES), done.stderr
    assert not any(piece in repr(load_node(north)) for piece in PIECES)


def test_a_token_is_not_among_the_arguments_of_a_child():
    from fedmc.federation.flower.superexec import start

    code = "import sys; print(sys.argv[1:]); print(open(sys.argv[2]).read())"
    words = [sys.executable, "-c", code, "--token", "a-secret-token", "--more", "x"]
    said, _ = start(words, stdout=subprocess.PIPE).communicate(timeout=60)
    arguments, token = said.decode().splitlines()
    assert token == "a-secret-token"
    assert "a-secret-token" not in arguments
    assert "'--token-file'" in arguments
    assert "'--more', 'x'" in arguments


# --- what piles up


def test_models_are_bounded_in_number_and_size(tmp_path):
    from fedmc.federation.node import models

    set_up(tmp_path / "made", planted())
    north = tmp_path / "made" / "north"
    entries = "keep_models = 3\nkeep_megabytes = 1\n\n[policy]"
    (north / "config.toml").write_text((north / "config.toml").read_text().replace("\n[policy]", entries))
    config = load_node(north)
    ratings = planted()
    small = Model(
        ratings.items, np.zeros((len(ratings.items), 3)), ratings.users, np.zeros((len(ratings.users), 3)),
        ratings.matrix, Scaling(), KINDS["paper"], 4,
    )  # fmt: skip
    for number in range(6):
        models.keep(config, f"run-{number}", small)
        os.utime(north / "models" / f"run-{number}.npz", (number, number))
    left = {path.name for path in (north / "models").iterdir()}
    assert left == {"run-3.npz", "run-4.npz", "run-5.npz"}
    models.keep(config, "run-4", small)  # asked for again: it is the newest, and stays
    (north / "models" / "run-4.npz").write_bytes(bytes(2_000_000))
    models.prune(north / "models", north / "models" / "run-4.npz", config.keep_models, 1_000_000)
    assert {path.name for path in (north / "models").iterdir()} == {"run-4.npz"}  # beyond the size alone, and in use
    assert (north / "model.npz").is_file()


@pytest.mark.parametrize("entry", ["keep_models = 0", "keep_models = true", 'keep_megabytes = "many"'])
def test_bounds_of_models_that_make_no_sense_are_refused(tmp_path, entry):
    set_up(tmp_path / "made", planted())
    config = tmp_path / "made" / "north" / "config.toml"
    config.write_text(config.read_text().replace("\n[policy]", f"{entry}\n\n[policy]"))
    with pytest.raises(InputError, match="keep_"):
        load_node(config.parent)


def test_run_names_do_not_fill_the_disk_with_states(tmp_path):
    algorithm = KINDS["paper"].make_algorithm()
    state = algorithm.state_types[0](np.zeros((40, 3)), np.zeros((15, 3)), np.zeros((15, 3)))
    with Store(tmp_path / "state") as store:
        for number in range(120):
            store.hold(f"run-{number}", Entry(1, state, "key", b"reply"))
            store.hold("in-use", Entry(number, state, "key", b"reply"))
        kept = [run for run in (f"run-{number}" for number in range(120)) if store.get(run, "pending", algorithm).state]
        assert kept == [f"run-{number}" for number in range(71, 120)]
        assert store.get("in-use", "pending", algorithm).round == 119


# --- versions


def test_a_version_of_flower_that_was_not_tried_is_refused(monkeypatch):
    from fedmc.federation.flower import versions

    versions.check()
    monkeypatch.setattr(versions, "version", lambda name: "1.99.0")
    with pytest.raises(InputError, match=r"1\.41\.0, and 1\.99\.0 is installed: pip install flwr==1\.41\.0"):
        versions.check()
    monkeypatch.setenv(versions.OVERRIDE, "1")
    versions.check()
