"""Write a model in a form that other programs read: a folder with a README.md, metadata.json and the form's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmc import __version__
from fedmc.data.files import staged
from fedmc.errors import InputError, require, unknown
from fedmc.exporting import faiss_index, onnx_graphs, readme, tables
from fedmc.exporting.content import Content, content_of
from fedmc.model import Model

FORMAT, VERSION = "fedmc-export", 1
METADATA, README = "metadata.json", "README.md"
DTYPES = ("float32", "float64")


class Form(NamedTuple):
    """A form of exports: what writes its files, and how they are read."""

    write: Callable[[Path, Content], dict[str, str]]  # returns what each file holds
    text: Callable[[Content], str]  # of the README
    takes_posterior: bool = False


FORMS = {
    "npz": Form(tables.write_npz, readme.of_npz, takes_posterior=True),
    "parquet": Form(tables.write_parquet, readme.of_parquet, takes_posterior=True),
    "faiss": Form(faiss_index.write_exact, readme.of_exact_index),
    "hnsw": Form(faiss_index.write_hnsw, readme.of_hnsw_index),
    "onnx": Form(onnx_graphs.write, readme.of_onnx),
}


def export(
    model: Model, path: str | Path, to: str, *, items_only: bool = False, posterior: bool = False,
    dtype: str | None = None, overwrite: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Write a model into the folder `path`, as `to`: npz, parquet, faiss, hnsw or onnx; returns what each file holds.

    With `items_only`, nothing of the users is written. `posterior` adds what standard deviations and intervals need, to
    npz and parquet (Bayesian models). `dtype` is that of factors: float32 or float64, by default the model's.
    """
    form = FORMS.get(to)
    if form is None:
        raise unknown("form of exports", to, FORMS)
    require(dtype is None or dtype in DTYPES, lambda: f"dtype must be float32 or float64, got {dtype!r}")
    takes = " or ".join(repr(name) for name, one in FORMS.items() if one.takes_posterior)
    if posterior and not form.takes_posterior:
        raise InputError(f"to={to!r} holds no standard deviations: leave out posterior, or choose to={takes}")
    content = content_of(model, items_only, posterior, None if dtype is None else np.dtype(dtype))
    with staged(Path(path), overwrite, _is_export, "folder of `fedmc export`", keep=lambda _: False) as folder:
        files = form.write(folder, content)
        about = _metadata(content, to, files)
        (folder / METADATA).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        (folder / README).write_text(readme.page(content, to, files, form.text(content)), encoding="utf-8")
    return files | {
        METADATA: "the numbers of the formula besides the factors",
        README: "the formula, and how to use it",
    }


def _metadata(content: Content, to: str, files: dict[str, str]) -> dict[str, Any]:
    users, vectors = content.users, content.items.factors
    clip = None if content.low == -np.inf else [content.low, content.high]
    spread = {} if content.spread is None else {"noise": content.spread.noise}
    if content.spread is not None and content.spread.calibration is not None:
        spread["calibration"] = content.spread.calibration.tolist()
    return {
        "format": FORMAT, "version": VERSION, "form": to, "fedmc": __version__, "model": content.about,
        "items": len(content.items.ids), "users": None if users is None else len(users.ids),
        "factors": None if vectors is None else vectors.shape[1], "dtype": str(content.dtype),
        "mean": content.mean, "scale": content.scale, "link": content.link, "clip": clip,
        "formula": readme.formula(content), "notes": list(content.notes), "files": files, **spread,
    }  # fmt: skip


def _is_export(path: Path) -> bool:
    try:
        return bool(json.loads((path / METADATA).read_text(encoding="utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False
