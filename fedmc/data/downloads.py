"""Named public data sets: their addresses and licences, and safe downloads.

A download is written to NAME.zip.part and resumes after an interruption. It is checked, unpacked and then renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedmc.data.files import free
from fedmc.errors import DataError, InputError, require, unknown

GROUPLENS = "https://files.grouplens.org/datasets/movielens"
TERMS = (
    "GroupLens, University of Minnesota: for research; do not state or imply endorsement; acknowledge the data set in "
    "publications; do not redistribute without permission; no commercial use without permission. "
    "The whole licence is in the archive's README."
)


@dataclass(frozen=True)
class Named:
    """A public set as its publisher distributes it."""

    name: str
    url: str
    md5: str | None  # as published; None if the file is updated from time to time
    ratings: str
    licence: str = TERMS


def _movielens(name: str, md5: str | None, ratings: str) -> Named:
    return Named(name, f"{GROUPLENS}/{name}.zip", md5, ratings)


SETS = {
    named.name: named
    for named in (
        _movielens("ml-100k", "0e33842e24a9c977be4e0107933c0723", "100,000 ratings, 943 users, 1,682 films, 1-5"),
        _movielens("ml-1m", "c4d9eecfca2ab87c1945afe126590906", "1,000,209 ratings, 6,040 users, 3,706 films, 1-5"),
        _movielens(
            "ml-10m", "ce571fd55effeba0271552578f2648bd", "10,000,054 ratings, 69,878 users, 10,677 films, half stars"
        ),
        _movielens("ml-20m", "cd245b17a1ae2cc31bb14903e1204af3", "20,000,263 ratings, 138,493 users, half stars"),
        _movielens("ml-25m", "6b51fb2759a8657d3bfcbfc42b592ada", "25,000,095 ratings, 162,541 users, half stars"),
        _movielens("ml-32m", "d472be332d4daa821edc399621853b57", "32,000,204 ratings, 200,948 users, half stars"),
        _movielens("ml-latest-small", None, "about 100,000 ratings, 610 users, half stars; renewed from time to time"),
    )
}


def find(name: str) -> Named:
    if name == "netflix":
        raise InputError(
            "the Netflix Prize set is no longer distributed by its publisher: if you have it, pass its folder, "
            "archive or file as SOURCE; `fedmc data synth --like netflix` makes one of its size"
        )
    if name not in SETS:
        raise unknown("data set", name, SETS)
    return SETS[name]


def cache_folder() -> Path:
    """The folder of the named sets: FEDMC_DATA, or the user's cache."""
    given = os.environ.get("FEDMC_DATA")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedmc"


def installed(name: str) -> Path | None:
    """The folder of an installed set, or None."""
    place = cache_folder() / name
    return place if place.is_dir() else None


def get(named: Named, folder: Path, progress: Callable[[int, int | None], None] = lambda done, total: None) -> Path:
    """Fetch, check and unpack a set, unless it is installed."""
    place = folder / named.name
    if place.is_dir():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{named.name}.zip.part"
    _download(named, archive, progress)
    _check(named, archive)
    _unpack(named, archive, place)
    archive.unlink()
    return place


def _download(named: Named, archive: Path, progress: Callable[[int, int | None], None]) -> None:
    """Fetch the rest of a file, or all of it if the server does not support ranges."""
    have = archive.stat().st_size if archive.exists() else 0
    request = urllib.request.Request(named.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            resumed = answer.status == 206
            done = have if resumed else 0
            length = answer.headers.get("Content-Length")
            total = done + int(length) if length else None
            with open(archive, "ab" if resumed else "wb") as file:
                while piece := answer.read(1 << 16):
                    file.write(piece)
                    done += len(piece)
                    progress(done, total)
        require(
            total is None or done == total, _broken(named, archive, f"{done:,} of {total or 0:,} bytes came"), DataError
        )
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the file is already complete
            return
        raise DataError(f"{named.url} answered {error.code} {error.reason}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(_broken(named, archive, str(getattr(error, "reason", error)))) from None


def _broken(named: Named, archive: Path, why: str) -> str:
    kept = f"; what came is kept in {archive} and the next try goes on from there" if archive.exists() else ""
    return f"the download of {named.url} broke off: {why}{kept}"


def _check(named: Named, archive: Path) -> None:
    """Check the checksum and the zip; a wrong file is removed, because resuming it would never succeed."""
    with open(archive, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if named.md5 is not None and found != named.md5:
        archive.unlink()
        raise DataError(f"{named.url} is not what it should be: checksum {found}, expected {named.md5}; it was removed")
    whole = zipfile.is_zipfile(archive)
    if whole:
        with zipfile.ZipFile(archive) as zipped:
            whole = zipped.testzip() is None
    if not whole:
        archive.unlink()
        raise DataError(f"{named.url} did not give a whole zip file; it was removed")


def _unpack(named: Named, archive: Path, place: Path) -> None:
    """Unpack into a temporary folder, then rename it into place."""
    staging = free(place.with_name(place.name + ".part"))
    try:
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(staging)
        inner = list(staging.iterdir())
        (inner[0] if len(inner) == 1 and inner[0].is_dir() else staging).rename(place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
