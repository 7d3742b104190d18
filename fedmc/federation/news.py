"""What the server tells nodes besides requests: a longer list of members, and a larger catalogue.

Both are files that the federation's authority has signed. The envelope only says that they came from the server, which
a node does not trust with them: it checks that each is signed, and follows what it has (`node/live.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.errors import DataError
from fedmc.federation.statuses import UNKNOWN_MEMBERS, WRONG_CATALOGUE
from fedmc.federation.wire import Arrays, Header, to_bytes

NEWS = "news"  # of the header
BEHIND = (UNKNOWN_MEMBERS, WRONG_CATALOGUE)  # a node with one of these statuses may only lack the news
PARTS = ("members", "catalogue")


class News(NamedTuple):
    """The content of members.json and catalogue.json; empty: nothing new."""

    members: bytes = b""
    catalogue: bytes = b""


def encode_news(news: News) -> bytes:
    arrays = {name: np.frombuffer(part, np.uint8) for name, part in zip(PARTS, news, strict=True) if part}
    return to_bytes(arrays, {NEWS: True})


def decode_news(arrays: Arrays, header: Header) -> News:
    if set(arrays) - set(PARTS) or any(part.dtype != np.uint8 for part in arrays.values()):
        raise DataError("not news of this protocol")
    return News(**{name: part.tobytes() for name, part in arrays.items()})
