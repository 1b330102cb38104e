"""`CustomObjects`: parts of a training that are objects of the user instead of names."""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

from torch import nn

from manyviews.losses import MultiViewLoss
from manyviews.models import CUSTOM
from manyviews.training.config import ConfigError
from manyviews.transforms import FeatureTransform, ImageTransform
from manyviews.utils import suggest

TransformLike: TypeAlias = ImageTransform | FeatureTransform | Callable[..., Any]


@dataclass(frozen=True)
class CustomObjects:
    """Encoders by modality or kind ("" for all), a loss, and transforms by modality ("" for all images)."""

    encoders: Mapping[str, nn.Module] = field(default_factory=dict)
    loss: nn.Module | None = None
    transforms: Mapping[str, TransformLike] = field(default_factory=dict)

    def find_encoder_name(self, modality: str, kind: str) -> str | None:
        """Return the name under which the user gave the encoder of a modality, or None."""
        return next((name for name in (modality, kind, "") if name in self.encoders), None)

    def find_encoder(self, modality: str, kind: str) -> nn.Module | None:
        """Return a copy of the initial encoder of a modality, or None if the user gave none."""
        name = self.find_encoder_name(modality, kind)
        return None if name is None else copy.deepcopy(self.encoders[name])

    def describe(self) -> dict[str, str]:
        """Describe each object, so that a resumed run can be refused if another one is given."""
        parts: dict[str, object] = {f"encoder {name}".strip(): module for name, module in self.encoders.items()}
        parts |= {f"transform {name}".strip(): transform for name, transform in self.transforms.items()}
        parts |= {} if self.loss is None else {"loss": self.loss}
        return {name: describe_object(part) for name, part in parts.items()}

    def accepts(self, name: str) -> bool:
        """Return whether the loss takes an argument of this name, as all of ours take `mask`."""
        if self.loss is None or isinstance(self.loss, MultiViewLoss):
            return name == "mask" or (self.loss is not None and name in _list_parameters(self.loss))
        return name in _list_parameters(self.loss)

    def check(self, loss_name: str, encoder_names: tuple[str, ...]) -> None:
        """Raise a ConfigError if the config names an object that is not given."""
        if loss_name == CUSTOM and self.loss is None:
            raise ConfigError("the loss is an object of yours: pass it again, as mv.train(..., loss=MODULE)")
        if any(CUSTOM == name.rpartition("=")[2] for name in encoder_names) and not self.encoders:
            raise ConfigError("the encoder is a module of yours: pass it again, as mv.train(..., encoder=MODULE)")

    def check_transforms(self, modalities: Sequence[str]) -> None:
        """Raise a ConfigError for the transform of a modality that has no views."""
        for name in self.transforms:
            if name and name not in modalities:
                hint = suggest(name, modalities)
                raise ConfigError(f"transform: there are no views of a modality {name!r}{hint}")


def list_by_name(value: Any) -> dict[str, Any]:
    """Return objects by modality or kind; one that is not in a dict has the name ""."""
    return {} if value is None else dict(value) if isinstance(value, Mapping) else {"": value}


def describe_object(value: object) -> str:
    """Return the name of an object's class or function, and a hash of its settings and of the shapes of its weights.

    Of a function, the hash has its code, defaults, and the variables that it takes from an enclosing function.
    """
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{name} {hashlib.sha256(_describe_value(value, ()).encode()).hexdigest()[:12]}"


def _describe_value(value: object, outer: tuple[object, ...]) -> str:
    """Describe a value by its content, without addresses in memory; `outer` are the functions that refer to it."""
    if isinstance(value, nn.Module):
        return repr(value) + str([(key, tuple(tensor.shape)) for key, tensor in value.state_dict().items()])
    describe = partial(_describe_value, outer=(*outer, value))
    match value:
        case _ if any(value is other for other in outer):  # a function that calls itself
            return "recursion"
        case FunctionType():
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return describe([value.__code__, value.__defaults__, value.__kwdefaults__, *cells])
        case MethodType():
            return describe([value.__func__, value.__self__])
        case partial():
            return describe([value.func, value.args, value.keywords])
        case CodeType():
            return describe([value.co_code.hex(), value.co_names, value.co_consts])
        case list() | tuple():
            return f"[{', '.join(map(describe, value))}]"
        case dict():
            return f"{{{', '.join(f'{describe(key)}: {describe(part)}' for key, part in value.items())}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(describe, value)))}}}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _list_parameters(module: nn.Module) -> list[str]:
    return list(inspect.signature(module.forward).parameters)
