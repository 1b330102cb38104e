"""From a config to what the loop works with: ranks, data that fits, a model, an objective, an optimiser."""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from manyviews.data import Dataset, path_of
from manyviews.data.dataset import IMAGE
from manyviews.losses import get_objective
from manyviews.losses.catalogue import RELEASED
from manyviews.training.config import BATCH_SIZE, Config, ConfigError, Device
from manyviews.training.images import ImageSource
from manyviews.training.modalities import ModalitySource
from manyviews.training.optimisers import LARS, parameter_groups
from manyviews.training.source import Loss, Model, Source, choose_held_out
from manyviews.training.supervised import Supervised
from manyviews.utils.processes import PARENT_PID, exit_with_parent
from manyviews.utils.threads import choose_threads, limit_threads

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")
FITTED: dict[str, Any] = {
    "size": None,
    "strength": None,
    "blur": None,
    "stem": None,
    "views": 0,
    "modalities": (),
    "held_out": None,
    "batch_size": None,
}
"""Fields that the data may decide, and their values until then."""
MAX_SHORT_STEPS = 64
"""Steps of sequences whose encoders are no faster with several threads than with one."""


RENDEZVOUS = timedelta(minutes=2)
"""In which all ranks must have started."""
EXCHANGE = timedelta(minutes=30)
"""For which a rank waits for the others once they have met: the first may have data to download."""


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

    if device_of(config.device).type == "cpu" and config.precision == "16-mixed":
        raise ConfigError("16-mixed is for GPUs: on a CPU take --precision bf16-mixed")
    devices, nodes = config.devices, config.nodes
    launcher = dist.is_torchelastic_launched() or "SLURM_NTASKS" in os.environ or "MASTER_ADDR" in os.environ
    if nodes > 1 and not launcher:
        raise ConfigError("several --nodes are started by torchrun or SLURM, on each of them: docs/scaling.md has how")
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
        strategy=DDPStrategy(timeout=RENDEZVOUS, **keep_buffers) if many else "auto",
        **{"plugins": Double()} if config.precision == "64" else {"precision": config.precision},
    )
    if PARENT_PID in os.environ and int(os.environ.get("LOCAL_RANK", "0")):
        exit_with_parent(signal.SIGKILL)  # it may be in a call that no other signal ends
    elif many and "LOCAL_RANK" not in os.environ:
        os.environ[PARENT_PID] = str(os.getpid())
    try:
        fabric.launch()
    except dist.DistError as error:
        raise ConnectionError(f"the {devices * nodes} ranks have not met in {RENDEZVOUS}: {error}") from error
    if "LOCAL_RANK" not in os.environ or fabric.local_rank == 0:
        os.environ.pop(PARENT_PID, None)  # of ranks that this process starts, not of other processes
    if many:
        dist.distributed_c10d._set_pg_timeout(EXCHANGE)
    return fabric


def device_of(name: Device) -> torch.device:
    """A device by its name; for auto a GPU if there is one.

    Examples:
        >>> device_of("cpu")
        device(type='cpu')
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name not in ("auto", *there):
        raise ConfigError(f"no device {name!r}: there are auto, {', '.join(there)}")
    if name == "auto":
        return torch.device(next(kind for kind, found in there.items() if found))
    if not there[name]:
        raise ConfigError(f"there is no device {name} here: try auto")
    return torch.device(name)


def threads(config: Config, data: Dataset) -> AbstractContextManager[None]:
    """CPU threads of this process: as told, or a fair share of the CPUs; one for encoders of features."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", config.devices))
    names = config.modalities if config.policy == "modalities" else (IMAGE,)
    return limit_threads(config.threads or choose_threads(local, small=has_small_modalities(data, names)))


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
    path = path_of(config.data)
    return dataclasses.replace(
        config,
        data=str(path.resolve()) if path and path.exists() else config.data,
        classes=None if config.classes is None else config.classes.expanduser().resolve(),
        init=None if config.init is None else config.init.expanduser().resolve(),
    )


def source_of(config: Config) -> type[Source]:
    """What a config's training learns from."""
    return ModalitySource if config.policy == "modalities" else ImageSource


def fitted(config: Config, data: Dataset, ranks: int) -> Config:
    """The config with what it leaves to data and objective filled in, or a ConfigError if they do not go together."""
    names = data["train"].modalities
    if config.policy == "crops" and IMAGE not in names:
        raise ConfigError(
            f"{data.name} has no images, only {', '.join(names)}: train on these with --recipe multimodal"
        )
    config = source_of(config).fit(config.settled(), data)
    config = fit_batch(config, data, ranks)
    if config.instances % ranks:
        raise ConfigError(f"a batch of {config.instances} instances does not divide among {ranks} ranks")
    if ranks > 1 and config.sync_batch_norm and any(is_image(data, name) for name in config.modalities):
        gaps = [name for name in config.modalities if is_image(data, name) and name in data["train"].present]
        if gaps or config.missing:
            raise ConfigError("where images are missing, ranks cannot share batch norm: use --no-sync-batch-norm")
    if config.objective == "supcon" and data["train"].classes is None:
        raise ConfigError(f"supcon needs classes as labels, and {data.name} has none: try ntxent")
    return config


def fit_batch(config: Config, data: Dataset, ranks: int) -> Config:
    """The config with how many instances are held out and make a batch; a number that is given is never changed."""
    total, source = len(data["train"]), source_of(config)
    held_out = choose_held_out(total) if config.held_out is None else config.held_out
    config = dataclasses.replace(config, held_out=held_out)
    left = source.count_trained(config, data)
    fits, times = left // ranks * ranks, config.views if config.fixed_batch else 1
    lost = [f"{held_out} of {total} are held out"] if held_out else []
    lost += [f"{total - held_out - left} have too few modalities"] if 0 < left < total - held_out else []
    these = f"{left} instances of {data.name} to train on" + (f" ({', '.join(lost)})" if lost else "")
    if fits < 2 * ranks:
        more = "fewer held-out instances" if held_out else "more data"
        raise ConfigError(f"there are {these}, and a batch needs {2 * ranks}: give it {more}")
    if config.batch_size is None:
        usual = max(BATCH_SIZE // times // ranks, 1) * ranks
        return dataclasses.replace(config, batch_size=times * min(usual, fits))
    if config.instances > left:
        raise ConfigError(f"a batch of {config.instances} is larger than the {these}: try --batch-size {times * fits}")
    return config


def is_image(data: Dataset, name: str) -> bool:
    return getattr(data["train"].modalities[name], "ndim", 4) == 4


def has_small_modalities(data: Dataset, names: Iterable[str]) -> bool:
    """Whether these modalities are all vectors or short sequences."""
    all_rows = [data["train"].modalities.get(name) for name in names]
    return all(
        isinstance(rows, Tensor) and (rows.ndim == 2 or (rows.ndim == 3 and rows.shape[1] <= MAX_SHORT_STEPS))
        for rows in all_rows
    )


def built(config: Config, data: Dataset) -> tuple[Model, Loss]:
    """The untrained model and the objective: the same for the same seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(config.seed)
        model = source_of(config).model(config, data)
        if config.supervised:
            return model, Supervised()
        told = {"temperature": config.temperature, "learnable": config.learnable}
        told = {name: value for name, value in told.items() if value is not None}
        options = RELEASED.get(config.objective, {}) if config.released else {}
        objective = get_objective(config.objective, **told, **options)
    return model, objective


def optimiser_of(config: Config, model: nn.Module) -> Optimizer:
    """The loop sets its learning rate at every step."""
    groups = parameter_groups(model, config.weight_decay)
    if config.optimiser == "adamw":
        groups = [{**group, "share": 1.0} for group in groups]
        return torch.optim.AdamW(groups, lr=0.0)
    if config.optimiser == "lars":
        return LARS(groups, lr=0.0, momentum=config.momentum, trust=config.trust)
    return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum)
