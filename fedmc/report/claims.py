"""What a privacy mode claims: in a sentence, and as a section of a report."""

from __future__ import annotations

from collections.abc import Sequence

from fedmc.privacy.protocol import Privacy
from fedmc.privacy.secagg.rules import exceptions
from fedmc.report import html


def sentence(privacy: Privacy) -> str:
    """The first sentence of the claim, for those who read no further."""
    return _sentence(privacy.claim().partition(". ")[0])


def section(privacy: Privacy, clients: int, spent: float | None = None, visible: Sequence[str] = ()) -> str:
    """The claim in words, what the mode promises to so many clients, what the server saw, and the epsilon spent.

    `visible` are those that accept that sums show their own part.
    """
    promise = "; ".join(filter(None, (privacy.promise(clients), exceptions(visible))))
    said = [privacy.claim(), promise, privacy.server_saw()]
    said += [] if spent is None else [f"Spent so far: epsilon {spent:.4g}"]
    return html.section("Privacy", *(html.paragraph(_sentence(words)) for words in said if words))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:].removesuffix(".") + "."
