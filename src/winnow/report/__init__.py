"""Figures, heat maps, tables, claims with verdicts, and self-contained HTML pages."""

from winnow.report.claims import CheckedClaim, Estimate, Verdict, claims_table, estimate, verdict
from winnow.report.comparison import (
    Comparison,
    HeatMap,
    Method,
    MethodRun,
    Neighbor,
    NextStep,
    Prototype,
    Query,
    comparison_table,
    evidence,
    headline,
    markdown_report,
    markdown_table,
)
from winnow.report.figures import (
    contour_figure,
    importance_figure,
    method_curves,
    metric_bars,
    problem_curves,
    run_curves,
    training_curves,
)
from winnow.report.heatmaps import overlay, save_explanation
from winnow.report.pages import write_comparison, write_search_page
from winnow.report.style import method_color, method_colors, save, svg
from winnow.report.tables import Column, Styled, to_csv, to_latex, to_markdown

__all__ = [
    "CheckedClaim",
    "Column",
    "Comparison",
    "Estimate",
    "HeatMap",
    "Method",
    "MethodRun",
    "Neighbor",
    "NextStep",
    "Prototype",
    "Query",
    "Styled",
    "Verdict",
    "claims_table",
    "comparison_table",
    "contour_figure",
    "estimate",
    "evidence",
    "headline",
    "importance_figure",
    "markdown_report",
    "markdown_table",
    "method_color",
    "method_colors",
    "method_curves",
    "metric_bars",
    "overlay",
    "problem_curves",
    "run_curves",
    "save",
    "save_explanation",
    "svg",
    "to_csv",
    "to_latex",
    "to_markdown",
    "training_curves",
    "verdict",
    "write_comparison",
    "write_search_page",
]
