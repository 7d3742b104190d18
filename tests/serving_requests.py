"""Mutated requests to a served model, and an oracle that says which of them are valid. Seeded.

    for kind, request in mutants(model, seed, number): ...

The oracle knows the contract from the documentation, in tables of its own, and shares no code with the server.
"""

from __future__ import annotations

import ipaddress
import json
import math
import random
import re
from copy import deepcopy
from functools import cache
from urllib.parse import unquote

from fedmc.model.titles import words_of
from tests import mutations
from tests.serving_world import TOKEN, Sent, get, post

ID, WHOLE, NUMBER, FLAG, TEXT, IDS, CHOICE, PAIRS, RATINGS = range(9)
FILTERS = {
    "exclude_seen": (FLAG, False), "cautious": (FLAG, False), "only": (IDS, False, 10_000, True),
    "exclude": (IDS, False, 10_000, False),
}  # fmt: skip
FIELDS = {  # kind, required, and the bounds
    "/v1/recommend": {"user": (ID, True), "n": (WHOLE, False, 1, 1000)} | FILTERS,
    "/v1/predict": {
        "pairs": (PAIRS, True), "interval": (NUMBER, False, 0, 0.9999), "unknown": (CHOICE, False, ("refuse", "prior")),
    },
    "/v1/fold-in": {
        "ratings": (RATINGS, True), "n": (WHOLE, False, 0, 1000), "predict": (IDS, False, 1000, False),
        "interval": (NUMBER, False, 0, 0.9999),
    } | FILTERS,
    "/v1/similar": {"item": (ID, True), "n": (WHOLE, False, 1, 1000)},
    "/v1/find": {"text": (TEXT, True, 1, 200), "n": (WHOLE, False, 1, 1000)},
}  # fmt: skip
FREE = ("/", "/v1/health", "/v1/openapi.json")


@cache
def corpus():
    """Valid requests of every kind, for a model with users 0 to 39 and items 0 to 14."""
    bodies = {
        "/v1/recommend": [
            {"user": 7}, {"user": "7", "n": 1000}, {"user": 39, "n": 1, "exclude_seen": False, "cautious": True},
            {"user": 0, "only": [1, 2, "3", 99], "exclude": [2, "x"]}, {"user": 1, "only": None, "exclude": []},
        ],
        "/v1/predict": [
            {"pairs": [{"user": 7, "item": 3}]},
            {"pairs": [{"user": 7, "item": 3}, {"user": "8", "item": 14}], "interval": 0.9, "unknown": "prior"},
            {"pairs": [{"user": 999, "item": "new"}], "unknown": "prior", "interval": None},
        ],
        "/v1/fold-in": [
            {"ratings": [{"item": 1, "rating": 4}, {"item": "2", "rating": 3.5}], "n": 5},
            {"ratings": [{"item": 1, "rating": 4, "time": 10}, {"item": 99, "rating": -1, "time": 0}], "n": 0,
             "predict": [4, "5"], "interval": 0.5, "exclude": [3]},
        ],
        "/v1/similar": [{"item": 4, "n": 3}, {"item": "14"}],
        "/v1/find": [{"text": "film 1993"}, {"text": "É x", "n": 5}],
    }  # fmt: skip
    return [*(post(path, body) for path, some in bodies.items() for body in some), *map(get, FREE)]


# --- the oracle


def is_valid(request, items=15, users=40):
    """Whether a request must be answered; all others must be refused."""
    target, query, rest = request.target.partition("?")
    path = unquote(target)
    names = [name.lower() for name, _ in request.headers]
    headers = {name.lower(): value for name, value in request.headers}
    if any(names.count(name) > 1 for name in ("host", "authorization", "content-type")):
        return False
    if "transfer-encoding" in headers:
        return False
    if not _host_is_ours(headers.get("host", "")) or (query and rest):
        return False
    if path in FREE:
        return request.method == "GET"
    if request.method != "POST" or path not in FIELDS or not _shows_token(headers.get("authorization", "")):
        return False
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return False
    length = headers.get("content-length", "0")
    if headers.get("content-encoding", "identity").lower() != "identity" or (
        re.fullmatch("[0-9]+", length) and int(length[:30]) > 2**18
    ):
        return False
    return len(request.body) <= 2**18 and _body_is_valid(path, request.body, items, users)


def _host_is_ours(header):
    name = re.sub(r":[0-9]{1,5}$", "", header).lower()
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name[1:] if name.startswith("[") and not name.endswith("]") else name.strip("[]"))
    except ValueError:
        return False
    return True


def _shows_token(header):
    scheme, _, token = header.partition(" ")
    return scheme.lower() == "bearer" and token.strip() == TOKEN


def _body_is_valid(path, content, items, users):
    try:
        body = json.loads(content.decode())
    except (ValueError, RecursionError):
        return False
    fields = FIELDS[path]
    if not isinstance(body, dict) or set(body) - set(fields):
        return False
    if any(rule[1] and name not in body for name, rule in fields.items()):
        return False
    return all(_fits(body[name], *fields[name]) for name in body) and _makes_sense(path, body, items, users)


def _is_whole(value, low, high):
    return type(value) is int and low <= value <= high


def _is_number(value):
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def _is_text(value, low, high):
    return type(value) is str and low <= len(value) <= high and not re.search("[\ud800-\udfff]", value)


def _is_id(value):
    if type(value) is str:
        return _is_text(value, 1, 300) and "\0" not in value
    return _is_whole(value, -(2**63) + 1, 2**63 - 1)


def _fits(value, kind, required, *bounds):
    if kind == ID:
        return _is_id(value)
    if kind == WHOLE:
        return _is_whole(value, *bounds)
    if kind == NUMBER:
        return value is None or (_is_number(value) and bounds[0] < value <= bounds[1])
    if kind == FLAG:
        return type(value) is bool
    if kind == TEXT:
        return _is_text(value, *bounds)
    if kind == CHOICE:
        return type(value) is str and value in bounds[0]
    if kind == IDS and value is None:
        return bounds[1]
    if type(value) is not list:
        return False
    if kind == IDS:
        return len(value) <= bounds[0] and all(map(_is_id, value))
    entry = _is_pair if kind == PAIRS else _is_rating
    return 1 <= len(value) <= 1000 and all(map(entry, value))


def _is_pair(value):
    return type(value) is dict and set(value) == {"user", "item"} and all(map(_is_id, value.values()))


def _is_rating(value):
    if type(value) is not dict or "item" not in value or set(value) - {"item", "rating", "time"}:
        return False
    rating, time = value.get("rating"), value.get("time")
    of_rating = rating is None or (_is_number(rating) and abs(rating) <= 1e6)
    return _is_id(value["item"]) and of_rating and (time is None or _is_whole(time, 0, 2**53))


def _number(value):
    """The number that an id stands for in a model whose ids are whole numbers; None: it is another id."""
    if type(value) is int:
        return value
    return int(value) if re.fullmatch(r"0|-?[1-9][0-9]{0,18}", value, re.ASCII) else None


def _makes_sense(path, body, items, users):
    def has_item(value):
        return _number(value) in range(items)

    def has_user(value):
        return _number(value) in range(users)

    if path == "/v1/recommend" and not has_user(body["user"]):
        return False
    if path == "/v1/similar":
        return has_item(body["item"])
    if path == "/v1/find":
        return bool(words_of(body["text"]))
    if path == "/v1/predict":
        known = all(has_user(one["user"]) and has_item(one["item"]) for one in body["pairs"])
        return known or body.get("unknown") == "prior"
    if path == "/v1/fold-in" and not _visit_makes_sense(body, has_item):
        return False
    return body.get("n", 10) == 0 or _leaves_an_item(body, items, has_item)


def _visit_makes_sense(body, has_item):
    known = [one for one in body["ratings"] if has_item(one["item"])]
    timed = {one.get("time") is None for one in body["ratings"]}
    numbers = [_number(one["item"]) for one in known]
    complete = all(one.get("rating") is not None for one in known)
    once = len(set(numbers)) == len(numbers)
    return bool(known) and complete and once and len(timed) == 1 and all(map(has_item, body.get("predict", [])))


def _leaves_an_item(body, items, has_item):
    only, exclude = body.get("only"), {_number(one) for one in body.get("exclude", []) if has_item(one)}
    left = set(range(items)) if only is None else {_number(one) for one in only if has_item(one)}
    return bool(left) and (bool(left - exclude) or (only is None and not exclude))


# --- mutations: (random, request) -> request

VALUES = (*mutations.EXTREMES, 7, "7", 3, "3", 14, 15, 39, 40, 999, 1000, "refuse", "prior", 0.9, [3], [7, "x"], "film")
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW", "get", "post")
HEADERS = (
    ("x-odd", "a" * 3000), ("accept", "text/html"), ("content-encoding", "gzip"), ("content-encoding", "identity"),
    ("content-length", "5"), ("content-length", "9" * 400), ("content-length", "-1"), ("cookie", "a=b"),
    ("origin", "https://evil.example"), ("x-forwarded-host", "evil.example"), ("transfer-encoding", "chunked"),
    ("host", "evil.example"), ("authorization", "Basic YTpi"), ("content-type", "text/plain"), ("x", "\x1b[31m\xff"),
    ("range", "bytes=0-1"), ("expect", "100-continue"), ("content-type", "application/json"), ("upgrade", "h2c"),
)  # fmt: skip
HOSTS = ("", "evil.example", "localhost", "LOCALHOST:1", "[::1]:8000", "10.0.0.1", "127.1", "127.0.0.1:x", "localhost.")
TOKENS = (
    "",
    "Bearer",
    f"Bearer {TOKEN}x",
    f"Bearer {TOKEN[:-1]}",
    TOKEN,
    f"bearer  {TOKEN} ",
    f"BEARER {TOKEN}",
    "\xff",
)
TYPES = (
    "",
    "text/plain",
    "application/json; charset=utf-8",
    "Application/Json",
    "application/json, text/plain",
    "\xff",
)


def _with_body(request, body):
    return request._replace(body=json.dumps(body).encode())


def _places(value, path=()):
    """All places in a tree of lists and objects, the root first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _places(one, (*path, key))


def _at(body, path):
    for key in path:
        body = body[key]
    return body


def _changed(rng, request, change):
    """The body after a change at one of its places: change(parent, key)."""
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        return request
    places = [one for one in _places(body) if one][:200]
    if not places:
        return request
    place = rng.choice(places)
    change(_at(body, place[:-1]), place[-1])
    return _with_body(request, body)


def swap_value(rng, request):
    return _changed(rng, request, lambda parent, key: parent.__setitem__(key, deepcopy(rng.choice(VALUES))))


def nudge_value(rng, request):
    def change(parent, key):
        old = parent[key]
        if type(old) is bool:
            parent[key] = not old
        elif type(old) in (int, float):
            parent[key] = rng.choice([old + 1, old - 1, -old, float(old), old * 1000, str(old), old + 0.5, not old])
        elif type(old) is str:
            parent[key] = rng.choice([old + "x", old * 300, old[:-1], f" {old}", old.upper(), [old], old + "\0"])
        elif type(old) is list:
            parent[key] = rng.choice([old * 2, old * 1200, old[:-1], [*old, 3], {"a": old}, (old or [1])[0]])
        else:
            parent[key] = rng.choice([[old], None, 1, "x"])

    return _changed(rng, request, change)


def drop_value(rng, request):
    return _changed(rng, request, lambda parent, key: parent.__delitem__(key))


def repeat_value(rng, request):
    def change(parent, key):
        if isinstance(parent, list):
            parent.insert(key, deepcopy(parent[key]))
        else:
            parent[f"{key}2"] = parent[key]

    return _changed(rng, request, change)


def add_field(rng, request):
    names = [name for fields in FIELDS.values() for name in fields]

    def change(parent, key):
        target = parent if isinstance(parent, dict) else parent[key]
        if isinstance(target, dict):
            target[rng.choice([*names, "unheard-of", "", "__class__", "item", "time"])] = deepcopy(rng.choice(VALUES))

    return _changed(rng, request, change)


def other_body(rng, request):
    return request._replace(body=rng.choice([*mutations.TEXTS, *(one.body for one in corpus())]))


def rewrite_body(rng, request):
    """The same JSON in another form."""
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        return request
    text = json.dumps(body, indent=rng.choice([None, 0, 3]), ensure_ascii=rng.random() < 0.5)
    return request._replace(body=text.encode(rng.choice(["utf-8", "utf-8-sig", "utf-16", "utf-32-le"]), "replace"))


def damage_body(rng, request):
    change = rng.choice([mutations.flip, mutations.flip, mutations.truncate, mutations.around])
    return request._replace(body=change(rng, request.body))


def change_method(rng, request):
    return request._replace(method=rng.choice(METHODS))


def change_path(rng, request):
    path, place = request.target, rng.randrange(len(request.target) + 1)
    escaped = "".join(f"%{ord(one):02x}" if rng.random() < 0.3 else one for one in path if ord(one) < 128)
    return request._replace(
        target=rng.choice([
            f"{path}/", f"/{path}", path.upper(), escaped, f"{path}%00", f"/v1/../{path}", f"{path}.json", path[:place],
            f"{path}?", f"{path}?x=1", f"{path}?user=7&n=3", f"{path}#x", f"{path}{'a' * 3000}", f"http://x{path}",
            f"{path[:place]}%ff{path[place:]}", f"{path};x=1", rng.choice([*FIELDS, *FREE]), "*", "/%2e%2e/etc/passwd",
        ])
    )  # fmt: skip


def change_header(rng, request):
    headers = list(request.headers)
    place = rng.randrange(len(headers) + 1)
    change = rng.randrange(4)
    if change == 0:
        headers.insert(place, rng.choice(HEADERS))
    elif change == 1 and headers:
        headers.pop(place % len(headers))
    elif change == 2 and headers:
        headers.append(headers[place % len(headers)])
    elif headers:
        name, _ = headers[place % len(headers)]
        usual = {"host": HOSTS, "authorization": TOKENS, "content-type": TYPES}
        headers[place % len(headers)] = (name, rng.choice(usual.get(name, ("", "x"))))
    return request._replace(headers=tuple(headers))


MUTATIONS = (
    swap_value, swap_value, nudge_value, nudge_value, drop_value, repeat_value, add_field, other_body, rewrite_body,
    damage_body, change_method, change_path, change_header, change_header,
)  # fmt: skip


def mutants(seed, number, honest=None):
    """`number` mutated requests, each with the names of its mutations."""
    honest = honest or corpus()
    for k in range(number):
        rng = random.Random(f"{seed}/{k}")
        request: Sent = rng.choice(honest)
        chosen = rng.choices(MUTATIONS, k=rng.choice([1, 1, 1, 2]))
        for mutate in chosen:
            request = mutate(rng, request)
        yield "+".join(mutate.__name__ for mutate in chosen), request
