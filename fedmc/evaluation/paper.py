"""The experiments of the paper as studies on any source: Section 5, Figure 1, the authors' code, and one of our own.

The paper does not state beta, so it is an option here. All other settings are the paper's: U and V uniform in [0, 1],
raw ratings, no biases, 100 clients of which 10 take part in a round, 100 rounds.

Time differs from run to run. Figures by time have CPU time, which other programs on the machine do not change.
"""

from __future__ import annotations

from typing import Unpack

from fedmc.evaluation.study import Axis, Case, Figure, Measure, Panel, Study, StudyOptions

WEIGHT = 1e-6
BETA = 0.3
BETAS = (0.03, 0.1, 0.3, 1.0, 3.0)
STEPS = (5, 10, 15, 20, 25, 30)
WEIGHTS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
FACTORS = (1, 3, 10, 30)  # of beta, for larger data
CODE_RANK, CODE_START, CODE_BETA, CODE_ITEMS = 50, 2e-4, 1e4, "l2:0.1"  # choices of the authors' published code
BOTH_WAYS: tuple[Measure, ...] = ("objective", "objective_at_copies", "test_rmse")
RANKS = {"ml-1m": 5, "ml-10m": 8, "netflix": 13}


def rank_for(source: str) -> int:
    """The paper's rank r for its three data sets, else 5."""
    return next((rank for name, rank in RANKS.items() if name in source), 5)


def _ours(beta: float) -> str:
    return f"FedMC-ADMM, beta = {beta:g}"


def convergence(source: str, rank: int, beta: float = BETA, **changes: Unpack[StudyOptions]) -> Study:
    """FedMC-ADMM and FedMAvg with squared l2 of weight 1e-6, N = Q1 = Q2 = 10; and FedMC-ADMM with other betas.

    FedMAvg updates U of all clients in every round, as in the paper. It runs with consistent steps, with those printed
    in the paper, which are p times smaller, and with U of the sampled clients only, as in all other methods.
    """
    spec = f"l2:{WEIGHT}"
    common: dict[str, object] = {
        "preset": "paper",
        "rank": rank,
        "penalty_users": spec,
        "penalty_items": spec,
        "inner_steps": 10,
    }
    ours = Case(_ours(beta), "fedmc-paper", common | {"beta": beta})
    everybody = common | {"update_users": "all"}
    theirs = (
        Case("FedMAvg", "fedmavg", everybody),
        Case("FedMAvg, steps as printed", "fedmavg-printed", everybody),
        Case("FedMAvg, U of sampled clients", "fedmavg", common),
    )
    swept = tuple(Case(_ours(b), "fedmc-paper", common | {"beta": b}) for b in BETAS if b != beta)
    pair, sweep = (ours.label, *(case.label for case in theirs)), (ours.label, *(case.label for case in swept))
    figures = (
        Figure(
            "convergence",
            "FedMC-ADMM and FedMAvg",
            (Panel("objective", "round", labels=pair), Panel("test_rmse", "round", labels=pair)),
        ),
        Figure(
            "beta",
            "The beta the paper does not state",
            (Panel("objective", "round", labels=sweep), Panel("test_rmse", "round", labels=sweep)),
        ),
    )
    title = f"Convergence: FedMC-ADMM and FedMAvg, rank {rank}"
    return Study(title, source, (ours, *theirs, *swept), figures, **changes)


def inner_steps(source: str, rank: int, beta: float = BETA, **changes: Unpack[StudyOptions]) -> Study:
    """l1 of weight 1e-6, N = 5 to 30, by training time: with a pass over the ratings per step, and by the Gram."""
    spec = f"l1:{WEIGHT}"
    common: dict[str, object] = {"rank": rank, "penalty_users": spec, "penalty_items": spec, "beta": beta}
    cases, figures = [], []
    for passes, how in (
        (True, "a pass over the ratings a step, as in the paper"),
        (False, "by the Gram: same iterates"),
    ):
        ending = "" if passes else ", Gram"
        group = [Case(f"N = {N}{ending}", "fedmc-paper", common | {"inner_steps": N, "passes": passes}) for N in STEPS]
        labels = tuple(case.label for case in group)
        drawn: tuple[tuple[Measure, Axis], ...] = (
            ("objective", "seconds"), ("objective", "cpu_seconds"), ("test_rmse", "cpu_seconds"),
        )  # fmt: skip
        panels = tuple(Panel(y, x, labels=labels) for y, x in drawn)
        figures.append(Figure("inner-steps" + ("" if passes else "-gram"), f"Inner steps, {how}", panels))
        cases += group
    return Study(f"Inner steps: l1, rank {rank}, beta = {beta:g}", source, tuple(cases), tuple(figures), **changes)


def sparsity(source: str, rank: int, beta: float = BETA, **changes: Unpack[StudyOptions]) -> Study:
    """l1, gamma = 10 lambda beta, lambda from 1e-6 to 1e-1: objective, RMSE and share of non-zeros in U and V."""
    common: dict[str, object] = {"rank": rank, "beta": beta, "inner_steps": 10}
    cases = tuple(
        Case(
            f"lambda = {weight:.0e}",
            "fedmc-paper",
            common | {"penalty_users": f"l1:{weight}", "penalty_items": f"l1:{10 * weight * beta}"},
        )
        for weight in WEIGHTS
    )
    panels = Panel("nonzeros", "cpu_seconds"), Panel("objective", "cpu_seconds"), Panel("test_rmse", "cpu_seconds")
    figures = (Figure("sparsity", "The weight of l1", panels),)
    return Study(f"Sparsity: l1, rank {rank}, beta = {beta:g}", source, cases, figures, **changes)


def budget(source: str, rank: int, beta: float = BETA, **changes: Unpack[StudyOptions]) -> Study:
    """Our own: the fast preset within the same budget, and the paper's method, pooled, alone and biases only."""
    cases = (
        Case("fedmc", "fedmc", {"rank": rank}),
        Case("fedmc, update=exact", "fedmc-exact", {"rank": rank}),
        Case(_ours(beta), "fedmc-paper", {"rank": rank, "beta": beta}),
        Case("pooled ALS", "pooled", {"rank": rank}),
        Case("each client alone", "alone", {"rank": rank}),
        Case("biases only", "biases", {"rank": rank}),
    )
    panels = Panel("test_rmse", "round"), Panel("test_rmse", "megabytes")
    figures = (Figure("budget", "Test RMSE by round and by what travelled", panels),)
    return Study(f"The same budget, rank {rank}", source, cases, figures, **changes)


def size(source: str, rank: int, beta: float = BETA, **changes: Unpack[StudyOptions]) -> Study:
    """FedMC-ADMM with growing betas and FedMAvg, U of sampled clients in both, at little cost: for large data.

    A client's part of the objective grows with the number of its ratings, so more of them ask for a larger beta.
    """
    spec = f"l2:{WEIGHT}"
    common: dict[str, object] = {"rank": rank, "penalty_users": spec, "penalty_items": spec, "inner_steps": 10}
    ours = tuple(Case(_ours(factor * beta), "fedmc-paper", common | {"beta": factor * beta}) for factor in FACTORS)
    theirs = (
        Case("FedMAvg, U of sampled clients", "fedmavg", common | {"preset": "paper"}),
        Case("the same, steps as printed", "fedmavg-printed", common | {"preset": "paper"}),
    )
    panels = Panel("objective", "round"), Panel("test_rmse", "round")
    figures = (Figure("size", "FedMC-ADMM and FedMAvg at this size", panels),)
    few: StudyOptions = {"measure_every": 10}
    return Study(f"Size: FedMC-ADMM and FedMAvg, rank {rank}", source, (*theirs, *ours), figures, **(few | changes))


def published(source: str, rank: int, beta: float = BETA, **changes: Unpack[StudyOptions]) -> Study:
    """The choices of the authors' published code beside the paper's: one at a time, and all together.

    They are rank 50 for FedMC-ADMM, a start near 0, beta 1e4, z-scored ratings, weights 1e-6 of U and 0.1 of V; for
    FedMAvg steps p times too small. The last two cases have all of them but one. The objective is shown at (U, V) and
    at (U_i, W_i).
    """
    spec = f"l2:{WEIGHT}"
    common: dict[str, object] = {"rank": rank, "penalty_users": spec, "penalty_items": spec, "inner_steps": 10}
    ours = common | {"beta": beta}
    theirs = common | {"preset": "paper", "update_users": "all"}
    code: dict[str, object] = {"normalise": "standard", "start_scale": CODE_START, "penalty_items": CODE_ITEMS}
    whole = code | {"rank": CODE_RANK, "beta": CODE_BETA}
    paper = (Case("FedMC-ADMM, the paper's", "fedmc-paper", ours), Case("FedMAvg, the paper's", "fedmavg", theirs))
    single = (
        Case(f"FedMC-ADMM, rank {CODE_RANK}", "fedmc-paper", ours | {"rank": CODE_RANK}),
        Case(f"FedMC-ADMM, start {CODE_START:g}", "fedmc-paper", ours | {"start_scale": CODE_START}),
        Case(f"FedMC-ADMM, beta = {CODE_BETA:g}", "fedmc-paper", ours | {"beta": CODE_BETA}),
        Case("FedMAvg, steps / p", "fedmavg-printed", theirs),
    )
    both = (
        Case("FedMC-ADMM, the code's", "fedmc-paper", ours | whole),
        Case("FedMAvg, the code's", "fedmavg-printed", theirs | code),
        Case(f"FedMC-ADMM, the code's but rank {rank}", "fedmc-paper", ours | whole | {"rank": rank}),
        Case("FedMAvg, the code's but not its steps", "fedmavg", theirs | code),
    )
    names = [tuple(case.label for case in group) for group in (paper, (paper[0], *single), both)]
    titles = "The paper's algorithms", "One choice of the code at a time", "All choices of the code"
    figures = tuple(
        Figure(f"published-{number}", title, tuple(Panel(y, "round", labels=labels) for y in BOTH_WAYS))
        for number, (title, labels) in enumerate(zip(titles, names, strict=True), 1)
    )
    return Study(f"The published code's choices, rank {rank}", source, (*paper, *single, *both), figures, **changes)


def scenario(source: str, rank: int, beta: float = BETA, **changes: Unpack[StudyOptions]) -> Study:
    """Figure 1: clients with users of their own and the same items, here of very unequal sizes.

    Together under the paper's method and the fast preset, each alone, and all ratings in one place.
    """
    cases = (
        Case(_ours(beta), "fedmc-paper", {"rank": rank, "beta": beta}),
        Case("fedmc, update=exact", "fedmc-exact", {"rank": rank}),
        Case("each client alone", "alone", {"rank": rank}),
        Case("pooled ALS", "pooled", {"rank": rank}),
    )
    figures = (Figure("scenario", "Clients of unequal size", (Panel("test_rmse", "round"),)),)
    unequal: StudyOptions = {"partition": "power:1"}
    return Study(f"Figure 1: users apart, items shared, rank {rank}", source, cases, figures, **(unequal | changes))


EXPERIMENTS = {
    "convergence": convergence, "inner-steps": inner_steps, "sparsity": sparsity, "published": published,
    "scenario": scenario, "size": size, "budget": budget,
}  # fmt: skip
