"""All that a report says of one run; where a part cannot be made, why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from markupsafe import Markup

from manyviews.report.account import Account
from manyviews.report.again import Again, again, facts
from manyviews.report.charts import Figure
from manyviews.report.curves import spectra
from manyviews.report.map import Map, map_of
from manyviews.report.seen import see
from manyviews.report.sheets import Sheet, neighbour_sheet, view_sheet
from manyviews.report.subsets import subset_kinds, subsets_figure, subsets_table
from manyviews.report.tables import Table, between_table, comparison, geometry_table, retrieval_table, scores_table
from manyviews.training.source import load_data
from manyviews.utils.untrusted import MALFORMED

T = TypeVar("T")


@dataclass(frozen=True)
class Evaluated:
    """What evaluation.json says, as tables and drawings."""

    scores: Table | None
    geometry: Table | None
    retrieval: Table | None
    between: Table | None
    subsets: Figure | None
    subset_numbers: Table | None
    kinds: list[tuple[str, Markup]]


@dataclass
class Chapter:
    """One run."""

    account: Account
    facts: dict[str, str]
    again: Again
    evaluated: Evaluated
    views: Sheet | None = None
    neighbours: Sheet | None = None
    map: Map | None = None
    why: dict[str, str] = field(default_factory=dict)
    """Of each part that is not there."""


def sound(account: Account) -> Account:
    """The account without its evaluation, if that is not what an evaluation should be."""
    try:
        evaluated(account)
        comparison([account])
        spectra([account])
    except MALFORMED as error:
        trouble = f"evaluation.json is not as this version writes it ({type(error).__name__}: {error})."
        return dataclasses.replace(account, evaluation={}, troubles=[*account.troubles, trouble])
    return account


def evaluated(account: Account) -> Evaluated:
    found = account.evaluation
    return Evaluated(
        scores_table(found) if found.get("scores") else None,
        geometry_table(account),
        retrieval_table(found),
        between_table(found),
        subsets_figure(found),
        subsets_table(found),
        subset_kinds(found),
    )


def chapter(account: Account, instances: int, workers: int, device: torch.device) -> Chapter:
    """Read the run's data again, if it is still there, and encode some of it."""
    run = account.run
    made = Chapter(account, facts(account), again(account), evaluated(account))
    if made.evaluated.scores is None:
        made.why["scores"] = str(account.evaluation.get("why") or "There is no evaluation.json with scores.")
    data = _attempt(made, ("views", "neighbours", "map"), "The data cannot be read", lambda: load_data(run.config))
    if data is None:
        return made
    made.views = _attempt(made, ("views",), "The views cannot be drawn", lambda: view_sheet(run, data))
    what = "Instances cannot be encoded"
    seen = _attempt(made, ("neighbours", "map"), what, lambda: see(run, data, instances, workers, device))
    if seen is None:
        return made
    made.neighbours = neighbour_sheet(seen)
    made.map = map_of(seen, account.name)
    for part in ("neighbours", "map"):
        if getattr(made, part) is None:
            made.why[part] = f"There are too few instances: {len(seen.index)}."
    return made


def _attempt(made: Chapter, parts: tuple[str, ...], what: str, work: Callable[[], T]) -> T | None:
    """What comes of the work; a mistake in it is written down for the parts that needed it."""
    try:
        return work()
    except (OSError, RuntimeError, MemoryError, *MALFORMED) as error:
        made.why |= dict.fromkeys(parts, f"{what}: {error}")
        return None
