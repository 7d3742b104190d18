"""Headers of every answer, and the content security policy of a page whose style and script are inline."""

from __future__ import annotations

import hashlib
from base64 import b64encode

NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
SAFE = (
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
)


def page_policy(style: str, script: str) -> str:
    """This style, this script, and requests to the same origin; nothing else."""
    return f"{NOTHING}; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; img-src data:"


def _hash(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()
