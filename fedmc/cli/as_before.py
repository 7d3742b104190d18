"""Options of a warm start that are taken from the model it goes on from, unless they are given."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import click
from click.core import ParameterSource

from fedmc.algorithms.presets import PRESETS
from fedmc.algorithms.settings import Preset
from fedmc.cli.groups import Solver
from fedmc.model import Model


def as_before(model: Model | None, rank: str, solver: Solver) -> tuple[str, Solver]:
    """Rank and preset: as given at the command line, or those of the model to go on from, if there is one."""
    if model is None:
        return rank, solver
    context = click.get_current_context()

    def given(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    rank = rank if given("rank") else str(model.settings.rank)
    name = model.settings.preset_name
    if given("preset") or name not in PRESETS:
        return rank, solver
    return rank, replace(solver, preset=cast(Preset, name))
