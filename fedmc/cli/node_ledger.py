"""`fedmc node ledger`: what was spent of the privacy budget, and what to do when the record of it was lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedmc.errors import require
from fedmc.federation.node.guard import CURE, Guard, LedgerMismatchError, disagreement
from fedmc.federation.node.marks import Marks, read_file
from fedmc.federation.node.organisation import ledger_of
from fedmc.federation.node.store import Store
from fedmc.federation.setup.layout import NodeConfig, load_node
from fedmc.privacy.dp.ledger import Ledger

TRIES = 5  # a node at work may write between two looks


def ledger(
    folder: Annotated[Path, typer.Argument(help="The organisation's folder.")] = Path(),
    accept_loss: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON",
            help="The ledger or the state is lost for good: record that this was spent in all, on the safe side.",
        ),
    ] = None,
) -> None:
    """Show how much of the privacy budget is spent, and whether ledger and state agree.

    A node whose ledger or state was lost or replaced releases nothing. Put the newest copies back. If there are none,
    --accept-loss goes on with what you say was spent; it never lowers what is known to be spent.
    """
    config = load_node(folder)
    require(bool(config.epsilon), f"{config.path('config.toml')} sets no epsilon, so nothing may be spent")
    if accept_loss is not None:
        with Store(config.path("state")) as store, ledger_of(config) as opened:
            Guard(store, opened).accept_loss(accept_loss)
    print_budget(config)


def print_budget(config: NodeConfig) -> None:
    """Print what is spent; LedgerMismatchError if ledger and state do not agree."""
    path, state = config.path("ledger.sqlite"), config.path("state") / "state.sqlite"
    if not path.exists():
        seen = read_file(state).get("seen")
        if seen is not None and seen.height:
            raise LedgerMismatchError(
                f"there is no ledger {path}, but the state has seen release {seen.height}: {CURE}"
            )
        typer.echo(f"privacy budget: epsilon 0 of {config.epsilon:g} spent, delta {config.delta:g}; no release yet")
        return
    with ledger_of(config) as opened:
        marks = _agreed(opened, state)
        spent = f"epsilon {opened.spent():.4g} of {config.epsilon:g} spent, delta {config.delta:g}"
        paired = "ledger and state agree" if "seen" in marks else "the node has not used this ledger yet"
        typer.echo(f"privacy budget: {spent}; {opened.head().height} releases; {paired}")


def _agreed(opened: Ledger, state: Path) -> Marks:
    """What the state has seen of the ledger; refused if they do not agree, also after a while."""
    for _ in range(TRIES):
        marks = read_file(state)
        said = disagreement(marks, opened)
        if said is None:
            return marks
        time.sleep(0.1)
    raise LedgerMismatchError(f"{said}: {CURE}")
