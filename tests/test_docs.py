"""The examples of docs/extend.md, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs" / "extend.md").read_text("utf-8"), re.S)


def run(block):
    assert len([line for line in block.splitlines() if line.strip()]) < 30
    names: dict[str, object] = {}
    exec(compile(block, "docs/extend.md", "exec"), names)
    return names


def test_there_are_three():
    assert len(BLOCKS) == 3


def test_a_penalty_of_ones_own():
    U = run(BLOCKS[0])["model"].model_.U
    norms = np.linalg.norm(np.delete(U, 3, axis=1), axis=1)
    assert norms.max() <= 1 + 1e-9
    assert (norms > 0.999).any()
    assert (U[:, 3] == 1).all()


def test_a_sampler_of_ones_own():
    history = run(BLOCKS[1])["model"].history_
    for round in history[1:]:
        assert len(round.participants) == 3
        assert {client % 2 for client in round.participants} == {round.number % 2}


def test_a_method_of_ones_own():
    history = run(BLOCKS[2])["model"].history_
    errors = [round.diagnostics.train_rmse for round in history]
    assert errors[-1] < 0.95 * errors[0]
    assert history[-1].bytes_down == pytest.approx(2 * history[1].bytes_down)
