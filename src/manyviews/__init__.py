"""Contrastive learning from any number of views.

`import manyviews` is cheap: what a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyviews import losses
    from manyviews.losses import (
        DCL,
        DHEL,
        MVCL1,
        MVCL2,
        MVDHEL,
        PVC,
        Anchored,
        Average,
        InfoNCE,
        KernelContrastive,
        MultiView,
        MVInfoNCE,
        NTXent,
        Objective,
        Pairs,
        SigLIP,
        SupCon,
        get_objective,
    )

__version__ = "0.1.0"

__all__ = [
    "DCL",
    "DHEL",
    "MVCL1",
    "MVCL2",
    "MVDHEL",
    "PVC",
    "Anchored",
    "Average",
    "InfoNCE",
    "KernelContrastive",
    "MVInfoNCE",
    "MultiView",
    "NTXent",
    "Objective",
    "Pairs",
    "SigLIP",
    "SupCon",
    "get_objective",
    "losses",
]


def __getattr__(name: str) -> object:
    if name == "losses":
        return import_module("manyviews.losses")
    if name in __all__:
        return getattr(import_module("manyviews.losses"), name)
    raise AttributeError(f"module 'manyviews' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
