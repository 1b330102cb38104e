"""`evaluate`: from a finished run to what it is worth."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from pathlib import Path
from typing import Any

from manyviews import __version__
from manyviews.data import Dataset, load_dataset, path_of
from manyviews.models import Embedder
from manyviews.training.assess_images import images_evaluated
from manyviews.training.assess_modalities import modalities_evaluated
from manyviews.training.compare import find_better_baselines
from manyviews.training.config import Config, ConfigError, Device
from manyviews.training.run import Run
from manyviews.training.scores import EvaluationConfig
from manyviews.training.setup import device_of, threads
from manyviews.training.source import Model, load_data
from manyviews.utils.text import escape_surrogates


def evaluate(
    run: Run | str | Path,
    *,
    data: str | Path | None = None,
    how: EvaluationConfig | None = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Evaluate a finished run, on its own data or on other data, and write it into the run's directory.

    Args:
        run: a run, or its directory.
        data: other data, for transfer, as `load_dataset` takes it.
        how: which probe, how many labels, compared with what.
        device: auto takes a GPU if there is one.

    Returns:
        `scores` (kNN, its k, and probe of each representation; None without labels, and `why` says so), `geometry` of
        representations and embeddings of views, on how many instances, `notes` on what to think of it, and
        `better_baselines`, a sentence for each baseline that is better than the trained encoder; of modalities also
        `subsets` and `retrieval`. `evaluation.json` holds the same, `evaluation-DATA.json` for other data;
        `validation.json` where `how` asks for the validation split.

    Raises:
        ValueError: there is no such run, or it is not finished, or the data is not what it should be.

    Examples:
        >>> import manyviews as mv
        >>> mv.evaluate("runs/demo")["scores"]["trained encoder"]["linear"]  # doctest: +SKIP
        0.451
    """
    how = EvaluationConfig() if how is None else how
    run = run if isinstance(run, Run) else Run.open(run)
    how.check(run.config)
    if not os.access(run.path, os.W_OK):
        raise ConfigError(f"cannot write into {run.path}: no permission")
    model, config = run.embedder, run.config
    if data is None:
        dataset = load_data(config)
    else:
        config = dataclasses.replace(config, data=str(data), limit=None, missing=0.0, held_out=0, knn_k=None)
        dataset = load_dataset(data, strict=config.strict, follow_links=config.follow_links)
    with threads(dataclasses.replace(config, devices=1), dataset):
        found = evaluated(model.to(device_of(device)), dataset, config, how, own=data is None)
    run.write_evaluation(found, evaluation_name(data, dataset.name, how))
    return found


def evaluated(model: Model, data: Dataset, config: Config, how: EvaluationConfig, own: bool = True) -> dict[str, Any]:
    """What `evaluate` finds, of a model in memory, on its own data or on other data."""
    how = dataclasses.replace(how, knn_k=how.knn_k or config.knn_k)
    about = {"manyviews": __version__, "source": escape_surrogates(config.data), "data": data.name}
    if isinstance(model, Embedder):
        found = about | images_evaluated(model, data, config, how, own)
    else:
        found = about | modalities_evaluated(model, data, config, how, own)
    return found | {"better_baselines": find_better_baselines(found)}


def evaluation_name(data: str | Path | None, name: str, how: EvaluationConfig) -> str:
    """The file in a run's directory with its evaluation, on its own data or on other data of this name."""
    dropped = [re.sub(r"[^\w.-]+", "-", f"without-{one}") for one in sorted(how.drop)]
    kind = "-".join([{"test": "evaluation", "valid": "validation"}[how.split], *dropped])
    if data is None:
        return f"{kind}.json"
    path = path_of(data)
    # Folders of the same name are not the same data.
    apart = f"-{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:6]}" if path and path.exists() else ""
    plain = re.sub(r"[^\w.-]+", "-", name)
    return f"{kind}-{plain}{apart}.json"
