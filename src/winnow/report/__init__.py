"""Figures, galleries, heat maps and the self-contained HTML page."""

from winnow.report.comparison import write_comparison
from winnow.report.content import Comparison, HeatMap, Method, MethodRun, Neighbour, Prototype, Query
from winnow.report.figures import metric_bars, problem_curves, run_curves, training_curves
from winnow.report.heatmaps import overlay, save_explanation
from winnow.report.numbers import comparison_table, headline, markdown_table, write_csv
from winnow.report.style import save, svg

__all__ = [
    "Comparison",
    "HeatMap",
    "Method",
    "MethodRun",
    "Neighbour",
    "Prototype",
    "Query",
    "comparison_table",
    "headline",
    "markdown_table",
    "metric_bars",
    "overlay",
    "problem_curves",
    "run_curves",
    "save",
    "save_explanation",
    "svg",
    "training_curves",
    "write_comparison",
    "write_csv",
]
