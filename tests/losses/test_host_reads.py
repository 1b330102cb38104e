"""Without validation no loss reads a value on the host, where a device would have to stop: fake tensors have none."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from manyviews.losses import LOSSES, InverseMultiquadric
from tests.losses.loss_by_name import get_loss, limit_views

DEVICES = ["cpu"]
if torch.backends.cuda.is_built():
    DEVICES.append("cuda")
CASES = {name: {} for name in LOSSES} | {
    "mv-dhel+0.5*prod-dhel": {},
    "pvc, another kernel": {"kernel": InverseMultiquadric()},
    "pwe-infonce, weights": {"pair_weights": [[0, 1, 2], [1, 0, 0], [2, 0, 0]]},
    "mv-infonce, low temperature": {"temperature": 0.005},
    "mv-infonce, memory": {"memory_bank": 8},
    "mv-infonce, dense": {"implementation": "dense"},
    "symile, all": {"negatives": "all"},
    "triangle, area": {"square_root": True},
    "mmcr, local": {"local_weight": 0.1},
}


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward_read_no_value(case: str, device: str) -> None:
    name, options = case.split(",", maxsplit=1)[0], CASES[case]
    with FakeTensorMode(), torch.device(device):
        # Values are checked on a CPU unless told otherwise, on other devices only if told so.
        validate = False if device == "cpu" else None
        has_temperature = get_loss(name).temperature is not None
        for learn in (False, True) if has_temperature else (None,):
            kwargs = options if learn is None else {"learn_temperature": learn, **options}
            loss_fn = get_loss(name, validate=validate, **kwargs).train()
            z = torch.randn(20, int(min(3, loss_fn.max_views)), 8, requires_grad=True)
            some_missing = torch.rand(z.shape[:2]) < 0.8
            for mask in (None, some_missing):
                loss = loss_fn(z, mask)
                loss.backward()
                assert loss.shape == ()
                assert z.grad is not None
                assert z.grad.shape == z.shape
            if loss_fn.uses_ids:
                loss_fn(z, ids=torch.arange(20)).backward()


def test_validation_reads_values() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        get_loss("mv-dhel")(torch.randn(20, 3, 8))


def with_vector(value: float) -> torch.Tensor:
    z = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    z[3, 1] = value
    return z


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0, 1e30, 1e-30])
@pytest.mark.parametrize("name", LOSSES)
def test_bad_embeddings_give_nan_without_validation(name: str, value: float) -> None:
    loss = get_loss(name, validate=False)
    result = loss(with_vector(value)[:, : limit_views(name, 3)])
    if loss.normalize:
        assert result.isnan()
    else:
        assert result.isfinite() == (abs(value) < 1)


def test_other_bad_input_gives_nan_without_validation() -> None:
    z = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    nothing, one_view = torch.zeros(6, 3, dtype=torch.bool), torch.eye(6, 3, dtype=torch.bool)
    apart = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    for name in ("mv-dhel", "pwe-ntxent", "mv-infonce", "siglip"):
        for mask in (nothing, one_view):
            assert get_loss(name, validate=False)(z, mask).isnan()
    assert get_loss("mv-dhel", validate=False)(torch.randn(2, 4, 8), apart).isnan()
    for temperature in (0.0, -1.0, torch.nan):
        tau = torch.nn.Parameter(torch.tensor(0.5))
        for options in ({}, {"kernel": InverseMultiquadric()}):
            loss = get_loss("mv-dhel", temperature=tau, validate=False, **options)
            with torch.no_grad():
                tau.fill_(temperature)
            assert loss(z).isnan()
            with torch.no_grad():
                tau.fill_(0.5)
