"""`fedmc federation schedule`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.echo import echo
from fedmc.cli.lazy import Entry, load
from fedmc.errors import require
from fedmc.federation.setup import schedule as schedules
from fedmc.federation.setup.layout import load_server

TRAIN = Entry("fedmc.cli.federation_train:train", "")
SET_HERE = {"start_from": "--from", "run": "--run", "detach": "--detach"}


def schedule(
    when: Annotated[str, typer.Argument(help="daily, weekly, monthly, or a time of systemd such as 'Mon 03:00'.")],
    server: Annotated[Path, typer.Argument(help="The server's folder.")],
    options: Annotated[
        list[str] | None, typer.Argument(help="After --: options of `fedmc federation train`.", metavar="[-- OPTIONS]")
    ] = None,
) -> None:
    """Write a systemd service and timer that train again and again, each time from the last finished run.

    A time at which a run is still going on is left out. Nothing is installed: the commands for that are printed.
    """
    config, given = load_server(server), options or []
    chosen = schedules.check(when)
    _check_options(server, given)
    service, timer = schedules.write(config.folder, chosen, given)
    echo(f"written: {service} and {timer.name}; look at them, then install them on the server's machine:")
    echo(f"  sudo install -m 644 {service.resolve()} {timer.resolve()} /etc/systemd/system/")
    echo(f"  sudo systemctl enable --now {timer.name}")


def _check_options(server: Path, options: list[str]) -> None:
    """Refuse options that `fedmc federation train` would refuse, and those that the schedule sets itself."""
    with load(TRAIN, "train").make_context("fedmc federation train", [str(server), *options]) as context:
        for name, flag in SET_HERE.items():
            require(not context.params[name], f"{flag} has no place in a schedule, which sets it: leave it out")
