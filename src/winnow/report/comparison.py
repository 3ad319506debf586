"""The page that tells how methods compare."""

from __future__ import annotations

from pathlib import Path

from winnow.report import page
from winnow.report.content import Comparison
from winnow.report.page import element
from winnow.report.pictures import gallery, heat_maps, prototypes
from winnow.report.sections import finding, making, results, task


def write_comparison(path: str | Path, comparison: Comparison) -> None:
    """Write a comparison as one self-contained HTML page: it loads nothing and needs no scripts.

    Sections for which the comparison holds nothing are left out.

    Args:
        path: The file to write, such as report.html.
        comparison: What to tell.
    """
    sections = [task(comparison), results(comparison)]
    if comparison.queries:
        sections.append(gallery(comparison.queries))
    if comparison.heatmaps:
        sections.append(heat_maps(comparison.heatmaps))
    if comparison.prototypes:
        sections.append(prototypes(comparison.prototypes))
    if comparison.settings or comparison.provenance:
        sections.append(making(comparison))
    head = finding(comparison, page.contents(sections))
    page.write_page(path, comparison.title, head, element("main", *(section.html() for section in sections)))
