"""Small runs of every kind, made once."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from manyviews.report import map as maps
from manyviews.report import tsne
from manyviews.training import EvaluationConfig, evaluate, train
from tests.training.bundle import MODAL, bundle


@pytest.fixture(scope="session")
def image_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On photos, evaluated; not to be changed."""
    path = Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("report") / "photos-run"))
    evaluate(path, how=EvaluationConfig(few=(0.5,), workers=0))
    return path


@pytest.fixture(scope="session")
def modal_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On three modalities of which some are missing, evaluated; not to be changed."""
    folder = tmp_path_factory.mktemp("modal")
    config = replace(MODAL, data=bundle(folder / "bundle.npz"), epochs=1, probe=True)
    return train(config, output=folder / "modal-run", quiet=True).path


@pytest.fixture
def quick_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps that take no time, and say little."""
    monkeypatch.setattr(maps, "tsne", lambda h: tsne.components(h.double(), 2).float())
