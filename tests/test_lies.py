"""A server that lies: what a curious one would never do, and what it gets for it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from fedmc.algorithms.beta import constant
from fedmc.errors import Diverged, TooFewError
from fedmc.federation.secagg_messages import (
    SEALED,
    Stage,
    encode_stage,
    from_adverts,
    from_members,
    from_table,
    read_stage,
    session_of,
    to_adverts,
    to_table,
)
from fedmc.federation.wire import decode, encode, from_bytes, to_bytes
from fedmc.privacy.secagg.aggregator import Aggregator
from fedmc.problem.scaling import Scaling
from fedmc.training.aggregation import FixedPointSum
from tests.world import (
    ITEMS,
    NODES,
    PINNED,
    Between,
    World,
    broadcast_of,
    engine_on,
    invitation,
    read,
    refused,
    run,
    sealed,
)  # fmt: skip


class TestAServerThatLies:
    """What a curious one would never do, and what a lying one gets for it."""

    def sessions(self, world, change=lambda request: request):
        """A wire on which the server changes what it asks some nodes."""

        class Lying:
            def exchange(self, contents, max_bytes, needed):
                changed = {}
                for client, content in contents.items():
                    arrays, words = read(content)
                    if "stage" not in words:
                        content = sealed(client, to_bytes(*encode(change(decode(arrays, words)))))
                    changed[client] = content
                return world.exchange(changed, max_bytes, needed)

        return Lying()

    def test_all_members_are_asked_the_same(self, tmp_path, caplog):
        """Else the others' V could be such that their part of the sum is known."""

        def change(request):
            if request.client == 3:
                return request
            return request._replace(broadcast=request.broadcast._replace(V=np.zeros_like(request.broadcast.V)))

        with pytest.raises(TooFewError):
            run(self.sessions(World(tmp_path), change), 1)
        assert "a signature does not fit" in caplog.text

    @pytest.mark.parametrize(
        ("again", "at_once"),
        [
            (lambda request: request._replace(factor=0.5), False),
            (lambda request: request._replace(counted=-7), True),
            (lambda request: request._replace(run="another-run"), False),
            (lambda request: request._replace(broadcast=request.broadcast._replace(shared=constant(2.0))), True),
            (lambda request: request._replace(broadcast=request.broadcast._replace(round=7)), True),
        ],
    )
    def test_the_same_words_by_another_name(self, again, at_once, tmp_path):
        """A sum of four was seen and never counted; one of the same words among three would show the fourth's."""
        world, reveals = World(tmp_path), []

        def crash(stage, client, reply):
            reveals.extend([client] if stage == "reveal" else [])
            if len(reveals) == 3 * NODES:  # of the first round, after moments and a measurement
                raise KeyboardInterrupt
            return reply

        wire = Between(world, crash)
        with pytest.raises(KeyboardInterrupt):
            run(wire, 1)
        found = [decode(*read(content)) for stage, _, content, _ in wire.seen if stage == "round"]
        requests = [again(one)._replace(invitation=one.invitation._replace(token="second")) for one in found]
        answers = {one.client: world.ask(one.client, to_bytes(*encode(one))) for one in requests}
        seated = ["stage" in from_bytes(answer)[1] for answer in answers.values()]
        assert seated == [not at_once] * NODES
        if at_once:
            return
        aggregator = Aggregator(session_of(requests[0], ITEMS), PINNED)
        listed = aggregator.take_adverts({k: to_adverts(read_stage(one).arrays)[0] for k, one in answers.items()})
        said = {k: self.ask(world, "share", k, from_adverts(listed)) for k in answers}
        sealed = aggregator.take_sealed({k: to_table(reply.arrays, SEALED) for k, reply in said.items()})
        for k in answers:
            assert self.ask(world, "mask", k, from_table(sealed[k], SEALED)).status == "ok"
        for k in (0, 1, 2):
            assert self.ask(world, "confirm", k, from_members((0, 1, 2))).status == "not-hidden"
        assert self.ask(world, "confirm", 3, from_members((0, 1, 2, 3))).status == "ok"  # as the first time

    def ask(self, world, stage, client, arrays):
        return read_stage(world.ask(client, encode_stage(Stage("second", client, stage, arrays))))

    def test_numbers_that_would_make_the_failure_tell(self, tmp_path):
        """A V that breaks those who rated an item: all nodes answer alike, whatever they rated."""
        world = World(tmp_path)
        asked = broadcast_of(world)
        for item in range(ITEMS):
            for value in (np.nan, np.inf, 1e200):
                V = asked.V.copy()
                V[item] = value
                assert {refused(world, asked._replace(V=V), k).status for k in range(NODES)} == {"diverged"}
        bad = Scaling(0.0, 0.0)
        assert {refused(world, asked._replace(scaling=bad), k).status for k in range(NODES)} == {"malformed"}

    def test_what_fails_in_a_hidden_run_ends_it_for_good(self, tmp_path, monkeypatch):
        """It may depend on the ratings: it is told once, and not again and again."""
        world = World(tmp_path)
        asked = broadcast_of(world)
        with monkeypatch.context() as patched:
            patched.setattr(FixedPointSum, "reply", broken)
            assert refused(world, asked).status == "diverged"
        assert refused(world, asked).status == "diverged"
        world.revive(0)
        assert refused(world, asked).status == "diverged"

    def test_an_invitation_that_comes_twice_finds_the_same_seat(self, tmp_path):
        """A slow node is asked again while it works: its first advert must still hold."""
        world = World(tmp_path)
        asked = sealed(0, engine_on(None).asking.encoded(0, broadcast_of(world), invitation()))
        first = world.nodes[0].answer_bytes(asked)
        assert world.nodes[0].answer_bytes(asked) == first


def broken(*given):
    raise Diverged(1, "numbers", "cure")
