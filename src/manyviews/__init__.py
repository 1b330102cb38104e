"""Contrastive learning from any number of views.

`import manyviews` is cheap: what a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyviews import data, evaluation, experiments, export, losses, models, report, training, views
    from manyviews.data import Dataset, DatasetError, load_dataset
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
    from manyviews.models import Embedder, get_encoder
    from manyviews.training import Config, EvaluationConfig, Run, evaluate, get_recipe, load_encoder, train
    from manyviews.views import MultiCrop, SimCLRPolicy

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
    "Config",
    "Dataset",
    "DatasetError",
    "Embedder",
    "EvaluationConfig",
    "InfoNCE",
    "KernelContrastive",
    "MVInfoNCE",
    "MultiCrop",
    "MultiView",
    "NTXent",
    "Objective",
    "Pairs",
    "Run",
    "SigLIP",
    "SimCLRPolicy",
    "SupCon",
    "data",
    "evaluate",
    "evaluation",
    "experiments",
    "export",
    "get_encoder",
    "get_objective",
    "get_recipe",
    "load_dataset",
    "load_encoder",
    "losses",
    "models",
    "report",
    "train",
    "training",
    "views",
]

_ROOMS = ("data", "evaluation", "experiments", "export", "losses", "models", "report", "training", "views")
_ELSEWHERE = {
    "Dataset": "data",
    "DatasetError": "data",
    "load_dataset": "data",
    "Embedder": "models",
    "get_encoder": "models",
    "Config": "training",
    "EvaluationConfig": "training",
    "Run": "training",
    "evaluate": "training",
    "load_encoder": "training",
    "get_recipe": "training",
    "train": "training",
    "MultiCrop": "views",
    "SimCLRPolicy": "views",
}


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"manyviews.{name}")
    if name in __all__:
        return getattr(import_module(f"manyviews.{_ELSEWHERE.get(name, 'losses')}"), name)
    raise AttributeError(f"module 'manyviews' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
