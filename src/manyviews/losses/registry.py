"""Losses by name, as in the command line and in recipes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from manyviews.losses import extra, multiview
from manyviews.losses.base import MultiViewLoss
from manyviews.utils import suggest

LOSSES: dict[str, Callable[..., MultiViewLoss]] = {
    "infonce": multiview.InfoNCELoss,
    "ntxent": multiview.NTXentLoss,
    "dhel": multiview.DHELLoss,
    "pwe-infonce": partial(multiview.PairwiseLoss, "infonce"),
    "pwe-ntxent": partial(multiview.PairwiseLoss, "ntxent"),
    "pwe-dhel": partial(multiview.PairwiseLoss, "dhel"),
    "avg-infonce": partial(multiview.LeaveOneOutLoss, "infonce"),
    "avg-ntxent": partial(multiview.LeaveOneOutLoss, "ntxent"),
    "avg-dhel": partial(multiview.LeaveOneOutLoss, "dhel"),
    "pvc": multiview.PVCLoss,
    "pvc-arithmetic": partial(multiview.PVCLoss, aggregation="arithmetic"),
    "mv-infonce": multiview.MVInfoNCELoss,
    "mv-dhel": multiview.MVDHELLoss,
    "mv-cl1": multiview.MVCL1Loss,
    "mv-cl2": multiview.MVCL2Loss,
    "supcon": extra.SupConLoss,
    "dcl": extra.DCLLoss,
    "siglip": extra.SigLIPLoss,
    "anchored": extra.AnchoredLoss,
    "kcl": extra.KernelContrastiveLoss,
}
RELEASED_CODE_KWARGS: dict[str, dict[str, Any]] = {
    "mv-infonce": {"same_view_negatives": True},
    "mv-cl2": {"uniformity": "sum"},
}
"""Options with which a loss equals the authors' released code, where that differs from the paper's equation."""


def get_loss(name: str, **options: Any) -> MultiViewLoss:
    """Create a loss by name; the options are those of its class.

    Examples:
        >>> get_loss("pvc", temperature=0.2)
        PVCLoss(temperature=0.2, kernel=Gaussian(), aggregation='geometric')
    """
    if not isinstance(name, str) or name not in LOSSES:
        key = str(name).lower()
        hint = ": did you mean ntxent?" if key == "simclr" else suggest(key, LOSSES)
        raise ValueError(f"unknown loss {name!r}{hint}")
    return LOSSES[name](**options)
