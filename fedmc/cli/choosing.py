"""Rank and penalty that `fedmc train` chooses by short runs, and what it says about them."""

from __future__ import annotations

import typer

from fedmc.algorithms.settings import Settings
from fedmc.cli.simulate import trials_bar, warm_up
from fedmc.data.partition import Federation
from fedmc.errors import InputError
from fedmc.training import event_tuning, ranks, tuning
from fedmc.training.event_tuning import EventTrial
from fedmc.training.ranks import Rank, RankTrial


def parse_rank(words: str) -> Rank:
    if words == ranks.AUTO:
        return ranks.AUTO
    try:
        return int(words)
    except ValueError:
        raise InputError(f"--rank takes a whole number or auto, got {words!r}") from None


def choose_rank(federation: Federation, settings: Settings) -> Settings:
    """The settings with the rank that short runs find; of events, with alpha0 and lambda too."""
    events = event_tuning.is_for(settings)
    if events:
        tried = f"at most {event_tuning.TRIALS} runs, by NDCG@10 on events that each client holds out"
        typer.echo(f"choosing alpha0, lambda and the rank: {tried}", err=True)
    else:
        each = ranks.rounds_of_a_trial(settings, len(federation.shards))
        growing = f"rank {ranks.FIRST}, doubled up to {ranks.LARGEST} while over {ranks.NEARLY_ALL:.0%} of the factors"
        typer.echo(f"choosing the rank by runs of {each} rounds: {growing} are used", err=True)
    warm_up(settings, federation)

    def show(trial: RankTrial | EventTrial) -> None:
        typer.echo(f"{_in_words(trial)} ({trial.seconds:.1f} seconds)", err=True)

    found, _ = ranks.chosen(federation.shards, settings, ranks.AUTO, show)
    spec = f" --algorithm {found.make_algorithm()}" if events else ""
    typer.echo(f"chosen: rank {found.rank}{spec}", err=True)
    return found


def _in_words(trial: RankTrial | EventTrial) -> str:
    if isinstance(trial, RankTrial):
        return f"rank {trial.rank}: {trial.used} factors used"
    point = f"rank {trial.rank}, alpha0 {trial.alpha0:g}, lambda {trial.weight:g}"
    return f"{point}: validation NDCG@10 {trial.validation_ndcg:.4f}"


def tune_penalty(federation: Federation, settings: Settings) -> Settings:
    """The settings with the l2 penalty that has the lowest error on ratings that the clients hold out."""
    budget = tuning.Budget()
    each = budget.rounds_of_a_trial(settings, len(federation.shards))
    cost = f"at most {budget.trials} trials of {each} rounds"
    typer.echo(f"tuning the penalty on {budget.share:.0%} of each client's ratings: {cost}", err=True)
    warm_up(settings, federation)
    with trials_bar(budget.trials) as show:
        trials = tuning.choose(federation.shards, settings, budget, on_trial=show)
    best = tuning.best(trials)
    penalty = tuning.in_words(best.weight)
    typer.echo(f"chosen after {len(trials)} trials: {penalty}, validation RMSE {best.validation_rmse:.4f}", err=True)
    return settings.replace(penalty_users=penalty)
