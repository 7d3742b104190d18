"""Tells nodes what is new besides requests: the list of members of a run, and its catalogue.

A node that lacks one of them says so instead of answering. It is told, and then asked the same again.
"""

from __future__ import annotations

from fedmc.federation.news import BEHIND, News, encode_news
from fedmc.federation.server.members import Members, Transport
from fedmc.federation.server.signing import Signer
from fedmc.federation.statuses import OK
from fedmc.federation.wire import decode_reply, from_bytes

SMALL = 10_000  # bytes: an answer to news, and a refusal, have fewer


class TellingTransport:
    """Carries messages; nodes that are behind get the news before they are asked again, once for each message."""

    def __init__(self, inner: Transport, members: Members, signer: Signer, news: News) -> None:
        self.inner, self.members, self.signer, self.news = inner, members, signer, news

    def exchange(self, contents: dict[int, bytes], max_bytes: int, needed: int) -> dict[int, bytes]:
        answers = dict(self.inner.exchange(contents, max_bytes, needed))
        behind = [client for client, answer in sorted(answers.items()) if status_of(answer) in BEHIND]
        if not behind or not any(self.news):
            return answers
        told = self.tell(behind)
        again = {client: contents[client] for client in behind if told.get(client) == OK}
        return answers | self.inner.exchange(again, max_bytes, len(again)) if again else answers

    def tell(self, clients: list[int]) -> dict[int, str]:
        """Send these nodes the news; the statuses that came back."""
        content, members = encode_news(self.news), self.members
        sealed = {client: self.signer.seal(content, members.name(client), members.served) for client in clients}
        return {client: status_of(one) for client, one in self.inner.exchange(sealed, SMALL, 0).items()}


def status_of(answer: bytes) -> str:
    """The status of a short reply; empty for anything else."""
    if len(answer) > SMALL:
        return ""
    try:
        return decode_reply(*from_bytes(answer)).status
    except Exception:  # malformed bytes can raise anything
        return ""
