"""The map of a run: its test instances in two dimensions, coloured by class, with what page.js shows of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from manyviews.report.charts import COLOURS, MARKS
from manyviews.report.markup import element, number
from manyviews.report.pictures import Thumbnails, thumbnails
from manyviews.report.seen import Seen
from manyviews.report.tsne import tsne
from manyviews.utils.text import escape_control_characters

WIDTH, EDGE = 640, 10
LOWEST, HIGHEST = 0.45, 0.8
"""Of the height, as a share of the width."""
FEWEST = 8
"""Instances of which a map says something."""


@dataclass(frozen=True)
class Group:
    """A class on the map."""

    name: str
    sample: Markup
    count: int


@dataclass(frozen=True)
class Map:
    drawing: Markup
    groups: list[Group]
    note: str
    points: dict[str, Any]
    """For page.js: ids and texts in the order of the drawing's points, and their places on the thumbnails."""
    thumbnails: Thumbnails | None


def map_of(seen: Seen, name: str) -> Map | None:
    """None of too few instances."""
    if len(seen.index) < FEWEST:
        return None
    places, height = fitted(tsne(seen.h))
    labels = seen.labels
    order = sorted(range(len(labels.groups)), key=lambda place: labels.groups[place])
    layers = []
    for group in range(len(labels.names)):
        own = [place for place in order if labels.groups[place] == group]
        layers.append(
            element("g", *(_point(places[place], _mark(seen, group)) for place in own), class_=_look(seen, group))
        )
    several = len(labels.names) > 1
    coloured = ", coloured by label" if several else ""
    what = f"{len(seen.index):,} {seen.split} instances"
    drawing = element(
        "svg",
        *layers,
        element("circle", r=8, class_="ring", cx=-20, cy=-20),
        viewBox=f"0 0 {WIDTH} {number(height)}",
        role="group",
        class_="map",
        aria_label=f"Map of the representations of {what} by {name}{coloured}. Arrow keys go from point to point.",
    )
    pictures = seen.pictures
    return Map(
        drawing,
        [
            Group(text, _sample(seen, group), labels.groups.count(group))
            for group, text in enumerate(labels.names)
            if several
        ],
        f"t-SNE of the representations of {what}: near points are alike, and distances between far groups mean little.",
        {
            "ids": [escape_control_characters(seen.ids[place]) for place in order],
            "texts": [escape_control_characters(labels.texts[place]) for place in order],
            "cells": order,
        },
        None if pictures is None else thumbnails(pictures),
    )


def fitted(places: Tensor) -> tuple[Tensor, float]:
    """Places (n, 2) within the drawing, and its height."""
    low, high = places.amin(0), places.amax(0)
    size = (high - low).clamp_min(1e-9)
    shape = min(max((size[1] / size[0]).item(), LOWEST), HIGHEST)
    room = torch.tensor([WIDTH - 2 * EDGE, shape * WIDTH - 2 * EDGE])
    scale = (room / size).amin()
    middle = torch.tensor([WIDTH / 2, shape * WIDTH / 2])
    return (places - (low + high) / 2) * scale + middle, shape * WIDTH


def _point(place: Tensor, mark: int) -> Markup:
    x, y = place.tolist()
    return element("use", href=f"#mark-{mark}", x=number(x), y=number(y))


def _look(seen: Seen, group: int) -> str:
    return f"q{group}" if seen.labels.quantities else f"c{group % COLOURS}"


def _mark(seen: Seen, group: int) -> int:
    """Of a hundred classes no two have both the same colour and the same mark; quantities differ in lightness."""
    return 0 if seen.labels.quantities else (group + group // COLOURS) % MARKS


def _sample(seen: Seen, group: int) -> Markup:
    mark = element("use", href=f"#mark-{_mark(seen, group)}", x=6, y=6)
    return element("svg", mark, viewBox="0 0 12 12", class_=f"sample mark {_look(seen, group)}", aria_hidden="true")
