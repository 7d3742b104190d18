"""`fedmc node keys`, `identity` and `leave`: this organisation among the members of its federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.echo import echo
from fedmc.cli.node import Folder
from fedmc.errors import require
from fedmc.federation.node import withdrawing
from fedmc.federation.setup import identities, member_keys, members, statements
from fedmc.federation.setup.layout import check_names, load_node
from fedmc.privacy.secagg.rules import smallest_group

Option = typer.Option


def keys(
    folder: Folder = Path(),
    organisation: Annotated[
        str | None,
        Option(help="Name of a new organisation, whose folder does not exist yet.", show_default="the folder's"),
    ] = None,
) -> None:
    """Make this organisation's own keys, and write their public halves into keys.json for the coordinator.

    In the folder of a member they replace the keys of now, as soon as the list of members names them.
    """
    member = (folder / "config.toml").exists()
    name = load_node(folder).organisation if member else organisation
    require(name is not None, f"{folder} is new: name the organisation with --organisation")
    made = member_keys.make(folder, check_names([str(name)])[0])
    then = f"fedmc federation renew AUTHORITY SERVER --keys {member_keys.FILE}"
    echo(f"{folder / member_keys.FILE}: the public halves; hand it to the federation's coordinator")
    new = f"fedmc federation add {made.organisation} --keys {member_keys.FILE}"
    echo(f"there, `{then if made.replaces else new}` puts them into the list of members")


def identity(
    folder: Folder = Path(),
    renew: Annotated[bool, Option("--renew", help="Make a new key, which nobody else has ever had.")] = False,
    pin: Annotated[
        list[str] | None, Option(help="NAME=KEY: trust this key of another organisation; may be repeated.")
    ] = None,
) -> None:
    """Show which keys secure aggregation trusts here. Renew this organisation's own key, or pin another's.

    Read the keys to each other over a channel that the server does not control. Every folder needs the same list.
    """
    config = load_node(folder)
    found = members.load(folder)
    if renew:
        found = found.pinned(config.organisation, identities.make(folder))
    for one in pin or []:
        name, sign, public = one.partition("=")
        require(sign == "=", f"--pin takes NAME=KEY, got {one!r}")
        found = found.pinned(name, public)
    if renew or pin:
        members.save(folder, found)
    for name, public in zip(found.names, found.identities, strict=True):
        echo(f"{name}={public}{'   (this organisation)' if name == config.organisation else ''}")


def leave(
    folder: Folder = Path(),
    take_out: Annotated[
        bool, Option("--take-out", help="Take this organisation's part out of the sum of the last run.")
    ] = False,
    alone_visible: Annotated[
        bool, Option("--alone-visible", help="Accept that secure sums show this organisation's own part.")
    ] = False,
    stay: Annotated[bool, Option("--stay", help="Take the statement back, before it was acted upon.")] = False,
) -> None:
    """State that this organisation leaves its federation, with its signature. Its node takes part in nothing new.

    By default its last contribution stays in the sums of the runs that it was in.
    """
    config = load_node(folder)
    if stay:
        (folder / withdrawing.FILE).unlink(missing_ok=True)
        echo(
            f"{config.organisation} stays. If the statement was handed over, ask for it back: whoever has it can use "
            "it, until new keys (`fedmc node keys`) are in the list of members"
        )
        return
    listed = members.load(folder)
    entry = listed.entry(config.organisation)
    left = statements.leaves(entry.name, identities.load_key(folder), take_out, alone_visible)
    path = withdrawing.save(folder, entry.name, left)
    echo(f"{path}: hand it to the federation's coordinator, for `fedmc federation remove {entry.name}` there")
    if take_out:
        typer.echo("keep the node running until the part is taken out; it ends by itself")
    if not alone_visible:
        least = smallest_group(len(listed.active), config.min_cohort)
        what = "The sum that takes parts out" if take_out else "A new sum over the others, set against earlier ones,"
        cure = f"`fedmc node leave{' --take-out' * take_out} --alone-visible`"
        typer.echo(
            f"{what} would show the part of an organisation that leaves alone: the members refuse it unless at least "
            f"{least} leave together. {cure} accepts that it shows"
        )
