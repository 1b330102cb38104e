"""What is particular to a kind of data is in its class: packages after `loading` hardly branch on the kind."""

import ast
from pathlib import Path

import pytest

import manyviews
from manyviews.data import KINDS
from manyviews.data.column import Column

SOURCE = Path(manyviews.__file__).parent
ALLOWED = {"data", "loading", "losses", "utils"}
"""Packages that may branch, and those before `data`, where `kind` is something else."""
MAX_BRANCHES = 6
REASON = "# By kind: "
"""Start of the comment before each branch."""
CLASSES = {"Column", "BatchColumn", "Features", "ImageSource", "LazyImages"} | {
    kind.__name__ for kind in KINDS.values()
}
CLASSES |= {"SequenceEncoder", "TextEncoder", "VectorEncoder"}
FLAGS = {name for name, kind in Column.__annotations__.items() if "bool" in str(kind)}
FLAGS |= {"has_size", "has_lengths", "kind", "image_size"}
SHOWN = {"features", "shown", "view"}
"""Variables with what `Column.show` returns, which is a str for texts alone."""
DIMENSIONS = {f"{name}.dim()" for name in SHOWN}


def find_branches(text: str) -> list[int]:
    """Return the lines of a file that branch on the kind of data."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        tests: list[ast.expr] = []
        match node:
            case ast.Call(func=ast.Name("isinstance" | "issubclass")):
                lines += [node.lineno] * is_instance_check(node)
            case ast.Call(func=ast.Name("any" | "all"), args=[ast.GeneratorExp(elt=test)]):
                tests = [test]
            case ast.Compare():
                lines += [node.lineno] * compares_kinds(node)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                tests = [test]
            case ast.comprehension(ifs=tests):
                pass
        lines += [test.lineno for test in tests if any(map(is_flag, list_operands(test)))]
    return sorted(set(lines))


def is_instance_check(node: ast.Call) -> bool:
    """Return whether isinstance or issubclass has a class of one kind, or finds a text among what is shown."""
    value, classes = node.args
    names = {part.id for part in ast.walk(classes) if isinstance(part, ast.Name)}
    return bool(names & CLASSES) or (getattr(value, "id", "") in SHOWN and "str" in names)


def compares_kinds(node: ast.Compare) -> bool:
    """Return whether a comparison has the name of a kind, an attribute `kind`, or the dimensions of what is shown."""
    operands = [part for operand in (node.left, *node.comparators) for part in list_elements(operand)]
    constants = {part.value for part in operands if isinstance(part, ast.Constant)}
    texts = {value for value in constants if isinstance(value, str)}
    if texts:  # other things have a `kind`, too, which is not the name of one of data
        return bool(texts & set(KINDS))
    names = {ast.unparse(part) for part in operands}
    if any(isinstance(operator, ast.Eq) for operator in node.ops) and names & DIMENSIONS:  # != validates a shape
        return True
    return any(name.endswith(".kind") for name in names)


def list_elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def list_operands(test: ast.expr) -> list[ast.expr]:
    """List the operands of `and`, `or` and `not`."""
    if isinstance(test, ast.BoolOp):
        return [operand for value in test.values for operand in list_operands(value)]
    return list_operands(test.operand) if isinstance(test, ast.UnaryOp) else [test]


def is_flag(operand: ast.expr) -> bool:
    """Return whether an operand is an attribute that only some kinds have."""
    if not isinstance(operand, ast.Attribute):
        return False
    is_spec_size = operand.attr == "size" and getattr(operand.value, "id", "") in ("self", "spec", "item")
    return operand.attr in FLAGS or is_spec_size


@pytest.mark.parametrize(
    "code",
    [
        "if isinstance(column, Images): pass",
        "names = [name for name in names if train[name].kind == kind]",
        "size = 3 if column.kind in ('image', 'text') else 0",
        "if shown.dim() == 2: pass",
        "if any(column.has_size for column in columns): pass",
        "names = [name for name in names if not spec.image_size]",
        "x = item.size if item.size else 0",
    ],
)
def test_branches_are_found(code: str) -> None:
    assert find_branches(code) == [1]


def test_few_branches_on_the_kind_of_data_and_each_has_a_reason() -> None:
    branches = []
    for file in sorted(SOURCE.rglob("*.py")):
        if file.relative_to(SOURCE).parts[0] not in ALLOWED:
            lines = file.read_text().splitlines()
            branches += [(file.name, line, lines[line - 2].strip()) for line in find_branches(file.read_text())]
    assert len(branches) <= MAX_BRANCHES, branches
    assert [branch for branch in branches if not branch[2].startswith(REASON)] == []
