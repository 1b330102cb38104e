"""Execute docs/tutorial.ipynb and store its outputs: `python docs/notebook.py` (needs no Jupyter).

Cells are executed as Jupyter does: their outputs are what they print, the value of the last expression, and the figures
of matplotlib that they leave open.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("tutorial.ipynb")
LARGE_PNG_BYTES = 60_000
"""Pictures whose PNG is larger are stored as JPEG."""
JPEG_QUALITY = 80


def read_notebook() -> dict[str, Any]:
    return json.loads(NOTEBOOK.read_text())


def get_source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def list_code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """Execute the code cells in order in a fresh namespace and store their outputs; return the namespace.

    Anything on stderr, and any warning, is an error.
    """
    import matplotlib as mpl

    mpl.use("agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for count, cell in enumerate(list_code_cells(notebook), 1):
        cell["execution_count"] = count
        cell["outputs"] = list(_execute_cell(get_source(cell), f"cell {count}", namespace, count))
    return namespace


def _execute_cell(source: str, name: str, namespace: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    from matplotlib import pyplot as plt

    body = ast.parse(source, name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, noise, value = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(noise), warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(ast.Module(body, []), name, "exec", dont_inherit=True), namespace)  # noqa: S102
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)  # noqa: S307
    if noise.getvalue():
        raise RuntimeError(f"{name} wrote to stderr: {noise.getvalue()}")
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
    if value is not None:
        data = _represent(value)
        yield {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
    for number in plt.get_fignums():
        file = io.BytesIO()
        figure = plt.figure(number)
        figure.savefig(file, dpi=80, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
        data = {"image/png": _encode(file.getvalue()), "text/plain": ["<Figure>"]}
        yield {"data": data, "metadata": {}, "output_type": "display_data"}


def _represent(value: Any) -> dict[str, Any]:
    """Return the forms of a value by MIME type: a picture of PIL as PNG or JPEG, Markdown, or its repr."""
    from PIL import Image

    if isinstance(value, Image.Image):
        file = io.BytesIO()
        value.save(file, "PNG", optimize=True)
        if len(file.getvalue()) <= LARGE_PNG_BYTES:
            return {"image/png": _encode(file.getvalue()), "text/plain": [f"<picture {value.width}x{value.height}>"]}
        file = io.BytesIO()
        value.save(file, "JPEG", quality=JPEG_QUALITY)
        return {"image/jpeg": _encode(file.getvalue()), "text/plain": [f"<picture {value.width}x{value.height}>"]}
    return {"text/plain": repr(value).splitlines(keepends=True)}


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def write_notebook(notebook: dict[str, Any]) -> None:
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    executed = read_notebook()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # where the notebook puts its files
        os.chdir(folder)
        execute(executed)
        os.chdir(NOTEBOOK.parent)
    write_notebook(executed)
    print(f"{NOTEBOOK.name}: {NOTEBOOK.stat().st_size / 1000:.0f} KB")
