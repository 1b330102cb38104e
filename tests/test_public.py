"""What is public is documented: a docstring and, but for errors and for what functions return, an example."""

import inspect
from importlib import import_module

import pytest

import manyviews

ROOMS = ("losses", "data", "views", "models", "evaluation", "training", "export", "report", "experiments")
RETURNED = {"Audit", "Embedded", "LinearProbe", "LinearRegressionProbe", "Query", "Outcome"}


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_have_an_example(room: str) -> None:
    module = import_module(f"manyviews.{room}")
    public = {name: getattr(module, name) for name in module.__all__ if callable(getattr(module, name))}
    assert [name for name, thing in public.items() if not inspect.getdoc(thing)] == []
    asked = {name: thing for name, thing in public.items() if name not in RETURNED and not _is_error(thing)}
    assert [name for name, thing in asked.items() if ">>>" not in (thing.__doc__ or "")] == []


def test_everything_at_the_top_is_there() -> None:
    assert [name for name in manyviews.__all__ if not hasattr(manyviews, name)] == []
    assert set(manyviews.__all__) <= set(dir(manyviews))


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseException)
