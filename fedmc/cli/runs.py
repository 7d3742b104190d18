"""Run folders: settings.toml, history.jsonl and model.npz, put in place whole when the run ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmc.errors import InputError, ModelFileError, require


class RunFolder:
    """Where a run goes. It is written beside its place and renamed, so that what was there stays until the end."""

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        self.path = path
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists already: choose another --out, or --overwrite to replace it")
        is_run = not path.exists() or (path.is_dir() and (_is_run(path) or not any(path.iterdir())))
        require(is_run, f"{path} exists and is not a run folder: it is not overwritten; choose another --out")

    @contextmanager
    def staged(self) -> Iterator[Staged]:
        staging = self.path.with_name(self.path.name + ".part")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            yield Staged(staging)
        except BaseException:
            if not (staging / "history.jsonl").exists():  # rounds that were run stay, in NAME.part
                shutil.rmtree(staging)
            raise
        if self.path.exists():
            shutil.rmtree(self.path)
        staging.rename(self.path)


class Staged:
    """A run folder while it is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_settings(self, settings: dict[str, Any]) -> None:
        lines = (f"{name} = {_toml(value)}" for name, value in settings.items())
        (self.path / "settings.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def append(self, record: dict[str, Any]) -> None:
        with open(self.path / "history.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def model_path(place: Path) -> Path:
    """The model file of a run folder, or the file itself."""
    if place.is_dir():
        require(
            (place / "model.npz").is_file(),
            f"{place} holds no model.npz: it is not a finished run",
            ModelFileError,
        )
        return place / "model.npz"
    return place


def _is_run(path: Path) -> bool:
    return (path / "settings.toml").is_file() and (path / "history.jsonl").is_file()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else json.dumps(str(value))
