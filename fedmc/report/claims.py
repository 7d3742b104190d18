"""What a privacy mode claims, as a section of a report."""

from __future__ import annotations

from fedmc.privacy.protocol import Privacy
from fedmc.report import html


def section(privacy: Privacy, clients: int, spent: float | None = None) -> str:
    """The claim in words, what the mode promises to so many clients, what the server saw, and the epsilon spent."""
    said = [privacy.claim(), privacy.promise(clients), privacy.server_saw()]
    said += [] if spent is None else [f"Spent so far: epsilon {spent:.4g}"]
    return html.section("Privacy", *(html.paragraph(_sentence(words)) for words in said if words))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:].removesuffix(".") + "."
