"""Values and gradients of the authors' released code, as it gave them on four random batches in float64."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from manyviews import MVCL1, MVCL2, MVDHEL, PVC, Average, MVInfoNCE, NTXent, Objective, Pairs

GOLDEN = Path(__file__).with_name("released_losses.npz")

RELEASED: dict[str, Callable[[float], Objective]] = {
    "mv-infonce-all": lambda t: MVInfoNCE(t, same_view=True),
    "mv-dhel": MVDHEL,
    "mv-cl1": MVCL1,
    "mv-cl2-sum": lambda t: MVCL2(t, uniformity="sum"),
    "pvc-geometric": PVC,
    "ntxent-pwe": lambda t: Pairs("ntxent", t),
    "dhel-pwe": lambda t: Pairs("dhel", t),
    "ntxent-avg": lambda t: Average("ntxent", t),
    "dhel-avg": lambda t: Average("dhel", t),
    "ntxent-multi": NTXent,
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
