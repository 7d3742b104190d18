"""How close to pooled data: the fast preset's test RMSE against converged pooled ALS of the same model.

    python benchmarks/accuracy.py [SECTION ...]
        movielens uniform unequal sets scale gains penalties bytes
        bayes coverage ranks bayes_participation bayes_scale
        best best_participation activity new_items

Gaps in percent of the pooled test RMSE, the mean over the seeds (their range behind it). All settings are the defaults;
nothing is chosen on test ratings. MovieLens is read from FEDMC_DATA (a folder that holds ml-1m and ml-100k). The
sections on the preset "bayes" are in `bayes.py`, those on its implicit terms and on features in `best.py`.
"""

from __future__ import annotations

import itertools
import sys

import bayes
import best
import numpy as np
from accuracy_common import SEEDS, federated, gaps, movielens, pooled, scale, show, spread

from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.algorithms.users import users_at
from fedmc.data import datasets, partition, synthetic
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random
from fedmc.evaluation.pooled import als, proximal_gradient
from fedmc.problem.losses import Square
from fedmc.problem.subproblem import Problem, squared_error


def occupations(ratings: Ratings, seed: int) -> np.ndarray:
    """The 21 occupations of users.dat."""
    return partition.owners_from_names(datasets.occupations("ml-1m", ratings.users).astype(int), len(ratings.users))


def section_movielens() -> None:
    ratings = movielens("ml-1m")
    for rank in (5, 10):
        at = (20, 40, 100)
        show(f"MovieLens 1M, rank {rank}, 10 of 100 clients", gaps(ratings, rank, spread(100), 10, at), at)


def section_uniform() -> None:
    ratings = movielens("ml-1m")
    for rank in (5, 10):
        at = (20, 40, 100)
        found = gaps(ratings, rank, spread(100), 10, at, sampler="uniform")
        show(f"MovieLens 1M, rank {rank}, drawn independently", found, at)


def section_unequal() -> None:
    ratings = movielens("ml-1m")
    for rank in (5, 10):
        show(f"MovieLens 1M, rank {rank}, all of 10 clients", gaps(ratings, rank, spread(10), 10, (10, 20)), (10, 20))
        at = (20, 40, 100)
        show(f"MovieLens 1M, rank {rank}, 4 of 21 occupations", gaps(ratings, rank, occupations, 4, at), at)


def section_sets() -> None:
    at = (20, 40, 100)
    recipes = {noise: synthetic.Recipe(3000, 800, 150_000, rank=5, noise=noise, seed=1) for noise in (0.3, 0.8)}
    for rank in (5, 10):
        show(f"MovieLens 100K, rank {rank}, 10 of 20", gaps(movielens("ml-100k"), rank, spread(20), 10, at), at)
        show(f"demo set, rank {rank}, 10 of 20", gaps(datasets.demo(), rank, spread(20), 10, at), at)
        departments = gaps(datasets.insteval(), rank, spread(14, "column:dept"), 5, at)
        show(f"InstEval, rank {rank}, 5 of 14 departments", departments, at)
        for noise, recipe in recipes.items():
            found = gaps(synthetic.make_ratings(recipe), rank, spread(20), 10, at)
            show(f"planted, noise {noise} (floor {recipe.noise_floor:.3f}), rank {rank}", found, at)


def section_scale() -> None:
    """Ten updates a client, however they are drawn."""
    scale("fast")


def section_gains() -> None:
    """Test RMSE of the joint model and of a client's own, by the size of the client."""
    ratings = movielens("ml-1m")
    for label, owners, active in (
        ("100 clients, sizes power:1", spread(100, "power:1"), 10),
        ("21 occupations", occupations, 4),
    ):
        lines = []  # (client, ratings, test ratings, squared error together, alone)
        for seed in SEEDS:
            train, test = at_random(ratings, 0.2, seed)
            settings = Settings.preset("fast", rank=10, active=active, seed=seed)
            shards = make_shards(train, owners(ratings, seed), "float64", test)
            history, engine = federated(shards, settings, (100,))
            last = history[-1]
            for shard, state in zip(shards, engine.states, strict=True):
                U = users_at(shard, state, last.broadcast)
                together = squared_error(Problem(shard.test, Square(), last.scaling), last.V, U)
                alone = als(shard, *settings.penalties(1), settings.width, seed=seed).squared_error(shard.test)
                lines.append((shard.client, shard.by_user.nnz, shard.test.nnz, together, alone))
        table = np.array(lines, float)
        by_client = np.array([table[table[:, 0] == client].sum(axis=0) for client in np.unique(table[:, 0])])
        better = (by_client[:, 3] <= by_client[:, 4]).sum()
        print(
            f"{label}: {better} of {len(by_client)} clients err no more together than alone (over {len(SEEDS)} seeds)"
        )
        for group in np.array_split(by_client[np.argsort(by_client[:, 1])], 5):
            sizes = group[:, 1] / len(SEEDS)
            joint, own = (float(np.sqrt(group[:, k].sum() / group[:, 2].sum())) for k in (3, 4))
            size = f"{len(group)} clients of {sizes.min():,.0f} to {sizes.max():,.0f} ratings"
            print(f"  {size:44} together {joint:.4f}  alone {own:.4f}  {100 * (joint / own - 1):6.2f} %", flush=True)


def section_penalties() -> None:
    """The objective where the fast preset ends, and a pooled proximal solver, from there and from the start."""
    ratings = synthetic.make_ratings(synthetic.Recipe(300, 60, 6000, rank=3, noise=0.3, seed=1))
    for words in ("l1:2", "elastic-net:1,2", "non-negative+l2:2", "non-negative"):
        ends = []
        for seed in SEEDS:
            settings = Settings.preset("fast", rank=3, active=2, penalty_users=words, seed=seed)
            penalties = settings.penalties(1)
            owner = partition.assign_users(len(ratings.users), 10, seed)
            history, _ = federated(make_shards(ratings, owner, "float64"), settings, (2000,))
            table = make_shards(ratings, np.zeros(len(ratings.users), np.int64), "float64")[0]
            line = [history[-1].diagnostics.objective * 10]
            for V in (history[-1].V, start_items(len(ratings.items), settings)):
                fit = proximal_gradient(table, *penalties, V, history[-1].scaling, sweeps=20_000)
                line.append(fit.objective(table, *penalties))
            ends.append(line)
        found = np.array(ends)
        from_there = np.abs(found[:, 0] / found[:, 1] - 1).max()
        best = found[:, 0].min() / found[:, 2].min() - 1
        print(f"{words:20} from there: {from_there:.1e}  best of {len(SEEDS)} starts each: {best:+.1e}", flush=True)


def section_bytes() -> None:
    """Rounds and megabytes (both ways, all clients) until the gap stays below a mark."""
    ratings = movielens("ml-1m")
    at = tuple(range(5, 201, 5))
    for rank, update in itertools.product((5, 10), ("curvature", "exact")):
        train, test = at_random(ratings, 0.2, SEEDS[0])
        settings = Settings.preset("fast", rank=rank, active=10, seed=SEEDS[0], update=update)
        mark = pooled(ratings, rank, SEEDS[0])
        shards = make_shards(train, spread(100)(ratings, SEEDS[0]), "float64", test)
        history, _ = federated(shards, settings, at)
        errors = np.array([100 * (round.diagnostics.test_rmse / mark - 1) for round in history])
        a_round = (history[-1].bytes_up + history[-1].bytes_down) / 1e6
        cells = []
        for limit in (2, 1, 0.5, 0.3, 0.1):
            above = np.flatnonzero(errors > limit)
            first = 0 if not len(above) else above[-1] + 1
            number = f"{at[first]} rounds {at[first] * a_round:,.0f} MB" if first < len(at) else "not in 200"
            cells.append(f"{limit} %: {number}")
        print(f"rank {rank}, update={update:10} {'   '.join(cells)}", flush=True)


SECTIONS = {name.removeprefix("section_"): value for name, value in globals().items() if name.startswith("section_")}
SECTIONS |= bayes.SECTIONS | best.SECTIONS

if __name__ == "__main__":
    for name in sys.argv[1:] or SECTIONS:
        if name not in SECTIONS:
            sys.exit(f"unknown section {name!r}: choose from {', '.join(SECTIONS)}")
        print(f"== {name}", flush=True)
        SECTIONS[name]()
