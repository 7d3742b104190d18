"""`fedmc report`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmc.report import comparison, run


def report(folder: Annotated[Path, typer.Argument(help="A run folder, or the folder of a comparison.")]) -> None:
    """Write report.html, and the figures as PNG, PDF and SVG, into the folder."""
    write_report = comparison.write_report if (folder / "study.json").exists() else run.write_report
    typer.echo(f"report in {write_report(folder)}")
