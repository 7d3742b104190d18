"""The page of the API: one HTML document made from its OpenAPI description, with a form for each endpoint.

Its style and script are inline and known to its policy by their hashes: a browser asks nobody but this server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from fedmc.web.headers import page_policy

Described = dict[str, Any]
BOUNDS = {
    "minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}", "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters", "maxLength": "at most {} characters", "minItems": "at least {}",
    "maxItems": "at most {}",
}  # fmt: skip
WIDEST = 2**50  # larger bounds are those of 64 bits, or of times, and go without saying
REQUEST = "Request"


class Document(NamedTuple):
    html: bytes
    policy: str  # its content security policy


def described(app: FastAPI, free: Sequence[str]) -> Described:
    """The OpenAPI description; all paths but the `free` ones need the token."""
    found: Described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, methods in found["paths"].items():
        for method in methods.values():
            if path not in free:
                method["security"] = [{"token": []}]
    return found


def as_json(found: Described) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def document(found: Described) -> Document:
    schemas = found["components"]["schemas"]
    sections = [
        _section(path, verb.upper(), method, schemas)
        for path, methods in found["paths"].items()
        for verb, method in methods.items()
    ]
    style, script = f"\n{_asset('page.css')}", f"\n{_asset('page.js')}"
    html = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>fedmc: API</title>
<style>{style}</style>
</head>
<body>
<header><h1>fedmc {escape(found["info"]["version"])}</h1>
<p>{_marked(found["info"]["description"])} For programs: <a href="/v1/openapi.json">openapi.json</a>.</p>
<p><label>Token <input id="token" autocomplete="off" spellcheck="false"></label>
<span class="soft">It stays in this page.</span></p></header>
<main>
{"".join(sections)}</main>
<script>{script}</script>
</body>
</html>
"""
    return Document(html.encode(), page_policy(style, script))


def _section(path: str, verb: str, method: Described, schemas: Described) -> str:
    """An endpoint: its fields, and a form that sends a request."""
    asked = _schema_of(method.get("requestBody", {}), schemas)
    answered = _schema_of(method["responses"]["200"], schemas)
    example = json.dumps(asked.get("example", {})) if asked else ""
    body = f'<textarea rows="2" spellcheck="false" aria-label="body">{escape(example)}</textarea>' if asked else ""
    return f"""<section data-path="{escape(path)}" data-verb="{verb}">
<h2><code>{verb} {escape(path)}</code></h2>
<p>{_marked(method.get("description", ""))}</p>
{_table(REQUEST, asked, schemas)}{_table("Answer", answered, schemas)}
<form>{body}<button>Send</button></form><pre role="status" hidden></pre>
</section>
"""


def _table(title: str, schema: Described, schemas: Described) -> str:
    if not schema:
        return ""
    rows = "".join(_row(*row) for row in _rows(schema, schemas, title == REQUEST))
    return f"<h3>{title}</h3><div class=scroll><table><tbody>{rows}</tbody></table></div>\n"


class _Row(NamedTuple):
    name: str
    kind: str
    about: str


def _rows(schema: Described, schemas: Described, asked: bool, prefix: str = "") -> list[_Row]:
    """The fields, and those of the objects inside them; what a request must have comes first."""
    found: list[_Row] = []
    needed = schema.get("required", ())
    for name, field in sorted(schema.get("properties", {}).items(), key=lambda one: asked and one[0] not in needed):
        inner = _inner(field, schemas)
        told = [field.get("description", ""), *_bounds(field)]
        if asked and name in needed:
            told.append("required")
        elif asked and field.get("default") not in (None, [], ""):
            told.append(f"default {json.dumps(field['default'])}")
        elif not asked and "null" in [one.get("type") for one in field.get("anyOf", ())]:
            told.append("if there is one")
        found.append(_Row(prefix + name, _kind(field), "; ".join(one.rstrip(".") for one in told if one)))
        if inner:
            found += _rows(inner, schemas, asked, f"{prefix}{name}{'[]' if field.get('type') == 'array' else ''}.")
    return found


def _row(name: str, kind: str, about: str) -> str:
    return f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}<td>{_marked(about)}</tr>"


def _inner(field: Described, schemas: Described) -> Described:
    """The object that a field is, or that a list is of."""
    named = [one["$ref"] for one in (field, field.get("items", {}), *field.get("anyOf", [])) if "$ref" in one]
    return cast(Described, schemas[named[0].rpartition("/")[2]]) if named else {}


def _kind(field: Described) -> str:
    """In words: a whole number or a text, a list of ..."""
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(one) for one in field["anyOf"] if one.get("type") != "null"))
    if field.get("type") == "array":
        return f"list: {_kind(field.get('items', {}))}" if "items" in field else "list"
    names = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
    return names.get(field.get("type", ""), "object")


def _bounds(field: Described) -> list[str]:
    """Those of the field or, if it may be left out, of its only kind."""
    kinds = [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]
    if len(kinds) != 1:
        return []
    found = ((words, kinds[0][name]) for name, words in BOUNDS.items() if name in kinds[0])
    return [words.format(f"{value:,.0f}" if value == int(value) else value) for words, value in found if value < WIDEST]


def _schema_of(part: Mapping[str, Any], schemas: Described) -> Described:
    content = part.get("content", {}).get("application/json", {}).get("schema", {})
    return _inner(content, schemas)


def _marked(text: str) -> str:
    """Text with `code` in backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if k % 2 else one for k, one in enumerate(parts))


def _asset(name: str) -> str:
    return resources.files("fedmc.serving").joinpath("assets", name).read_text("utf-8")
