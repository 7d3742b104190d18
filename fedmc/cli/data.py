"""`fedmc data`, `fedmc catalogue`, `fedmc prepare`: from what an organisation has to shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmc.cli.display import progress_of_bytes

Option = typer.Option
Source = Annotated[str, typer.Argument(help="A file, folder, archive, database, named set, or `demo`.")]
Columns = Annotated[str | None, Option(help="Names of the user, item and rating columns, with commas.")]
Query = Annotated[str | None, Option(help="With a database: the query that gives user, item and rating.")]
Duplicates = Annotated[Any, Option(help="A (user, item) pair that comes twice: refuse, last or mean.", parser=str)]
PARTITIONS = "uniform, one-user, dirichlet:A, power:A, file:PATH or column:NAME"
Overwrite = Annotated[bool, Option("--overwrite", help="Replace what is there.")]

data = typer.Typer(help="Public and made-up data sets.", no_args_is_help=True, rich_markup_mode=None)
catalogue = typer.Typer(help="The items that organisations agree on.", no_args_is_help=True, rich_markup_mode=None)


@data.command("list")
def list_sets() -> None:
    """The public sets that `get` knows, and whether they are here."""
    from fedmc.data import downloads

    for named in downloads.SETS.values():
        here = "here" if downloads.installed(named.name) else ""
        typer.echo(f"{named.name:16} {here:5} {named.ratings}")


@data.command("info")
def info(name: str) -> None:
    """Where a set comes from, its size and its licence."""
    from fedmc.data import downloads

    named = downloads.find(name)
    place = downloads.installed(name) or "not here yet"
    checksum = named.md5 or "none is published that stays"
    typer.echo(f"{named.name}: {named.ratings}\nfrom     {named.url}\nmd5      {checksum}\nhere     {place}")
    typer.echo(f"licence  {named.licence}")


@data.command("get")
def get(
    name: str,
    accept_licence: Annotated[
        bool, Option("--accept-licence", help="Consent to the licence without being asked.")
    ] = False,
) -> None:
    """Fetch a set into FEDMC_DATA (or the user's cache): shows the licence, resumes, checks, unpacks."""
    from fedmc.data import downloads
    from fedmc.errors import InputError

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
    with progress_of_bytes(named.name) as progress:
        place = downloads.get(named, folder, progress)
    typer.echo(f"{named.name} is in {place}")


@data.command("synth")
def synth(
    out: Annotated[Path, Option(help="A .csv, .tsv, .parquet or .feather file, or a folder of prepared shards.")],
    users: Annotated[int | None, Option(help="Number of users.")] = None,
    items: Annotated[int | None, Option(help="Number of items.")] = None,
    ratings: Annotated[int | None, Option(help="Number of ratings.")] = None,
    like: Annotated[str | None, Option(help="The size of a real set: ml-1m, ml-10m or netflix.")] = None,
    rank: Annotated[int, Option(help="Planted factors.")] = 10,
    noise: Annotated[float, Option(help="Standard deviation of the noise.")] = 0.8,
    scale: Annotated[str | None, Option(help="Round to LOW,HIGH,STEP, as 1,5,1 or 0.5,5,0.5.")] = None,
    clients: Annotated[int, Option(help="Shards, if OUT is a folder.")] = 100,
    test: Annotated[float, Option(help="Share of each shard held out to test on.")] = 0.0,
    seed: Annotated[int, Option(help="Same seed, same ratings.")] = 0,
    overwrite: Overwrite = False,
) -> None:  # fmt: skip
    """Make ratings with planted factors and biases, skewed like real ones, with a known noise floor."""
    from fedmc.data import synthetic
    from fedmc.errors import InputError, require

    changes: dict[str, Any] = {"rank": rank, "noise": noise, "seed": seed}
    if scale is not None:
        changes["scale"] = _scale(scale)
    if like is not None:
        sizes = {"users": users, "items": items, "ratings": ratings}
        require(not any(sizes.values()), "--like sets the sizes: leave --users, --items and --ratings away")
        recipe = synthetic.like(like, **changes)
    elif users is None or items is None or ratings is None:
        raise InputError("say --users, --items and --ratings, or --like ml-1m, ml-10m or netflix")
    else:
        recipe = synthetic.Recipe(users, items, ratings, **changes)
    if out.suffix in (".csv", ".tsv", ".parquet", ".feather"):
        from fedmc.data.readers.writing import write_table

        require(overwrite or not out.exists(), f"{out} exists already: --overwrite to replace it")
        write_table(synthetic.make_ratings(recipe), out)
    else:
        synthetic.write_shards(recipe, out, clients, test, overwrite)
    typer.echo(f"{recipe.ratings:,} ratings in {out}; no model can err less than {recipe.noise_floor:.4f} (RMSE)")


@catalogue.command("make")
def make(source: Source, out: Annotated[Path, Option(help="The catalogue file.")], columns: Columns = None,
         query: Query = None, duplicates: Duplicates = "last") -> None:  # fmt: skip
    """A catalogue of the items of a source."""
    from fedmc.data.catalogue import Catalogue
    from fedmc.data.datasets import load_source

    ratings = load_source(source, columns.split(",") if columns else None, query=query, duplicates=duplicates)
    _save(Catalogue.of(ratings.items), out)


@catalogue.command("merge")
def merge(catalogues: list[Path], out: Annotated[Path, Option(help="The catalogue file.")]) -> None:
    """One catalogue of the items of several."""
    from fedmc.data.catalogue import Catalogue, load

    _save(Catalogue.of(*(load(path).items for path in catalogues)), out)


@catalogue.command("check")
def check(path: Annotated[Path, typer.Argument(help="The catalogue file.", metavar="CATALOGUE")], source: Source,
          columns: Columns = None, query: Query = None, duplicates: Duplicates = "last") -> None:  # fmt: skip
    """Whether a source's items are all in a catalogue; exit code 2 if not."""
    from fedmc.data.catalogue import align, load
    from fedmc.data.datasets import load_source

    known = load(path)
    ratings = load_source(source, columns.split(",") if columns else None, query=query, duplicates=duplicates)
    align(ratings, known)
    typer.echo(
        f"all {len(ratings.items):,} items of {source} are among the {len(known):,} of {path}, hash {known.hash}"
    )


def prepare(
    source: Source,
    out: Annotated[Path, Option(help="The folder to write.")],
    catalogue: Annotated[Path | None, Option(help="The agreed items; made of the source's if not given.")] = None,
    unknown_items: Annotated[Any, Option(help="Outside of the catalogue: refuse or drop.", parser=str)] = "refuse",
    partition: Annotated[str, Option(help=f"Several clients: {PARTITIONS}.")] = "uniform",
    clients: Annotated[int, Option(help="Their number, with uniform, dirichlet and power.")] = 1,
    split: Annotated[str | None, Option(help="Held out to test: random:SHARE, last:K, leave:K or date:DATE.")] = None,
    columns: Columns = None,
    query: Query = None,
    duplicates: Duplicates = "refuse",
    seed: Annotated[int, Option(help="Of the partition and the split.")] = 0,
    overwrite: Overwrite = False,
) -> None:  # fmt: skip
    """Write ratings as shards that are mapped into memory: one client's, or those of several."""
    from fedmc.data.prepare import Plan, read_parts, write_prepared

    names = tuple(columns.split(",")) if columns else None
    plan = Plan(source, names, query, duplicates, catalogue, unknown_items, split, None, partition, clients, seed)
    parts = read_parts(plan)
    if parts.report is not None:
        typer.echo(f"dropped: {parts.report}", err=True)
    write_prepared(out, parts, overwrite)
    typer.echo(f"{len(parts.train):,} ratings of {int(parts.owner.max()) + 1} client(s) in {out}")


def _scale(text: str) -> tuple[float, float, float]:
    from fedmc.errors import InputError

    try:
        low, high, step = (float(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"a scale is LOW,HIGH,STEP, as 1,5,1, got {text!r}") from None
    return low, high, step


def _save(made: Any, out: Path) -> None:
    made.save(out)
    typer.echo(f"{len(made):,} items in {out}, hash {made.hash}")
