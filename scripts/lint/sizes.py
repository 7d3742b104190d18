"""Sizes: short files, short functions, few parameters, and `Any` only where a foreign library forces it.

    python scripts/lint/sizes.py [FOLDER]

Kernels are exempt: their loops are long, and compiled functions take arrays one by one. A command's signature is its
list of options, so commands may have as many parameters as they need.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE, FUNCTION, PARAMETERS = 300, 40, 8  # at most: lines, lines of a body with its docstring, parameters
ANY = 3.0  # at most, in 1,000 lines
EXEMPT = ("kernels",)
COMMANDS = "cli"  # the folder of the commands
DECORATORS = {"command", "callback"}
ENTRY = "Entry"  # of a table of commands that are imported on first use
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(folder: str = "fedmc") -> int:
    root = Path(folder)
    files = {path.relative_to(root): path.read_text("utf-8") for path in sorted(root.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in files.items()}
    folder_of_commands = [tree for path, tree in trees.items() if path.parts[0] == COMMANDS]
    commands = {name for tree in folder_of_commands for name in registered(tree)}
    found: list[str] = []
    for path, text in files.items():
        if path.parts[0] not in EXEMPT:
            found += findings(text, root / path, commands if path.parts[0] == COMMANDS else set())
    lines, used = sum(map(count_lines, files.values())), sum(map(count_any, trees.values()))
    rate = 1000 * used / max(lines, 1)
    if rate > ANY:
        found.append(f"{root}: `Any` {used} times in {lines} lines, {rate:.1f} in 1,000; at most {ANY:g}")
    print("\n".join([*found, f"{len(found)} findings; {lines} lines, {rate:.2f} `Any` in 1,000"]))
    return int(bool(found))


def findings(source: str, path: Path, commands: set[str]) -> Iterator[str]:
    lines = count_lines(source)
    if lines > FILE:
        yield f"{path}: {lines} lines, at most {FILE}"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Function):
            continue
        length = (node.end_lineno or 0) - node.body[0].lineno + 1
        if length > FUNCTION:
            yield f"{path}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION}"
        count = len(parameters(node))
        if count > PARAMETERS and not (node.name in commands or is_command(node)):
            yield f"{path}:{node.lineno}: {node.name} has {count} parameters, at most {PARAMETERS}"


def parameters(function: Function) -> list[str]:
    """Their names, without self and cls."""
    given = function.args
    found = [one.arg for one in (*given.posonlyargs, *given.args)]
    if found and found[0] in ("self", "cls"):
        found = found[1:]
    rest = [*given.kwonlyargs, *(one for one in (given.vararg, given.kwarg) if one is not None)]
    return found + [one.arg for one in rest]


def is_command(function: Function) -> bool:
    """Decorated with `@app.command(...)` or the like."""
    calls = [one.func for one in function.decorator_list if isinstance(one, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in DECORATORS for call in calls)


def registered(tree: ast.Module) -> Iterator[str]:
    """Functions that `app.command(...)(function)` makes commands, or that `Entry("module:function", ...)` lists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == ENTRY and node.args:
            yield ast.literal_eval(node.args[0]).rpartition(":")[2]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Call):
            made = node.func.func
            if isinstance(made, ast.Attribute) and made.attr in DECORATORS:
                yield from (one.attr if isinstance(one, ast.Attribute) else ast.unparse(one) for one in node.args)


def count_lines(source: str) -> int:
    return len(source.splitlines())


def count_any(tree: ast.AST) -> int:
    """Uses of the name `Any`, imports not counted; annotations in quotes are."""
    found = 0
    for node in ast.walk(tree):
        found += isinstance(node, ast.Name) and node.id == "Any"
        found += isinstance(node, ast.Attribute) and node.attr == "Any"
    for text in _quoted(tree):
        found += sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(text))
    return found


def _quoted(tree: ast.AST) -> Iterator[ast.AST]:
    """Annotations that are given as strings, parsed."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            given = getattr(node, name, None)
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield ast.parse(given.value, mode="eval")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
