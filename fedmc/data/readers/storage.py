"""Object storage: `s3://`, `gs://` and `abfs://` through pyarrow's file systems, read in pieces without a local copy.

Credentials come from the environment as the storage's own tools take them, or from the address. Time limits are short,
so that a wrong address is an error soon.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import pyarrow as pa

from fedmc.data.addresses import check_address, is_stored, scrubbed, without_password
from fedmc.data.readers.files import File, Place
from fedmc.errors import DataError, quoted, require

CONNECT, ANSWER, TRIES = 5, 10, 2  # seconds, seconds without a byte, and how often S3 is tried
RETRY = 15  # seconds in which Google's storage is tried again
BUFFER = 1 << 23  # bytes of text that are fetched together
S3_OPTIONS = ("region", "endpoint_override", "scheme", "anonymous")
FALSE, TRUE = ("0", "false", "no"), ("", "1", "true", "yes")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
DENIED = re.compile(
    r"ACCESS_DENIED|UNAUTHENTICATED|PERMISSION_DENIED|InvalidAccessKey|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN"
    r"|SIGNATURE|Signature|TOKEN|Token|[Aa]uthenticat|\b40[013]\b",
)
SILENT = re.compile(r"NETWORK_CONNECTION|[Cc]ould not connect|resolve|Timeout|timed out|UNAVAILABLE|DEADLINE|CURL")
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS, or gs://anonymous@BUCKET/... for a public bucket"
_AZURE = "az login, or AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or ?anonymous=true for a public bucket",
    "gs": _GOOGLE, "gcs": _GOOGLE, "abfs": _AZURE, "abfss": _AZURE,
}  # fmt: skip
Rows = TypeVar("Rows")


class StorageError(DataError):
    """A storage that does not answer, or refuses; asking again would take as long."""


def place_of(address: str) -> Place:
    """The object at an address, or all objects below it."""
    with reading(address):
        system, path = _opened(address)
        shown = _shown(address)
        about = system.get_file_info(path)
        if about.is_file:
            return Place(shown, [_file(system, about, shown)], False)
        found = sorted((one for one in _listing(system, path) if one.is_file and one.size), key=lambda one: one.path)
        require(bool(found), f"there is no object or folder {shown}: check bucket, name and region", DataError)
        base = shown.rstrip("/")
        files = [_file(system, one, f"{base}{one.path.removeprefix(path.rstrip('/'))}") for one in found]
        return Place(shown, files, True)


@contextmanager
def reading(source: object) -> Iterator[None]:
    """Errors of a storage become errors with the cure, and without credentials."""
    if not is_stored(str(source)):
        yield
        return
    address = str(source)
    try:
        yield
    except (OSError, pa.ArrowException, NotImplementedError) as error:
        raise StorageError(f"{_shown(address)} cannot be read: {_cure(address, str(error))}") from None


def guarded(source: object, rows: Iterable[Rows]) -> Iterator[Rows]:
    """The rows, with the errors of a storage as `reading` tells them."""
    with reading(source):
        yield from rows


def _opened(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    check_address(address)
    from pyarrow import fs

    parts = urlsplit(address)
    path = f"{parts.netloc.rpartition('@')[2]}{unquote(parts.path)}".rstrip("/")
    require(path != "", f"{_shown(address)} names no bucket: write {parts.scheme}://BUCKET/NAME", DataError)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme.lower() == "s3":
        return _s3(fs, path.partition("/")[0], (parts.username, parts.password), options), path
    try:
        if parts.scheme.lower() in ("gs", "gcs"):
            query = urlencode({"retry_limit_seconds": RETRY} | options)
            system, path = fs.FileSystem.from_uri(urlunsplit(parts._replace(query=query)))
        else:
            system, path = fs.FileSystem.from_uri(address)
    except (ValueError, TypeError) as error:  # pa.ArrowInvalid among them: this pyarrow, or an option
        raise DataError(f"{_shown(address)}: {scrubbed(str(error), address)}") from None
    return system, path


def _s3(fs: Any, bucket: str, user: tuple[str | None, str | None], options: Mapping[str, str]) -> Any:
    """S3 with short time limits. The region of a bucket at AWS is looked up unless it is given."""
    other = [name for name in options if name not in S3_OPTIONS]
    require(not other, f"s3:// has no option {quoted(other[:1])[1:-1]}: there are {', '.join(S3_OPTIONS)}", DataError)
    endpoint = options.get("endpoint_override") or next(filter(None, map(os.environ.get, ENDPOINTS)), None)
    region = options.get("region") or next(filter(None, map(os.environ.get, REGIONS)), None)
    if region is None and endpoint is None:
        region = fs.resolve_s3_region(bucket)
    key, secret = (None if one is None else unquote(one) for one in user)
    return fs.S3FileSystem(
        access_key=key, secret_key=secret, anonymous=_is_true(options.get("anonymous", "0")), region=region,
        endpoint_override=endpoint, scheme=options.get("scheme"), connect_timeout=CONNECT, request_timeout=ANSWER,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
    )  # fmt: skip


def _is_true(word: str) -> bool:
    known = word.lower() in TRUE + FALSE
    require(known, f"anonymous must be true or false, got {quoted(word)}", DataError)
    return word.lower() in TRUE


def _listing(system: Any, path: str) -> list[Any]:
    from pyarrow import fs

    return list(system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True)))


def _file(system: Any, about: Any, name: str) -> File:
    stored = partial(system.open_input_file, about.path)
    return File(name, partial(_buffered, stored), None, about.size, stored)


def _buffered(stored: partial[pa.NativeFile]) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(stored(), BUFFER))


def _shown(address: str) -> str:
    """The address without its options and without credentials."""
    return without_password(address).partition("?")[0]


def _cure(address: str, message: str) -> str:
    """What went wrong, in a line, and what to do."""
    what = re.sub("'[^']*'", "", message)  # without names
    if DENIED.search(what):
        keys = KEYS[address.partition("://")[0].lower()]
        return f"access is denied: check the credentials and their rights ({keys})"
    if SILENT.search(what):
        return "the storage does not answer: check the network, the region and endpoint_override"
    return scrubbed(message, address)
