"""The page itself: one HTML document with its style and script inline, which its policy knows by their hashes."""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import NamedTuple

from fedmc import __version__
from fedmc.web.headers import page_policy

SHARED = ("parts.js", "stream.js")


class Document(NamedTuple):
    html: bytes
    policy: str  # the content security policy: this style, this script, and requests to the same origin


def document(title: str, name: str) -> Document:
    """The document of NAME.html, NAME.js and what all pages share."""
    style = f"\n{_asset('page.css')}"
    script = "\n" + "".join(_asset(one) for one in (SHARED[0], f"{name}.js", SHARED[1]))
    html = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p id="link" role="status">connecting</p></header>
<noscript><p>This page needs JavaScript; <code>fedmc federation status</code> and <code>fedmc node status</code> tell
the same in a terminal.</p></noscript>
<p id="trouble" role="alert" hidden></p>
{_asset(f"{name}.html")}<footer>fedmc {__version__}.
Counts, sums and means only; nothing here is about a single user.</footer>
<script>{script}</script>
</body>
</html>
"""
    return Document(html.encode(), page_policy(style, script))


def _asset(name: str) -> str:
    return resources.files("fedmc.federation.pages").joinpath("assets", name).read_text("utf-8")
