"""`fedmc federation`: set one up, train over it, look at it, stop it, and try all of it on this machine."""

from __future__ import annotations

import re
import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmc.cli.following import follow, in_words, report
from fedmc.cli.runs import to_json
from fedmc.cli.train import PENALTIES, budget

Option = typer.Option
Server = Annotated[Path, typer.Argument(help="The server's folder.")]
RunName = Annotated[str | None, Option("--run", help="The run's name; the last one if not given.")]
AsJson = Annotated[bool, Option("--json", help="Also as one line of JSON.")]

federation = typer.Typer(
    help="Organisations that train together and keep their ratings.\n\n"
    "`init` makes a folder for the server and one for each organisation; `fedmc server start` and `fedmc node start` "
    "run them; `train` trains. `demo` shows all of it on this machine.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip


@federation.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    organisations: Annotated[str, Option(help="Their names, with commas.")],
    host: Annotated[str, Option(help="The server's name or address, as nodes will call it.")],
    port: Annotated[int, Option(help="Where nodes connect.")] = 8000,
    bind: Annotated[str, Option(help="The address that the server listens on.")] = "0.0.0.0",
    control_port: Annotated[int, Option(help="Of Flower itself, on loopback only.")] = 8001,
    catalogue: Annotated[Path | None, Option(help="The agreed items; may be put into the folders later.")] = None,
    days: Annotated[int, Option(help="How long the certificates hold.")] = 365,
    accept: Annotated[
        str | None,
        Option(help="Kinds of privacy that nodes take part in: secagg, dp, dp+secagg, plain; secagg from 3 on."),
    ] = None,
) -> None:
    """Make certificates, node keys and configurations: a folder for the server and one to hand to each organisation."""
    from fedmc.federation.setup import layout

    layout.init(
        folder, organisations.split(","), host, port=port, bind=bind, control_port=control_port, days=days,
        items=catalogue, accept=None if accept is None else [one.strip() for one in accept.split(",")],
    )  # fmt: skip
    names = layout.check_names(organisations.split(","))
    typer.echo(f"{folder / 'server'}: for the server's machine; `fedmc server start` there")
    for name in names:
        typer.echo(f"{folder / name}: to be handed to {name} over a safe channel; its README says what to do")
    typer.echo(f"{folder / 'authority'}: the authority's secret key, to renew certificates with: keep it off-line")
    if catalogue is None:
        typer.echo(
            "still missing: the agreed items. Each organisation makes its list with `fedmc catalogue make SOURCE --out "
            "NAME.json`, `fedmc catalogue merge *.json --out catalogue.json` makes one of them, and that file goes "
            "into the server's and every organisation's folder"
        )


@federation.command("renew")
def renew(
    authority: Annotated[Path, typer.Argument(help="The authority's folder.")],
    server: Server,
    days: Annotated[int, Option(help="How long the new certificate holds.")] = 365,
) -> None:
    """Make a new certificate for the server; nodes need nothing new."""
    from fedmc.errors import require
    from fedmc.federation.setup import keys, layout

    require(days >= 1, f"a certificate must last a day at least, got {days}")
    keys.check_certificate(authority / "ca.crt")
    layout.write_certificate(server, keys.load_authority(authority), [layout.load_server(server).host], days)
    typer.echo(f"{server / 'server.pem'} holds for {days} days: restart the server")


@federation.command("train")
def train(
    server: Server = Path(),
    rank: Annotated[int, Option(help="Number of factors.")] = 10,
    rounds: Annotated[int, Option(help="Communication rounds.")] = 20,
    preset: Annotated[str, Option(help="fast, or paper: FedMC-ADMM as published.")] = "fast",
    update: Annotated[
        str | None, Option(help="linearised, exact or curvature; exact if not given and all take part, else curvature.")
    ] = None,
    penalty_users: Annotated[str | None, Option(help=f"{PENALTIES}; a + adds.")] = None,
    penalty_items: Annotated[str | None, Option(help="As for users.")] = None,
    active: Annotated[int | None, Option(help="Organisations a round; all if not given.")] = None,
    quorum: Annotated[int | None, Option(help="So many must take part in a round; all if not given.")] = None,
    patience: Annotated[float, Option(help="Seconds that a round waits for those who are late.")] = 300,
    measure_every: Annotated[int, Option(help="Rounds between measurements.")] = 1,
    privacy: Annotated[str, Option(help="secagg: the server sees sums; dp, dp+secagg: noised; plain: all.")] = "secagg",
    min_cohort: Annotated[int | None, Option(help="With secagg: the fewest to hide among; 10, or all.")] = None,
    epsilon: Annotated[float, Option(help="With dp: the budget of each user over all rounds.")] = 10.0,
    delta: Annotated[float, Option(help="With dp: below one over the number of users.")] = 1e-6,
    ratings: Annotated[str, Option(help="With dp: the public range of ratings, LOW,HIGH.")] = "1,5",
    clip: Annotated[float, Option(help="In plain: a change counts up to so many times the median one; 0: all.")] = 0.0,
    dtype: Annotated[str, Option(help="float32 or float64; float32 sends half as much, in plain.")] = "float64",
    seed: Annotated[int, Option(help="Same seed, same ratings: same bits, as in the simulation.")] = 0,
    run: Annotated[str | None, Option(help="A name for the run; the time if not given.")] = None,
    detach: Annotated[bool, Option("--detach", help="Do not wait for the end.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Train over all organisations and show who is online, late or lost. The run goes on if you leave."""
    from fedmc.algorithms.settings import Settings
    from fedmc.errors import require
    from fedmc.federation.flower import superlink
    from fedmc.federation.server.running import RunFolder, RunPlan
    from fedmc.federation.setup import identities
    from fedmc.federation.setup.layout import least_of, load_server
    from fedmc.federation.wire import RUN, portable
    from fedmc.privacy.claims import claim

    config = load_server(server)
    p = len(config.organisations)
    hidden = "secagg" in privacy
    require(p >= 3 or not hidden, f"{p} organisations cannot hide among each other: --privacy plain, if all accept it")
    least = least_of(config.organisations) if min_cohort is None else min_cohort
    require(least <= max(p, 3), f"--min-cohort must be at most {p}, the number of organisations, got {least}")
    if update is None and preset == "fast" and active in (None, p) and "dp" not in privacy:
        update = "exact"  # as accurate where all take part, a seventh of the bytes, and it shows less
    settings = Settings.preset(
        preset, rank=rank, active=p if active is None else active, update=update, penalty_users=penalty_users,
        penalty_items=penalty_items, dtype=dtype, seed=seed, privacy=privacy, min_cohort=least, clip=clip,
        **budget(privacy, epsilon, delta, ratings, rounds),
    )  # fmt: skip
    require(not settings.undecided, "--penalty-users auto needs a simulation: `fedmc tune` on ratings of your own")
    portable(settings)
    settings.make_sampler(p)
    require(rounds >= 1, f"--rounds must be at least 1, got {rounds}")
    require(patience > 0, f"--patience must be above 0, got {patience}")
    require(measure_every >= 1, f"--measure-every must be at least 1, got {measure_every}")
    enough = settings.active if quorum is None else quorum
    require(1 <= enough <= p, f"--quorum must be from 1 to {p}, got {enough}")
    superlink.control_port(config)
    going = _going(config)
    require(going is None, lambda: f"run {going} is going on: `fedmc federation stop` first, or wait")
    name = run or datetime.now().strftime("%Y-%m-%d-%H%M%S")
    plain = re.fullmatch(RUN, name) is not None and len(name) <= 80
    require(plain, f"--run {name!r}: up to 80 letters, digits, - and _")
    folder = RunFolder(config.runs / name)
    require(not folder.path.exists(), f"there is a run {name} already: choose another name, or `resume` it")
    catalogue, nodes = config.catalogue(), superlink.registered(config)
    names = list(config.organisations)
    new = [one for one in names if one not in nodes]
    require(not new, lambda: f"{new[0]} is not registered yet: restart the server")
    plan = RunPlan(
        f"{name}-{secrets.token_hex(4)}", settings, names, [nodes[one] for one in names], catalogue.hash,
        len(catalogue), rounds, measure_every, patience, enough,
        tuple(public for _, public in identities.load(config.path(identities.LIST))) if hidden else (),
    )  # fmt: skip
    folder.write_plan(plan)
    typer.echo(claim(settings), err=True)
    _begin(config, folder, detach, as_json)


@federation.command("resume")
def resume(
    server: Server = Path(),
    run: RunName = None,
    detach: Annotated[bool, Option("--detach", help="Do not wait for the end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or broke off, to the same bits as if nothing had happened."""
    from fedmc.errors import require
    from fedmc.federation.setup.layout import load_server

    config = load_server(server)
    folder = find_run(config, run)
    state = folder.status()["state"]
    require(state != "running", f"run {folder.path.name} is going on: `fedmc federation status` shows it")
    require(state != "diverged", f"run {folder.path.name} diverged: start a new one with other settings")
    (folder.path / "stop").unlink(missing_ok=True)
    _begin(config, folder, detach, as_json)


@federation.command("stop")
def stop(server: Server = Path(), run: RunName = None) -> None:
    """Ask a run to stop; nothing is lost, `resume` goes on with it."""
    from fedmc.errors import require
    from fedmc.federation.setup.layout import load_server

    folder = find_run(load_server(server), run)
    state = folder.status()["state"]
    require(state == "running", f"run {folder.path.name} is not going on: it is {state}")
    folder.ask_to_stop()
    until = time.monotonic() + 60
    while folder.locked() and time.monotonic() < until:
        time.sleep(0.2)
    word = "it is still in a step, and will stop after it" if folder.locked() else "stopped"
    typer.echo(f"run {folder.path.name}: {word}")


@federation.command("status")
def status(server: Server = Path(), run: RunName = None, as_json: AsJson = False) -> None:
    """Whether the server is up, who is online, and how the last run stands."""
    from fedmc.federation.flower import superlink
    from fedmc.federation.setup.layout import load_server

    config = load_server(server)
    try:
        online = superlink.online(config)
        typer.echo(f"server: up, nodes connect to {config.host}:{config.port}")
    except superlink.LinkError as error:
        online = {}
        typer.echo(f"server: {error}")
    for name in config.organisations:
        typer.echo(f"{name:20} {online.get(name, 'unknown')}")
    runs = sorted(config.runs.glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    found: dict[str, Any] = {"online": online}
    if runs:
        folder = find_run(config, run)
        found |= {"run": folder.path.name} | folder.status()
        typer.echo(f"run {folder.path.name}: {in_words(found)}")
        for one in found.get("absent", [])[-5:]:
            typer.echo(f"  round {one['round']}: {one['organisation']} was left out: {one['why']}")
    if as_json:
        typer.echo(to_json(found))


@federation.command("demo")
def demo(
    rounds: Annotated[int, Option(help="Communication rounds.")] = 10,
    keep: Annotated[Path | None, Option(help="Keep everything in this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Three organisations, a server and their nodes on this machine: real processes, TLS and keys. Ends by itself."""
    from fedmc.cli.federation_demo import show

    show(rounds, keep, as_json)


def _begin(config: Any, folder: Any, detach: bool, as_json: bool) -> None:
    from fedmc.federation.flower import superlink

    folder.say(state="starting", why="")
    superlink.run(config, folder.path)
    if detach:
        typer.echo(f"run {folder.path.name} begins; `fedmc federation status {config.folder}` shows it")
        return
    try:
        follow(folder)
    except KeyboardInterrupt:
        name = folder.path.name
        typer.echo(f"run {name} goes on without you; `fedmc federation stop {config.folder}` stops it", err=True)
        raise typer.Exit(130) from None
    report(folder, as_json)


def find_run(config: Any, name: str | None) -> Any:
    from fedmc.errors import require
    from fedmc.federation.server.running import RunFolder

    runs = sorted(config.runs.glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    require(bool(runs), f"there is no run in {config.runs} yet: `fedmc federation train {config.folder}`")
    path = runs[-1].parent if name is None else config.runs / name
    require((path / "plan.json").is_file(), f"there is no run {name} in {config.runs}")
    return RunFolder(path)


def _going(config: Any) -> str | None:
    from fedmc.federation.server.running import RunFolder

    return next((path.parent.name for path in config.runs.glob("*/plan.json") if RunFolder(path.parent).locked()), None)
