"""Small runs of every kind, trained once per session."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from manyviews.api import train
from manyviews.evaluation import EvaluationConfig, evaluate
from manyviews.export import tsne
from manyviews.report import embedding_map
from tests.helpers.tiny_multimodal import MODAL, bundle


@pytest.fixture(scope="session")
def image_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated run on photos; read-only."""
    path = Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("report") / "photos-run"))
    evaluate(path, config=EvaluationConfig(label_fractions=(0.5,), num_workers=0))
    return path


@pytest.fixture(scope="session")
def modal_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated run on three modalities, some of them missing; read-only."""
    folder = tmp_path_factory.mktemp("modal")
    config = replace(MODAL, data=bundle(folder / "bundle.npz"), epochs=1, evaluate_at_end=True)
    return train(config, output=folder / "modal-run", quiet=True).path


@pytest.fixture
def quick_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace t-SNE with PCA, which is fast."""
    monkeypatch.setattr(
        embedding_map, "compute_tsne", lambda h: tsne.compute_principal_components(h.double(), 2).float()
    )
