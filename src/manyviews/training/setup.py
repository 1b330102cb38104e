"""From a config to what the loop works with: ranks, data that fits, a model, an objective, an optimiser."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from manyviews.data import Dataset, ImageFiles
from manyviews.losses import Objective, get_objective
from manyviews.models import ENCODERS, Embedder, ProjectionHead, get_encoder, representation_dim
from manyviews.training.config import Config, ConfigError, Device
from manyviews.training.optimisers import LARS, parameter_groups
from manyviews.views import SimCLRPolicy, natural_size

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")
FITTED = ("size", "strength", "blur", "stem")
"""Fields that the data may decide."""
LARGE = 64
"""Views of more pixels a side have ImageNet's stem, jitter and blur."""


def launched(config: Config) -> Fabric:
    """Devices, precision and ranks; with several devices and no torchrun, the other processes are started here."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.precision.double import DoublePrecision
    from lightning_fabric.strategies.ddp import DDPStrategy
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    class Double(DoublePrecision):
        """Fabric's, without rounding the embeddings to 32 bits."""

        def convert_output(self, data: Any) -> Any:
            return data

    devices, nodes = config.devices, config.nodes
    if dist.is_torchelastic_launched():
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    many = devices * nodes > 1
    known = inspect.signature(DistributedDataParallel).parameters
    keep_buffers: Any = {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}
    fabric = Fabric(
        accelerator=config.device,
        devices=devices,
        num_nodes=nodes,
        # Running statistics are the same on all ranks, or each rank's own: nothing to broadcast.
        strategy=DDPStrategy(**keep_buffers) if many else "auto",
        **{"plugins": Double()} if config.precision == "64" else {"precision": config.precision},
    )
    fabric.launch()
    return fabric


def device_of(name: Device) -> torch.device:
    """A device by its name; for auto a GPU if there is one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, found in there.items() if found))
    if not there[name]:
        raise ConfigError(f"there is no device {name} here: try auto")
    return torch.device(name)


@contextmanager
def threads(config: Config) -> Iterator[None]:
    """CPU threads of this process: as told, or a fair share of the cores."""
    before = torch.get_num_threads()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", config.devices))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(config.threads or max(1, cores // local))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def on_first_rank(fabric: Fabric, work: Callable[[], T]) -> T:
    """What `work` returns on rank 0, on every rank; a mistake found there is everyone's."""
    outcome: tuple[Any, Exception | None] = (None, None)
    if fabric.is_global_zero:
        try:
            outcome = work(), None
        except (ValueError, OSError) as error:
            outcome = None, error
    outcome = fabric.broadcast(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def located(config: Config) -> Config:
    """The config with the whole paths of its data, so that a run can go on from another directory."""
    path = Path(config.data).expanduser()
    return dataclasses.replace(
        config,
        data=str(path.resolve()) if path.exists() else config.data,
        classes=None if config.classes is None else config.classes.expanduser().resolve(),
    )


def fitted(config: Config, data: Dataset, ranks: int) -> Config:
    """The config with what it leaves to the data filled in, or a ConfigError if they do not go together."""
    images = data["train"].images
    total = min(len(images), config.limit or len(images))
    left = total - config.held_out
    if config.instances > left:
        held = f" ({config.held_out} of {total} are held out)" if config.held_out else ""
        raise ConfigError(
            f"a batch of {config.instances} instances is larger than the {max(0, left)} of {data.name} to train on"
            f"{held}: lower --batch-size or --held-out"
        )
    if config.instances % ranks:
        raise ConfigError(f"a batch of {config.instances} instances does not divide among {ranks} ranks")
    if config.objective == "supcon" and data["train"].classes is None:
        raise ConfigError(f"supcon needs classes as labels, and {data.name} has none: try ntxent")
    size = natural_size(images) if config.size is None else config.size
    large = size > LARGE
    ours = config.encoder in ENCODERS
    if not ours and (config.stem is not None or config.width is not None):
        raise ConfigError(f"stem and width are for our ResNets, which {config.encoder} is not")
    stem = config.stem
    if stem is None and ours and large:
        stem = "imagenet"
    elif stem is None and ours and config.encoder != "resnet-small":
        stem = "small"
    return dataclasses.replace(
        config,
        size=size,
        strength=(1.0 if large else 0.5) if config.strength is None else config.strength,
        blur=(0.5 if large else 0.0) if config.blur is None else config.blur,
        stem=stem,
    )


def fingerprint(images: Tensor | ImageFiles) -> str:
    """Tells whether the images are still the same: by their pixels, or by the names and sizes of their files."""
    digest = hashlib.sha256()
    if isinstance(images, Tensor):
        digest.update(images.cpu().contiguous().numpy().data)
    else:
        for path in images.paths:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def policy_of(config: Config) -> SimCLRPolicy:
    """How a fitted config draws views."""
    assert config.size is not None
    assert config.strength is not None
    assert config.blur is not None
    return SimCLRPolicy(config.size, strength=config.strength, blur=config.blur, scale=config.scale)


def encoder_options(config: Config) -> dict[str, Any]:
    """What `get_encoder` is given besides the name."""
    return {name: value for name in ("stem", "width") if (value := getattr(config, name)) is not None}


def built(config: Config) -> tuple[Embedder, Objective]:
    """The untrained model and the objective: the same for the same seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(config.seed)
        encoder = get_encoder(config.encoder, **encoder_options(config))
        size = config.size or 32
        dim = representation_dim(encoder, torch.zeros(1, 3, size, size))
        embedder = Embedder(encoder, ProjectionHead(dim, out=config.projection), each_view=config.each_view)
        objective = get_objective(config.objective, temperature=config.temperature, learnable=config.learnable)
    return embedder, objective


def optimiser_of(config: Config, model: nn.Module) -> Optimizer:
    """The loop sets its learning rate at every step."""
    groups = parameter_groups(model, config.weight_decay)
    if config.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=0.0)
    if config.optimiser == "lars":
        return LARS(groups, lr=0.0, momentum=config.momentum, trust=config.trust)
    return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum)
