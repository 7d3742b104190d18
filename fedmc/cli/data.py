"""`fedmc data`: public and synthetic data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypedDict

import typer

from fedmc.cli import options
from fedmc.cli.display import download_bar
from fedmc.data import downloads, splits, synthetic
from fedmc.data.readers.writing import write_table
from fedmc.data.synthetic import Recipe
from fedmc.errors import InputError, require

Option = typer.Option
TABLES = (".csv", ".tsv", ".parquet", ".feather")
Name = Annotated[str, typer.Argument(help="Name of a data set, as `fedmc data list` shows it.")]


class RecipeOptions(TypedDict, total=False):
    """The options of a recipe besides its sizes."""

    rank: int
    noise: float
    seed: int
    scale: tuple[float, float, float]


def list_sets() -> None:
    """List the public data sets that `get` can download, and whether they are installed."""
    for named in downloads.SETS.values():
        here = "here" if downloads.installed(named.name) else ""
        typer.echo(f"{named.name:16} {here:5} {named.ratings}")


def info(name: Name) -> None:
    """Show where a data set comes from, its size and its licence."""
    named = downloads.find(name)
    place = downloads.installed(name) or "not here yet"
    checksum = named.md5 or "no stable one is published"
    typer.echo(f"{named.name}: {named.ratings}\nfrom     {named.url}\nmd5      {checksum}\nhere     {place}")
    typer.echo(f"licence  {named.licence}")


def get(
    name: Name,
    accept_licence: Annotated[bool, Option("--accept-licence", help="Accept the licence without being asked.")] = False,
) -> None:
    """Download a data set into FEDMC_DATA (or the user's cache): show its licence, resume, verify, unpack."""
    named = downloads.find(name)
    folder = downloads.cache_folder()
    typer.echo(f"{named.name}: {named.ratings}\nlicence: {named.licence}")
    if not accept_licence:
        try:
            accept_licence = typer.confirm("Do you accept this licence?")
        except typer.Abort:
            accept_licence = False
    if not accept_licence:
        raise InputError("the licence was not accepted, nothing was fetched: --accept-licence consents")
    with download_bar(named.name) as progress:
        place = downloads.get(named, folder, progress)
    typer.echo(f"{named.name} is in {place}")


def synth(
    out: Annotated[Path, Option(help="A .csv, .tsv, .parquet or .feather file, or a folder of prepared shards.")],
    users: Annotated[int | None, Option(help="Number of users.")] = None,
    items: Annotated[int | None, Option(help="Number of items.")] = None,
    ratings: Annotated[int | None, Option(help="Number of ratings.")] = None,
    like: Annotated[Literal["ml-1m", "ml-10m", "netflix"] | None, Option(help="Take the size of a real set.")] = None,
    rank: Annotated[int, Option(help="Number of latent factors of the true model.")] = 10,
    noise: Annotated[float, Option(help="Standard deviation of the noise.")] = 0.8,
    scale: Annotated[str | None, Option(help="Round to LOW,HIGH,STEP, such as 1,5,1 or 0.5,5,0.5.")] = None,
    clients: Annotated[int, Option(help="Number of shards, if --out is a folder.")] = 100,
    test: Annotated[str, Option(help="Share of each shard to hold out for testing.")] = "0",
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Generate ratings from random factors and biases, skewed like real ones, with a known noise floor."""
    chosen: RecipeOptions = {"rank": rank, "noise": noise, "seed": seed}
    if scale is not None:
        chosen["scale"] = _parse_scale(scale)
    recipe = _recipe(users, items, ratings, like, chosen)
    if out.suffix in TABLES:
        require(overwrite or not out.exists(), f"{out} exists already: --overwrite to replace it")
        write_table(synthetic.make_ratings(recipe), out)
    else:
        synthetic.write_shards(recipe, out, clients, splits.parse_share(test), overwrite)
    typer.echo(f"{recipe.ratings:,} ratings in {out}; no model can have an error below {recipe.noise_floor:.4f} (RMSE)")


def _recipe(
    users: int | None, items: int | None, ratings: int | None, like: str | None, chosen: RecipeOptions
) -> Recipe:
    if like is not None:
        sizes = users, items, ratings
        require(not any(sizes), "--like sets the sizes: leave --users, --items and --ratings out")
        return synthetic.like(like, **chosen)
    if users is None or items is None or ratings is None:
        raise InputError("say --users, --items and --ratings, or --like ml-1m, ml-10m or netflix")
    return Recipe(users, items, ratings, **chosen)


def _parse_scale(text: str) -> tuple[float, float, float]:
    try:
        low, high, step = (float(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"a scale is LOW,HIGH,STEP, such as 1,5,1, got {text!r}") from None
    return low, high, step
