"""docs/tutorial.ipynb: its cells run in order, and its stored outputs are complete and clean."""

import re
import runpy
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.test_docs import problem, simple_commands

DOCS = Path(__file__).parents[1] / "docs"
SCRIPT = SimpleNamespace(**runpy.run_path(str(DOCS / "notebook.py")))
MAX_BYTES = 600_000
PICTURES = {"image/png", "image/jpeg"}
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])(?:/(?:tmp|home|root|Users|var|work|usr|opt|mnt)\b|[A-Z]:\\)")
NOISE = re.compile(r"Traceback|Warning|\x1b\[")


def list_texts(notebook: dict) -> list[str]:
    """List what each output says."""
    outputs = [output for cell in SCRIPT.list_code_cells(notebook) for output in cell["outputs"]]
    return ["".join(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs]


def check_outputs(notebook: dict) -> None:
    kinds = [output["output_type"] for cell in SCRIPT.list_code_cells(notebook) for output in cell["outputs"]]
    assert "error" not in kinds
    texts = list_texts(notebook)
    assert [text for text in texts if not text or ABSOLUTE_PATH.search(text) or NOISE.search(text)] == []


def list_output_kinds(notebook: dict) -> list[list[str]]:
    """List, for each code cell, the type of each output and whether it is a picture."""
    return [
        [f"{output['output_type']} {bool(PICTURES & set(output.get('data', ())))}" for output in cell["outputs"]]
        for cell in SCRIPT.list_code_cells(notebook)
    ]


def test_stored_outputs_are_complete_and_clean() -> None:
    notebook = SCRIPT.read_notebook()
    check_outputs(notebook)
    cells = SCRIPT.list_code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert [i for i, cell in enumerate(cells) if i > 0 and not cell["outputs"]] == []  # the first cell writes files
    assert sum(kind.endswith("True") for kinds in list_output_kinds(notebook) for kind in kinds) >= 4
    assert SCRIPT.NOTEBOOK.stat().st_size < MAX_BYTES


def test_links_and_commands_of_the_text_exist() -> None:
    text = "\n\n".join(SCRIPT.get_source(c) for c in SCRIPT.read_notebook()["cells"] if c["cell_type"] == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert len(targets) > 5
    assert [target for target in targets if not (DOCS / target).exists()] == []
    assert [words for words in simple_commands(text) if problem(list(words))] == []


@pytest.mark.parametrize("text", ["/tmp/x/run", "saved to '/home/me/a.png'", "Traceback (most recent call last)"])
def test_unclean_outputs_are_detected(text: str) -> None:
    """The check itself can fail."""
    cell = {"cell_type": "code", "outputs": [{"output_type": "stream", "text": [text]}]}
    with pytest.raises(AssertionError):
        check_outputs({"cells": [cell]})


def test_cells_give_the_outputs_that_jupyter_shows() -> None:
    sources = [
        "print('one')\nx = 2\nx",
        "x = 3",
        "from matplotlib import pyplot as plt\nf, a = plt.subplots()\na.plot([x])",
    ]
    notebook = {"cells": [{"cell_type": "code", "source": [source]} for source in (*sources, "f.axes == [a]")]}
    SCRIPT.execute(notebook)
    kinds = list_output_kinds(notebook)
    assert kinds[:2] == [["stream False", "execute_result False"], []]
    assert kinds[2][-1] == "display_data True"
    assert list_texts(notebook)[:2] == ["one\n", "2"]
    assert list_texts(notebook)[-1] == "True"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("1 / 0", ZeroDivisionError),
        ("import warnings\nwarnings.warn('careful')", UserWarning),
        ("import sys\nprint('noise', file=sys.stderr)", RuntimeError),
    ],
)
def test_errors_warnings_and_noise_stop_the_execution(source: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        SCRIPT.execute({"cells": [{"cell_type": "code", "source": [source]}]})


@pytest.mark.slow
def test_notebook_runs_and_the_encoder_is_better_than_pixels_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    notebook = SCRIPT.read_notebook()
    stored = list_output_kinds(notebook)
    names = SCRIPT.execute(notebook)
    check_outputs(notebook)
    assert list_output_kinds(notebook) == stored
    scores = names["result"].scores
    assert scores["trained"].knn > max(scores["raw_features"].knn, scores["untrained"].knn)
    assert names["report"].stat().st_size > 50_000
