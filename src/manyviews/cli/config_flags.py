"""The fields of configs as flags in groups; those of a training have the defaults of its recipe or resumed run."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

import manyviews as mv
from manyviews.utils import escape_control_characters


def make_constructor(default: Any, first_fields: Mapping[str, str]) -> Callable[..., Any]:
    """Make a constructor of a config for tyro, with a dataclass for each group of fields as parameters.

    `first_fields` has the first field of each group.
    """
    docs, types = _read_field_docs(type(default)), get_type_hints(type(default))
    groups_by_first = {first: group for group, first in first_fields.items()}
    fields: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, value in vars(default).items():
        if name in groups_by_first:
            group = fields[groups_by_first[name]] = []
        text = docs[name] if value in (None, ()) else docs[name].partition(" Default: ")[0]
        flag = tyro.conf.arg(help=text, help_behavior_hint=_format_default)
        group.append((name, Annotated[types[name], flag], value))
    groups = {name: dataclasses.make_dataclass(name, group) for name, group in fields.items()}

    def build_config(**values: Any) -> Any:
        return type(default)(**{name: value for group in values.values() for name, value in vars(group).items()})

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=g()) for name, g in groups.items()]
    build_config.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    build_config.__annotations__ = groups
    return build_config


def make_training_constructor() -> Callable[..., mv.Config]:
    # tyro cannot choose the default of one flag by the value of another, so that these three are parsed first.
    default, _ = tyro.cli(_get_default_config, args=sys.argv[2:], return_unknown_args=True, add_help=False)
    return make_constructor(default, mv.training.FIRST_FIELDS)


ConfigFlags = tyro.conf.arg(name="", constructor_factory=make_training_constructor)
EvaluationFlags = tyro.conf.arg(
    name="", constructor_factory=lambda: make_constructor(mv.EvaluationConfig(), {"evaluation": "probe_solver"})
)
ReproduceFlags = tyro.conf.arg(
    name="", constructor_factory=lambda: make_constructor(mv.reproduce.ReproduceOptions(), {"table": "scale"})
)


def _get_default_config(recipe: str | None = None, resume: Path | None = None, data: str = "photos") -> Any:
    if resume and recipe:
        raise ValueError("--resume cannot be combined with --recipe")
    if resume:
        return mv.Run.open(resume).config
    return mv.get_recipe(recipe) if recipe else mv.training.get_default_recipe(data)


def _read_field_docs(owner: type) -> dict[str, str]:
    """Read the docstring of each field, in one line: tyro would keep the line breaks."""
    (tree,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
    }


def _format_default(value: str) -> str:
    """Format a default, possibly of an untrusted run; the help text describes a default of None or nothing."""
    return "" if value in ("None", "") else f"(default: {escape_control_characters(value)})"
