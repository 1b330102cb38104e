"""Public names are documented: a docstring and, except for errors and returned classes, an example."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import manyviews

PACKAGES = ("losses", "data", "transforms", "models", "loading", "metrics")
PACKAGES += ("training", "evaluation", "export", "report", "reproduce", "utils")
RETURNED = {"PrinciplesReport", "ModelOutput", "LinearProbe", "LinearRegressionProbe", "Query", "Outcome"}


def list_documented() -> list[tuple[str, str]]:
    """List (module, name) of every name on the API pages."""
    pages = "".join(page.read_text() for page in (Path(__file__).parents[1] / "docs/api").glob("*.md"))
    sections = re.findall(r"^::: manyviews\.(\w+)\n.*?members: \[(.*?)\]", pages, re.MULTILINE | re.DOTALL)
    return [(module, name) for module, names in sections for name in names.split(", ")]


def has_example(value: object) -> bool:
    is_error = isinstance(value, type) and issubclass(value, BaseException)
    return is_error or getattr(value, "__name__", "") in RETURNED or ">>>" in (value.__doc__ or "")


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_functions_and_classes_have_a_docstring(package: str) -> None:
    module = import_module(f"manyviews.{package}")
    values = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    values = {name: value for name, value in values.items() if inspect.isfunction(value) or inspect.isclass(value)}
    assert [name for name, value in values.items() if not inspect.getdoc(value)] == []


def test_names_on_the_api_pages_have_an_example() -> None:
    values = {
        f"{module}.{name}": getattr(import_module(f"manyviews.{module}"), name) for module, name in list_documented()
    }
    assert len(values) > 100
    assert [name for name, value in values.items() if not inspect.getdoc(value) or not has_example(value)] == []


def test_top_level_names_exist_and_have_an_example() -> None:
    assert set(manyviews.__all__) <= set(dir(manyviews))
    values = {name: getattr(manyviews, name) for name in manyviews.__all__}
    values = {name: value for name, value in values.items() if not inspect.ismodule(value)}
    assert [name for name, value in values.items() if not inspect.getdoc(value) or not has_example(value)] == []
