"""Penalties and losses of single clients, from the file of `--objectives`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, cast

from typer import Option

from fedmc.algorithms.objectives import Objective, Objectives, by_number
from fedmc.algorithms.presets import with_objectives, with_theory
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Federation
from fedmc.errors import FedmcError, InputError, reason

ObjectivesFile = Annotated[
    Path | None,
    Option(
        help="TOML file of penalties and losses that differ by client: a section for each, [NAME] with --partition "
        "column:..., else [NUMBER], with penalty_users and loss.",
        metavar="FILE",
    ),
]


def fitting(preset: str, theory: bool, objectives: Path | None) -> str:
    """The preset to use: "fast" instead of "bayes" for full diagnostics, or objectives that differ by client."""
    preset = with_theory(preset) if theory else preset
    return preset if objectives is None else with_objectives(preset)


def read_objectives(path: Path | None, federation: Federation, settings: Settings) -> dict[int, Objective]:
    """The objectives by client number, checked with the settings of the run.

    The file has a section for each client: its name with a partition by column, else its number.
    """
    if path is None:
        return {}
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--objectives {path} cannot be read: {reason(error)}") from None
    except ValueError as error:
        raise InputError(f"--objectives {path} is not TOML: {error}") from None
    clients = len(federation.shards)
    names = federation.client_names or tuple(map(str, range(clients)))
    try:
        found = by_number(cast(Objectives, sections), names)
    except FedmcError as error:
        raise InputError(f"{path}: {error}") from None
    for number, one in found.items():
        try:
            one.settings(settings, clients)
        except FedmcError as error:
            raise InputError(f"{path}, [{names[number]}]: {error}") from None
    return found
