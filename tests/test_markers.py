"""Tests that start ranks, a browser or a training in a process have the marker that leaves them out of `make quick`."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LAUNCHERS = {"start", "run_to_end"}
"""Functions of tests.helpers.tiny_run that train in a process."""


def get_names(node: ast.AST) -> set[str]:
    """Return the names, attributes and arguments in a function, and `ranks` and `devices` if they may be above one."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    names |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    for keyword in (n for n in ast.walk(node) if isinstance(n, ast.keyword)):
        if keyword.arg in {"ranks", "devices"} and not (
            isinstance(keyword.value, ast.Constant) and keyword.value.value == 1
        ):
            names.add(f"{keyword.arg}=")
    return names


def get_markers(nodes: list[ast.expr]) -> set[str]:
    """Return NAME of each `pytest.mark.NAME`."""
    found = (n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Attribute))
    return {n.attr for n in found if isinstance(n.value, ast.Attribute) and n.value.attr == "mark"}


def find_missing_markers(source: str) -> list[tuple[str, str]]:
    """Return (test, marker) for each test in a file that lacks a marker."""
    tree = ast.parse(source)
    imported = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "tests.helpers.tiny_run")
    launchers = LAUNCHERS & {alias.name for n in imported for alias in n.names}
    of_file = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"]
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    missing = []
    for name, function in functions.items():
        if not name.startswith("test_"):
            continue
        used = get_names(function)
        while new := {n for f in used & set(functions) for n in get_names(functions[f])} - used:
            used |= new  # of fixtures and helpers in the same file
        has = get_markers([*of_file, *function.decorator_list])
        has_ranks = used & {*launchers, "Popen"} and used & {"ranks=", "devices="}
        needed = {
            "distributed": bool(used & {"RankPool", "two_ranks"} or has_ranks),
            "browser": "webdriver" in used,
            "slow": bool(used & launchers),
        }
        has |= {"slow"} if has & {"distributed", "browser"} else set()
        missing += [(name, marker) for marker, is_needed in needed.items() if is_needed and marker not in has]
    return missing


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_tests_that_start_processes_have_their_marker(path: Path) -> None:
    assert find_missing_markers(path.read_text()) == []


def test_missing_markers_are_found() -> None:
    source = """
import pytest
from tests.helpers.tiny_run import run_to_end

@pytest.fixture
def page(browser: webdriver.Chrome): ...

def train(**options):
    return run_to_end("--epochs", 1, **options)

def test_a(two_ranks): ...
def test_b(page): ...
def test_c():
    train(ranks=2)
def test_d():
    train(ranks=1)
@pytest.mark.distributed
def test_e():
    train(ranks=2)
@pytest.mark.slow
def test_f(two_ranks): ...
def test_g():
    assert Config(devices=2).devices == 2
"""
    expected = [("test_a", "distributed"), ("test_b", "browser"), ("test_c", "distributed"), ("test_c", "slow")]
    assert find_missing_markers(source) == [*expected, ("test_d", "slow"), ("test_f", "distributed")]
    marked = source.replace(
        "import pytest\n", "import pytest\npytestmark = [pytest.mark.distributed, pytest.mark.browser]\n"
    )
    assert find_missing_markers(marked) == []


@pytest.mark.distributed
def test_distributed_tests_are_slow(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("slow")
