"""The house's own lints find what they are for, and leave the rest alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lint import hidden_imports, modes, sizes

FOLDER = Path("fedmc")
ROOT = Path(__file__).parents[1]


def imports(text, path="fedmc/a.py"):
    return list(hidden_imports.findings(text, Path(path), FOLDER))


@pytest.mark.parametrize(
    "line",
    [
        "import json",
        "import numpy as np",
        "from fedmc.errors import require",
        "from . import errors",
        "importlib.import_module('fedmc.errors')",
        "__import__('json')",
    ],
)
def test_an_import_inside_a_function_is_found(line):
    assert len(imports(f"def f():\n    {line}\n")) == 1
    assert len(imports(f"class A:\n    def f(self):\n        def g():\n            {line}\n")) == 1
    assert imports(f"{line}\n") == []


@pytest.mark.parametrize(
    "line", ["import sklearn", "from flwr.app import Message", "import dp_accounting.pld", "json.loads"]
)
def test_an_optional_library_may_be_imported_late(line):
    assert imports(f"def f():\n    {line}\n") == []


def test_names_of_the_package_may_be_imported_on_first_use():
    text = "def __getattr__(name):\n    return importlib.import_module(f'fedmc.{name}')\n"
    assert imports(text, "fedmc/__init__.py") == []
    assert len(imports(text)) == 1
    assert len(imports("def __getattr__(name):\n    import json\n", "fedmc/__init__.py")) == 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("compare", "settings.privacy == 'plain'"),
        ("compare", "'secagg' in one"),
        ("compare", "name in ('fedavg', 'fedprox')"),
        ("compare", "settings.update not in CHOICES"),
        ("compare", "privacy.startswith('dp')"),
        ("compare", "str(given.get('privacy', '')).startswith('d')"),
        ("compare", "given['update'] == 'exact'"),
        ("compare", "method is None"),
        ("compare", "settings.make_method() is not None"),
        ("compare", "settings.clip > 0"),
        ("compare", "hidden != (invitation is not None)"),
        ("truth", "1 if settings.hidden else 2"),
        ("truth", "task and settings.private"),
        ("truth", "not settings.clip"),
        ("truth", "[x for x in y if privacy]"),
        ("truth", "require(settings.privacy.secure_aggregation, 'no')"),
        ("truth", "only_rated(cast)"),
        ("type", "isinstance(state, Tied | None)"),
        ("type", "isinstance(state, (admm.ADMMState, CurvatureState))"),
        ("type", "isinstance(settings.method, str)"),
        ("type", "isinstance(settings.privacy, SecAgg)"),
        ("type", "type(state) is Fitted"),
        ("type", "getattr(method, 'scaling', None)"),
        ("type", "hasattr(algorithm, 'scaling')"),
        ("look-up", "TABLE[settings.update]"),
        ("look-up", "TABLE[settings.private]"),
        ("look-up", "TABLE.get(privacy)"),
        ("look-up", "{'plain': 1, 'secagg': 2}"),
        ("look-up", "{Plain: 1, SecAgg: 2}"),
    ],
)
def test_a_question_for_the_mode_is_found(kind, text):
    found = modes.places_in(f"x = {text}\n")
    assert [place.kind for place in found] == [kind]
    assert not found[0].waived
    assert modes.places_in(f"x = {text}  # mode: a reason\n")[0].waived
    assert not modes.places_in(f"x = {text}  # mode:\n")[0].waived


@pytest.mark.parametrize(
    "text",
    [
        "cast.task == 'round'",
        "scope['method'] != 'POST'",
        "isinstance(loss, Square)",
        "np.clip(x, 0, 1)",
        "found.update(more)",
        "settings.privacy.claim()",
        "Settings(privacy='plain', update='exact')",
        "member in self.hidden",
        "update is None",
        "given['privacy']",
        "{'rank': 3, 'privacy': 'plain'}",
        "Literal['plain', 'secagg']",
        "getattr(settings, 'privacy')",
    ],
)
def test_what_does_not_ask_is_left_alone(text):
    assert modes.places_in(f"x = {text}\n") == []


def test_match_asks_once():
    text = "match {}:\n    case {}:\n        pass\n"
    for subject, pattern in (("settings.update", "other"), ("x", "'secagg'"), ("x", "SecAgg()"), ("x", "1 | 'dp'")):
        assert len(modes.places_in(text.format(subject, pattern))) == 1
    assert modes.places_in(text.format("cast.task", "'round'")) == []


def test_modes_may_be_asked_for_in_the_implementations_and_with_a_reason(tmp_path, capsys):
    (tmp_path / "privacy").mkdir()
    (tmp_path / "privacy" / "modes.py").write_text("if privacy == 'dp':\n    pass\n")
    assert modes.main(str(tmp_path)) == 0
    reasons = "x = privacy == 'dp'  # mode: it is said here\n"
    (tmp_path / "a.py").write_text(reasons * modes.MOST_WAIVED)
    assert modes.main(str(tmp_path)) == 0
    assert "with a reason" in capsys.readouterr().out
    (tmp_path / "a.py").write_text(reasons * (modes.MOST_WAIVED + 1))
    assert modes.main(str(tmp_path)) == 1
    (tmp_path / "a.py").write_text("x = privacy == 'dp'\n")
    assert modes.main(str(tmp_path)) == 1


def test_sizes_are_bounded(tmp_path, capsys):
    def check(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        code = sizes.main(str(tmp_path))
        path.unlink()
        assert code == (capsys.readouterr().out.count("at most") > 0)
        return code

    body = "    pass\n"
    many = ", ".join(f"a{k}" for k in range(9))
    few = ", ".join(f"a{k}" for k in range(8))
    assert check("a.py", "x = 1\n" * 300) == 0
    assert check("a.py", "x = 1\n" * 301) == 1
    assert check("a.py", "def f():\n" + body * 40) == 0
    assert check("a.py", "def f():\n" + body * 41) == 1
    assert check("a.py", f"def f({many}):\n{body}") == 1
    assert check("a.py", f"class A:\n    def f(self, {few}):\n        pass\n") == 0
    assert check("a.py", f"def f({few}, *, b):\n{body}") == 1
    assert check("kernels/a.py", f"def f({many}):\n{body * 400}") == 0
    assert check("cli/a.py", f"@app.command('f')\ndef f({many}):\n{body}") == 0
    assert check("cli/a.py", f"app.command('f')(g)\ndef g({many}):\n{body}") == 0
    assert check("cli/a.py", f"def g({many}):\n{body}") == 1
    assert check("cli/a.py", "@app.command('f')\ndef f():\n" + body * 41) == 1


def test_any_is_counted_where_it_is_used(tmp_path):
    lines = "x = 1\n" * 997
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.py").write_text(lines)
    (tmp_path / "a.py").write_text("from typing import Any\nx: Any = 1\ny: 'dict[str, Any]' = 1\nz: typing.Any = 1\n")
    assert sizes.main(str(tmp_path)) == 0
    (tmp_path / "a.py").write_text("from typing import Any\ndef f(x: Any) -> Any: ...\ny: list[Any] = cast(Any, 1)\n")
    assert sizes.main(str(tmp_path)) == 1


def test_a_turned_arrow_breaks_the_import_contract(tmp_path):
    pytest.importorskip("importlinter")
    shutil.copytree(ROOT / "fedmc", tmp_path / "fedmc", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / "fedmc" / "kernels" / "threads.py", "a", encoding="utf-8") as file:
        file.write("\nimport fedmc.report.html\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "fedmc.kernels.threads -> fedmc.report.html" in done.stdout
