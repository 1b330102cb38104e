"""Values and gradients equal those of the authors' released code on four random batches in float64."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from manyviews.losses import (
    LeaveOneOutLoss,
    MultiViewLoss,
    MVCL1Loss,
    MVCL2Loss,
    MVDHELLoss,
    MVInfoNCELoss,
    NTXentLoss,
    PairwiseLoss,
    PVCLoss,
)

GOLDEN = Path(__file__).with_name("released_losses.npz")

RELEASED: dict[str, Callable[[float], MultiViewLoss]] = {
    "mv-infonce-all": lambda t: MVInfoNCELoss(t, same_view_negatives=True),
    "mv-dhel": MVDHELLoss,
    "mv-cl1": MVCL1Loss,
    "mv-cl2-sum": lambda t: MVCL2Loss(t, uniformity="sum"),
    "pvc-geometric": PVCLoss,
    "ntxent-pwe": lambda t: PairwiseLoss("ntxent", t),
    "dhel-pwe": lambda t: PairwiseLoss("dhel", t),
    "ntxent-avg": lambda t: LeaveOneOutLoss("ntxent", t),
    "dhel-avg": lambda t: LeaveOneOutLoss("dhel", t),
    "ntxent-multi": NTXentLoss,
}


@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("name", RELEASED)
def test_equals_the_released_code(name: str, batch: int) -> None:
    with np.load(GOLDEN) as golden:
        z = torch.tensor(golden[f"{batch}/embeddings"], requires_grad=True)
        temperature = float(golden[f"{batch}/temperature"])
        value = torch.tensor(golden[f"{batch}/{name}/loss"])
        gradient = torch.tensor(golden[f"{batch}/{name}/grad"])
    loss = RELEASED[name](temperature)(z)
    if name == "mv-dhel":  # released: positives over l < m only
        loss = loss + math.log(2)
    torch.testing.assert_close(loss, value, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(loss, z)[0], gradient, rtol=0, atol=1e-9)
