"""2-D map of a run's test instances, colored by class, with the tooltip data for page.js."""

from dataclasses import dataclass
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from manyviews.export import compute_tsne
from manyviews.report.charts import NUM_COLORS, NUM_MARKERS
from manyviews.report.markup import format_coordinate, make_element
from manyviews.report.sample import EncodedSample
from manyviews.report.thumbnails import Thumbnails, make_thumbnails
from manyviews.utils import escape_control_characters

WIDTH, MARGIN = 640, 10
MIN_ASPECT, MAX_ASPECT = 0.45, 0.8
"""Bounds of height / width."""
MIN_POINTS = 8
"""Fewer instances are not drawn."""


@dataclass(frozen=True)
class LegendEntry:
    """A class on the map."""

    name: str
    swatch: Markup
    count: int


@dataclass(frozen=True)
class EmbeddingMap:
    svg: Markup
    legend: list[LegendEntry]
    caption: str
    points: dict[str, Any]
    """For page.js: ids and texts in the order of the SVG's points, and their indices on the thumbnail sheet."""
    thumbnails: Thumbnails | None


def build_map(sample: EncodedSample, name: str) -> EmbeddingMap | None:
    """Build the map, or return None if there are too few instances."""
    if len(sample.index) < MIN_POINTS:
        return None
    coords, height = fit_to_canvas(compute_tsne(sample.h))
    labels, instances = sample.labels, f"{len(sample.index):,} {sample.split} instances"
    order = sorted(range(len(labels.groups)), key=lambda i: labels.groups[i])
    layers, legend = [], []
    for group, text in enumerate(labels.names):
        css_class, marker = _get_style(group, labels.is_binned)
        members = [coords[i].tolist() for i in order if labels.groups[i] == group]
        layers.append(make_element("g", *(_draw_marker(marker, x, y) for x, y in members), class_=css_class))
        swatch = make_element(
            "svg",
            _draw_marker(marker, 6, 6),
            viewBox="0 0 12 12",
            class_=f"sample mark {css_class}",
            aria_hidden="true",
        )
        legend.append(LegendEntry(text, swatch, len(members)))
    colored = ", colored by label" if len(legend) > 1 else ""
    svg = make_element(
        "svg",
        *layers,
        make_element("circle", r=8, class_="ring", cx=-20, cy=-20),
        viewBox=f"0 0 {WIDTH} {format_coordinate(height)}",
        role="group",
        class_="map",
        aria_label=f"Map of the representations of {instances} by {name}{colored}. Arrow keys move between points.",
    )
    images = sample.load_images()
    return EmbeddingMap(
        svg,
        legend if len(legend) > 1 else [],
        f"t-SNE of the representations of {instances}: near points are similar, far distances mean little.",
        {
            "ids": [escape_control_characters(sample.ids[i]) for i in order],
            "texts": [escape_control_characters(labels.texts[i]) for i in order],
            "cells": order,
        },
        None if images is None else make_thumbnails(images),
    )


def fit_to_canvas(coords: Tensor) -> tuple[Tensor, float]:
    """Scale coordinates (n, 2) to the canvas; return them and its height."""
    low, high = coords.amin(0), coords.amax(0)
    size = (high - low).clamp_min(1e-9)
    aspect = min(max((size[1] / size[0]).item(), MIN_ASPECT), MAX_ASPECT)
    available = torch.tensor([WIDTH - 2 * MARGIN, aspect * WIDTH - 2 * MARGIN])
    scale = (available / size).amin()
    center = torch.tensor([WIDTH / 2, aspect * WIDTH / 2])
    return (coords - (low + high) / 2) * scale + center, aspect * WIDTH


def _draw_marker(marker: int, x: float, y: float) -> Markup:
    return make_element("use", href=f"#mark-{marker}", x=format_coordinate(x), y=format_coordinate(y))


def _get_style(group: int, is_binned: bool) -> tuple[str, int]:
    """Return CSS class and marker: 100 classes differ in color or marker, bins of regression targets in lightness."""
    if is_binned:
        return f"q{group}", 0
    return f"c{group % NUM_COLORS}", (group + group // NUM_COLORS) % NUM_MARKERS
