"""Losses by name, as in the command line and in recipes."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from manyviews.losses.base import MultiViewLoss
from manyviews.losses.extra import AnchoredLoss, DCLLoss, KernelContrastiveLoss, SigLIPLoss, SupConLoss
from manyviews.losses.multiview import (
    DHELLoss,
    InfoNCELoss,
    LeaveOneOutLoss,
    MVCL1Loss,
    MVCL2Loss,
    MVDHELLoss,
    MVInfoNCELoss,
    NTXentLoss,
    PairwiseLoss,
    PVCLoss,
)

LOSSES: dict[str, Callable[..., MultiViewLoss]] = {
    "infonce": InfoNCELoss,
    "ntxent": NTXentLoss,
    "dhel": DHELLoss,
    "pwe-infonce": partial(PairwiseLoss, "infonce"),
    "pwe-ntxent": partial(PairwiseLoss, "ntxent"),
    "pwe-dhel": partial(PairwiseLoss, "dhel"),
    "avg-infonce": partial(LeaveOneOutLoss, "infonce"),
    "avg-ntxent": partial(LeaveOneOutLoss, "ntxent"),
    "avg-dhel": partial(LeaveOneOutLoss, "dhel"),
    "pvc": PVCLoss,
    "pvc-arithmetic": partial(PVCLoss, arithmetic=True),
    "mv-infonce": MVInfoNCELoss,
    "mv-dhel": MVDHELLoss,
    "mv-cl1": MVCL1Loss,
    "mv-cl2": MVCL2Loss,
    "supcon": SupConLoss,
    "dcl": DCLLoss,
    "siglip": SigLIPLoss,
    "anchored": AnchoredLoss,
    "kcl": KernelContrastiveLoss,
}


RELEASED_CODE_KWARGS: dict[str, dict[str, Any]] = {"mv-infonce": {"same_view": True}, "mv-cl2": {"uniformity": "sum"}}
"""Options with which a loss equals the authors' released code, where that differs from the paper's equation."""


def get_loss(name: str, **options: Any) -> MultiViewLoss:
    """Create a loss by name; the options are those of its class.

    Examples:
        >>> get_loss("pvc", temperature=0.2)
        PVCLoss(temperature=0.2, kernel=Gaussian(), arithmetic=False)
    """
    if not isinstance(name, str) or name not in LOSSES:
        key = str(name).lower()
        matches = ["ntxent"] if key == "simclr" else difflib.get_close_matches(key, LOSSES, n=3, cutoff=0.4)
        hint = f": did you mean {' or '.join(matches)}?" if matches else "."
        raise ValueError(f"unknown loss {name!r}{hint} Available: {', '.join(LOSSES)}")
    return LOSSES[name](**options)
