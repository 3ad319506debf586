"""Lines of a metric over a setting, in bands of one deviation over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from winnow.studies.outcomes import Found, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bands(
    axes: Axes,
    found: Found,
    lines: Mapping[str, Mapping[float, str]],
    colours: Mapping[str, str],
    metric: str = "MAP@R",
) -> None:
    """Draw a line, and a band of one deviation around it, for each name.

    Args:
        axes: Where to.
        found: Results by the name of their method.
        lines: For each name, the setting's value to the method's name; methods without runs are left out.
        colours: Of every name.
        metric: What is drawn, in percent on unseen classes.
    """
    for name, by_value in lines.items():
        shown = {value: percent(found[method], metric) for value, method in by_value.items() if found[method]}
        mean = np.array([statistics.mean(each) for each in shown.values()])
        spread = np.array([statistics.stdev(each) if len(each) > 1 else 0.0 for each in shown.values()])
        axes.plot(list(shown), mean, "o-", color=colours[name], markersize=3.5, label=name)
        axes.fill_between(list(shown), mean - spread, mean + spread, color=colours[name], alpha=0.15, linewidth=0)
