"""Axes: where ticks stand, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AsText = Callable[[float], str]


def plain(value: float) -> str:
    """A number as a person writes it.

    Examples:
        >>> plain(12345.0), plain(0.25), plain(-3.5084), plain(1e-6)
        ('12,345', '0.25', '-3.508', '1e-06')
    """
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """A share, with one decimal.

    Examples:
        >>> percent(0.3456)
        '34.6%'
    """
    return f"{share:.1%}"


def tick_text(share: float) -> str:
    """A share on an axis.

    Examples:
        >>> tick_text(0.25), tick_text(0.125)
        ('25%', '12.5%')
    """
    return f"{plain(100 * share)}%"


@dataclass(frozen=True)
class Axis:
    """From numbers to places between `start` and `end`, with ticks at round numbers."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = (math.log10(number) for number in (low, high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def linear_axis(values: Sequence[float], start: float, end: float, count: int = 4) -> Axis:
    """From the tick below the least value to the tick above the largest.

    Examples:
        >>> linear_axis([0.13, 0.97], 0, 100).ticks
        (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    # What is beyond any use is drawn at the edge.
    low, high = (min(max(value, -1e30), 1e30) for value in (min(values), max(values)))
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        pad = abs(low) / 10 or 0.5
        low, high = low - pad, high + pad
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    each = next(size * by for by in (1, 2, 2.5, 5, 10) if size * by >= rough * 0.999)
    first, last = math.floor(low / each + 1e-9), math.ceil(high / each - 1e-9)
    digits = 12 - math.floor(math.log10(each))
    ticks = tuple(round(number * each, digits) for number in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks)


def log_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Of values above zero: from power of ten to power of ten."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    last = max(last, first + 1)
    ticks = tuple(10.0**number for number in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks, log=True)


def step_axis(values: Sequence[float], start: float, end: float, log: bool = False) -> Axis:
    """From the least value to the largest, with the ticks that lie between.

    Examples:
        >>> step_axis([1, 51], 0, 100).ticks, step_axis([1, 660], 0, 100, log=True).ticks
        ((20.0, 40.0), (1.0, 10.0, 100.0))
    """
    low, high = min(values), max(values)
    wide = (log_axis if log else linear_axis)(values, start, end)
    if high <= low:
        return wide
    return Axis(low, high, start, end, tuple(tick for tick in wide.ticks if low <= tick <= high), log)
