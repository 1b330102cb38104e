"""`write_report`: runs -> one self-contained HTML page."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from manyviews import __version__
from manyviews.report.charts import draw_swatch
from manyviews.report.comparison import make_comparison_table
from manyviews.report.curves import draw_metric_charts, draw_spectra
from manyviews.report.markup import dump_script_json, format_inline_code
from manyviews.report.section import RunSection, build_section
from manyviews.report.summary import load_summaries
from manyviews.training import ConfigError
from manyviews.utils import Device, check_writable, escape_control_characters, resolve_device, write_atomic

MAX_INSTANCES = 1000
"""Default number of instances on a map."""


def write_report(
    runs: Sequence[str | Path],
    path: str | Path,
    *,
    instances: int = MAX_INSTANCES,
    num_workers: int = 2,
    device: Device = "auto",
) -> int:
    """Write one HTML file about runs, which can be opened from disk.

    Args:
        runs: run directories, finished or not.
        path: the .html file to write.
        instances: max test instances of each run on its map and in its neighbor search.
        num_workers: processes that read images from disk.
        device: where to encode; auto uses a GPU if there is one.

    Returns:
        The size of the file in bytes.

    Raises:
        ValueError: a path is not a run, or the file cannot be written.

    Examples:
        >>> write_report(["runs/demo", "runs/other"], "report.html")  # doctest: +SKIP
        612345
    """
    path = Path(path).expanduser()
    if instances < 1:
        raise ConfigError(f"instances must be >= 1, got {instances}")
    summaries = load_summaries(runs)
    check_writable(path, (".html", ".htm"))
    torch_device = resolve_device(device)
    text = render_page([build_section(summary, instances, num_workers, torch_device) for summary in summaries])
    content = "\n".join(map(escape_control_characters, text.split("\n"))).encode()
    write_atomic(path, content)
    return len(content)


def render_page(sections: Sequence[RunSection]) -> str:
    """Render the HTML page."""
    summaries = [section.summary for section in sections]
    script, style = _read_asset("page.js"), _read_asset("page.css")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["inline_code"] = format_inline_code
    curves, missing_curves = draw_metric_charts(summaries)
    spectra, missing_spectra = draw_spectra(summaries)
    return environment.from_string(_read_asset("page.html")).render(
        title=summaries[0].name if len(summaries) == 1 else f"{len(summaries)} runs",
        sections=sections,
        comparison=make_comparison_table(summaries),
        curves=curves,
        missing_curves=missing_curves,
        spectra=spectra,
        missing_spectra=missing_spectra,
        swatch=draw_swatch,
        style=Markup(style),  # noqa: S704 (a file of the package)
        script=Markup(script),  # noqa: S704 (a file of the package)
        # The browser fetches nothing and runs only the page's script.
        policy=f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        points=dump_script_json(_make_map_data(sections)),
        version=__version__,
    )


def _make_map_data(sections: Sequence[RunSection]) -> dict[str, Any]:
    """Collect the data for page.js: the maps, and each distinct thumbnail sheet once."""
    sheets: dict[str, dict[str, Any]] = {}
    maps: dict[int, dict[str, Any]] = {}
    for section in sections:
        if section.map is None:
            continue
        maps[section.summary.index] = points = dict(section.map.points)
        thumbs = section.map.thumbnails
        if thumbs is not None:
            sheet = {"uri": thumbs.uri, "columns": thumbs.columns, "rows": thumbs.rows, "index": len(sheets)}
            points["sheet"] = sheets.setdefault(thumbs.uri, sheet)["index"]
    return {"maps": maps, "sheets": list(sheets.values())}


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read_asset(name: str) -> str:
    return files("manyviews.report").joinpath(name).read_text(encoding="utf-8")
