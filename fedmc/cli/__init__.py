"""The `fedmc` command. Heavy imports happen inside the commands, so that help comes at once."""

from __future__ import annotations

import io
import sys

import typer

from fedmc.cli import audit, compare, data, demo, federation, node, server, train, tune, use
from fedmc.errors import FedmcError

app = typer.Typer(
    name="fedmc",
    help="Matrix completion across organisations that may not pool their data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to load than all of help
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("audit")(audit.audit)
app.command("compare")(compare.compare)
app.command("reproduce")(compare.reproduce)
app.command("report")(compare.report)
app.command("evaluate")(use.evaluate)
app.command("predict")(use.predict)
app.command("recommend")(use.recommend)
app.command("info")(use.info)
app.command("prepare")(data.prepare)
app.add_typer(data.catalogue, name="catalogue")
app.add_typer(data.data, name="data")
app.command("demo")(demo.demo)
app.add_typer(federation.federation, name="federation")
app.add_typer(server.server, name="server")
app.add_typer(node.node, name="node")


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Show the version and leave.")) -> None:
    if version:
        from fedmc import __version__

        typer.echo(f"fedmc {__version__}")
        raise typer.Exit()


def main() -> None:
    """Run the command; what the user can mend is one line on stderr and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except (FedmcError, OSError, MemoryError) as error:
        sys.stderr.write(f"error: {error or 'out of memory'}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
