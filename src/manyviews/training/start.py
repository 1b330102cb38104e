"""`train`: from a config to a finished run; the loop itself is in `loop.py`."""

from __future__ import annotations

import dataclasses
import warnings
from contextlib import ExitStack
from pathlib import Path

import torch

from manyviews.training.checkpoints import checkpoints
from manyviews.training.config import Config, ConfigError
from manyviews.training.journal import Journal, overheard
from manyviews.training.loop import Training
from manyviews.training.metrics import check_loggers, log_in
from manyviews.training.run import Run, check_output, load_weights
from manyviews.training.setup import FITTED, built, fitted, launched, located, on_first_rank, threads
from manyviews.training.source import load_data
from manyviews.utils.text import describe_type


def train(
    config: Config | None = None,
    *,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Train an encoder as the config says.

    Args:
        config: all hyper-parameters; the recipe `photos` if not given, or the resumed run's.
        output: the run's directory; `runs/DATA-OBJECTIVE-VIEWS` if not given (of modalities `runs/DATA-OBJECTIVE`).
        resume: the directory of a run to go on with: the result is that of a run that was never stopped. With another
            number of epochs in the config, the rest of the run follows the schedule of that number.
        overwrite: replace a run that is there.
        quiet: say nothing; `log.txt` has it all.

    Returns:
        the run: its `encoder`, `metrics`, `evaluation`. On several ranks the others do not wait for the evaluation.

    Raises:
        ConfigError: something in the config cannot be, or the output exists.
        DivergedError: the loss became NaN or infinite.
        InterruptedTraining: told to stop by SIGINT, SIGTERM or SIGHUP; everything is saved.
        ChildProcessError: a worker or another rank has died; it can be resumed.

    Examples:
        >>> import manyviews as mv
        >>> run = mv.train(mv.Config(objective="mv-infonce", epochs=2), output="runs/mine")  # doctest: +SKIP
        >>> run.encoder(torch.rand(5, 3, 32, 32)).shape                                      # doctest: +SKIP
        torch.Size([5, 192])
    """
    if resume is not None:
        if output is not None or overwrite:
            raise ConfigError("resume goes on with a run where it is: leave output and overwrite out")
        done = Run.open(resume)
        config = _resumed(done, config)
        if done.finished and config.epochs == done.config.epochs and (done.evaluation is not None or not config.probe):
            return done
    if not isinstance(config, Config | None):
        raise TypeError(
            f"config must be a Config, got {describe_type(config)}: mv.train(mv.Config(data=PATH)), the path of a "
            "folder of images or of a file of arrays"
        )
    config = located(Config() if config is None else config)
    config.check()
    check_loggers(config)
    fabric = launched(config)
    path = Path(resume or output or _default_output(config)).expanduser()
    if resume is None:
        on_first_rank(fabric, lambda: check_output(path, overwrite))
    loggers = config.loggers
    on_first_rank(fabric, lambda: log_in(loggers))
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([fabric.device] if fabric.device.type == "cuda" else []))
        stack.enter_context(torch.autograd.set_detect_anomaly(config.detect_anomaly))
        with fabric.rank_zero_first(), overheard() as warned:
            data = load_data(config)
        given, config = config, fitted(config, data, fabric.world_size)
        stack.enter_context(threads(config, data))
        embedder, objective = built(config, data)
        about: dict[str, str] = {}
        if config.init is not None and not (resume and checkpoints(path / "checkpoints")):
            about["init"] = load_weights(embedder, config.init)
        run = on_first_rank(fabric, lambda: Run.open(path) if resume else Run.create(path, config, overwrite, **about))
        epochs_before, run = run.config.epochs, dataclasses.replace(run, config=config)
        on_first_rank(fabric, lambda: stack.enter_context(run.claim()))
        journal = stack.enter_context(Journal(run.path / "log.txt", silent=not fabric.is_global_zero, quiet=quiet))
        for line in warned:
            journal.keep(f"warning: {line}")
        if given.batch_size is None and config.instances < given.instances:
            journal.say(
                f"batches of {config.instances} instances, not {given.instances}: the largest that fit the data"
            )
        stack.enter_context(warnings.catch_warnings())
        warnings.showwarning = journal.warn
        # Of 1 x 1 convolutions, whose strides mean nothing.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        training = Training(run, data, embedder, objective, fabric, journal, epochs_before)
        if epochs_before != config.epochs:  # another file has taken the place of the one that is held
            on_first_rank(fabric, lambda: stack.enter_context(run.claim()))
        training.loop()
    return training.run


def _resumed(run: Run, config: Config | None) -> Config:
    """The run's config, changed at most in what does not change its result, and in its epochs."""
    if config is None:
        return run.config
    config = located(config).settled()
    left_open = [name for name, value in FITTED.items() if getattr(config, name) == value]
    config = dataclasses.replace(config, **{name: getattr(run.config, name) for name in left_open})
    if names := [name for name in run.config.different(config) if name != "epochs"]:
        changes = ", ".join(f"{name} (was {getattr(run.config, name)}, now {getattr(config, name)})" for name in names)
        raise ConfigError(f"{run.path} cannot go on with another {changes}: it would be another run. Start a new one")
    return config


def _default_output(config: Config) -> Path:
    name = Path(config.data).expanduser().resolve().stem or "data"
    if config.policy == "modalities":
        return Path("runs") / f"{name}-{'supervised' if config.supervised else config.objective}"
    return Path("runs") / f"{name}-{config.objective}-{config.views}"
