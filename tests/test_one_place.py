"""One place for an op and one for a target: shared code asks OpSpecs and Caps, and names neither ops nor targets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumice.ir.registry import all_ops

SOURCE = Path(__file__).parents[1] / "src" / "pumice"
OPS = {spec.name for spec in all_ops()}
# Files that serve all ops alike. Op files, gradients, kernels and host routines of single ops are not among them.
SHARED = sorted(
    path
    for pattern in ("plan/*.py", "passes/*.py", "run/*.py", "reference/*.py", "ad/*.py", "kernels/*.py", "ir/*.py")
    for path in SOURCE.glob(pattern)
) + sorted(SOURCE.glob("backends/host/*.py"))
# (file, ops): why it names them. A property that an op has belongs into its traits instead.
ALLOWED = {
    "ad/reverse.py": ({"mark"}, "regions of recomputation and custom gradients lie between marks"),
    "kernels/pull_rules.py": (OPS, "the index rules of kernels, by the name that an op's Pull gives"),
    "passes/turn_matmuls.py": ({"matmul", "transpose"}, "is about transposed matmuls alone"),
    "passes/merge_matmuls.py": ({"matmul", "qmatmul", "add", "reshape", "transpose"}, "rewrites matmuls of one operand"),
    "passes/shape_for_target.py": ({"barrier", "concat"}, "drops barriers, splits concats of too many operands"),
    "passes/simplify.py": ({"slice", "concat"}, "a slice that takes an operand of a concat is that operand"),
    "plan/file_exprs.py": ({"max", "min", "mod"}, "functions of dims, not ops"),
    "plan/fusion.py": ({"slice"}, "gate and up are two slices of one matmul"),
    "plan/gate_up.py": ({"slice"}, "gate and up are two slices of one matmul"),
}


def named_ops(path: Path) -> Iterator[tuple[int, str]]:
    """Ops that a file tells apart: what it compares a node's op with, and the keys and members of its tables."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(s, ast.Attribute) and s.attr == "op" for s in sides):
                found = [n for s in sides for n in ast.walk(s) if isinstance(n, ast.expr)]
        elif isinstance(node, ast.Dict):
            found = list(node.keys)
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Tuple, ast.List, ast.Set)):
            found = list(node.value.elts)
        for n in found:
            if isinstance(n, ast.Constant) and n.value in OPS:
                yield n.lineno, str(n.value)


@pytest.mark.parametrize("path", SHARED, ids=lambda p: str(p.relative_to(SOURCE)))
def test_shared_code_asks_the_op(path: Path) -> None:
    allowed, _ = ALLOWED.get(path.relative_to(SOURCE).as_posix(), (set(), ""))
    named = [(line, op) for line, op in named_ops(path) if op not in allowed]
    assert not named, f"{named}: add a trait (ir/traits.py), or a reason here if it is about these ops alone"


def test_every_exception_is_needed() -> None:
    for name, (ops, _) in ALLOWED.items():
        named = {op for _, op in named_ops(SOURCE / name)}
        assert named if ops is OPS else named == ops, name


def _numbered(path: Path) -> Iterator[str]:
    """Operands that a file picks by number out of a node or a call."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            constant = any(isinstance(n, ast.Constant) and isinstance(n.value, int) for n in ast.walk(node.slice))
            if node.value.attr in ("args", "inputs", "ins", "dtypes") and constant:
                yield f"{node.lineno}: {ast.unparse(node)}"


OF_SINGLE_OPS = [
    p for pattern in ("kernels/rows/*.py", "kernels/routines/*.py", "backends/host/routines/*.py") for p in SOURCE.glob(pattern)
]


@pytest.mark.parametrize("path", sorted(OF_SINGLE_OPS), ids=lambda p: str(p.relative_to(SOURCE)))
def test_kernels_and_routines_take_operands_by_name(path: Path) -> None:
    # Elementwise functions and views have one operand that counts, whatever its name.
    first_alone = path.name in ("scalars.py", "common.py")
    assert [n for n in _numbered(path) if not (first_alone and "[0]" in n)] == []


GRADIENTS = sorted((SOURCE / "ir" / "gradients").glob("*.py"))


@pytest.mark.parametrize("path", GRADIENTS, ids=lambda p: p.name)
def test_gradient_rules_take_operands_by_name(path: Path) -> None:
    # `inputs` and `needed` of a Backward are in the order of the operands; that rules return mappings, its types say.
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ordered = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in ("inputs", "needed", "arg", "args")]
    assert [f"{n.lineno}: {ast.unparse(n)}" for n in ordered] == []


def test_a_target_is_known_by_its_properties() -> None:
    """Only `Caps` and the backends know what a software device or a target's name means; reports may show both."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(("core/", "backends/")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Compare, ast.BoolOp, ast.IfExp, ast.If, ast.UnaryOp)):
                parts = ast.walk(node.test) if isinstance(node, (ast.If, ast.IfExp)) else ast.walk(node)
                asked = {n.attr for n in parts if isinstance(n, ast.Attribute)}
                assert "software" not in asked, f"{name}:{node.lineno} {ast.unparse(node)}"
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                target = any(isinstance(s, ast.Attribute) and s.attr == "target" for s in sides)
                assert not (target and any(isinstance(s, ast.Constant) for s in sides)), f"{name}:{node.lineno}"
