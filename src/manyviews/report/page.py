"""`write_report`: from runs to one page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from manyviews import __version__
from manyviews.report.account import accounts
from manyviews.report.chapter import Chapter, chapter, sound
from manyviews.report.charts import sample
from manyviews.report.curves import curves, spectra
from manyviews.report.markup import embedded_json, prose
from manyviews.report.tables import comparison
from manyviews.training import ConfigError, device_of
from manyviews.training.config import Device
from manyviews.training.files import check_writable, write_atomically
from manyviews.utils.text import escape_control_characters

INSTANCES = 1000
"""Of a map."""


def write_report(
    runs: Sequence[str | Path],
    path: str | Path,
    *,
    instances: int = INSTANCES,
    workers: int = 2,
    device: Device = "auto",
) -> int:
    """Write one HTML file about some runs, to be opened from disk.

    Args:
        runs: their directories; finished or not.
        path: the .html file to write.
        instances: of each run's test set that are on its map, and searched for neighbours.
        workers: processes that read images from disk.
        device: auto takes a GPU if there is one.

    Returns:
        how many bytes it has.

    Raises:
        ValueError: a path is no run, or the file cannot be written.

    Examples:
        >>> write_report(["runs/demo", "runs/other"], "report.html")  # doctest: +SKIP
        612345
    """
    path = Path(path).expanduser()
    if instances < 1:
        raise ConfigError(f"instances must be >= 1, got {instances}")
    known = [sound(account) for account in accounts(runs)]
    check_writable(path, (".html", ".htm"))
    where = device_of(device)
    text = rendered([chapter(account, instances, workers, where) for account in known])
    content = "\n".join(map(escape_control_characters, text.split("\n"))).encode()
    write_atomically(path, content)
    return len(content)


def rendered(chapters: Sequence[Chapter]) -> str:
    """The whole page."""
    known = [made.account for made in chapters]
    script, style = _file("page.js"), _file("page.css")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = prose
    figures, missing = curves(known)
    spectrum, no_spectrum = spectra(known)
    return environment.from_string(_file("page.html")).render(
        title=known[0].name if len(known) == 1 else f"{len(known)} runs",
        chapters=chapters,
        comparison=comparison(known),
        curves=figures,
        left_out=missing,
        spectra=spectrum,
        no_spectrum=no_spectrum,
        sample=sample,
        style=Markup(style),  # noqa: S704 (the package's own)
        script=Markup(script),  # noqa: S704 (the package's own)
        # Nothing is fetched, and no script runs but the page's own.
        policy=f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        points=embedded_json(_points(chapters)),
        version=__version__,
    )


def _points(chapters: Sequence[Chapter]) -> dict[str, Any]:
    """For page.js: the maps, and each sheet of thumbnails once, however many runs share it."""
    sheets: dict[str, dict[str, Any]] = {}
    maps: dict[int, dict[str, Any]] = {}
    for made in chapters:
        if made.map is None:
            continue
        maps[made.account.number] = found = dict(made.map.points)
        small = made.map.thumbnails
        if small is not None:
            sheet = {"uri": small.uri, "columns": small.columns, "rows": small.rows, "number": len(sheets)}
            found["sheet"] = sheets.setdefault(small.uri, sheet)["number"]
    return {"maps": maps, "sheets": list(sheets.values())}


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _file(name: str) -> str:
    return files("manyviews.report").joinpath(name).read_text(encoding="utf-8")
