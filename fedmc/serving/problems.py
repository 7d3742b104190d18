"""What is wrong with a request, as JSON: the code, the value, the bound and the cure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from fedmc.errors import printable, quoted
from fedmc.serving import schema
from fedmc.serving.schema import Code, Place, Problem

STATUS: dict[Code, int] = {
    "bad_request": 400, "unauthorized": 401, "not_found": 404, "method_not_allowed": 405, "too_slow": 408,
    "no_length": 411, "too_large": 413, "not_json": 415, "wrong_host": 421, "invalid": 422, "unknown_user": 422,
    "unknown_item": 422, "internal": 500, "too_busy": 503,
}  # fmt: skip
CODES: dict[int, Code] = {status: code for code, status in reversed(STATUS.items())}
MORE: dict[Code, dict[str, str]] = {
    "unauthorized": {"www-authenticate": "Bearer"},
    "too_busy": {"retry-after": "1"},
    "no_length": {"connection": "close"},
}
FIXED: dict[Code, str] = {
    "not_found": "there is nothing at this address: see / for the endpoints",
    "method_not_allowed": "this address takes another method: see the header Allow",
}
SHOWN = 10  # places of one request
OF_ID = ("constrained-int", "constrained-str")  # pydantic's names of the two kinds of ids
AN_ID = f"must be a whole number of 64 bits or a text of 1 to {schema.MAX_ID:,} characters"


def problem(code: Code, message: str, places: Sequence[Place] = (), more: Mapping[str, str] | None = None) -> Response:
    body = Problem(code=code, message=printable(message), places=list(places))
    headers = {**MORE.get(code, {}), **(more or {})}
    return Response(body.model_dump_json(), STATUS[code], headers, "application/json")


def of_status(status: int, message: str, more: Mapping[str, str] | None = None) -> Response:
    """A refusal of the framework, such as 404."""
    code = CODES.get(status, "bad_request")
    return problem(code, FIXED.get(code, message), (), more)


def of_validation(errors: Sequence[Mapping[str, Any]]) -> Response:
    """The first places that a schema refuses."""
    found: dict[str, str] = {}
    for error in errors:
        where = where_of(error["loc"])
        if where not in found and len(found) < SHOWN:
            found[where] = _message(error)
    places = [Place(where=printable(where), message=printable(message)) for where, message in found.items()]
    return problem("invalid", "; ".join(f"{one.where} {one.message}" for one in places), places)


def where_of(location: Sequence[str | int]) -> str:
    """Such as pairs[3].item; "body" for the whole."""
    parts = [one for one in location if one not in OF_ID]
    text = "".join(f"[{one}]" if isinstance(one, int) else f".{one[: schema.MAX_TEXT]}" for one in parts)
    return text.removeprefix(".") or "body"


def _message(error: Mapping[str, Any]) -> str:
    if any(one in OF_ID for one in error["loc"]):
        return f"{AN_ID}, got {quoted(error['input'])}"
    if error["type"] == "json_invalid":
        return f"is not JSON in UTF-8: {error.get('ctx', {}).get('error', '')}"
    if error["type"] == "extra_forbidden":
        return "is unknown: leave it out, or see / for the names"
    said = error["msg"].removeprefix("Input ").removeprefix("should ")
    said = {"Field required": "is missing"}.get(said, f"should {said}" if said[:1].islower() else said)
    return said if error["type"] == "missing" else f"{said}, got {quoted(error['input'])}"
