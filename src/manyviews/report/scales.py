"""Axes: tick positions and number formats."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Formatter = Callable[[float], str]


def format_number(value: float) -> str:
    """Format a number with about four significant digits.

    Examples:
        >>> format_number(12345.0), format_number(0.25), format_number(-3.5084), format_number(1e-6)
        ('12,345', '0.25', '-3.508', '1e-06')
    """
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_percent(fraction: float) -> str:
    """Format a fraction as a percentage with one decimal.

    Examples:
        >>> format_percent(0.3456)
        '34.6%'
    """
    return f"{fraction:.1%}"


def format_percent_tick(fraction: float) -> str:
    """Format a fraction as a percentage for an axis tick.

    Examples:
        >>> format_percent_tick(0.25), format_percent_tick(0.125)
        ('25%', '12.5%')
    """
    return f"{format_number(100 * fraction)}%"


@dataclass(frozen=True)
class Axis:
    """Maps values in [low, high] to coordinates in [start, end], with ticks at round values."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = (math.log10(v) for v in (low, high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def make_linear_axis(values: Sequence[float], start: float, end: float, count: int = 4) -> Axis:
    """Make an axis from the tick below the min value to the tick above the max value.

    Examples:
        >>> make_linear_axis([0.13, 0.97], 0, 100).ticks
        (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    # Extreme values are drawn at the edge.
    low, high = (min(max(value, -1e30), 1e30) for value in (min(values), max(values)))
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        pad = abs(low) / 10 or 0.5
        low, high = low - pad, high + pad
    min_step = (high - low) / count
    power = 10.0 ** math.floor(math.log10(min_step))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= min_step * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 12 - math.floor(math.log10(step))
    ticks = tuple(round(i * step, digits) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks)


def make_log_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Make a logarithmic axis for positive values, with ticks at powers of ten."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    last = max(last, first + 1)
    ticks = tuple(10.0**i for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks, log=True)


def make_step_axis(values: Sequence[float], start: float, end: float, log: bool = False) -> Axis:
    """Make an axis from the min value to the max value, with the ticks between them.

    Examples:
        >>> make_step_axis([1, 51], 0, 100).ticks, make_step_axis([1, 660], 0, 100, log=True).ticks
        ((20.0, 40.0), (1.0, 10.0, 100.0))
    """
    low, high = min(values), max(values)
    axis = (make_log_axis if log else make_linear_axis)(values, start, end)
    if high <= low:
        return axis
    return Axis(low, high, start, end, tuple(tick for tick in axis.ticks if low <= tick <= high), log)
