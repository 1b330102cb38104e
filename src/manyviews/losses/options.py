"""Options of a loss by name: those of its class and of the classes it passes them on to."""

from __future__ import annotations

import inspect
import typing
from functools import partial
from typing import Any

from manyviews.losses.registry import LOSSES, get_loss, is_sum, parse_sum

EXCLUDED_OPTIONS = ("temperature", "learn_temperature", "reduction", "gather_distributed", "kernel")
"""Options that are not text, or that a config has other fields for."""


def list_loss_options(name: str) -> dict[str, Any]:
    """List the types of a loss's options by name, without the temperature; those of a sum are common to its parts.

    Examples:
        >>> list_loss_options("pvc")["aggregation"]
        typing.Literal['geometric', 'arithmetic']
    """
    if name not in LOSSES and is_sum(name):
        first, *others = [list_loss_options(part) for part, _ in parse_sum(name)]
        return {option: kind for option, kind in first.items() if all(option in other for other in others)}
    get_loss(name)  # raises if there is no such loss
    make_loss, bound = LOSSES[name], inspect.signature(LOSSES[name])
    base = make_loss.func if isinstance(make_loss, partial) else make_loss
    given = {*(make_loss.keywords if isinstance(make_loss, partial) else ()), *EXCLUDED_OPTIONS}
    options: dict[str, Any] = {}
    for owner in typing.cast("type", base).__mro__:
        if "__init__" not in vars(owner):
            continue
        constructor = vars(owner)["__init__"]
        hints = typing.get_type_hints(constructor)
        parameters = inspect.signature(constructor).parameters.values()
        for parameter in parameters:
            is_option = parameter.kind is parameter.KEYWORD_ONLY or parameter.name in bound.parameters
            if is_option and parameter.name not in given and parameter.kind is not parameter.VAR_KEYWORD:
                options.setdefault(parameter.name, hints.get(parameter.name, Any))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
        # An option that a class sets itself for its base class cannot be given.
        given |= {p.name for p in parameters}
    return {option: kind for option, kind in options.items() if option != "self"}
