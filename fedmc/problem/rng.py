"""Random generators of a run. A draw depends only on the seed and its purpose, so a run can be resumed."""

from __future__ import annotations

import numpy as np

SERVER, CLIENT, ROUND, PASS, GROUPS, SAMPLE, DIRECTIONS, DECOYS = range(8)  # the purpose of a draw


def server_rng(seed: int) -> np.random.Generator:
    """The generator of the server's initial factors."""
    return np.random.default_rng([seed, SERVER])


def directions_rng(seed: int) -> np.random.Generator:
    """The generator of the first directions of a subspace iteration."""
    return np.random.default_rng([seed, DIRECTIONS])


def client_rng(seed: int, client: int) -> np.random.Generator:
    """The generator of one client's initial factors, the same wherever that client runs."""
    return np.random.default_rng([seed, CLIENT, client])


def decoy_rng(seed: int, client: int) -> np.random.Generator:
    """The generator of a simulated client's secret; clients of a federation draw theirs at home."""
    return np.random.default_rng([seed, DECOYS, client])


def sample_rng(seed: int, round: int, client: int | None = None) -> np.random.Generator:
    """The generator of what a client, or else the server, samples in a round."""
    return np.random.default_rng([seed, SAMPLE, round, 0 if client is None else client + 1])
