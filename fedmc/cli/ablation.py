"""`fedmc train --ablation`: what each part of the model is worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Federation
from fedmc.training import ablation
from fedmc.training.ablation import Variant


def ablate(federation: Federation, settings: Settings, folder: Path, interrupted: Callable[[], bool]) -> list[Variant]:
    """Run the variants, print each on stderr, and write them into the run folder."""
    each, share = ablation.rounds_of_a_variant(settings, len(federation.shards)), ablation.SHARE
    typer.echo(f"ablation: runs of {each} rounds, validated on {share:.0%} of each client's ratings", err=True)
    found = ablation.ablation(
        federation.shards,
        settings,
        federation.item_features,
        on_variant=lambda variant: typer.echo(variant.in_words(), err=True),
        interrupted=interrupted,
    )
    ablation.save(found, folder)
    return found
