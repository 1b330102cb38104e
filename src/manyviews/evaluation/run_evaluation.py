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
from manyviews.data import HF_PREFIX, DatasetDict, convert_dataset, load_dataset, resolve_source
from manyviews.evaluation.baselines import find_better_baselines
from manyviews.evaluation.model_evaluation import evaluate_modalities
from manyviews.evaluation.scores import EvaluationConfig
from manyviews.metrics import EvaluationResult
from manyviews.models import MultiViewModel
from manyviews.runs import Run
from manyviews.training import (
    CUSTOM_DATA,
    Config,
    ConfigError,
    CustomObjects,
    TransformLike,
    list_by_name,
    load_data,
)
from manyviews.utils import Device, escape_surrogates, resolve_device


def evaluate(
    run: Run | str | Path,
    *,
    data: Any = None,
    config: EvaluationConfig | None = None,
    encoder: nn.Module | Mapping[str, nn.Module] | None = None,
    transform: TransformLike | Mapping[str, TransformLike] | None = None,
    device: Device = "auto",
) -> EvaluationResult:
    """Evaluate a finished run on its own or on other data and write the result into the run's directory.

    Args:
        run: a run, or its directory.
        data: other data to transfer to, in any form that `train` accepts. If the run was trained on an object, an
            object is that data.
        config: the probe, the label fractions, the baselines.
        encoder: the module, or modules by modality or kind, if the run was trained with your own. It is not changed; if
            it has the trained weights, there is no untrained baseline.
        transform: the transform, or transforms by modality, if the run was trained with your own.
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
    objects = CustomObjects(list_by_name(encoder), None, list_by_name(transform))
    if run.has_custom_transform and not objects.transforms:
        raise ConfigError("the transform of the run is an object of yours: pass it, as mv.evaluate(RUN, transform=...)")
    model, run_config = run.load_model(encoder), run.config
    is_object = data is not None and not isinstance(data, (str, Path))
    is_own = data is None or (is_object and run_config.data == CUSTOM_DATA)
    if is_own:
        dataset = load_data(run_config, convert_dataset(data) if is_object else None)
    else:
        run_config = dataclasses.replace(
            run_config,
            data=CUSTOM_DATA if is_object else str(data),
            max_instances=None,
            missing_rate=0.0,
            monitor_size=0,
            knn_k=None,
        )
        corrupt, symlinks = run_config.raise_on_corrupt, run_config.follow_symlinks
        if is_object:
            dataset = convert_dataset(data)
        else:
            options = run_config.get_table_options()
            dataset = load_dataset(
                data, raise_on_corrupt=corrupt, follow_symlinks=symlinks, **options, strict_columns=False
            )
    with run.limit_cpu_threads(dataset):
        result = evaluate_model(model.to(resolve_device(device)), dataset, run_config, config, is_own, objects)
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


def get_evaluation_filename(data: object, name: str, eval_config: EvaluationConfig) -> str:
    """Return the name of the file in a run's directory; `data` is None for the run's own data."""
    dropped = [re.sub(r"[^\w.-]+", "-", f"without-{modality}") for modality in sorted(eval_config.drop_modalities)]
    kind = "-".join([{"test": "evaluation", "valid": "validation"}[eval_config.split], *dropped])
    if data is None:
        return f"{kind}.json"
    # Folders of the same name may hold different data.
    source = resolve_source(data) if isinstance(data, (str, Path)) else ""
    is_path = Path(source.removeprefix(HF_PREFIX)).is_absolute()
    digest = f"-{hashlib.sha256(os.fsencode(source)).hexdigest()[:6]}" if is_path else ""
    stem = re.sub(r"[^\w.-]+", "-", name)
    return f"{kind}-{stem}{digest}.json"
