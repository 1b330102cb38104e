"""Embeddings -> positives P and energies A -> an objective -> a scalar."""

from manyviews.losses.affinity import logaddexp, logsumexp, mean, total
from manyviews.losses.beyond import DCL, Anchored, KernelContrastive, SigLIP, SupCon
from manyviews.losses.catalogue import OBJECTIVES, get_objective
from manyviews.losses.kernels import Gaussian, InverseMultiquadric, Logarithmic, Riesz
from manyviews.losses.objective import Objective
from manyviews.losses.objectives import (
    DHEL,
    MVCL1,
    MVCL2,
    MVDHEL,
    PVC,
    Average,
    InfoNCE,
    MultiView,
    MVInfoNCE,
    NTXent,
    Pairs,
)
from manyviews.losses.principles import Audit, audit

__all__ = [
    "DCL",
    "DHEL",
    "MVCL1",
    "MVCL2",
    "MVDHEL",
    "OBJECTIVES",
    "PVC",
    "Anchored",
    "Audit",
    "Average",
    "Gaussian",
    "InfoNCE",
    "InverseMultiquadric",
    "KernelContrastive",
    "Logarithmic",
    "MVInfoNCE",
    "MultiView",
    "NTXent",
    "Objective",
    "Pairs",
    "Riesz",
    "SigLIP",
    "SupCon",
    "audit",
    "get_objective",
    "logaddexp",
    "logsumexp",
    "mean",
    "total",
]
