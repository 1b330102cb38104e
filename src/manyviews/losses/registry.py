"""Losses by name, as in the command line and in recipes."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from manyviews.losses import extra, joint, multiview, spectral
from manyviews.losses.base import MultiViewLoss
from manyviews.losses.weighted_sum import WeightedSumLoss
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
    "prod-infonce": partial(multiview.LeaveOneOutLoss, "infonce", combine="product"),
    "prod-ntxent": partial(multiview.LeaveOneOutLoss, "ntxent", combine="product"),
    "prod-dhel": partial(multiview.LeaveOneOutLoss, "dhel", combine="product"),
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
    "symile": joint.SymileLoss,
    "gram": joint.GRAMLoss,
    "triangle": joint.TRIANGLELoss,
    "pmrl": joint.PMRLLoss,
    "mmcr": spectral.MMCRLoss,
    "emp-ssl": spectral.EMPSSLLoss,
    "lejepa": spectral.LeJEPALoss,
}
RELEASED_CODE_KWARGS: dict[str, dict[str, Any]] = {
    "mv-infonce": {"same_view_negatives": True},
    "mv-cl2": {"uniformity": "sum"},
}
"""Options with which a loss equals the authors' released code, where that differs from the paper's equation."""


def get_loss(name: str, **options: Any) -> MultiViewLoss:
    """Create a loss by name; the options are those of its class.

    A sum such as "mv-dhel+0.5*prod-dhel" is a `WeightedSumLoss`.

    Examples:
        >>> get_loss("pvc", temperature=0.2)
        PVCLoss(temperature=0.2, kernel=Gaussian(), aggregation='geometric')
    """
    if isinstance(name, str) and is_sum(name):
        return WeightedSumLoss(parse_sum(name), **options)
    if not isinstance(name, str) or name not in LOSSES:
        key = str(name).lower()
        hint = ": did you mean ntxent?" if key == "simclr" else suggest(key, LOSSES)
        raise ValueError(f"unknown loss {name!r}{hint}")
    return LOSSES[name](**options)


def get_default_temperature(name: str) -> float | None:
    """Return the temperature at which a loss starts, None if it has none.

    Examples:
        >>> get_default_temperature("mv-dhel")
        0.5
    """
    temperature = get_loss(name, learn_temperature=False).temperature
    return None if temperature is None else float(temperature)


def is_sum(name: str) -> bool:
    """Return whether the name is a weighted sum."""
    return "+" in name or "*" in name


def parse_sum(text: str) -> list[tuple[str, float]]:
    """Parse a weighted sum of names.

    Examples:
        >>> parse_sum("mv-dhel + 0.5*prod-dhel")
        [('mv-dhel', 1.0), ('prod-dhel', 0.5)]
    """
    parts = []
    for term in re.split(r"(?<!\de)\+", text):  # not the plus of 1e+3
        weight, _, name = term.rpartition("*")
        name = name.strip()
        if name not in LOSSES:
            raise ValueError(f"unknown loss {name!r} in the sum {text!r}{suggest(name, LOSSES)}")
        try:
            parts.append((name, float(weight or 1)))
        except ValueError:
            raise ValueError(f"a sum of losses is written as mv-dhel+0.5*prod-dhel, got {text!r}") from None
    return parts
