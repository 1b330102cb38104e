"""Objectives by name, as the command line and recipes call them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from manyviews.losses import beyond as n
from manyviews.losses import objectives as o
from manyviews.losses.objective import Objective

OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "infonce": o.InfoNCE,
    "ntxent": o.NTXent,
    "dhel": o.DHEL,
    "pwe-infonce": partial(o.Pairs, "infonce"),
    "pwe-ntxent": partial(o.Pairs, "ntxent"),
    "pwe-dhel": partial(o.Pairs, "dhel"),
    "avg-infonce": partial(o.Average, "infonce"),
    "avg-ntxent": partial(o.Average, "ntxent"),
    "avg-dhel": partial(o.Average, "dhel"),
    "pvc": o.PVC,
    "pvc-arithmetic": partial(o.PVC, arithmetic=True),
    "mv-infonce": o.MVInfoNCE,
    "mv-dhel": o.MVDHEL,
    "mv-cl1": o.MVCL1,
    "mv-cl2": o.MVCL2,
    "supcon": n.SupCon,
    "dcl": n.DCL,
    "siglip": n.SigLIP,
    "anchored": n.Anchored,
    "kcl": n.KernelContrastive,
}


RELEASED: dict[str, dict[str, Any]] = {"mv-infonce": {"same_view": True}, "mv-cl2": {"uniformity": "sum"}}
"""Options that make an objective what the authors' released code computes, where that departs from the equation."""


def get_objective(name: str, **options: Any) -> Objective:
    """The objective of that name.

    Examples:
        >>> get_objective("pvc", temperature=0.2)
        PVC(temperature=0.2, kernel=Gaussian(), arithmetic=False)
    """
    if not isinstance(name, str) or name not in OBJECTIVES:
        near = (
            ["ntxent"]
            if str(name).lower() == "simclr"
            else difflib.get_close_matches(str(name).lower(), OBJECTIVES, n=3, cutoff=0.4)
        )
        hint = f": did you mean {' or '.join(near)}?" if near else "."
        raise ValueError(f"no objective {name!r}{hint} There are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name](**options)
