"""Contrastive learning from any number of views.

`import manyviews` is fast: submodules are imported when their names are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyviews import (
        data,
        evaluation,
        export,
        loading,
        losses,
        metrics,
        models,
        report,
        reproduce,
        training,
        transforms,
    )
    from manyviews.api import train
    from manyviews.data import Dataset, DatasetDict, DatasetError, load_dataset
    from manyviews.evaluation import EvaluationConfig, evaluate
    from manyviews.losses import (
        AnchoredLoss,
        DCLLoss,
        DHELLoss,
        InfoNCELoss,
        KernelContrastiveLoss,
        LeaveOneOutLoss,
        MultiViewContrastiveLoss,
        MultiViewLoss,
        MVCL1Loss,
        MVCL2Loss,
        MVDHELLoss,
        MVInfoNCELoss,
        NTXentLoss,
        PairwiseLoss,
        PVCLoss,
        SigLIPLoss,
        SupConLoss,
        get_loss,
    )
    from manyviews.models import Embedder, get_encoder
    from manyviews.runs import Run, load_encoder
    from manyviews.training import Config, get_recipe
    from manyviews.transforms import MultiCrop, SimCLRTransform

__version__ = "0.1.0"

_PACKAGES = (
    "data",
    "evaluation",
    "export",
    "loading",
    "losses",
    "metrics",
    "models",
    "report",
    "reproduce",
    "training",
    "transforms",
)
_HOMES = {
    "data": (
        "Dataset",
        "DatasetDict",
        "DatasetError",
        "load_dataset",
    ),
    "losses": (
        "AnchoredLoss",
        "DCLLoss",
        "DHELLoss",
        "InfoNCELoss",
        "KernelContrastiveLoss",
        "LeaveOneOutLoss",
        "MVCL1Loss",
        "MVCL2Loss",
        "MVDHELLoss",
        "MVInfoNCELoss",
        "MultiViewContrastiveLoss",
        "MultiViewLoss",
        "NTXentLoss",
        "PVCLoss",
        "PairwiseLoss",
        "SigLIPLoss",
        "SupConLoss",
        "get_loss",
    ),
    "models": (
        "Embedder",
        "get_encoder",
    ),
    "transforms": (
        "MultiCrop",
        "SimCLRTransform",
    ),
    "training": (
        "Config",
        "get_recipe",
    ),
    "runs": (
        "Run",
        "load_encoder",
    ),
    "evaluation": (
        "EvaluationConfig",
        "evaluate",
    ),
    "api": ("train",),
}
"""The module of each public name."""

__all__ = [
    "AnchoredLoss",
    "Config",
    "DCLLoss",
    "DHELLoss",
    "Dataset",
    "DatasetDict",
    "DatasetError",
    "Embedder",
    "EvaluationConfig",
    "InfoNCELoss",
    "KernelContrastiveLoss",
    "LeaveOneOutLoss",
    "MVCL1Loss",
    "MVCL2Loss",
    "MVDHELLoss",
    "MVInfoNCELoss",
    "MultiCrop",
    "MultiViewContrastiveLoss",
    "MultiViewLoss",
    "NTXentLoss",
    "PVCLoss",
    "PairwiseLoss",
    "Run",
    "SigLIPLoss",
    "SimCLRTransform",
    "SupConLoss",
    "data",
    "evaluate",
    "evaluation",
    "export",
    "get_encoder",
    "get_loss",
    "get_recipe",
    "load_dataset",
    "load_encoder",
    "loading",
    "losses",
    "metrics",
    "models",
    "report",
    "reproduce",
    "train",
    "training",
    "transforms",
]


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"manyviews.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"manyviews.{home}"), name)
    raise AttributeError(f"module 'manyviews' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
