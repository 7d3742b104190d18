"""`fedmc tune`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from fedmc.algorithms.settings import Settings
from fedmc.cli import options
from fedmc.cli.display import print_table
from fedmc.cli.echo import tell
from fedmc.cli.feedback import check_fits, decide, wanted_by
from fedmc.cli.groups import Events, Form, Table
from fedmc.cli.parsing import parse_integers
from fedmc.cli.runs import to_json
from fedmc.cli.simulate import set_active, trials_bar, warm_up
from fedmc.data import splits
from fedmc.data.partition import Federation
from fedmc.data.prepare import Plan, federation_of
from fedmc.training import event_tuning, tuning
from fedmc.training import ranks as by_rank
from fedmc.training.event_tuning import EventTrial
from fedmc.training.ranks import RankTrial
from fedmc.training.tuning import Budget, Trial

Option = typer.Option
NO_NEED = "the default preset, bayes, needs no tuning"
HELD_OUT = "RMSE on ratings that the clients held out"


def tune(
    source: options.Source,
    preset: Annotated[
        Literal["fast", "bayes", "implicit"] | None,
        Option(
            help="Preset to tune: fast (rank and penalty), bayes (only the rank: it has no penalty), or implicit "
            "(rank, alpha0 and lambda of a model of events).",
            show_default="fast, or implicit with --feedback implicit",
        ),
    ] = None,
    ranks: Annotated[
        str | None, Option(help="Ranks to try, separated by commas.", show_default="5,10,20; of events 32,64,128")
    ] = None,
    trials: Annotated[
        int | None,
        Option(
            help="Maximum number of penalty weights to try for each rank; bayes has none; of events, of all trials.",
            show_default=f"6; of events {event_tuning.TRIALS}",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        Option(
            help="Communication rounds of each trial.",
            show_default=f"{tuning.PASSES} passes over the clients, {by_rank.PASSES} with bayes",
        ),
    ] = None,
    validation: Annotated[str, Option(help="Share of each client's ratings to validate on.")] = "0.1",
    active: options.Active = None,
    test: options.Test = "0.2",
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    *,
    table: Table,
    form: Form,
    events: Events,
) -> None:
    """Choose rank and penalty by the error on ratings that the clients hold out. Test ratings play no part.

    The default preset of `fedmc train`, bayes, needs no tuning: this is for the preset fast, and for events.

    Give `fedmc train` the same --test and --seed: it then tests on the ratings that were put aside here.
    """
    if preset is None:
        preset = "implicit" if events.feedback == "implicit" else "fast"
    wanted = wanted_by(events, preset, None)
    of_events = wanted == "implicit"
    usual = ",".join(map(str, event_tuning.RANKS)) if of_events else "5,10,20"
    chosen_ranks = sorted(set(parse_integers(usual if ranks is None else ranks, "--ranks")))
    most = (event_tuning.TRIALS if of_events else 6) if trials is None else trials
    budget = Budget(most, rounds, splits.parse_share(validation))
    plan = Plan(
        source, table.names, table.query, table.duplicates, table.catalogue, split=test, partition=table.partition,
        clients=table.clients, seed=seed, wide=form.chosen(),
    )  # fmt: skip
    penalty = "auto" if preset == "fast" else None  # mode: the preset with a penalty to tune
    first = min(chosen_ranks) if of_events else max(chosen_ranks)
    settings = Settings.preset(preset, rank=first, active=active, penalty_users=penalty, seed=seed)
    decided = decide(plan, events, wanted)
    check_fits(settings, decided)
    federation = federation_of(decided.plan, settings.dtype, decided.ratings)
    tell(federation.notes)
    settings = set_active(settings, active, len(federation.shards))
    tuned = _tune_penalty if settings.needs_tuning else _tune_events if of_events else _compare_ranks
    result = tuned(federation, settings, budget, chosen_ranks)
    if as_json:
        typer.echo(to_json(result))


def _tune_penalty(
    federation: Federation, settings: Settings, budget: Budget, ranks: Sequence[int]
) -> dict[str, object]:
    """Choose rank and penalty of the preset fast, and print the trials."""
    each = budget.rounds_of_a_trial(settings, len(federation.shards))
    cost = f"at most {budget.trials} trials of {each} rounds for each of {len(ranks)} rank(s)"
    typer.echo(f"{NO_NEED}; tuning rank and penalty of the preset fast: {cost}", err=True)
    warm_up(settings, federation)
    with trials_bar(budget.trials * len(ranks)) as show:
        done = tuning.choose(federation.shards, settings, budget, ranks, show)
    best = tuning.best(done)
    penalty = tuning.in_words(best.weight)
    _print_trials(done, best)
    typer.echo(f"chosen: --rank {best.rank} --penalty-users {penalty} --preset fast")
    result = {"rank": best.rank, "penalty_users": penalty, "validation_rmse": best.validation_rmse}
    return result | {"trials": [trial._asdict() for trial in done]}


def _tune_events(federation: Federation, settings: Settings, budget: Budget, ranks: Sequence[int]) -> dict[str, object]:
    """Choose rank, alpha0 and lambda of a model of events, and print the trials."""
    typer.echo(f"tuning rank, alpha0 and lambda by NDCG@10: at most {budget.trials} trials", err=True)
    warm_up(settings, federation)

    def show(trial: EventTrial) -> None:
        said = f"rank {trial.rank}, ials:{trial.alpha0:g},{trial.weight:g}: NDCG@10 {trial.validation_ndcg:.4f}"
        typer.echo(said, err=True)

    done = event_tuning.choose(federation.shards, settings, budget, ranks, show)
    best = event_tuning.best(done)
    rows = [
        (str(t.rank), f"{t.alpha0:.4g}", f"{t.weight:.4g}", f"{t.validation_ndcg:.4f}", str(t.rounds),
         f"{t.bytes_up / 1e6:,.1f}", f"{t.seconds:.1f}")
        for t in done
    ]  # fmt: skip
    columns = "rank", "alpha0", "lambda", "validation NDCG@10", "rounds", "MB up", "seconds"
    print_table("NDCG@10 on events that the clients held out", columns, rows, done.index(best))
    algorithm = str(event_tuning.tuned(settings, best).algorithm)
    typer.echo(f"chosen: --feedback implicit --rank {best.rank} --algorithm {algorithm}")
    result = {"rank": best.rank, "algorithm": algorithm, "validation_ndcg": best.validation_ndcg}
    return result | {"trials": [trial._asdict() for trial in done]}


def _compare_ranks(
    federation: Federation, settings: Settings, budget: Budget, ranks: Sequence[int]
) -> dict[str, object]:
    """Compare ranks of the preset bayes, and print the trials."""
    each = by_rank.rounds_of_a_trial(settings, len(federation.shards), budget.rounds)
    cost = f"1 trial of {each} rounds for each of {len(ranks)} rank(s)"
    typer.echo(f"{NO_NEED}, and `fedmc train --rank auto` chooses a rank; comparing ranks: {cost}", err=True)
    warm_up(settings, federation)

    def show(trial: RankTrial) -> None:
        typer.echo(f"rank {trial.rank}: validation RMSE {trial.validation_rmse:.4f}", err=True)

    done = by_rank.compare(federation.shards, settings, ranks, budget, show)
    best = by_rank.best(done)
    rows = [
        (str(t.rank), str(t.used), f"{t.validation_rmse:.4f}", str(t.rounds), f"{t.bytes_up / 1e6:,.1f}",
         f"{t.seconds:.1f}")
        for t in done
    ]  # fmt: skip
    columns = "rank", "factors used", "validation RMSE", "rounds", "MB up", "seconds"
    print_table(HELD_OUT, columns, rows, done.index(best))
    typer.echo(f"chosen: --rank {best.rank}")
    result = {"rank": best.rank, "validation_rmse": best.validation_rmse}
    return result | {"trials": [trial._asdict() for trial in done]}


def _print_trials(trials: Sequence[Trial], best: Trial) -> None:
    ordered = sorted(trials, key=lambda trial: (trial.rank, trial.weight))
    rows = [
        (str(t.rank), f"{t.weight:.4g}", f"{t.validation_rmse:.4f}", str(t.rounds), f"{t.bytes_up / 1e6:,.1f}",
         f"{t.seconds:.1f}")
        for t in ordered
    ]  # fmt: skip
    columns = "rank", "l2 weight", "validation RMSE", "rounds", "MB up", "seconds"
    print_table(HELD_OUT, columns, rows, ordered.index(best))
