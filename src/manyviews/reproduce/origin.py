"""Where results come from: the commit, the versions and the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from manyviews.training import collect_provenance
from manyviews.utils import escape_control_characters

NO_COMMIT = "none"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The commit, versions and machine of a result; empty texts are unknown."""

    manyviews: str = ""
    torch: str = ""
    commit: str | None = None
    """The last git commit that changed the package, with "+changes" if its files differed from it. None: unknown."""
    machine: str = ""

    @classmethod
    def from_provenance(cls, provenance: Mapping[str, str]) -> Origin:
        """Return the origin of a run with this provenance."""
        values = {name: escape_control_characters(value) for name, value in provenance.items()}
        commit = values.get("commit", NO_COMMIT)
        return cls(
            manyviews=values.get("manyviews", ""),
            torch=values.get("torch", ""),
            commit=None if commit == NO_COMMIT else commit.replace(" with changes", "+changes"),
            machine=values.get("machine", ""),
        )

    @classmethod
    @lru_cache
    def of_this_process(cls) -> Origin:
        return cls.from_provenance(collect_provenance())

    @property
    def short_commit(self) -> str:
        """The first ten digits of the commit."""
        if self.commit is None:
            return "unknown"
        digits, plus, changes = self.commit.partition("+")
        return digits[:10] + plus + changes


def describe_origins(origins: Sequence[Origin], noun: str) -> str:
    """Describe where results come from; with several commits, versions or machines, how many come from each.

    Examples:
        >>> here = Origin(manyviews="0.2", torch="2.9", commit="0123456789abcdef", machine="some CPU")
        >>> describe_origins([here, here], "trials")
        '2 trials: commit 0123456789, manyviews 0.2, torch 2.9, some CPU.'
    """
    parts = [
        _count("commit ", [origin.short_commit for origin in origins]),
        _count("manyviews ", [origin.manyviews or "unknown" for origin in origins]),
        _count("torch ", [origin.torch or "unknown" for origin in origins]),
        _count("", [origin.machine or "unknown machine" for origin in origins]),
    ]
    count = f"{len(origins)} {noun if len(origins) != 1 else noun.removesuffix('s')}: " if noun else ""
    return count + ", ".join(parts) + "."


def _count(name: str, values: Sequence[str]) -> str:
    counts = Counter(values)
    texts = [value if len(counts) == 1 else f"{value} ({count})" for value, count in sorted(counts.items())]
    return name + " and ".join(texts)
