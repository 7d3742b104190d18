"""Attacks on the messages behind prior means from who rated what: whole lists of items, counts of one member."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from fedmc.algorithms import incidence
from fedmc.algorithms.messages import Broadcast, Shared
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.audit import results
from fedmc.audit.audit import FLOATS, audit, listed
from fedmc.audit.item_lists import lists
from fedmc.audit.observer import watch
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import Diverged, FedmcError, TooFewError
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted

USERS, COMMON, EACH = 60, 120, 20  # 60 x 20 = 120 x 10


def ratings(own=False, one_more=False):
    """Users with 20 of 120 items; ten have each item.

    With `own`, each also has an item that nobody else has. With `one_more`, users 0 to 5 have item 120, and users 0 to
    4 have item 121.
    """
    rng = np.random.default_rng(0)
    columns = [some for _ in range(10) for some in rng.permutation(COMMON).reshape(-1, EACH)]
    if one_more:
        columns = [np.append(some, [COMMON, COMMON + 1][: (k < 6) + (k < 5)]) for k, some in enumerate(columns)]
    if own:
        columns = [np.append(some, COMMON + 2 + k) for k, some in enumerate(columns)]
    rows = np.repeat(np.arange(USERS), [len(some) for some in columns])
    values = rng.integers(1, 6, len(rows)).astype(float)
    return Ratings.from_arrays(rows, np.concatenate(columns), values)


def shards_of(clients, table):
    return make_shards(table, np.arange(len(table.users)) % clients, "float64")


def finding(found):
    (one,) = [line for line in found if line.what == "all items of one person"]
    return one


def settings_of(**given):
    return Settings.preset("bayes", rank=2, active=6, **given)


def scores(shards, of=0):
    """Of each client: the lists that are found, scored with the ratings of the client `of` numbers further."""
    engine = watch(shards, settings_of(), range(6), 1)
    patterns = engine.patterns.items()
    return [listed(seen, FLOATS, shards[(client + of) % 6].incidence) for client, seen in patterns]


def test_the_list_of_an_only_rater_in_a_client_is_read_off():
    """In plain mode, though every item has five raters in all; no item that is named is wrong."""
    shards = shards_of(6, ratings())
    found = scores(shards)
    assert sum(one.whole for one in found) >= 50
    assert all(one.right == one.said == EACH * one.whole for one in found)
    said = finding(audit(shards, settings_of(), number=1))
    assert said.sees == results.EACH
    assert said.attack == sum(one.whole for one in found) / USERS


def test_lists_are_without_items_of_few_raters():
    """Everybody has one such item more. A list counts as whole without it."""
    found = scores(shards_of(6, ratings(own=True)))
    assert sum(one.whole for one in found) >= 50
    assert all(one.right == one.said == EACH * one.whole for one in found)
    assert sum(one.ratings for one in found) == (EACH + 1) * USERS


def test_the_same_lists_mean_nothing_at_another_client():
    assert sum(one.whole for one in scores(shards_of(6, ratings()), of=1)) == 0


def of_sum(table):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    found = finding(audit(shards_of(6, table), settings_of(privacy="secagg", min_cohort=3), number=1))
    assert found.sees == results.sum_of(6)
    return found


@pytest.mark.parametrize("own", [True, False])
def test_a_sum_does_not_tell_the_lists_of_those_with_an_item_of_their_own(own):
    """Items with few raters have no lines in it."""
    found = of_sum(ratings(own))
    assert found.attack == 0
    assert "for none of the 60 users" in found.meaning


@pytest.mark.parametrize("own", [True, False])
def test_a_sum_tells_the_lists_of_those_with_an_item_of_their_own_only(own, monkeypatch):
    """If the server asks for rare items too, which no client can know. The test above is not blind."""
    monkeypatch.setattr(incidence, "MIN_RATERS", 1)
    assert of_sum(ratings(own)).attack == (1.0 if own else 0.0)


def test_a_sum_tells_the_list_of_one_person_more():
    """Two items with many raters, of whom one person tells them apart: the difference of their lines is that list."""
    shards = shards_of(6, ratings(one_more=True))
    (found,) = lists(watch(shards, settings_of(), [0], 1).pattern_sums, FLOATS)
    everybody = ratings(one_more=True).matrix
    assert set(found.tolist()) == set(everybody[[5]].indices.tolist())
    assert of_sum(ratings(one_more=True)).attack == 1 / USERS


def test_without_implicit_terms_nobody_is_asked():
    shards = shards_of(6, ratings())
    assert not watch(shards, settings_of(implicit=False), range(6), 1).pattern_sums
    assert all(one.what != "all items of one person" for one in audit(shards, settings_of(implicit=False), number=1))


# --- a server that leaves a member out


def test_counts_and_who_rated_what_are_summed_over_the_same_members(tmp_path, caplog):
    """`moments` counts ratings, and so does the reply to a direction of ones: their difference would be a member's."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.federation.server.secagg_session import SecureAsk
    from tests.secure_world import SecureWorld
    from tests.world import ITEMS as HERE
    from tests.world import KINDS

    settings, world = KINDS["secagg-bayes"].replace(active=8), SecureWorld(tmp_path, 8)
    engine, everybody, others = world.engine(), list(range(8)), list(range(7))

    def refused(engine, asked, members, why):
        """All members refuse, for this reason."""
        caplog.clear()
        with pytest.raises(TooFewError, match=f"0 of {len(members)} nodes take part"):
            SecureAsk(engine.asking, asked, members).run()
        said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused")]
        assert len(said) == len(members)
        assert all(why in one for one in said), said

    asked = Broadcast("moments", 0, 8, settings, start_items(HERE, settings))
    assert SecureAsk(engine.asking, asked, everybody).run().clients == tuple(everybody)
    ones = asked._replace(task="pattern", round=1, shared=Shared({"directions": np.ones((HERE, 1))}))
    other = ones._replace(shared=Shared({"directions": np.full((HERE, 1), 2.0)}))
    refused(engine, other, others, "pattern needs all members, not 7 of them")
    assert SecureAsk(engine.asking, ones, everybody).run().clients == tuple(everybody)
    refused(
        engine, ones._replace(V=ones.V + 1), everybody, "was answered for another V or other settings"
    )  # a step is answered once
    refused(world.engine(run="another"), other, others, "pattern needs all members, not 7 of them")  # in any run
    refused(world.engine(run="a-third"), asked, others, "moments needs all members, not 7 of them")


# --- a client whose reply is hostile


class Hostile(LocalEngine):
    """The simulation, in which one sum about who rated what is replaced."""

    step, part, value = 1, "pattern", 0.0

    def ask(self, broadcast, clients):
        total = super().ask(broadcast, clients)
        if broadcast.task == "pattern" and broadcast.round == self.step:
            total.parts[self.part] = np.full(np.shape(total.parts[self.part]), self.value)
        return total


@pytest.mark.parametrize("value", [0.0, -1e6, 1e12, 1e150, 1e308, -1e308, np.nan])
@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("part", ["pattern", "users"])
def test_a_hostile_reply_ends_the_run_with_a_reason_or_does_no_more_than_mislead(part, step, value):
    engine = Hostile(make_shards(planted(), np.arange(40) % 4, "float64"))
    engine.step, engine.part, engine.value = step, part, value
    settings = Settings.preset("bayes", rank=2, active=4)
    try:
        for round in islice(rounds(engine, settings, measure_every=100), 4):
            settings.make_algorithm().check_broadcast(round.broadcast._replace(task="round"))
    except (Diverged, FedmcError) as error:
        assert str(error)


def test_a_run_cannot_ask_who_rated_what_as_often_as_it_likes(tmp_path):
    """In plain mode too: each other set of directions is a turn of the run, and the policy bounds these."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.federation.setup.policy import DEFAULT
    from tests.world import ITEMS as HERE
    from tests.world import KINDS, World, engine_on

    settings, world = KINDS["bayes"], World(tmp_path, policy=replace(DEFAULT, max_rounds=5))
    engine, answered = engine_on(world, quorum=1), 0
    asked = Broadcast("pattern", 2, 4, settings, start_items(HERE, settings))
    for k in range(30):
        try:
            engine.ask(asked._replace(shared=Shared({"directions": np.full((HERE, 1), 1.0 + k)})), [0])
            answered += 1
        except FedmcError:
            break
    assert answered == 2 * 5 + 10
    world.close()
