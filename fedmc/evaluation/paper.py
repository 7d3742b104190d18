"""The three experiments of the paper's Section 5, and one of our own, as studies on any source.

The paper does not state beta, so it is an option here. All other settings are the paper's: U and V uniform in [0, 1],
raw ratings, no biases, 100 clients of which 10 take part in a round, 100 rounds.
"""

from __future__ import annotations

from typing import Unpack

from fedmc.evaluation.study import Case, Figure, Panel, Study, StudyOptions

WEIGHT = 1e-6
BETA = 0.3
BETAS = (0.03, 0.1, 0.3, 1.0, 3.0)
STEPS = (5, 10, 15, 20, 25, 30)
WEIGHTS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
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
        panels = Panel("objective", "seconds", labels=labels), Panel("test_rmse", "seconds", labels=labels)
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
    panels = Panel("objective", "seconds"), Panel("test_rmse", "seconds"), Panel("nonzeros", "seconds")
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


EXPERIMENTS = {"convergence": convergence, "inner-steps": inner_steps, "sparsity": sparsity, "budget": budget}
