"""A run as a folder: begun, stopped, resumed, refused after it diverged; whoever looks at it changes nothing."""

from __future__ import annotations

import pytest

from fedmc.cli.federation_progress import print_rounds, round_line
from fedmc.errors import Diverged
from fedmc.federation.server import checkpoint
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.server.running import conduct
from fedmc.training import rounds
from tests.world import CATALOGUE, ITEMS, KINDS, NODES, RUN, SIGNER, World, local, name_of, request_of

SETTINGS = KINDS["curvature"].replace(active=NODES)
NAMES = [name_of(k) for k in range(NODES)]


def plan(rounds=4):
    return RunPlan(RUN, SETTINGS, NAMES, list(range(NODES)), CATALOGUE, ITEMS, rounds, 1, 10.0, NODES)


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.write_plan(plan())
    return made


def V_of(folder):
    return checkpoint.load(folder.path / "server.npz").checkpoint.broadcast.V


def test_a_run_ends_with_everybody_holding_the_model(folder, tmp_path):
    assert folder.status() == {"state": "not begun", "round": 0}
    folder.say(state="starting", why="")
    assert folder.status()["round"] == 0
    conduct(folder, World(tmp_path), SIGNER)
    assert folder.status()["state"] == "finished"
    assert folder.status()["has_model"] == NAMES
    assert [line["number"] for line in folder.history()] == [0, 1, 2, 3, 4]
    assert V_of(folder).tobytes() == local(SETTINGS, 4)[1].broadcast.V.tobytes()


def test_stopped_and_resumed_it_ends_with_the_same_bits(folder, tmp_path):
    world = World(tmp_path)
    exchange = world.exchange

    def stop_at_round_2(contents, *more):
        if request_of(contents).broadcast.round == 2:
            folder.ask_to_stop()
        folder.check_stop()
        return exchange(contents, *more)

    world.exchange = stop_at_round_2
    conduct(folder, world, SIGNER)
    assert folder.status()["state"] == "stopped"
    assert folder.status()["round"] == 1
    (folder.path / "stop").unlink()
    world.exchange = exchange
    conduct(folder, world, SIGNER)
    assert folder.status()["state"] == "finished"
    assert V_of(folder).tobytes() == local(SETTINGS, 4)[1].broadcast.V.tobytes()


def test_a_process_that_is_told_to_end_breaks_the_run_off(folder, tmp_path):
    """As Flower ends the ServerApp when the SuperLink ends; the run can be resumed."""
    world = World(tmp_path)
    exchange = world.exchange

    def end_at_round_2(contents, *more):
        if request_of(contents).broadcast.round == 2:
            raise SystemExit(0)
        return exchange(contents, *more)

    world.exchange = end_at_round_2
    with pytest.raises(SystemExit):
        conduct(folder, world, SIGNER)
    assert folder.status()["state"] == "broken off"
    world.exchange = exchange
    conduct(folder, world, SIGNER)
    assert V_of(folder).tobytes() == local(SETTINGS, 4)[1].broadcast.V.tobytes()


def test_a_run_that_diverged_stays_ended(folder, tmp_path, monkeypatch):
    world = World(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(rounds, "has_diverged", lambda objective, start: True)
        with pytest.raises(Diverged):
            conduct(folder, world, SIGNER)
    assert folder.status()["state"] == "diverged"
    with pytest.raises(Diverged, match="start a new one"):
        conduct(folder, world, SIGNER)
    assert "has_model" not in folder.status()


def test_a_start_that_was_never_measured_is_measured_on_resume(folder, tmp_path):
    """Killed between the first checkpoint and its measurement: divergence must still be measured by something."""
    world = World(tmp_path)
    exchange = world.exchange

    def die_at_measure(contents, *more):
        if request_of(contents).broadcast.task == "measure":
            raise RuntimeError("killed")
        return exchange(contents, *more)

    world.exchange = die_at_measure
    with pytest.raises(RuntimeError):
        conduct(folder, world, SIGNER)
    assert checkpoint.load(folder.path / "server.npz").checkpoint.start_objective is None
    world.exchange = exchange
    conduct(folder, world, SIGNER)
    assert checkpoint.load(folder.path / "server.npz").checkpoint.start_objective is not None


def test_a_second_conductor_waits_and_gives_up_without_a_word(folder, tmp_path):
    with folder.lock():
        folder.say(state="running", round=3)
        with pytest.raises(BlockingIOError):
            conduct(folder, World(tmp_path), SIGNER)
        assert folder.status()["state"] == "running"
        assert folder.locked()
    assert not folder.locked()
    assert folder.status()["state"] == "broken off"


def test_a_torn_line_of_history_is_left_out(folder):
    (folder.path / "history.jsonl").write_text('{"number": 0}\n{"numb{"number": 1}\n{"number": 2}\n')
    assert [line["number"] for line in folder.history()] == [0, 2]


def test_without_a_terminal_each_round_is_one_line(folder, tmp_path, capsys):
    """Lines that were there before, of an earlier start, are not repeated."""
    conduct(folder, World(tmp_path), SIGNER)
    print_rounds(folder, told=2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"round {k} of 4" for k in (2, 3, 4)]
    last = folder.history()[-1]
    assert f"RMSE {last['train_rmse' if last.get('test_rmse') is None else 'test_rmse']:.4f}" in lines[-1]
    assert f"{last['bytes_up'] / 1e6:.2f} MB up" in lines[-1]


def test_a_line_names_who_was_left_out_of_its_round_and_why():
    line = {"number": 2, "seconds": 1.25, "bytes_up": 3_000_000, "bytes_down": 0, "participants": [0, 1]}
    absent = [{"round": 1, "organisation": "a", "why": "x"}, {"round": 2, "organisation": "b", "why": "no answer"}]
    assert round_line(line, 5, absent) == (
        "round 2 of 5: 1.2 s, 3.00 MB up, 0.00 MB down, 2 took part; left out: b (no answer)"
    )
