"""Devices, precision and process groups, with Lightning Fabric."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed as dist

from manyviews.training.config import Config, ConfigError
from manyviews.training.resolve import resolve_precision
from manyviews.utils import PARENT_PID, exit_with_parent, resolve_device

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")

RENDEZVOUS_TIMEOUT = timedelta(minutes=2)
"""Time within which all ranks must have started."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Time that a rank waits for the others afterwards; rank 0 may have to download data."""


def create_fabric(config: Config) -> Fabric:
    """Create the Fabric of a config. With several devices and without torchrun, this starts the other processes."""
    from lightning_fabric import Fabric

    device = resolve_device(config.device)
    precision = resolve_precision(config, device).precision
    if device.type == "cpu" and precision == "16-mixed":
        raise ConfigError("--precision 16-mixed requires a GPU: use bf16-mixed on a CPU")
    devices, nodes = _count_devices(config)
    is_distributed = devices * nodes > 1
    fabric = Fabric(
        accelerator=config.device,
        devices=devices,
        num_nodes=nodes,
        strategy=_make_ddp_strategy() if is_distributed else "auto",
        **{"plugins": _make_double_precision()} if precision == "64" else {"precision": precision},
    )
    if PARENT_PID in os.environ and int(os.environ.get("LOCAL_RANK", "0")):
        exit_with_parent(signal.SIGKILL)  # it may be in a call that other signals do not interrupt
    elif is_distributed and "LOCAL_RANK" not in os.environ:
        os.environ[PARENT_PID] = str(os.getpid())
    try:
        fabric.launch()
    except dist.DistError as error:
        raise ConnectionError(
            f"the {devices * nodes} ranks did not connect within {RENDEZVOUS_TIMEOUT}: {error}"
        ) from error
    if "LOCAL_RANK" not in os.environ or fabric.local_rank == 0:
        os.environ.pop(PARENT_PID, None)  # it is for the ranks that this process started, not for other subprocesses
    if is_distributed:
        dist.distributed_c10d._set_pg_timeout(COLLECTIVE_TIMEOUT)
    if config.precision == "auto" and fabric.world_size > 1:
        _check_precision(fabric, precision)
    return fabric


def _check_precision(fabric: Fabric, precision: str) -> None:
    """Raise a ConfigError on all ranks if the precision of their devices differs."""
    num_low = fabric.all_reduce(torch.tensor(float(precision != "32"), device=fabric.device), reduce_op="sum")
    if num_low not in (0, fabric.world_size):
        raise ConfigError(
            f"--precision auto is {precision} on rank {fabric.global_rank}, and another one on other ranks: use "
            "--precision 32, or bf16-mixed"
        )


def _count_devices(config: Config) -> tuple[int, int]:
    """Return the devices per node and the nodes: those of torchrun, or of the config."""
    if dist.is_torchelastic_launched():
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        return devices, int(os.environ["WORLD_SIZE"]) // devices
    if config.num_nodes > 1 and not {"SLURM_NTASKS", "MASTER_ADDR"} & set(os.environ):
        raise ConfigError("--num-nodes > 1 requires torchrun or SLURM on each node, see docs/scaling.md")
    return config.devices, config.num_nodes


def _make_ddp_strategy() -> Any:
    """Make DDP without broadcasts of buffers: running statistics are equal on all ranks, or local to each."""
    from lightning_fabric.strategies.ddp import DDPStrategy
    from torch.nn.parallel import DistributedDataParallel

    parameters = inspect.signature(DistributedDataParallel).parameters  # they depend on the version of torch
    sync_buffers = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    kwargs: Any = {sync_buffers: False}
    return DDPStrategy(timeout=RENDEZVOUS_TIMEOUT, **kwargs)


def _make_double_precision() -> Any:
    from lightning_fabric.plugins.precision.double import DoublePrecision

    class Double(DoublePrecision):
        """Fabric's double precision, without rounding the embeddings to 32 bits."""

        def convert_output(self, data: Any) -> Any:
            return data

    return Double()


def run_on_rank_zero(fabric: Fabric, fn: Callable[[], T]) -> T:
    """Call `fn` on rank 0; return its result, or raise its error, on every rank."""
    outcome: tuple[Any, Exception | None] = (None, None)
    if fabric.is_global_zero:
        try:
            outcome = fn(), None
        except (ValueError, OSError) as error:
            outcome = None, error
    outcome = fabric.broadcast(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
