"""An exponential moving average of the weights of a model in training."""

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

Model = TypeVar("Model", bound=nn.Module)


class WeightAverage(Generic[Model]):
    """A copy of a model with the exponential moving average of its weights.

    average <- d average + (1 - d) weights, with d = min(decay, (1 + t) / (10 + t)) at step t = 0, 1, ..., so that the
    initial weights do not dominate a short training. Buffers such as running statistics are averaged like weights;
    integers are copied. Weights that are not trained are shared with the model.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = WeightAverage(model, decay=0.999)
        >>> with torch.no_grad():
        ...     before, after = model.weight.clone(), model.weight.fill_(5.0)
        >>> average.update(model, step=0)
        >>> torch.equal(average.model.weight, before.lerp(after, 0.9))
        True
    """

    def __init__(self, model: Model, decay: float) -> None:
        shared = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
        self.model, self.decay = copy.deepcopy(model, shared), decay
        self.model.eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Include the weights of the model after this step."""
        floats: list[tuple[Tensor, Tensor]] = []
        for average, current in zip(_list_tensors(self.model), _list_tensors(model), strict=True):
            if not current.is_floating_point():
                average.copy_(current)
            elif average is not current:
                floats.append((average, current))
        if floats:
            averages, weights = map(list, zip(*floats, strict=True))
            get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))(averages, weights, None)


def _list_tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
