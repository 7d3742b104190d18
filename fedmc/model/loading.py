"""Load a model from its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.errors import DataError, FedmcError, ModelFileError, UnknownNameError, require
from fedmc.model import files, titles
from fedmc.model.model import Model
from fedmc.problem.scaling import Scaling
from fedmc.types import MAX_NUMBER, Array


def load(path: str | Path, **overrides: Any) -> Model:
    """Load a saved model. `overrides` replace settings that a file cannot hold, such as a user's own penalty."""
    content = files.read(path)
    try:
        version = int(content["version"])
        require(
            version <= files.VERSION, f"it has format {version}, this fedmc reads up to {files.VERSION}; update fedmc"
        )
        return _from_content(content, overrides)
    except UnknownNameError as error:
        cure = "install the plug-in's package, or give an object of your own again: load(path, algorithm=...)"
        raise ModelFileError(f"{path} cannot be read: {error}; {cure}") from None
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        cause = f"{error}" if isinstance(error, FedmcError) else f"{type(error).__name__}: {error}"
        raise ModelFileError(f"{path} cannot be read: {cause}") from None


def _from_content(content: dict[str, Array], overrides: dict[str, Any]) -> Model:
    about = json.loads(str(content["about"]))
    shape = len(content["users"]), len(content["items"])
    ones = np.ones(len(content["seen_indices"]), np.int8)
    seen = sparse.csr_array((ones, content["seen_indices"], content["seen_indptr"]), shape=shape)
    settings = Settings.from_dict({**about["settings"], **overrides})
    files.check_arrays(content)
    mean, scale = float(about["mean"]), float(about["scale"])
    sound = abs(mean) <= MAX_NUMBER and 0 < scale <= MAX_NUMBER
    require(sound, f"ratings cannot be scaled by {mean}, {scale}", DataError)
    U, V = content["U"], content["V"]
    columns = settings.make_algorithm().columns(settings, shape[1])
    consistent = (U.shape, V.shape) == tuple(zip(shape, columns, strict=True))
    require(consistent, f"the factors {U.shape}, {V.shape} do not fit the ids {shape}", DataError)
    return Model(
        content["items"], V, content["users"], U, seen, Scaling(mean, scale), settings,
        about["clients"], _range(about.get("rating_range")),
        files.posterior_from(content, settings.rank), titles.restored(content),
    )  # fmt: skip


def _range(known: Sequence[float] | None) -> tuple[float, float] | None:
    if known is None:
        return None
    low, high = float(known[0]), float(known[1])
    require(-np.inf < low <= high < np.inf, f"ratings cannot range from {low} to {high}", DataError)
    return low, high
