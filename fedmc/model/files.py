"""Model files: one .npz archive without pickle, written atomically and checked when it is read."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedmc.algorithms.gaussians import Hyper, Prior
from fedmc.algorithms.posterior import GRID, KnownDays, Posterior
from fedmc.data.ids import ascending
from fedmc.errors import DataError, InputError, ModelFileError, quoted, require
from fedmc.types import MAX_NUMBER, Array

FORMAT, VERSION = "fedmc-model", 2  # 2 adds posteriors; models without one are written as 1
POSTERIOR = (
    "noise", "user_mean", "user_precision", "item_mean", "item_precision", "item_covariances", "user_covariances",
    "calibration",
)  # fmt: skip
DAYS = ("day_users", "day_numbers", "day_biases")  # of models with biases by user and day
SIDE = ("directions", "user_weights", "item_weights", "home_weights")  # of models with implicit terms or features

NEWCOMERS = "newcomers"  # their line of the calibration; models of fedmc 0.3 and before have none
FEW = ("few_mean", "few_precision", "few_weights")  # of models with a prior of users with few ratings

# The errors of numpy and zipfile on files that are truncated, overwritten or of another kind.
_DAMAGE = (
    zipfile.BadZipFile,
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    struct.error,
    zlib.error,
    AttributeError,
)


def write(path: str | Path, arrays: dict[str, Array], about: dict[str, Any], posterior: Posterior | None) -> None:
    """Write arrays, other facts and the posterior, if there is one."""
    path = _place(path)
    partial = path.with_name(path.name + ".part")
    version = 1 if posterior is None else VERSION
    content: dict[str, Any] = {"format": np.array(FORMAT), "version": np.array(version)}
    content |= {"about": np.array(json.dumps(about))} | arrays
    try:
        with open(partial, "wb") as file:
            np.savez(file, **(content if posterior is None else content | posterior_arrays(posterior)))
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"cannot write the model to {path}: {error.strerror}; choose another file") from None


def _place(path: object) -> Path:
    """Where to write a file, checked before any work."""
    good = isinstance(path, str | os.PathLike) and str(path) and "\0" not in str(path)
    require(bool(good), f"the model's file must be a path such as 'model.npz', got {quoted(path)}")
    place = Path(cast(str, path))
    require(not place.is_dir(), f"{place} is a folder: name a file in it, such as {place / 'model.npz'}")
    folder = place.parent
    require(folder.is_dir(), f"there is no folder {folder} to save the model in: create it first (mkdir -p {folder})")
    return place


def read(path: str | Path) -> dict[str, Array]:
    """The arrays of a model file."""
    require(isinstance(path, str | os.PathLike), f"a model file is named by its path, got {quoted(path)}")
    require(Path(path).is_file(), f"there is no model file {path}", ModelFileError)
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            require(hasattr(archive, "files"), "it is a single array", ModelFileError)
            content = {name: archive[name] for name in archive.files}
    except _DAMAGE as error:
        raise ModelFileError(f"{path} is not a whole fedmc model file: {error}") from None
    require(str(content.get("format")) == FORMAT, f"{path} is an .npz file, but not a fedmc model", ModelFileError)
    return content


def posterior_arrays(posterior: Posterior) -> dict[str, Array]:
    noise, users, items = posterior.hyper
    assert posterior.user_covariances is not None
    assert posterior.calibration is not None
    priors = users.mean, users.precision, items.mean, items.precision
    spread = posterior.item_covariances, posterior.user_covariances, posterior.calibration
    found = dict(zip(POSTERIOR, (np.array([noise]), *priors, *spread), strict=True))
    if posterior.days is not None:
        found |= dict(zip(DAYS, posterior.days, strict=True))
    side = dict(zip(SIDE, (posterior.directions, users.weights, posterior.item_weights, posterior.home), strict=True))
    if posterior.newcomers is not None:
        found[NEWCOMERS] = posterior.newcomers
    if posterior.few is not None:
        found |= dict(zip(FEW, posterior.few[: len(FEW)], strict=True))
    return found | {name: array for name, array in side.items() if array is not None and array.size}


def posterior_from(content: dict[str, Array], rank: int) -> Posterior | None:
    """The posterior of a model file, checked; None if it has none."""
    if POSTERIOR[0] not in content:
        return None
    q = rank + 1
    rows = {"item_covariances": len(content["items"]), "user_covariances": len(content["users"])}
    shapes: dict[str, tuple[int, ...]] = {"noise": (1,), "calibration": (2, GRID + 1), NEWCOMERS: (GRID + 1,)}
    shapes |= {f"{side}_mean": (q,) for side in ("user", "item")}
    shapes |= {f"{side}_precision": (q, q) for side in ("user", "item")}
    shapes |= {name: (count, q * (q + 1) // 2) for name, count in rows.items()}
    shapes |= _side_shapes(content, q)
    for name in (*POSTERIOR, *(name for name in (*SIDE, *FEW, NEWCOMERS) if name in content)):
        array = content[name]
        real = array.dtype in (np.float32, np.float64)  # in this machine's byte order
        sound = array.shape == shapes[name] and real and bool(np.isfinite(array).all())
        require(sound, f"{name} is not finite, or its shape {array.shape} is not {shapes[name]}", DataError)
    _check_posterior(content)
    users, items = (Prior.plain(content[f"{side}_mean"], content[f"{side}_precision"]) for side in ("user", "item"))
    if "directions" in content:
        users = users._replace(weights=content["user_weights"], ridge=np.ones(len(content["user_weights"])))
    hyper = Hyper(float(content["noise"][0]), users, items)
    means = np.ascontiguousarray(content["V"][:, :q])
    spread = content["item_covariances"], content["user_covariances"]
    side = content.get("directions"), content.get("item_weights")
    own = _days(content), content.get("home_weights")
    return Posterior(hyper, means, *spread, *side, *own, _few(content), content["calibration"], content.get(NEWCOMERS))


def _few(content: dict[str, Array]) -> Prior | None:
    """The prior of users with few ratings; None if it is that of all users."""
    if FEW[0] not in content:
        return None
    mean, precision, weights = (content[name] for name in FEW)
    return Prior(mean, precision, weights, np.ones(len(weights)))


def _days(content: dict[str, Array]) -> KnownDays | None:
    """The biases by user and day, checked; None if there are none."""
    if DAYS[0] not in content:
        return None
    users, numbers, biases = (content[name] for name in DAYS)
    whole = users.dtype.kind == numbers.dtype.kind == "i" and biases.dtype.kind == "f"
    even = users.ndim == 1 and users.shape == numbers.shape == biases.shape
    require(whole and even and bool(np.isfinite(biases).all()), "its biases by user and day are damaged", DataError)
    inside = not len(users) or (users.min() >= 0 and users.max() < len(content["users"]))
    rising = bool((np.lexsort((numbers, users)) == np.arange(len(users))).all())
    require(bool(inside) and rising, "its biases by user and day are not sorted, or of unknown users", DataError)
    return KnownDays(users.astype(np.int64), numbers.astype(np.int64), biases)


def _side_shapes(content: dict[str, Array], q: int) -> dict[str, tuple[int, ...]]:
    """The shapes of directions and weights, whose numbers of rows are free."""
    both = ("directions" in content) == ("user_weights" in content)
    require(both, "it has directions without user_weights, or the other way round", DataError)
    few = [name in content for name in (*FEW, "directions")]
    require(all(few) or not any(few[:-1]), f"it has only a part of {', '.join(FEW)} and directions", DataError)
    rows = {name: len(content[name]) if name in content and content[name].ndim else 0 for name in SIDE[1:]}
    shapes: dict[str, tuple[int, ...]] = {name: (count, q) for name, count in rows.items()}
    shapes |= {"few_mean": (q,), "few_precision": (q, q), "few_weights": shapes["user_weights"]}
    return shapes | {"directions": (len(content["items"]), rows["user_weights"])}


def _check_posterior(content: dict[str, Array]) -> None:
    """Require noise, precisions, variances and factors of intervals that can be such."""
    require(0 < float(content["noise"][0]) <= MAX_NUMBER, "its noise is not above 0", DataError)
    for side in ("user", "item", "few") if FEW[0] in content else ("user", "item"):
        precision = content[f"{side}_precision"]
        definite = bool(np.linalg.eigvalsh(precision)[0] > 0) and np.allclose(precision, precision.T)
        require(definite, f"{side}_precision is no precision matrix", DataError)
    for side in ("user", "item"):
        diagonal = np.cumsum(np.arange(1, len(content["user_mean"]) + 1)) - 1
        spread = content[f"{side}_covariances"][:, diagonal]
        require(bool((spread >= 0).all()), f"{side}_covariances has negative variances", DataError)
    references, quantiles = content["calibration"][:, 0], content["calibration"][:, 1:]
    if NEWCOMERS in content:
        references = np.array([max(references[0], content[NEWCOMERS][0]), references[1]])
        quantiles = np.vstack([quantiles, content[NEWCOMERS][1:]])
    rising = bool((np.diff(quantiles, axis=1) >= 0).all() and (quantiles >= 0).all() and references[1] > references[0])
    require(rising, "its calibration is not one of rising quantiles", DataError)


def check_arrays(content: dict[str, Array]) -> None:
    """Require finite factors, ids that come once each, and a valid table of seen items."""
    for name in ("U", "V"):
        require(
            content[name].dtype in (np.float32, np.float64) and bool(np.isfinite(content[name]).all()),
            f"{name} is not finite",
            DataError,
        )
    for name in ("users", "items"):
        require(content[name].dtype.kind in "iU", f"its {name} are not ids", DataError)
    users, items = content["users"], content["items"]
    require(ascending(users), "its users are not sorted ids", DataError)
    once = ascending(items) or len(np.unique(items)) == len(items)  # of a catalogue that has grown
    require(once, "its items are not ids that come once each", DataError)
    indices, indptr = content["seen_indices"], content["seen_indptr"]
    inside = indices.size == 0 or (indices.min() >= 0 and indices.max() < len(content["items"]))
    ordered = len(indptr) == len(content["users"]) + 1 and indptr[0] == 0 and indptr[-1] == len(indices)
    require(bool(inside and ordered and (np.diff(indptr) >= 0).all()), "its table of seen items is damaged", DataError)
