"""`train`: set up and run a training; the loop itself is `training.Trainer`."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from manyviews.data import DatasetDict, convert_dataset, get_source_name
from manyviews.evaluation import EvaluationConfig, evaluate_model, load_evaluation
from manyviews.loading import ViewSpec
from manyviews.models import CUSTOM, MultiViewModel
from manyviews.runs import Run, init_from_run
from manyviews.training import (
    AUTO_FIELDS,
    CUSTOM_DATA,
    LOG_FILE,
    Callback,
    Config,
    ConfigError,
    CustomObjects,
    Trainer,
    TrainingTask,
    TransformLike,
    build_loss,
    check_callbacks,
    check_loggers,
    check_output,
    check_wandb_login,
    create_fabric,
    get_default_recipe,
    limit_cpu_threads,
    list_by_name,
    list_checkpoints,
    load_data,
    resolve_task,
    run_on_rank_zero,
    with_absolute_paths,
)
from manyviews.transforms import FeatureTransform, ImageTransform, MultiCrop
from manyviews.utils import describe_type, hide_progress, keep_freed_memory, log_training, logger

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from manyviews.utils import LogFileHandler


def train(
    data: Any = None,
    *,
    config: Config | None = None,
    encoder: str | Sequence[str] | nn.Module | Mapping[str, nn.Module] | None = None,
    loss: str | nn.Module | None = None,
    transform: TransformLike | Mapping[str, TransformLike] | None = None,
    callbacks: Sequence[Callback] = (),
    output: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **fields: Any,
) -> Run:
    """Train an encoder.

    Args:
        data: a name, a path, or an object that `convert_dataset` accepts: a tensor, a dict of modalities, a map-style
            dataset of torch, a Hugging Face dataset; or a `Config`.
        config: all hyper-parameters. Default: the recipe of the data's name, or `photos`, or the resumed run's config.
        encoder: a name as on the command line, a module that encodes the images (or the only kind of views), or modules
            by modality or kind. After training, your modules have the trained weights.
        loss: a name, or a module that maps embeddings (M, N, d), and `mask=` (M, N) if views are missing, to a scalar.
            It must gather the embeddings of other ranks itself, as ours do.
        transform: a `SimCLRTransform`, a function from a PIL image to a view in [0, 1], or a dict of them by modality.
        callbacks: objects with the methods of `Callback`.
        output: directory of the new run. Default: `runs/DATA-LOSS-VIEWS`, or `runs/DATA-LOSS` if the config has no
            views.
        resume: directory of a run to resume; the result equals that of an uninterrupted run. If the config has another
            number of epochs, the remaining steps follow the learning rate schedule of that number. Objects must be
            given again.
        overwrite: replace an existing run.
        quiet: print nothing; `log.txt` still has the full log. Messages also go to the handlers of
            `logging.getLogger("manyviews")`; if it has any, they replace those on stderr.
        fields: fields of `Config`, such as views=4, epochs=10.

    Returns:
        the finished run. With several ranks, the other ranks do not wait for the evaluation.

    Raises:
        ConfigError: the config is invalid, or the output exists.
        DivergedError: the loss became NaN or infinite.
        TrainingInterrupted: SIGINT, SIGTERM or SIGHUP stopped the run; a checkpoint is saved.
        ChildProcessError: a worker or another rank died; the run can be resumed.

    Examples:
        >>> import manyviews as mv
        >>> run = mv.train("photos", loss="mv-infonce", epochs=2, output="runs/mine")  # doctest: +SKIP
        >>> run.load_encoder()(torch.rand(5, 3, 32, 32)).shape                         # doctest: +SKIP
        torch.Size([5, 192])
    """
    if isinstance(data, Config):
        if config is not None:
            raise TypeError("give one Config, as the first argument or as config=")
        config, data = data, None
    if not isinstance(config, Config | None):
        raise TypeError(f"config must be a Config, got {describe_type(config)}")
    check_callbacks(callbacks)
    if not isinstance(loss, str | nn.Module | None):
        raise TypeError(
            f"loss must be a name or a torch.nn.Module, got {describe_type(loss)}: put it into the forward of a module"
        )
    source = None
    if data is not None and not isinstance(data, (str, Path)):
        with hide_progress() if quiet else nullcontext():
            source = convert_dataset(data)
    objects = CustomObjects(
        {name: copy.deepcopy(module) for name, module in _list_by_name("encoder", encoder, nn.Module).items()},
        loss if isinstance(loss, nn.Module) else None,
        _list_transforms(transform),
    )
    fields |= {} if data is None else {"data": CUSTOM_DATA if source is not None else str(data)}
    fields |= {} if loss is None else {"loss": CUSTOM if objects.loss is not None else loss}
    if objects.encoders:
        fields["encoder"] = tuple(f"{name}={CUSTOM}" if name else CUSTOM for name in objects.encoders)
    elif encoder is not None:
        fields["encoder"] = encoder
    if config is not None or fields:
        base = config or (
            Run.open(resume).config if resume is not None else get_default_recipe(fields.get("data", "photos"))
        )
        config = base.with_fields(fields, "the arguments of train")
    if resume is not None:
        if output is not None or overwrite:
            raise ConfigError("--resume cannot be combined with --output or --overwrite")
        existing = Run.open(resume)
        config = _get_resume_config(existing, config)
        if config.data == CUSTOM_DATA and source is None:
            raise ConfigError("the data is an object of yours: pass it again, as mv.train(DATASET, resume=...)")
        if _is_complete(existing, config):
            return existing
    config = with_absolute_paths(config or Config())
    config.check()
    check_loggers(config)
    path = Path(resume or output or _get_default_output(config)).expanduser()
    fabric = create_fabric(config)
    if resume is None:
        check_output(path, overwrite)  # `Run.create` checks again; this fails before the data is loaded
    with _set_up_process(config, fabric, quiet) as log, ExitStack() as stack:
        dataset = load_data(config, source)
        task = resolve_task(config, dataset, fabric.world_size, fabric.device, objects)
        task.start_workers(monitors=fabric.is_global_zero)
        run_on_rank_zero(fabric, partial(check_wandb_login, config.loggers))
        requested, config = config, task.config
        stack.enter_context(limit_cpu_threads(config, dataset))
        model, loss_module = task.build_model(), objects.loss or build_loss(config)
        provenance = {"transform": CUSTOM} if objects.transforms else {}
        if config.init is not None and not (resume and list_checkpoints(path / "checkpoints")):
            provenance["init"] = init_from_run(model, config.init)
        open_run = partial(Run.open, path) if resume else partial(Run.create, path, config, overwrite, **provenance)
        run = run_on_rank_zero(fabric, open_run)
        epochs_before, run = run.config.epochs, dataclasses.replace(run, config=config)
        _lock(run, fabric, stack)
        log.open(run.path / LOG_FILE)
        if requested.batch_size is None and config.instances_per_batch < requested.instances_per_batch:
            logger.info(
                f"batches have {config.instances_per_batch} instances instead of {requested.instances_per_batch}, "
                "the largest size that fits the data"
            )
        eval_config = EvaluationConfig(label_fractions=(), num_workers=config.num_workers)
        evaluate = partial(evaluate_model, data=dataset, config=config, eval_config=eval_config, objects=objects)
        trainer = Trainer(
            run,
            task,
            model,
            loss_module,
            fabric,
            evaluate if config.evaluate_at_end else None,
            epochs_before,
            callbacks,
        )
        if epochs_before != config.epochs:  # config.yaml, the locked file, was replaced
            _lock(run, fabric, stack)
        trainer.fit()
        for name, module in _list_by_name("encoder", encoder, nn.Module).items():
            _copy_weights(task, trainer.final_model, name, module)
    return dataclasses.replace(run, extensions=trainer.run.extensions)


def _list_by_name(argument: str, value: Any, kind: type) -> dict[str, Any]:
    """Return objects by modality or kind; one that is not in a dict has the name ""."""
    if argument == "encoder" and isinstance(value, (str, list, tuple)):
        return {}
    named = list_by_name(value)
    for name, part in named.items():
        if not isinstance(name, str) or not isinstance(part, kind):
            raise TypeError(
                f"{argument} must be a name, a {kind.__name__} or a dict of them, got {describe_type(part)}"
            )
    return named


def _list_transforms(value: Any) -> dict[str, TransformLike]:
    """Return transforms by modality; one that is not in a dict has the name ""."""
    named = list_by_name(value)
    for part in named.values():
        if isinstance(part, MultiCrop):
            raise TypeError(
                "transform: views of several sizes are given as views, such as views=('image:2@224', 'image:6@96')"
            )
        if not isinstance(part, ImageTransform | FeatureTransform) and not callable(part):
            got = describe_type(part)
            raise TypeError(f"transform must be a transform, a function of a PIL image, or a dict of them, got {got}")
    return named


def _copy_weights(task: TrainingTask, model: MultiViewModel, name: str, module: nn.Module) -> None:
    """Copy the trained weights of the first encoder that is a copy of the user's module into that module."""
    for modality, key in task.spec.encoders.items():
        if name == task.objects.find_encoder_name(modality, task.split[modality].kind):
            module.load_state_dict(model.encoder.get_encoder(key).state_dict())
            return


@contextmanager
def _set_up_process(config: Config, fabric: Fabric, quiet: bool) -> Iterator[LogFileHandler]:
    """Set the random state, warnings and logging of this process for a training, and restore them afterwards."""
    with (
        torch.random.fork_rng([fabric.device] if fabric.device.type == "cuda" else []),
        torch.autograd.set_detect_anomaly(config.detect_anomaly),
        warnings.catch_warnings(),
        log_training(fabric.is_global_zero, quiet) as log,
        hide_progress() if quiet or not fabric.is_global_zero else nullcontext(),
        keep_freed_memory(),
    ):
        # DDP warns about 1 x 1 convolutions, whose strides are irrelevant.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        yield log


def estimate_training_seconds(config: Config, data: DatasetDict) -> float:
    """Estimate the time of a training on this machine, without evaluation, from its second step (the first warms up).

    Raises:
        ConfigError: config and data are incompatible.
    """
    with tempfile.TemporaryDirectory() as folder:
        fabric = create_fabric(config)
        task = resolve_task(config, data, fabric.world_size, fabric.device)
        run = Run.create(Path(folder) / "run", task.config, overwrite=False)
        with limit_cpu_threads(task.config, data):
            trainer = Trainer(run, task, task.build_model(), build_loss(task.config), fabric)
            for _ in range(2):
                start = time.perf_counter()
                trainer.step(next(trainer.iterate_batches(0)))
                elapsed = time.perf_counter() - start
        return elapsed * trainer.total_steps


def _lock(run: Run, fabric: Fabric, stack: ExitStack) -> None:
    """Lock the run on rank 0 until the stack is closed; every rank raises if another process holds the lock."""

    def lock() -> None:
        stack.enter_context(run.lock())

    run_on_rank_zero(fabric, lock)


def _is_complete(run: Run, config: Config) -> bool:
    if not run.is_finished or config.epochs != run.config.epochs:
        return False
    return not config.evaluate_at_end or load_evaluation(run) is not None


def _get_resume_config(run: Run, config: Config | None) -> Config:
    """Return the config to resume with; only epochs and fields that do not affect the result may differ."""
    if config is None:
        return run.config
    config = with_absolute_paths(config)
    unset = [name for name, value in AUTO_FIELDS.items() if getattr(config, name) == value]
    config = dataclasses.replace(config, **{name: getattr(run.config, name) for name in unset}).with_loss_defaults()
    if ViewSpec.parse(config.views).is_short_for(ViewSpec.parse(run.config.views)):
        config = dataclasses.replace(config, views=run.config.views)
    if names := [name for name in run.config.list_changed_fields(config) if name != "epochs"]:
        changes = ", ".join(
            f"{name} {_format_value(getattr(run.config, name))} -> {_format_value(getattr(config, name))}"
            for name in names
        )
        raise ConfigError(f"cannot resume {run.path} with changed fields: {changes}. Start a new run instead")
    return config


def _format_value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _get_default_output(config: Config) -> Path:
    name = "dataset" if config.data == CUSTOM_DATA else get_source_name(config.data)
    views = f"-{config.num_views}" if config.num_views else ""
    return Path("runs") / f"{name}-{'supervised' if config.supervised else config.loss}{views}"
