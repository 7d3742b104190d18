"""Run folders: settings.toml, history.jsonl and model.npz; a folder gets its final name when the run ends."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedmc.data.files import check_target, free, staged
from fedmc.errors import ModelFileError, require


class RunFolder:
    """The target folder of a run: a given path, or runs/TIME."""

    def __init__(self, path: Path | None, overwrite: bool = False) -> None:
        chosen = free(Path("runs") / time.strftime("%Y%m%d-%H%M%S")) if path is None else path
        self.path, self.overwrite = chosen.resolve(), overwrite
        check_target(self.path, overwrite, _is_run, "run folder")

    @contextmanager
    def staged(self) -> Iterator[Staged]:
        """The folder during the run, called NAME.part; it is kept if the run fails after its first round."""
        with staged(self.path, self.overwrite, _is_run, "run folder", keep=_has_rounds) as staging:
            yield Staged(staging)


def _has_rounds(path: Path) -> bool:
    return (path / "history.jsonl").exists()


class Staged:
    """A run folder while it is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_settings(self, settings: Mapping[str, object]) -> None:
        lines = (f"{name} = {_toml(value)}" for name, value in settings.items())
        (self.path / "settings.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def append(self, record: Mapping[str, object]) -> None:
        with open(self.path / "history.jsonl", "a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")


def to_json(record: Mapping[str, object]) -> str:
    """One line of JSON; numbers that are not finite become null, because JSON cannot express them."""
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


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else json.dumps(str(value))
