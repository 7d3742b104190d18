"""What an organisation has accepted at its own node, recorded in `consents.json` with the time.

`alone_visible`: sums that show this organisation's own part, because it joins, leaves or comes back alone. `fedmc node
start --alone-visible` records it, `--no-alone-visible` withdraws it. It is signed into the keys of each session, so
that the other members know of it.
"""

from __future__ import annotations

import json
import time

from fedmc.data.files import write_whole
from fedmc.errors import DataError
from fedmc.federation.setup.layout import NodeConfig

FILE, ALONE = "consents.json", "alone_visible"


def record(config: NodeConfig, given: bool) -> None:
    """Record that sums may show this organisation's own part, or no longer."""
    if given == (alone_since(config) is not None):
        return
    write_whole(config.path(FILE), json.dumps({ALONE: time.time() if given else None}).encode(), 0o600)


def alone_since(config: NodeConfig) -> float | None:
    """Since when sums may show this organisation's own part; None: they may not."""
    path = config.path(FILE)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))[ALONE]
        return None if found is None else float(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        cure = "delete it, and start the node with --alone-visible again"
        raise DataError(f"{path} is damaged: {error}; {cure}") from None


def alone(config: NodeConfig) -> bool:
    """Whether sums may show this organisation's own part, by record or by policy."""
    return config.policy.alone_visible or alone_since(config) is not None
