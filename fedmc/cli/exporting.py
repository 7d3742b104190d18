"""`fedmc export`, and the same at a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedmc.cli import options
from fedmc.cli.echo import echo
from fedmc.cli.model import ModelPath, check_posterior
from fedmc.cli.predict import Folder, model_of_node
from fedmc.cli.runs import model_path, to_json
from fedmc.exporting import export as write_export
from fedmc.model import load

FormName = Literal["parquet", "npz", "faiss", "hnsw", "onnx"]
To = Annotated[
    FormName,
    typer.Option(
        help="parquet: tables of users and items. npz: numpy arrays. faiss: an exact index of the items, with the "
        "tables. hnsw: an approximate one. onnx: graphs that predict and recommend.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(help="The folder to write.", metavar="FOLDER", show_default=False)]
ItemsOnly = Annotated[
    bool, typer.Option("--items-only", help="Leave out the users: their ids, factors, and what they have rated or had.")
]
WithPosterior = Annotated[
    bool,
    typer.Option(
        "--posterior",
        help="Add covariances, noise and calibration, for standard deviations and intervals (npz and parquet; "
        "Bayesian models).",
    ),
]
As = Annotated[
    Literal["float32", "float64"] | None,
    typer.Option(help="Type of the factors. Indexes hold float32.", show_default="the model's"),
]


def export(
    model: ModelPath,
    to: To,
    out: Out,
    items_only: ItemsOnly = False,
    posterior: WithPosterior = False,
    dtype: As = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a model for programs without fedmc: a folder whose README.md has the formula of predictions and code.

    The factors of users are personal data, as the ratings are: --items-only leaves them out.
    """
    _export(model_path(model), to, out, (items_only, posterior, overwrite, as_json), dtype)


def export_at_node(
    folder: Folder,
    to: To,
    out: Out,
    items_only: ItemsOnly = False,
    posterior: WithPosterior = False,
    dtype: As = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the organisation's model, with its own users, for programs without fedmc. Nothing is sent.

    The factors of users are personal data, as the ratings are: --items-only leaves them out.
    """
    _export(model_of_node(folder), to, out, (items_only, posterior, overwrite, as_json), dtype)


def _export(path: Path, to: FormName, out: Path, switches: tuple[bool, bool, bool, bool], dtype: str | None) -> None:
    items_only, posterior, overwrite, as_json = switches
    fitted = load(path)
    if posterior:
        check_posterior(fitted, "--posterior")
    files = write_export(fitted, out, to, items_only=items_only, posterior=posterior, dtype=dtype, overwrite=overwrite)
    width = max(map(len, files))
    for name, what in files.items():
        echo(f"{name:{width}}  {(out / name).stat().st_size / 1e3:9,.0f} kB  {what}")
    if as_json:
        typer.echo(to_json({"out": str(out), "to": to, "files": list(files)}))
