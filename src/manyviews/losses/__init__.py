"""Embeddings -> positives P and energies A -> a loss."""

from manyviews.losses._batch import NonFiniteInputError
from manyviews.losses._masked import masked_logsumexp, masked_mean, masked_sum, safe_logaddexp
from manyviews.losses.base import MultiViewLoss
from manyviews.losses.extra import AnchoredLoss, DCLLoss, KernelContrastiveLoss, SigLIPLoss, SupConLoss
from manyviews.losses.kernels import Gaussian, InverseMultiquadric, Logarithmic, Riesz
from manyviews.losses.multiview import (
    DHELLoss,
    InfoNCELoss,
    LeaveOneOutLoss,
    MultiViewContrastiveLoss,
    MVCL1Loss,
    MVCL2Loss,
    MVDHELLoss,
    MVInfoNCELoss,
    NTXentLoss,
    PairwiseLoss,
    PVCLoss,
)
from manyviews.losses.principles import PrinciplesReport, check_principles
from manyviews.losses.registry import LOSSES, RELEASED_CODE_KWARGS, get_loss
from manyviews.losses.supervised import SupervisedLoss

__all__ = [
    "LOSSES",
    "RELEASED_CODE_KWARGS",
    "AnchoredLoss",
    "DCLLoss",
    "DHELLoss",
    "Gaussian",
    "InfoNCELoss",
    "InverseMultiquadric",
    "KernelContrastiveLoss",
    "LeaveOneOutLoss",
    "Logarithmic",
    "MVCL1Loss",
    "MVCL2Loss",
    "MVDHELLoss",
    "MVInfoNCELoss",
    "MultiViewContrastiveLoss",
    "MultiViewLoss",
    "NTXentLoss",
    "NonFiniteInputError",
    "PVCLoss",
    "PairwiseLoss",
    "PrinciplesReport",
    "Riesz",
    "SigLIPLoss",
    "SupConLoss",
    "SupervisedLoss",
    "check_principles",
    "get_loss",
    "masked_logsumexp",
    "masked_mean",
    "masked_sum",
    "safe_logaddexp",
]
