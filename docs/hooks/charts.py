"""Charts of values with intervals, in HTML: they follow the theme, and wrap on phones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any

from winnow.palette import COLORS
from winnow.report.claims import format_points


@dataclass(frozen=True)
class Mark:
    """Line of a chart: a dot with an interval.

    Attributes:
        name: Label on the left.
        value: Position of the dot.
        low: Lower end of the interval; None for a dot alone.
        high: Upper end.
        text: Value on the right.
        role: Color, a role of the palette.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    text: str
    role: str = "gsp"

    def __post_init__(self) -> None:
        assert self.role in COLORS, self.role

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval, or the value twice."""
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)


def chart(marks: Sequence[Mark], *, label: str, unit: str, logarithmic: bool = False) -> str:
    """Return dots with intervals on one axis, with a line at 0 (at 1 on a logarithmic axis).

    Args:
        marks: Lines from top to bottom.
        label: What is drawn, for readers who do not see it; the values are added.
        unit: Title of the axis.
        logarithmic: Whether the axis shows ratios.
    """
    neutral = 1.0 if logarithmic else 0.0
    ends = [neutral, *(end for mark in marks for end in mark.ends)]

    def scale(value: float) -> float:
        return log10(value) if logarithmic else value

    low, high = scale(min(ends)), scale(max(ends))
    room = 0.05 * (high - low) or 1.0  # so no dot is cut at an edge
    low, high = low - room, high + room
    if logarithmic:
        ticks = [tick for tick in _ratio_ticks(min(ends), max(ends)) if low <= log10(tick) <= high]
    else:
        ticks = _ticks(low, high)

    def at(value: float) -> float:
        return round(100 * (scale(value) - low) / (high - low), 2)

    zero = f'<i class="zero" style="left:{at(neutral)}%"></i>'
    lines = []
    for mark in marks:
        start, end = (at(one) for one in mark.ends)
        drawn = (
            zero if mark.low is None else f'{zero}<i class="range" style="left:{start}%;width:{end - start:.2f}%"></i>'
        )
        drawn += f'<i class="dot" style="left:{at(mark.value)}%"></i>'
        lines.append(
            f'<div class="line" style="--color:var(--{mark.role})"><span class="name">{escape(mark.name)}</span>'
            f'<span class="track">{drawn}</span><span class="value">{escape(mark.text)}</span></div>'
        )
    axis = "".join(f'<i class="tick" style="left:{at(tick)}%">{_tick(tick, logarithmic)}</i>' for tick in ticks)
    lines.append(
        f'<div class="line axis"><span class="name">{escape(unit)}</span><span class="track">{axis}</span></div>'
    )
    values = "; ".join(f"{mark.name} {mark.text}" for mark in marks)
    return (
        f'<div class="chart" role="img" aria-label="{escape(f"{label}: {values}", quote=True)}">{"".join(lines)}</div>'
    )


def difference_text(value: float, low: float | None, high: float | None) -> str:
    """Return a difference in points with its interval, which has no width where nothing is random."""
    text = format_points(value, 1)
    if low is None or high is None or low == high:
        return text
    return f"{text} [{low:.1f}, {high:.1f}]".replace("-", "−").replace("−0.0", "0.0")


def _tick(value: float, logarithmic: bool) -> str:
    return f"{value:g}×" if logarithmic else f"{value:g}".replace("-", "−")


def _ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return two or more round numbers at even distances between `low` and `high`, at most one more than wanted."""
    span = high - low
    power = 10.0 ** floor(log10(span / wanted))
    step = next(power * one for one in (1, 2, 5, 10) if span / (power * one) <= wanted)
    return [round(number * step, 10) for number in range(ceil(low / step), floor(high / step) + 1)]


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, or 1, 2, and 5 times them, if few powers lie in the range."""
    powers = [10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)]
    if len(powers) < 4:
        powers = sorted({power * step for power in powers for step in (1, 2, 5)})
    found = [tick for tick in powers if log10(low) - 0.35 < log10(tick) < log10(high) + 0.35]
    return found[:: max(1, ceil(len(found) / 5))]


def differences(pairs: Iterable[dict[str, Any]]) -> list[Mark]:
    """Return the paired differences of a protocol in MAP@R of its largest embedding, as marks."""
    listed = [pair for pair in pairs if pair["metric"] == "MAP@R"]
    largest = max((pair["size"] for pair in listed), default=0)
    marks = []
    for pair in listed:
        found = pair["difference"]
        if pair["size"] == largest and found is not None and found["mean"] is not None:
            numbers = (found["mean"], found["low"], found["high"])
            text = f"{difference_text(*numbers)}, n = {pair['models']}"
            marks.append(Mark(f"{pair['method']} − {pair['against']}", *numbers, text))
    return marks
