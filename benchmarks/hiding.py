"""What secure aggregation and clipping cost, and what clipping is good for.

    python benchmarks/hiding.py [SECTION ...]      overhead members clip support

overhead  CPU and bytes that secagg adds to a client's round: 10 clients at MovieLens 10M's shape, rank 10
members   100 members of a tiny payload in one process: seconds of a member, and of the server
clip      MovieLens 1M (FEDMC_DATA), 60 clients, one of which sends its changes times 1000, and times -1000
support   MovieLens 100K (FEDMC_DATA), 40 clients, 10 a round: what decoys cost, and what an absence of each client
          tells in spite of them
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.client import respond
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.audit import group_testing
from fedmc.audit.audit import count_items
from fedmc.audit.observer import watch
from fedmc.audit.support import attack as attack_support
from fedmc.data import synthetic
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.prepare import Plan, federation_of
from fedmc.federation.secagg_messages import Stage, encode_stage, masked_arrays, opened_arrays
from fedmc.federation.wire import OK, Reply, encode_reply, to_bytes
from fedmc.privacy.secagg import member as protocol
from fedmc.privacy.secagg.aggregator import Aggregator
from fedmc.privacy.secagg.member import Member, MemberState
from fedmc.privacy.secagg.rules import Rules, cohort_for, colluders, losses_of
from fedmc.privacy.secagg.session import Invited, Session
from fedmc.training import decoys
from fedmc.training.decoys import SHARE
from fedmc.training.fixed_point import flat
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.sums import FixedPointSum

CLIENTS = 10


def overhead() -> None:
    ratings = synthetic.make_ratings(synthetic.like("ml-10m"))
    shards = make_shards(ratings, assign_users(len(ratings.users), CLIENTS, 0), "float64")
    settings = Settings.preset("fast", rank=10, active=CLIENTS, normalise="none", privacy="secagg")
    first = Broadcast("round", 1, CLIENTS, settings, start_items(len(ratings.items), settings))
    plain = [respond(shard, None, first)[0] for shard in shards]
    counted = [FixedPointSum().reply(shard, None, first)[0] for shard in shards]
    broadcast = first._replace(round=2, V=first.V * 1.01)
    for name in ("warm-up", "measured"):  # the first time compiles
        ours = [_plainly(shard, state, broadcast) for shard, state in zip(shards, plain, strict=True)]
        theirs = _hidden(shards, counted, broadcast)
        if name == "measured":
            bytes_plain, bytes_hidden = (int(np.mean([one[1] for one in each])) for each in (ours, theirs))
            cpu_plain, cpu_hidden = (np.median([one[0] for one in each]) for each in (ours, theirs))
            protocol = np.median([one[2] for one in theirs])
            print(f"a client's round: plain {1e3 * cpu_plain:.0f} ms of CPU, secagg {1e3 * cpu_hidden:.0f} ms")
            more = 1e3 * (cpu_hidden - cpu_plain)
            print(f"  more: {more:.0f} ms; the protocol alone {1e3 * protocol:.0f} ms (at most 100)")
            print(
                f"  up: plain {bytes_plain / 1e6:.2f} MB, secagg {bytes_hidden / 1e6:.2f} MB, "
                f"{100 * (bytes_hidden / bytes_plain - 1):+.1f} % (at most 10)"
            )


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def _plainly(shard: Any, state: Any, broadcast: Broadcast) -> tuple[float, int]:
    def work() -> bytes:
        _, sums = respond(shard, state, broadcast)
        return to_bytes(*encode_reply(Reply("run", shard.client, broadcast.round, broadcast.task, OK, sums)))

    seconds, content = _timed(work)
    return seconds, len(content)


def _hidden(shards: Any, states: Any, broadcast: Broadcast) -> list[tuple[float, int, float]]:
    """(all CPU, bytes, CPU of the protocol) of each client, through real members."""
    words, spent = [], []
    for k, shard in enumerate(shards):
        seconds, found = _timed(lambda shard=shard, k=k: _reply(shard, states[k], broadcast))
        words.append(found)
        spent.append(seconds)
    members, _ = _sum_of(words)
    return [(spent[k] + seconds, size, seconds) for k, (seconds, size) in enumerate(members)]


def _sum_of(words: list[Any]) -> tuple[list[tuple[float, int]], float]:
    """(CPU, bytes up) of each member in one secure sum, and the server's CPU."""
    everyone = range(len(words))
    keys = [Ed25519PrivateKey.generate() for _ in everyone]
    pinned = {k: key.public_key() for k, key in enumerate(keys)}
    demands = Rules(cohort_for(len(words)), colluders(len(words)))
    members = [Member("run", k, key, pinned, demands) for k, key in enumerate(keys)]
    begun = [protocol.hello(member, MemberState()) for member in members]
    invited = tuple(Invited(public) for _, public in begun)
    session = Session("run", 1, 1, bytes(32), invited, losses_of(len(words)), b"", len(words[0]))
    aggregator, spent, sizes, server = Aggregator(session, pinned), np.zeros(len(words)), [0] * len(words), 0.0
    states = [state for state, _ in begun]

    def say(k: int, stage: str, arrays: Any) -> bytes:
        return encode_stage(Stage("run", k, stage, arrays))

    def mask(k: int) -> tuple[Any, Any]:
        protocol.check(members[k], states[k], session)
        state, masked = protocol.reply(members[k], states[k], session, words[k].view(np.uint64), failed=False)
        return state, (masked, say(k, "masked", masked_arrays(masked)))

    for k in everyone:
        seconds, (states[k], (masked, content)) = _timed(lambda k=k: mask(k))
        spent[k], sizes[k] = spent[k] + seconds, sizes[k] + len(content)
        server += _timed(lambda k=k, masked=masked: aggregator.take_masked(k, masked))[0]
    heads = aggregator.heads()
    for k in everyone:
        seconds, (states[k], opened) = _timed(lambda k=k: protocol.open_(members[k], states[k], session.hash, heads))
        spent[k], sizes[k] = spent[k] + seconds, sizes[k] + len(say(k, "opened", opened_arrays(session.hash, opened)))
        server += _timed(lambda k=k, opened=opened: aggregator.take_opened(k, opened))[0]
    seconds, found = _timed(aggregator.unmask)
    assert np.array_equal(found.words, np.sum([one.view(np.uint64) for one in words], axis=0, dtype=np.uint64))
    return list(zip(spent.tolist(), sizes, strict=True)), server + seconds


def members() -> None:
    """100 members of a tiny payload in one process."""
    words = [np.arange(1000) + k for k in range(100)]
    for name in ("warm-up", "measured"):
        each, server = _sum_of(words)
        if name == "measured":
            slowest = max(seconds for seconds, _ in each)
            print(f"100 members: a member {slowest:.3f} s (at most 0.3), the server {server:.2f} s (at most 3)")


def _reply(shard: Any, state: Any, broadcast: Broadcast) -> Any:
    """A client's reply as the vector that is masked."""
    return flat(FixedPointSum().reply(shard, state, broadcast)[1], schema_of(broadcast, len(broadcast.V)))


def clip() -> None:
    folder = Path(os.environ["FEDMC_DATA"])
    plan = Plan(str(folder / "ml-1m" / "ratings.dat"), split="random:0.2", clients=60, seed=0)
    shards = federation_of(plan, "float64").shards
    for update in ("curvature", "exact"):
        settings = Settings.preset("fast", rank=5, active=60, update=update)
        clean = _rmse(shards, settings)
        honest = _rmse(shards, settings.replace(clip=1.0))
        print(f"{update}: clean {clean:.4f}, clipped {honest:.4f}, {100 * (honest / clean - 1):+.2f} % (at most 1)")
        for times in (1000, -1000):
            kept = _rmse(shards, settings.replace(clip=1.0), times)
            bare = _rmse(shards, settings.replace(clip=1e9), times)
            print(f"  one times {times}: {kept:.4f}, {kept / clean:.3f} of clean (at most 1.1); not clipped {bare:.4f}")


def _rmse(shards: Any, settings: Settings, times: int = 1, number: int = 20) -> float:
    """Test RMSE after so many rounds in which client 7 sends its changes `times` too large."""
    honest = FixedPointSum.reply

    def reply(self: FixedPointSum, shard: Any, state: Any, broadcast: Broadcast) -> Any:
        after, sums = honest(self, shard, state, broadcast)
        if shard.client == 7 and broadcast.task == "round":
            sums.parts["S"] = sums["S"] * times
        return after, sums

    FixedPointSum.reply = reply  # type: ignore[method-assign]
    try:
        *_, last = islice(rounds(LocalEngine(shards), settings, measure_every=number), number + 1)
    except ValueError as error:
        print(f"  ({error})")
        return float("nan")
    finally:
        FixedPointSum.reply = honest  # type: ignore[method-assign]
    assert last.diagnostics.test_rmse is not None
    return last.diagnostics.test_rmse


PARTITIONS = 3  # of the users among the clients; figures are means over them
HELD = {"split": "random:0.1", "validation": "random:0.1"}
RATES = ((0.0, SHARE), (0.3, SHARE), (1.0, SHARE))  # of decoys, and the part of a real rating's error that they have
MORE_RATES = ((0.1, SHARE), (0.5, SHARE), (1.0, 0.3), (1.0, 1.0))


def support() -> None:
    """Each line: 40 rounds for the RMSE; for the attacks all ratings, and 40 rounds more, in which each misses one."""
    print("MovieLens 100K, 40 clients, 10 a round, rank 10; advantage: AUC of the best score minus that of popularity")
    print(f"{'':31} MB up  validation RMSE  test RMSE        named, wrong  advantage: all, rare (each partition)")
    for name, options in {"curvature": {}, "bayes": {"preset": "bayes"}, "exact": {"update": "exact"}}.items():
        base: tuple[float, ...] = ()
        for rate, share in (*RATES, *(MORE_RATES if name == "curvature" else ())):
            decoys.SHARE = share
            words = {"preset": "fast", "rank": 10, "active": 10, "privacy": "secagg", "decoys": rate} | options
            settings = Settings.preset(str(words.pop("preset")), **words)
            cost = tuple(np.mean([_costs(settings, seed) for seed in range(PARTITIONS)], axis=0))
            base = base or cost
            what = f"{name}, plain rows" if not rate else f"{name}, decoys {rate:g}, error x {share:g}"
            errors = "  ".join(f"{cost[k]:.4f} {100 * (cost[k] / base[k] - 1):+.2f} %" for k in (1, 2))
            told = [_told(settings, seed) for seed in range(PARTITIONS)]
            print(f"{what:35} {cost[0] / 1e6:.1f}  {errors}  {_in_words(np.array(told))}", flush=True)
    decoys.SHARE = SHARE
    settings = Settings.preset("fast", rank=10, active=10, privacy="secagg", decoys=1.0)
    told = [_told(settings, seed, absences=4, number=200) for seed in range(PARTITIONS)]
    print(f"curvature, decoys 1, error x {SHARE:g}, 4 absences each, 200 rounds  {_in_words(np.array(told))}")


def _in_words(told: Any) -> str:
    named, wrong, whole, rare = told.mean(axis=0)
    each = " ".join(f"{one:+.3f}" for one in told[:, 3])
    return f"{100 * named:4.1f} %, {wrong:,.0f}  {whole:+.4f}  {rare:+.3f} ({each})"


def _shards_100k(seed: int, **held: str) -> Any:
    source = Path(os.environ["FEDMC_DATA"]) / "ml-100k" / "u.data"
    return federation_of(Plan(str(source), clients=40, seed=seed, **held), "float64").shards  # type: ignore[arg-type]


def _costs(settings: Settings, seed: int) -> tuple[float, ...]:
    """Bytes up, and RMSE of validation and of test ratings."""
    history = list(islice(rounds(LocalEngine(_shards_100k(seed, **HELD)), settings, measure_every=40), 41))
    last = history[-1].diagnostics
    assert last.validation_rmse is not None
    assert last.test_rmse is not None
    return sum(one.bytes_up for one in history), last.validation_rmse, last.test_rmse


def _told(settings: Settings, seed: int, absences: int = 1, number: int = 80) -> tuple[float, ...]:
    """Ratings of rare items that group testing names, its wrong claims, the advantage over popularity: all, rare."""
    shards = _shards_100k(seed)
    engine = watch(shards, settings, (0,), number, absences)
    truth = np.array([count_items(shard) > 0 for shard in shards])
    proven = group_testing.attribute(engine.sums, engine.cohorts, truth)
    found = attack_support(engine.sums, engine.cohorts, truth, np.sum([count_items(shard) for shard in shards], axis=0))
    named = proven.named / proven.rare
    return named, proven.wrong, found.attack - found.guess, found.rare_attack - found.rare_guess


if __name__ == "__main__":
    sections = {"overhead": overhead, "members": members, "clip": clip, "support": support}
    for name in sys.argv[1:] or sections:
        sections[name]()
