"""The policy at the command line: `fedmc node check`, `status`, `approve` and `reject`; once with real processes."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc import __version__
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.cli.federation_demo import set_up
from fedmc.federation.node.organisation import make_node, open_folder
from fedmc.federation.node.store import Store
from fedmc.federation.server.signing import Signer
from fedmc.federation.setup import request_key
from fedmc.federation.setup.layout import load_node
from fedmc.federation.setup.policy import DEFAULT
from fedmc.federation.wire import Request, decode_reply, encode, from_bytes, to_bytes
from fedmc.problem.scaling import Scaling
from tests.command import fedmc
from tests.conftest import planted
from tests.loopback import Loopback


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy") / "made"
    set_up(folder, planted(), ("plain",))
    return folder


def set_policy(folder, *entries):
    """Put these lines into [policy], in place of those of an earlier call."""
    config = folder / "config.toml"
    before, _, rest = config.read_text().partition("[policy]\n")
    kept = rest[rest.index("#") :]
    config.write_text("\n".join([f"{before}[policy]", *entries, kept]))


def said(*words):
    done = fedmc("node", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*words):
    done = fedmc("node", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


class Running:
    """A node of a folder whose process holds its store, as `fedmc node start` does."""

    def __init__(self, folder):
        config = load_node(folder)
        self.store, self.opened = Store(config.path("state")), open_folder(config)
        self.node = make_node(config, self.opened, self.store)
        self.name, self.signer = config.organisation, Signer(request_key.load(folder.parent / "server"))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.store.close()

    def ask(self, run, task="moments", **settings):
        chosen = Settings.preset("fast", active=3, **{"rank": 3, **settings})
        catalogue = self.opened.prepared.catalogue
        V = np.zeros((len(catalogue), chosen.width))
        request = Request(run, 0, Broadcast(task, 0, 3, chosen, V, Scaling()), -1, catalogue.hash)
        content = self.signer.seal(to_bytes(*encode(request)), self.name)
        return decode_reply(*from_bytes(self.node.answer_bytes(content))).status


def test_init_writes_the_defaults_and_a_folder_without_them_has_them(made):
    north = made / "north"
    assert "# max_rank = 200" in (north / "config.toml").read_text()
    assert load_node(north).policy == DEFAULT
    text = (north / "config.toml").read_text()
    before, _, rest = text.partition("[policy]\n")
    try:
        (north / "config.toml").write_text(before + rest[rest.index("[ratings]") :])
        assert load_node(north).policy == DEFAULT
    finally:
        (north / "config.toml").write_text(text)


def test_check_prints_the_policy_in_words(made):
    set_policy(made / "north", "max_rank = 7", "approve = true", 'algorithms = ["exact"]', "runs_per_day = 3")
    printed = said("check", made / "north")
    for words in (
        "accepts runs with privacy plain, and of these:", "algorithms: exact\n", "rank up to 7, up to 1,000 rounds",
        "weight of the users' penalty 1e-06 to 1e+06", "at most 3 new runs a day (UTC)",
        "new runs wait for `fedmc node approve RUN FOLDER`",
    ):  # fmt: skip
        assert words in printed
    set_policy(made / "north")
    assert "new runs start without asking a person" in said("check", made / "north")


def test_an_unknown_entry_is_refused_with_what_was_meant(made):
    set_policy(made / "north", "max_round = 7")
    for command in ("check", "status", "start"):
        assert "unknown entry 'max_round' in [policy]: did you mean 'max_rounds'?" in refused(command, made / "north")
    set_policy(made / "north")


def test_status_of_a_node_that_runs(made):
    south = made / "south"
    printed = said("status", south)
    assert f"south: fedmc {__version__}" in printed
    assert "ratings   not read yet" in printed
    assert "runs: none yet" in printed
    assert "last refusals: none" in printed
    with Running(south) as node:
        assert node.ask("a-run") == "ok"
        assert node.ask("b-run", rank=201) == "wrong-policy"
        assert node.ask("b-run", rank=201) == "wrong-policy"
        printed = said("status", south, "--json")
        assert node.ask("a-run", task="finish") == "ok"
        assert "a-run: finished" in said("status", south)
    assert node.opened.ratings in printed
    assert f"catalogue {node.opened.prepared.catalogue.hash}" in printed
    for words in (
        "accepts runs with privacy plain", "a-run: active, first asked 2", "UTC, 2 times since 2",
        "moments 0 of run b-run (wrong-policy)", "rank is 201, this organisation accepts at most 200",
        "what to do: raise max_rank in [policy] of config.toml",
    ):  # fmt: skip
        assert words in printed
    found = json.loads(printed.splitlines()[-1])
    assert (found["runs"][0]["run"], found["runs"][0]["state"]) == ("a-run", "active")
    assert (found["refusals"][0]["status"], found["refusals"][0]["times"]) == ("wrong-policy", 2)
    assert (found["accept"], found["min_cohort"]) == (["plain"], 3)


def test_approve_and_reject_while_the_node_runs(made):
    east = made / "east"
    assert "no server has asked east for a run yet" in refused("approve", "a-run", east)
    assert "0 waiting" in said("approve", "--list", east)
    set_policy(east, "approve = true")
    with Running(east) as node:
        for run in ("a-run", "b-run", "c-run", "d-run"):
            assert node.ask(run, penalty_users="l2:7") == "awaiting-approval"
        listed = said("approve", "--list", east)
        assert "a-run  asked 2" in listed
        assert "curvature, rank 3, 3 organisations, privacy plain" in listed
        assert "penalty of users l2:7" in listed
        assert f"4 waiting: `fedmc node approve RUN {east}`" in listed
        assert "a-run: awaiting approval" in said("status", east)
        assert "approved run a-run (curvature, rank 3" in said("approve", "a-run", east)
        assert node.ask("a-run", penalty_users="l2:7") == "ok"
        assert said("reject", "b-run", east) == "rejected run b-run\n"
        assert node.ask("b-run", penalty_users="l2:7") == "rejected"
        assert said("reject", "--all", east) == "rejected run c-run\nrejected run d-run\n"
        assert "0 waiting" in said("approve", "--list", east)
        assert "there is no run 'e-run' here" in refused("approve", "e-run", east)
        assert "name the run" in refused("approve")
        assert "name the run" in refused("reject")
    set_policy(east)


@pytest.mark.slow
def test_a_run_over_flower_waits_until_it_is_approved(tmp_path):
    federation = Loopback(tmp_path)
    north, server = federation.folder / "north", federation.folder / "server"
    set_policy(north, "approve = true")
    try:
        federation.start_all()
        done = federation.train("asked", 2, "--detach")
        assert done.returncode == 0, done.stdout + done.stderr
        federation.wait_for("asked", lambda status: status.get("awaiting_approval") == ["north"])
        run = federation.run("asked").plan().run
        cure = f"north must approve it: `fedmc node approve {run} FOLDER` there"
        assert cure in fedmc("federation", "status", server).stdout
        assert run in said("approve", "--list", north)
        assert run in said("approve", run, north)
        federation.wait_until("asked", "finished")
        federation.check_bits("asked")
        assert f"{run}: finished" in said("status", north)
    finally:
        federation.end()
