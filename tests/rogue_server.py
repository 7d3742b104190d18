"""A server that breaks every rule: it drives the sessions of a run by hand, and takes whatever nodes give it."""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.start import start_items
from fedmc.federation.node.releases import in_whole_steps
from fedmc.federation.secagg_messages import (
    Stage,
    encode_stage,
    keys_of,
    masked_of,
    open_arrays,
    opened_of,
    read_stage,
    session_of,
)  # fmt: skip
from fedmc.federation.wire import NEVER, Invitation, Request, decode_reply, encode, from_bytes, to_bytes
from fedmc.privacy.secagg.aggregator import Aggregator
from fedmc.privacy.secagg.session import NO_SUM, Invited
from fedmc.problem.scaling import Scaling
from tests.world import CATALOGUE, ITEMS, RUN


class RogueServer:
    """Conducts one run of a SecureWorld; answers are statuses or stages."""

    def __init__(self, world, run=RUN):
        self.world, self.run, self.keys, self.bases, self.certificates = world, run, {}, {}, []

    def send(self, client, broadcast, invitation=None, counted=NEVER):
        answer = self.world.ask(client, to_bytes(*encode(self._request(client, broadcast, invitation, counted))))
        arrays, words = from_bytes(answer)
        return read_stage(answer) if "stage" in words else decode_reply(arrays, words).status

    def get_keys(self, broadcast):
        for client in range(self.world.clients):
            self.keys[client] = keys_of(self.send(client, broadcast, Invitation()).arrays)[0]

    def invitation(self, cohort, **other_keys):
        keys, last = self.keys | other_keys.get("keys", {}), self.certificates[-1:]
        invited = tuple(Invited(keys[k], self.bases.get(k, NO_SUM)) for k in cohort)
        number, previous = (last[0].number + 1, last[0].hash) if last else (1, b"")
        return Invitation(number, 1, invited, 1, previous, certificates=tuple(self.certificates[-2:]))

    def sum(self, broadcast, cohort=None):
        """The words of a sum, or why there is none: the statuses of those that refuse."""
        cohort = tuple(range(self.world.clients)) if cohort is None else tuple(cohort)
        invitation = self.invitation(cohort)
        session = session_of(self._request(cohort[0], broadcast, invitation, NEVER), ITEMS)
        made, refused = Aggregator(session, self.world.pinned), {}
        for k in cohort:
            said = self.send(k, broadcast, invitation)
            if isinstance(said, str):
                refused[k] = said
                continue
            made.take_masked(k, masked_of(said.arrays, cohort))
            self.keys[k] = made.masked[k].head.next
        if refused:
            return refused
        for k in cohort:
            stage = Stage(self.run, k, "open", open_arrays(session.hash, made.heads()))
            said = read_stage(self.world.ask(k, encode_stage(stage)))
            if said.status != "ok":
                refused[k] = said.status
                continue
            made.take_opened(k, opened_of(said.arrays)[1])
        if len(made.opened) < session.needed:
            return refused
        found = made.unmask()
        self.certificates.append(found.certificate)
        self.bases |= dict.fromkeys(cohort, session.number) if session.kept else {}
        return found.words.view(np.int64)

    def _request(self, client, broadcast, invitation, counted):
        return Request(self.run, client, broadcast, counted, CATALOGUE, invitation=invitation)


def first_round(world, **settings):
    """A broadcast at which every client's first contribution can be asked for."""
    given = world.settings(**settings)
    return Broadcast("round", 1, world.clients, given, start_items(ITEMS, given), Scaling(3.0, 1.0))


def whole_of(world, client, broadcast):
    """The first contribution of a client, which only it should know."""
    request = Request(RUN, client, broadcast, NEVER, CATALOGUE, invitation=Invitation())
    return np.frombuffer(in_whole_steps(request, None, lambda asked: asked)(world.shards[client])[1], np.int64)
