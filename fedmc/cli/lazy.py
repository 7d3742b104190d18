"""Command groups that import a command's module only when the command or its own help is called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple, get_args

import click
import typer
import typer.core
from click.shell_completion import CompletionItem
from typer.models import ArgumentInfo

from fedmc.cli import completing, examples
from fedmc.cli.groups import expanded
from fedmc.errors import FedmcError, InputError

typer.core.HAS_RICH = False  # otherwise Typer escapes the brackets in help for rich, which does not print it
EXTRAS = {"flwr": "flower", "cryptography": "flower", "h11": "flower", "httpx": "flower", "grpc": "flower"}
EXTRAS |= dict.fromkeys(("fastapi", "starlette", "uvicorn", "pydantic"), "serve")


class Entry(NamedTuple):
    """A command that is not loaded yet."""

    target: str  # module:function
    help: str  # one line


class LazyGroup(click.Group):
    """A group of commands and groups, by name."""

    def __init__(
        self,
        name: str,
        table: Mapping[str, Entry | click.Group],
        *,
        help: str,
        context_settings: dict[str, object] | None = None,
    ) -> None:
        super().__init__(name, help=help, no_args_is_help=True, context_settings=context_settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in self.table:
            close = get_close_matches(cmd_name, self.table, n=1)
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        entry = self.table[cmd_name]
        return load(entry, cmd_name) if isinstance(entry, Entry) else entry

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [(name, (entry.help or "").partition("\n")[0]) for name, entry in self.table.items()]
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        examples.write(ctx.command_path, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As Click, but without importing every command for its help."""
        helps = ((name, (entry.help or "").partition("\n")[0]) for name, entry in self.table.items())
        return [*completing.commands(helps, incomplete), *click.Command.shell_complete(self, ctx, incomplete)]

    def _main_shell_completion(
        self, ctx_args: MutableMapping[str, Any], prog_name: str, complete_var: str | None = None
    ) -> None:
        completing.answer(self, ctx_args, prog_name)


class Command(typer.core.TyperCommand):
    """A command whose errors name its options: `dtype='float32'` in a library message becomes `--dtype float32`."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FedmcError as error:
            error.args = (in_flags(str(error), self.params),)
            raise

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Do nothing: Typer lists the arguments with the options, and Click 8.5 would list them a second time."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        examples.write(ctx.command_path, formatter)


def resolve(target: str) -> Callable[..., object]:
    """The function that `module:function` names; its module is imported now."""
    module, _, attribute = target.partition(":")
    function: Callable[..., object] = getattr(import_module(module), attribute)
    return function


def load(entry: Entry, name: str) -> click.Command:
    """Import the command's module and turn its function into a Click command."""
    try:
        function = expanded(resolve(entry.target))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        raise InputError(f"this command needs the package {error.name}: pip install 'fedmc[{extra}]'") from None
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=Command)(function)
    command = typer.main.get_command(alone)
    _restore_argument_help(command, function)
    completing.add_to(command)
    return command


def _restore_argument_help(command: click.Command, function: Callable[..., object]) -> None:
    """Restore the help texts of arguments, which Click 8.5 overwrites with its own if Typer is version 0.20."""
    declared = {
        name: info
        for name, parameter in signature(function, eval_str=True).parameters.items()
        for info in get_args(parameter.annotation)
        if isinstance(info, ArgumentInfo)
    }
    for argument in command.params:
        if isinstance(argument, typer.core.TyperArgument) and argument.name in declared:
            argument.help = declared[argument.name].help


def in_flags(message: str, parameters: list[click.Parameter]) -> str:
    """The message with `name=value` written as `--name value` if `name` is an option of the command."""
    flags = {one.name: one.opts[0] for one in parameters if isinstance(one, click.Option) and one.name}
    negative = {one.name: one.secondary_opts[0] for one in parameters if one.secondary_opts}
    if not flags:
        return message

    def flag(found: re.Match[str]) -> str:
        name, quoted, bare = found.groups()
        if bare == "True":
            return flags[name]
        if bare == "False" and name in negative:
            return negative[name]
        value = bare or (f"'{quoted}'" if " " in quoted else quoted)
        return f"{flags[name]} {value}"

    names = "|".join(map(re.escape, sorted(flags, key=len, reverse=True)))
    said = re.sub(rf"(?<![\w?&/.-])({names})=(?:'([^']*)'|([^\s,;:)']+))", flag, message)
    return re.sub(r"(--[\w-]+ [^\s()]+) \(\1\)", r"\1", said)  # the library names its flag in brackets
