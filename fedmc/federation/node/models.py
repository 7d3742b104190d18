"""The models of an organisation's runs: `model.npz` is the last one, `models/RUN.npz` those of the last runs.

A server names the runs, so the folder is bounded in number and bytes: the oldest models are deleted first.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedmc.federation.setup.layout import NodeConfig
from fedmc.model import Model

FOLDER, LAST = "models", "model.npz"
MEGABYTE = 10**6


def keep(config: NodeConfig, run: str, model: Model) -> None:
    """Write the model of a run, and delete older ones beyond the organisation's bounds."""
    folder = config.path(FOLDER)
    folder.mkdir(mode=0o700, exist_ok=True)
    newest = folder / f"{run}.npz"
    for path in (newest, config.path(LAST)):
        model.save(path)
        os.chmod(path, 0o600)
    prune(folder, newest, config.keep_models, config.keep_megabytes * MEGABYTE)


def prune(folder: Path, newest: Path, number: int, size: int) -> None:
    """Delete the oldest models until at most `number` of at most `size` bytes together are left; never the newest."""
    for partial in folder.glob("*.npz.part"):  # of a process that was killed
        partial.unlink(missing_ok=True)
    found = [path for path in folder.glob("*.npz") if path != newest and path.is_file()]
    found.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    kept, used = 1, newest.stat().st_size
    for path in found:
        kept, used = kept + 1, used + path.stat().st_size
        if kept > number or used > size:
            path.unlink(missing_ok=True)
