"""Random generators of a run. A draw depends on the seed and on what it is for only, so a run can be resumed."""

from __future__ import annotations

import numpy as np

SERVER, CLIENT, ROUND, PASS, GROUPS = range(5)  # what a draw is for


def server_rng(seed: int) -> np.random.Generator:
    """The generator of the server's starting point."""
    return np.random.default_rng([seed, SERVER])


def client_rng(seed: int, client: int) -> np.random.Generator:
    """The generator of one client's starting point, the same wherever that client runs."""
    return np.random.default_rng([seed, CLIENT, client])
