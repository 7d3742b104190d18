"""Completion in a shell: the names of commands without importing them, and what an argument may name in this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, MutableMapping
from glob import glob
from typing import Any

import click
from click.shell_completion import CompletionItem
from typer._completion_classes import completion_init
from typer._completion_shared import Shells
from typer.completion import install_callback, shell_complete, show_callback

TABLES = ("csv", "tsv", "parquet", "feather", "db", "sqlite", "dat")
NAMED = ("demo", "insteval", "ml-100k", "ml-1m", "ml-10m", "like:ml-1m", "like:ml-10m", "like:netflix")
DEPTHS = ("*/", "*/*/")  # how deep completion looks for folders
THIS = "this"  # the shell that calls


def models(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Run folders and model files."""
    return _fitting(begun, [*_folders_with("model.npz"), *glob("*.npz")])


def runs(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Folders that have a report: those of runs and comparisons, servers and organisations."""
    return _fitting(
        begun, {*_folders_with("settings.toml"), *_folders_with("study.json"), *_folders_with("config.toml")}
    )


def sources(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Tables in this folder, prepared shards, and named sets."""
    tables = [path for ending in TABLES for path in glob(f"*.{ending}")]
    return _fitting(begun, [*tables, *_folders_with("manifest.json"), *NAMED])


def homes(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Folders of a server or of organisations."""
    return _fitting(begun, _folders_with("config.toml"))


ARGUMENTS: dict[str, Callable[[click.Context, click.Parameter, str], list[str]]] = {
    "model": models,
    "source": sources,
    "server": homes,
    "folder": homes,
}
OF_COMMANDS = {("report", "folder"): runs}  # where an argument means something else


def add_to(command: click.Command) -> None:
    """Let the shell complete the command's arguments; where nothing fits, it completes names of files."""
    for one in command.params:
        name = one.name or ""
        found = OF_COMMANDS.get((command.name or "", name), ARGUMENTS.get(name))
        if isinstance(one, click.Argument) and found is not None:
            one._custom_shell_complete = found


def commands(helps: Iterable[tuple[str, str]], begun: str) -> list[CompletionItem]:
    """The names that begin so, with their help."""
    return [CompletionItem(name, help=about) for name, about in helps if name.startswith(begun)]


def answer(group: click.Group, words: MutableMapping[str, Any], name: str) -> None:
    """Answer a shell that asks for completions through the variable of its script, and end."""
    variable = f"_{name.upper()}_COMPLETE"
    instruction = os.environ.get(variable)
    if instruction:
        completion_init()
        sys.exit(shell_complete(group, words, name, variable, instruction))


def options() -> list[click.Option]:
    """`--install-completion` and `--show-completion`, with the name of a shell or for the one that calls."""
    return [
        _option("--install-completion", install_callback, "Let the shell complete commands and options"),
        _option("--show-completion", show_callback, "Print the script that does so"),
    ]


def _option(flag: str, act: Callable[..., object], about: str) -> click.Option:
    known = [shell.value for shell in Shells]

    def call(ctx: click.Context, parameter: click.Parameter, value: str | None) -> object:
        if value is not None and value != THIS and value not in known:
            raise click.BadParameter(f"{value!r} is not one of {', '.join(known)}", ctx, parameter)
        completion_init()
        return act(ctx, parameter, True if value == THIS else value)

    return click.Option(
        [flag], callback=call, expose_value=False, is_eager=True, is_flag=False, flag_value=THIS, metavar="[SHELL]",
        help=f"{about}: for this shell, or for {', '.join(known)}.",
    )  # fmt: skip


def _folders_with(name: str) -> list[str]:
    return [os.path.dirname(path) for depth in DEPTHS for path in glob(depth + name)]


def _fitting(begun: str, found: Iterable[str]) -> list[str]:
    return sorted(path for path in found if path.startswith(begun))
