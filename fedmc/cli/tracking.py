"""Runs in MLflow: settings, measurements by round, and the report. The only module that imports mlflow.

What is logged is what the run's own history and report hold; ratings, events, models and user factors never are. Once
the run has begun, a tracking server that fails costs a warning, not the run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from fedmc import __version__
from fedmc.cli import options
from fedmc.cli.echo import echo
from fedmc.cli.groups import Group
from fedmc.errors import InputError, quoted
from fedmc.privacy.protocol import Privacy

EXPERIMENT = "fedmc"  # unless MLFLOW_EXPERIMENT_NAME says otherwise
QUIET = {  # of MLflow itself: no usage reports to its makers, no news of its database, and no minutes of retries
    "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
}  # fmt: skip
MAX_TEXT = 5_000  # characters of a parameter or tag
AT_ONCE = 100  # parameters or tags in a request
NOT_MEASURED = ("number", "round")  # fields of a line that are no measurements
Line = Mapping[str, object]


@dataclass(frozen=True)
class Tracking(Group):
    """Options for logging to MLflow."""

    mlflow: options.MLflow = False
    mlflow_uri: options.MLflowURI = None

    @property
    def wanted(self) -> bool:
        return self.mlflow or self.mlflow_uri is not None


class Log:
    """A run in MLflow; without a client, it logs nothing."""

    def __init__(self, client: Any = None, run: str = "", experiment: str = "") -> None:
        self._client, self._run, self._experiment = client, run, experiment
        self._lines = 0

    def settings(self, values: Mapping[str, object]) -> None:
        """The parameters of the run."""
        params = [(name, str(value)[:MAX_TEXT]) for name, value in values.items()]
        for k in range(0, len(params) if self._client is not None else 0, AT_ONCE):
            self._call("log_batch", params=[_mlflow().entities.Param(*one) for one in params[k : k + AT_ONCE]])

    def history(self, lines: Sequence[Line]) -> None:
        """The history from its beginning on; lines that were logged before are left out."""
        for line in lines[self._lines :]:
            self.round(line)

    def round(self, line: Line) -> None:
        """The next line of the history."""
        self._lines += 1
        self._metrics(line, int(_number(line.get("number")) or 0))

    def end(self, summary: Line, files: Sequence[Path] = ()) -> None:
        """The results of the run as `final_` metrics, and those of the files that are there."""
        self._metrics({f"final_{name}": value for name, value in summary.items()}, 0)
        for path in filter(Path.is_file, files):
            self._call("log_artifact", str(path))

    def child(self, name: str, privacy: Privacy) -> Log:
        """A run below this one."""
        tags = _tags(privacy) | {"mlflow.parentRunId": self._run}
        made = self._try(lambda client: client.create_run(self._experiment, run_name=name, tags=tags))
        return Log() if made is None else Log(self._client, made.info.run_id, self._experiment)

    def close(self, status: str = "FINISHED") -> None:
        self._call("set_terminated", status)

    def _metrics(self, line: Line, step: int) -> None:
        now = int(time.time() * 1000)
        found = {name: _number(value) for name, value in line.items() if name not in NOT_MEASURED}
        some = [(name, value, now, step) for name, value in found.items() if value is not None]
        if some and self._client is not None:
            self._call("log_batch", metrics=[_mlflow().entities.Metric(*one) for one in some])

    def _call(self, name: str, *values: object, **named: object) -> None:
        self._try(lambda client: getattr(client, name)(self._run, *values, **named))

    def _try(self, call: Callable[[Any], Any]) -> Any:
        """Call the server; after the first failure, warn, and log nothing more."""
        if self._client is None:
            return None
        try:
            return call(self._client)
        except Exception as error:
            self._client = None
            echo(f"MLflow failed, the run goes on without it: {type(error).__name__}: {quoted(str(error))}", err=True)
            return None


@contextmanager
def tracked(tracking: Tracking, name: str, privacy: Privacy | None = None) -> Iterator[Log]:
    """A new run in MLflow for the time of the block, or a log of nothing."""
    if not tracking.wanted:
        yield Log()
        return
    log = _begin(tracking.mlflow_uri, name, _tags(privacy))
    status = "FAILED"
    try:
        yield log
        status = "FINISHED"
    except (KeyboardInterrupt, typer.Exit):
        status = "KILLED"
        raise
    finally:
        log.close(status)


def check(tracking: Tracking) -> None:
    """Refuse a tracking server that does not answer, before anything is written."""
    if tracking.wanted:
        _connect(tracking.mlflow_uri)


def _begin(uri: str | None, name: str, tags: Mapping[str, str]) -> Log:
    client, experiment = _connect(uri)
    return Log(client, client.create_run(experiment, run_name=name, tags=tags).info.run_id, experiment)


def _connect(uri: str | None) -> tuple[Any, str]:
    """A client and the number of the experiment. What does not work now is an error, since nothing is lost yet."""
    tracking = _mlflow().tracking
    try:
        client = tracking.MlflowClient(tracking_uri=uri)
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = client.get_experiment_by_name(experiment)
        return client, client.create_experiment(experiment) if known is None else known.experiment_id
    except Exception as error:
        where = uri or os.environ.get("MLFLOW_TRACKING_URI", "its default store")
        cure = "start the tracking server, give another --mlflow-uri, or leave out --mlflow"
        raise InputError(f"MLflow does not work with {quoted(where)}: {quoted(str(error))}: {cure}") from None


def _tags(privacy: Privacy | None) -> dict[str, str]:
    tags = {"fedmc.version": __version__, "mlflow.source.name": "fedmc"}
    if privacy is not None:
        tags |= {"fedmc.privacy": privacy.mode, "fedmc.privacy.claim": privacy.claim()[:MAX_TEXT]}
    return tags


def _mlflow() -> Any:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow.entities
        import mlflow.tracking
    except ModuleNotFoundError as error:
        raise InputError(f"--mlflow needs the package {error.name}: pip install 'fedmc[mlflow]'") from None
    return mlflow


def _number(value: object) -> float | None:
    """A finite number; of a list, such as that of the participants, its length."""
    if isinstance(value, list):
        return float(len(value))
    if not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
