"""Run folders: settings.toml, history.jsonl and model.npz, put in place whole when the run ends."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmc.errors import InputError, ModelFileError, require


class RunFolder:
    """Where a run goes. It is written beside its place and renamed, so that what was there stays until the end."""

    def __init__(self, path: Path | None, overwrite: bool = False) -> None:
        self.path = (path or Path("runs") / time.strftime("%Y%m%d-%H%M%S")).resolve()
        if path is None:
            self.path = _free(self.path)
        self.overwrite = overwrite
        self._check()

    def _check(self) -> None:
        if not self.path.exists():
            return
        if not self.overwrite:
            raise InputError(f"{self.path} exists already: choose another --out, or --overwrite to replace it")
        is_run = self.path.is_dir() and (_is_run(self.path) or not any(self.path.iterdir()))
        require(is_run, f"{self.path} exists and is not a run folder: it is not overwritten; choose another --out")

    @contextmanager
    def staged(self) -> Iterator[Staged]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staging = _free(self.path.with_name(self.path.name + ".part"))
        staging.mkdir()
        try:
            yield Staged(staging)
            self._check()  # it may have appeared meanwhile
        except BaseException:
            if not (staging / "history.jsonl").exists():  # rounds that were run stay, in NAME.part
                shutil.rmtree(staging)
            raise
        if self.path.exists():
            old = _free(self.path.with_name(self.path.name + ".old"))
            self.path.rename(old)
            staging.rename(self.path)
            shutil.rmtree(old)
        else:
            staging.rename(self.path)


def _free(path: Path) -> Path:
    """The path, or with -2, -3, ... if it is taken."""
    tries = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return path if not path.exists() else next(p for p in tries if not p.exists())


class Staged:
    """A run folder while it is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_settings(self, settings: dict[str, Any]) -> None:
        lines = (f"{name} = {_toml(value)}" for name, value in settings.items())
        (self.path / "settings.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def append(self, record: dict[str, Any]) -> None:
        with open(self.path / "history.jsonl", "a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")


def to_json(record: dict[str, Any]) -> str:
    """One line; what is not finite becomes null, since JSON has no other word for it."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(finite, allow_nan=False)


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
