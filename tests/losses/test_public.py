"""Values and gradients equal those of pytorch-metric-learning."""

import pytest
import torch

import manyviews as mv

losses = pytest.importorskip("pytorch_metric_learning.losses")


@pytest.mark.parametrize("views", [2, 3, 5])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
@pytest.mark.parametrize(
    ("name", "reference"), [("pvc", losses.NTXentLoss), ("ntxent", losses.SupConLoss)], ids=["NTXentLoss", "SupConLoss"]
)
def test_loss_equals_that_of_pytorch_metric_learning(
    views: int, temperature: float, name: str, reference: type
) -> None:
    z = torch.randn(12, views, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(12).repeat_interleave(views)
    expected = reference(temperature=temperature)(z.flatten(0, 1), labels)
    actual = mv.get_loss(name, temperature=temperature)(z)
    torch.testing.assert_close(actual, expected)
    gradients = [torch.autograd.grad(loss, z)[0] for loss in (actual, expected)]
    torch.testing.assert_close(*gradients)


def test_supcon_with_labels_equals_that_of_pytorch_metric_learning() -> None:
    z = torch.randn(12, 3, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(12) % 4
    expected = losses.SupConLoss(temperature=0.1)(z.flatten(0, 1), labels.repeat_interleave(3))
    actual = mv.SupConLoss(temperature=0.1)(z, labels=labels)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, z)[0] for loss in (actual, expected)))
