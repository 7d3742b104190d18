"""A schedule of training runs: a systemd service and its timer in the server's folder."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from string import Template

from fedmc.data.files import write_whole
from fedmc.errors import InputError, quoted, require

SERVICE, TIMER = "fedmc-retrain.service", "fedmc-retrain.timer"
NAMED = ("daily", "weekly", "monthly")
SHORTEST = timedelta(hours=1)  # between two runs
LOOKED_AT = 60  # times of a schedule that are compared
MAX_LENGTH = 200
CURE = f"give {', '.join(NAMED)}, or a time of systemd such as 'Mon *-*-* 03:00' (`man systemd.time`)"


def check(when: str) -> str:
    """A schedule that systemd understands and that is not too frequent; returns it without blanks around it."""
    when = when.strip()
    require(0 < len(when) <= MAX_LENGTH and when.isprintable(), f"the schedule {quoted(when)} is no time: {CURE}")
    if when in NAMED:
        return when
    times = _times(when)
    require(bool(times), f"the schedule {quoted(when)} never comes again: {CURE}")
    shortest = min((b - a for a, b in pairwise(times)), default=SHORTEST)
    least = "at least an hour must lie between two runs"
    require(shortest >= SHORTEST, f"the schedule {quoted(when)} has times that are {shortest} apart: {least}; {CURE}")
    return when


def _times(when: str) -> list[datetime]:
    """The next times of a schedule, by systemd itself."""
    tool = shutil.which("systemd-analyze")
    cure = f"choose one of {', '.join(NAMED)}, or install systemd's tools"
    require(tool is not None, f"the schedule {quoted(when)} cannot be checked without systemd-analyze: {cure}")
    command = [str(tool), "calendar", f"--iterations={LOOKED_AT}", "--", when]
    utc = os.environ | {"TZ": "UTC", "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=utc, check=False)
    require(done.returncode == 0, f"systemd does not understand the schedule {quoted(when)}: {CURE}")
    found = re.findall(r"(?:Next elapse|Iter\. #\d+|Iteration #\d+): \w+ (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", done.stdout)
    return [datetime.fromisoformat(one) for one in found]


def write(folder: Path, when: str, options: Sequence[str]) -> tuple[Path, Path]:
    """Write service and timer into the server's folder: runs of its owner, by the fedmc that is running now."""
    place = folder.resolve()
    words = [*_fedmc(), "federation", "train", str(place), "--from", "latest", "--unless-running", *options]
    said = {
        "user": pwd.getpwuid(place.stat().st_uid).pw_name, "when": when.replace("%", "%%"),
        "command": " ".join(map(escaped, words)), "folder": escaped(str(place), variables=False),
    }  # fmt: skip
    for name in (SERVICE, TIMER):
        text = (files("fedmc.federation.setup") / "handover" / name).read_text(encoding="utf-8")
        write_whole(folder / name, Template(text).substitute(said).encode())
    return folder / SERVICE, folder / TIMER


def _fedmc() -> list[str]:
    """The command of this installation."""
    script = Path(sys.executable).with_name("fedmc")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "fedmc"]


def escaped(word: str, variables: bool = True) -> str:
    """A word as systemd reads it back: with its specifiers, quotes and, in commands, variables escaped."""
    if not word.isprintable():
        raise InputError(f"{quoted(word)} cannot be written into a unit of systemd: leave out control characters")
    text = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    text = text.replace("$", "$$") if variables else text
    return text if re.fullmatch(r"[\w@%+=:,./-]+", text) else f'"{text}"'
