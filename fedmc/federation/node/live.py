"""A node that goes on while its federation changes: members join and leave, keys are replaced, the catalogue grows.

The server tells of it (`news.py`). What the node takes in must be signed by the federation's authority and follow what
the node has; it is on disk before the node answers, so that a node that is killed begins with it again.
"""

from __future__ import annotations

from fedmc.data import catalogue as catalogues
from fedmc.errors import FedmcError
from fedmc.federation.news import News
from fedmc.federation.node import consents, growth, withdrawing
from fedmc.federation.node.organisation import Opened, make_node, open_folder
from fedmc.federation.node.refusals import RefusedError, log
from fedmc.federation.node.store import Store, StoreError
from fedmc.federation.setup import member_keys, members, succession
from fedmc.federation.setup.layout import NodeConfig
from fedmc.federation.setup.members import MemberList


class LiveNode:
    """The node of an organisation's folder; it is opened again whenever it has taken something in."""

    def __init__(self, config: NodeConfig, opened: Opened, store: Store) -> None:
        self.config, self.store = config, store
        self.node, self._said = make_node(config, opened, store, self._learn), self._statements()
        self.has_left = False  # the organisation is no member any more

    def answer_bytes(self, sealed: bytes) -> bytes:
        """Answer a message of the server, after a look whether the organisation has stated something meanwhile."""
        if self._statements() != self._said:
            self._open()
        return self.node.answer_bytes(sealed)

    def _open(self) -> None:
        self._said = self._statements()
        self.node = make_node(self.config, open_folder(self.config), self.store, self._learn)

    def _statements(self) -> list[int]:
        """When the organisation stated last that it leaves, or what sums may show."""
        paths = [self.config.path(name) for name in (withdrawing.FILE, consents.FILE)]
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]

    def _learn(self, news: News) -> None:
        changed = False
        try:
            changed = bool(news.members) and self._learn_members(members.parsed(news.members))
            if not self.has_left and news.catalogue:
                changed |= growth.take_in(self.config, catalogues.parsed(news.catalogue, "the server's catalogue"))
        except StoreError:
            raise
        except FedmcError as error:
            raise RefusedError("not-a-successor", str(error)) from None
        finally:  # what was taken in is in use, whatever else was refused
            if changed and not self.has_left:
                self._open()

    def _learn_members(self, new: MemberList) -> bool:
        """Take in a newer list of members; whether it is one."""
        config, old = self.config, members.load(self.config.folder)
        if (new.version, new.hash) == (old.version, old.hash):
            return False
        succession.check_list(old, new, succession.authority_of(config.folder))
        members.save(config.folder, new)
        for line in changes(old, new):
            log.warning("%s (version %s of the list of members)", line, new.version)
        if member_keys.promote(config.folder, new, config.organisation):
            log.info("the new keys of this organisation are in use")
        own = next((place for place in old.active if old.entries[place].name == config.organisation), None)
        self.has_left = own is None or own not in new.active  # whoever has its name afterwards is another member
        return True


def changes(old: MemberList, new: MemberList) -> list[str]:
    """Who joined, left or has a new key, in words."""
    before, after = ({place: one.entries[place] for place in one.active} for one in (old, new))
    stay = [place for place in before if place in after]
    renewed = [after[place].name for place in stay if before[place].identity != after[place].identity]
    return [
        *(f"{one.name} has left" for place, one in before.items() if place not in after),
        *(f"{one.name} is a new member" for place, one in after.items() if place not in before),
        *(f"{name} has a new key, signed with its old one" for name in renewed),
    ]
