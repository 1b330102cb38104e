"""`evaluate`: load a finished run, evaluate it and write the result into its directory."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from manyviews import __version__
from manyviews.data import DatasetDict, as_path, load_dataset
from manyviews.evaluation.baselines import find_better_baselines
from manyviews.evaluation.evaluation_result import EvaluationResult
from manyviews.evaluation.model_evaluation import evaluate_modalities
from manyviews.evaluation.scores import EvaluationConfig
from manyviews.models import CUSTOM, MultiViewModel
from manyviews.runs import Run
from manyviews.training import Config, ConfigError, CustomObjects, load_data
from manyviews.utils import Device, describe_type, escape_surrogates, resolve_device


def evaluate(
    run: Run | str | Path,
    *,
    data: Any = None,
    config: EvaluationConfig | None = None,
    encoder: nn.Module | Mapping[str, nn.Module] | None = None,
    device: Device = "auto",
) -> EvaluationResult:
    """Evaluate a finished run on its own or on other data and write the result into the run's directory.

    Args:
        run: a run, or its directory.
        data: other data to transfer to, or the object that the run was trained on, in any form that `train` accepts.
        config: the probe, the label fractions, the baselines.
        encoder: the module, or modules by modality or kind, if the run was trained with your own.
        device: "auto" selects a GPU if there is one.

    Returns:
        the result, which is also written to `evaluation.json`, for other data to `evaluation-DATA.json`, and for
        `split="valid"` to `validation.json`.

    Raises:
        ValueError: the run does not exist or is not finished, or the data does not fit it.

    Examples:
        >>> import manyviews as mv
        >>> mv.evaluate("runs/demo").scores["trained"].linear  # doctest: +SKIP
        0.451
    """
    config = EvaluationConfig() if config is None else config
    run = run if isinstance(run, Run) else Run.open(run)
    config.check(run.config)
    if not os.access(run.path, os.W_OK):
        raise ConfigError(f"cannot write into {run.path}: permission denied")
    modules = dict(encoder) if isinstance(encoder, Mapping) else {} if encoder is None else {"": encoder}
    model, run_config = run.load_model(encoder), run.config
    is_own = data is None or run_config.data == CUSTOM
    if is_own:
        dataset = load_data(run_config, data)
    elif not isinstance(data, (str, Path)):
        raise ConfigError(f"other data must be a name or a path, got {describe_type(data)}")
    else:
        run_config = dataclasses.replace(
            run_config, data=str(data), max_instances=None, missing_rate=0.0, monitor_size=0, knn_k=None
        )
        dataset = load_dataset(
            data, raise_on_corrupt=run_config.raise_on_corrupt, follow_symlinks=run_config.follow_symlinks
        )
    with run.limit_cpu_threads(dataset):
        result = evaluate_model(
            model.to(resolve_device(device)), dataset, run_config, config, is_own, CustomObjects(modules)
        )
    run.save_evaluation(result.to_json(), get_evaluation_filename(None if is_own else data, dataset.name, config))
    return result


def evaluate_model(
    model: MultiViewModel,
    data: DatasetDict,
    config: Config,
    eval_config: EvaluationConfig,
    same_data: bool = True,
    objects: CustomObjects | None = None,
) -> EvaluationResult:
    """Evaluate a model in memory; `same_data` is true if it was trained on this data."""
    eval_config = dataclasses.replace(eval_config, knn_k=eval_config.knn_k or config.knn_k)
    fields = evaluate_modalities(model, data, config, eval_config, same_data, objects)
    result = EvaluationResult(__version__, escape_surrogates(config.data), data.name, **fields)
    return dataclasses.replace(result, better_baselines=find_better_baselines(result))


def get_evaluation_filename(data: str | Path | None, name: str, eval_config: EvaluationConfig) -> str:
    """Return the name of the file in a run's directory; `data` is None for the run's own data."""
    dropped = [re.sub(r"[^\w.-]+", "-", f"without-{modality}") for modality in sorted(eval_config.drop_modalities)]
    kind = "-".join([{"test": "evaluation", "valid": "validation"}[eval_config.split], *dropped])
    if data is None:
        return f"{kind}.json"
    path = as_path(data)
    # Folders of the same name may hold different data.
    digest = f"-{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:6]}" if path and path.exists() else ""
    stem = re.sub(r"[^\w.-]+", "-", name)
    return f"{kind}-{stem}{digest}.json"
