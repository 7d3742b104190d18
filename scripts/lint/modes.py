"""Places that ask which mode they are in, outside of the implementations of Algorithm, Aggregation and Privacy.

    python scripts/lint/modes.py [FOLDER]

A mode is a choice of algorithm, update, aggregation, privacy or preset. Found are
    compare   ==, !=, in, not in, is, startswith, endswith with a mode or a mode's name; match
    truth     a mode or a flag that is made of one, where true or false is asked for
    type      isinstance, type(x) is, hasattr and getattr with a default, of a mode or against its classes
    look-up   a table by a mode: TABLE[mode], TABLE.get(mode), {"plain": ..., "secagg": ...}
A place is waived by a comment on its line, `# mode: REASON`. Rules and names are the same for every tree.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

MOST = 0  # places without a reason
MOST_WAIVED = 10
WAIVER = re.compile(r"#\s*mode:\s*\S.*$")

# The implementations of the three ideas, as patterns inside the folder.
ALLOWED = (
    "algorithms/admm.py",
    "algorithms/admm_leakage.py",
    "algorithms/curvature.py",
    "algorithms/denoise.py",
    "algorithms/exact.py",
    "algorithms/fedadmm.py",
    "algorithms/fedavg.py",
    "algorithms/fedmavg.py",
    "algorithms/fedmgs.py",
    "algorithms/leakage.py",
    "algorithms/presets.py",
    "algorithms/private.py",
    "algorithms/registry.py",
    "algorithms/scaffold.py",
    "privacy/modes.py",
    "privacy/protocol.py",
    "training/aggregation.py",
    "training/fixed_point.py",
    "training/secure_sums.py",
    "training/sums.py",
    # the same in the tree before
    "baselines/federated.py",
    "curvature.py",
    "methods.py",
    "privacy/claims.py",
    "privacy/clipping.py",
    "privacy/denoise.py",
    "privacy/private.py",
)
# Values that are modes, by the name of a variable, a parameter, a field or a key.
CHOICES = {"privacy", "update", "method", "algorithm", "aggregation", "preset", "preset_name", "clip", "mode"}
# Flags that are made of a mode.
FLAGS = {
    "hidden", "private", "secure", "secure_aggregation", "differentially_private", "noised", "clipped", "masked",
    "uses_secagg", "uses_dp", "is_dp", "is_secagg", "is_plain", "is_private",
}  # fmt: skip
# Functions whose answer is a mode.
MADE = {"make_method", "make_algorithm", "make_aggregation", "make_privacy"}
# Functions whose answer is a flag: each call asks.
QUESTIONS = {"only_rated", "is_masked"}
WORDS = {
    "plain", "secagg", "dp", "dp+secagg", "dp-secagg",
    "linearised", "exact", "curvature", "clipped",
    "fedmc", "fedmc-admm", "fedmc-exact", "fedmc-paper", "fedmc-curvature", "fedmavg", "fedmavg-printed", "fedmgs",
    "fedavg", "fedprox", "scaffold", "fedadmm",
    "paper", "fast",
}  # fmt: skip
CLASSES = {
    "Tied", "TiedRated", "Fitted", "Counted", "Users",
    "ADMMState", "SparseADMMState", "CurvatureState", "FixedPointState", "PrivateState",
    "Method", "Algorithm", "Private", "FedMAvg", "FedMGS", "FedAvg", "FedProx", "Scaffold", "FedADMM", "Linearised",
    "Exact", "Curvature", "FedMCADMM", "Plain", "SecAgg", "DP", "DPSecAgg", "Privacy", "Aggregation", "PlainSum",
    "ClippedSum", "SecureSum",
}  # fmt: skip
ASKING = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)


class Place(NamedTuple):
    path: Path
    line: int
    column: int
    kind: str
    text: str
    waived: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def main(folder: str = "fedmc") -> int:
    root = Path(folder)
    found, inside = [], 0
    for path in sorted(root.rglob("*.py")):
        places = places_in(path.read_text("utf-8"), path)
        if any(fnmatch(path.relative_to(root).as_posix(), pattern) for pattern in ALLOWED):
            inside += len(places)
        else:
            found += places
    waived = [place for place in found if place.waived]
    open_places = [place for place in found if not place.waived]
    for line in [*map(str, open_places), *(f"with a reason: {place}" for place in waived)]:
        print(line)
    print(
        f"{len(open_places)} places ask for a mode, and {len(waived)} with a reason (at most {MOST} and {MOST_WAIVED});"
        f" {inside} in the implementations"
    )
    return int(len(open_places) > MOST or len(waived) > MOST_WAIVED)


def places_in(source: str, path: Path = Path("<text>")) -> list[Place]:
    """All places of a file, in order; the same expression counts once."""
    lines = source.splitlines()
    found: dict[tuple[int, int], Place] = {}
    for node, kind in questions(ast.parse(source)):
        at = node.lineno, node.col_offset
        last = lines[(node.end_lineno or node.lineno) - 1]
        waived = bool(WAIVER.search(lines[node.lineno - 1]) or WAIVER.search(last))
        text = ast.unparse(node).splitlines()[0][:90]
        found.setdefault(at, Place(path, *at, kind, text, waived))
    return [found[at] for at in sorted(found)]


def questions(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.Match, str]]:
    """(node, kind) of whatever asks for a mode."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _compares(node):
            yield node, "type" if _is_call(node.left, "type") else "compare"
        elif isinstance(node, ast.Match) and _matches(node):
            yield node, "compare"
        elif isinstance(node, ast.Call):
            kind = _kind_of_call(node)
            if kind:
                yield node, kind
        elif (isinstance(node, ast.Subscript) and is_mode(node.slice)) or (
            isinstance(node, ast.Dict) and _by_mode(node)
        ):
            yield node, "look-up"
        for tested in truths(node):
            if is_mode(tested):
                yield tested, "truth"


def truths(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions of which a node asks whether they are true."""
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        yield node.test
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.comprehension):
        yield from node.ifs
    elif isinstance(node, ast.Call) and _name(node.func) in ("require", "bool", "any", "all") and node.args:
        yield node.args[0]


def is_mode(node: ast.AST) -> bool:
    """Whether an expression is a mode, or a flag made of one."""
    return is_choice(node) or (isinstance(node, ast.Name | ast.Attribute) and _name(node) in FLAGS)


def is_choice(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        if _name(node.func) in MADE:
            return True
        if _name(node.func) == "get" and isinstance(node.func, ast.Attribute) and node.args:
            return _is_text(node.args[0], CHOICES)
        return _is_call(node, "str") and len(node.args) == 1 and is_choice(node.args[0])
    if isinstance(node, ast.Subscript):
        return _is_text(node.slice, CHOICES)
    return isinstance(node, ast.Name | ast.Attribute) and _name(node) in CHOICES


def _compares(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    for place, operator in enumerate(node.ops):
        pair = sides[place], sides[place + 1]
        if isinstance(operator, ASKING) and (_asks(*pair, operator) or _asks(pair[1], pair[0], operator)):
            return True
        if any(map(is_choice, pair)) and any(isinstance(one, ast.Constant) and one.value == 0 for one in pair):
            return True  # clip > 0
    return False


def _asks(one: ast.expr, other: ast.expr, operator: ast.cmpop) -> bool:
    listed = isinstance(one, ast.Tuple | ast.List | ast.Set) and any(map(_is_word, one.elts))
    if _is_word(one) or listed or (_is_call(one, "type") and _names_class(other)):
        return True
    if is_choice(one):
        if isinstance(other, ast.Constant):
            return (other.value is None and _says_fedmc(one)) or other.value == 0
        return True
    flag = isinstance(one, ast.Name | ast.Attribute) and _name(one) in FLAGS
    return flag and not isinstance(operator, ast.In | ast.NotIn)


def _says_fedmc(node: ast.expr) -> bool:
    """None stands for an algorithm, not for a setting that was not given."""
    return _name(node.func if isinstance(node, ast.Call) else node) in {"method", "algorithm", "aggregation", *MADE}


def _kind_of_call(node: ast.Call) -> str:
    name, first = _name(node.func), node.args[0] if node.args else None
    if name in QUESTIONS:
        return "truth"
    if first is None:
        return ""
    if name in ("startswith", "endswith") and isinstance(node.func, ast.Attribute):
        words = first.elts if isinstance(first, ast.Tuple) else [first]
        return "compare" if is_choice(node.func.value) or any(map(_is_word, words)) else ""
    if name in ("isinstance", "issubclass") and len(node.args) == 2:
        return "type" if is_choice(first) or _names_class(node.args[1]) else ""
    if (name == "hasattr" or (name == "getattr" and len(node.args) == 3)) and is_choice(first):
        return "type"
    if name == "get" and isinstance(node.func, ast.Attribute) and is_mode(first):
        return "look-up"
    return ""


def _matches(node: ast.Match) -> bool:
    parts = [part for case in node.cases for part in ast.walk(case.pattern)]
    words = any(isinstance(part, ast.MatchValue) and _is_word(part.value) for part in parts)
    return is_mode(node.subject) or words or any(isinstance(p, ast.MatchClass) and _names_class(p.cls) for p in parts)


def _by_mode(node: ast.Dict) -> bool:
    keys = [key for key in node.keys if key is not None]
    words = [key for key in keys if _is_word(key) or _names_class(key)]
    return len(words) >= 2 and 2 * len(words) > len(keys)


def _names_class(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Name | ast.Attribute) and _name(part) in CLASSES for part in ast.walk(node))


def _is_word(node: ast.AST) -> bool:
    return _is_text(node, WORDS)


def _is_text(node: ast.AST, among: set[str]) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in among


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == name


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
