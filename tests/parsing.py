"""Parses a command line as `fedmc` does, without running it."""

from __future__ import annotations

import shlex

import click

from fedmc.cli import app
from fedmc.cli.lazy import Entry, LazyGroup


def every_command(table=app.table, before=()):
    """The words of every command, without those of groups."""
    for name, entry in table.items():
        if isinstance(entry, Entry):
            yield (*before, name)
        else:
            yield from every_command(entry.table, (*before, name))


def find(words):
    """(the command or group that these words name, its context, the rest of the words)"""
    command, context, rest = app, click.Context(app, info_name="fedmc"), list(words)
    while isinstance(command, LazyGroup) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        parent, command = context, command.get_command(context, name)
        context = click.Context(command, info_name=name, parent=parent)
    return command, context, rest


def parse(line: str) -> None:
    """Raises a `click.ClickException` if `fedmc LINE` has a word that the command does not know, or lacks one."""
    command, context, rest = find(shlex.split(line))
    if rest in (["--help"], ["-h"], ["--version"]):
        return
    if isinstance(command, LazyGroup):
        raise click.UsageError(f"{line!r} names no command")
    command.parse_args(context, rest)
