"""An announcement: the server tells its nodes who is a member now, and which items there are, outside of any run.

    ANNOUNCEMENT/announcement.json   to whom
    ANNOUNCEMENT/members.json        the list and the catalogue as they were when it was made
    ANNOUNCEMENT/catalogue.json
    ANNOUNCEMENT/result.json         each organisation's answer

A node that is away hears of it in the next run (`telling.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from fedmc.data.catalogue import Catalogue
from fedmc.data.files import write_whole
from fedmc.errors import DataError
from fedmc.federation.news import News
from fedmc.federation.server.members import Members, Transport
from fedmc.federation.server.signing import Signer
from fedmc.federation.server.telling import TellingTransport
from fedmc.federation.setup import members
from fedmc.federation.setup.members import MemberList

PLAN, RESULT, ITEMS = "announcement.json", "result.json", "catalogue.json"
NO_ANSWER = "no answer"


class Announcement(NamedTuple):
    """To whom: the organisations, and Flower's id of each one's node."""

    organisations: list[str]
    nodes: list[int]
    patience: float = 15.0  # seconds that a node has to answer


def write(folder: Path, plan: Announcement, listed: MemberList, catalogue: Catalogue | None) -> None:
    """Write an announcement into a new folder. Only a catalogue that is signed can be taken in."""
    folder.mkdir(parents=True, mode=0o700)
    members.save(folder, listed)
    if catalogue is not None and catalogue.signature:
        catalogue.save(folder / ITEMS)
    write_whole(folder / PLAN, json.dumps(plan._asdict()).encode())


def load(folder: Path) -> Announcement:
    try:
        return Announcement(**json.loads((folder / PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder} is not an announcement: {error}") from None


def announce(folder: Path, plan: Announcement, transport: Transport, signer: Signer) -> dict[str, str]:
    """Tell all nodes, and write down what each of them answered."""
    names = plan.organisations
    among = Members(len(names), 0, "", 0, {}, names)
    items = folder / ITEMS
    news = News(members.to_bytes(members.load(folder)), items.read_bytes() if items.exists() else b"")
    told = TellingTransport(transport, among, signer, news).tell(list(range(len(names))))
    said = {name: told.get(client, NO_ANSWER) for client, name in enumerate(names)}
    write_whole(folder / RESULT, json.dumps(said).encode())
    return said


def result(folder: Path) -> dict[str, str] | None:
    """What the nodes answered; None until it is known."""
    try:
        found: dict[str, str] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return None
