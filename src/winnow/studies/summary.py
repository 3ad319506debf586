"""Number of reproduced claims of each source in all recorded results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import DataError
from winnow.palette import COLORS
from winnow.report.claims import Verdict
from winnow.report.style import INK, new_figure, styled
from winnow.studies.render import read_content
from winnow.studies.settings import scales
from winnow.studies.spec import DataNeed, Measurement, Row, Scale, Study, StudyRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("results")
FOLDERS = {"": "published size", "short": "shorter training", "frozen": "frozen backbone", "small": "quick size"}
"""Folders of recorded results and what their runs differ in."""
PUBLISHED, NEW = "published claims", "new claims"
COLOR = {
    Verdict.REPRODUCED: COLORS["right"].light,
    Verdict.WITHIN_SEED_NOISE: COLORS["method-6"].light,
    Verdict.NOT_REPRODUCED: COLORS["wrong"].light,
    Verdict.INCOMPLETE: COLORS["pretrained"].light,
    Verdict.NOT_APPLICABLE: COLORS["line"].light,
}


def recorded(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield file, size, and content of recorded results in the order of studies."""
    for name in names:
        for within, size in FOLDERS.items():
            file = folder / within / f"{name.replace('-', '_')}.json"
            if file.is_file():
                content = read_content(file)
                quick = content["settings"].get("small")
                yield f"{within}/{file.stem}".lstrip("/"), FOLDERS["small"] if quick else size, content


def count_verdicts(folder: Path, names: Sequence[str]) -> list[Row]:
    """Return the totals, then a row for each result and source of claims.

    Published claims have totals by size, too.

    Args:
        folder: Folder of results, which has some of `FOLDERS`.
        names: Names of studies.
    """
    rows: list[Row] = []
    totals = {(PUBLISHED, ""): Counter[str](), **{(PUBLISHED, size): Counter[str]() for size in FOLDERS.values()},
              (NEW, ""): Counter[str]()}  # fmt: skip
    for file, size, content in recorded(folder, names):
        for source, counts in _by_source(content).items():
            rows.append(_row(file, size, source, counts))
            for key in ((PUBLISHED, ""), (PUBLISHED, size)) if source.startswith("[") else ((NEW, ""),):
                totals[key] += counts
    return [*(_row(name, size, "", counts) for (name, size), counts in totals.items() if counts), *rows]


def _by_source(content: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return the number of verdicts by source, of claims and of rows with a verdict."""
    found: dict[str, Counter[str]] = {}
    rows = [row for row in content.get("rows", ()) if row.get("verdict")]
    for one in [*content.get("claims", ()), *rows]:
        found.setdefault(one["source"], Counter())[one["verdict"]] += 1
    return found


def _row(result: str, size: str, source: str, counts: Mapping[str, int]) -> Row:
    return {"result": result, "size": size, "source": source, "claims": sum(counts.values()),
            **{str(verdict): counts.get(verdict, 0) for verdict in Verdict}}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Summary(Study):
    """Counts from result files; nothing is measured."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Read the results.

        Raises:
            DataError: If the folder has no results.
        """
        from winnow.studies import STUDIES  # of which this study is one

        folder = request.data or RESULTS
        rows = count_verdicts(folder, [name for name in STUDIES if name != self.name])
        if not rows:
            raise DataError(f"{folder}: no results of studies found. Pass the folder that contains them.")
        return Measurement(rows=rows, settings={"results": str(folder)})

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the verdicts of each result as a stacked bar."""
        return {"": _draw(measured.rows)}


@styled
def _draw(rows: Sequence[Row]) -> Figure:
    totals, results = ([row for row in rows if bool(row["source"]) is has_source] for has_source in (False, True))
    figure = new_figure(7.2, 1.6 + 0.18 * len(rows))
    upper, lower = figure.subplots(2, 1, height_ratios=(len(totals) + 0.5, len(results)))
    _draw_bars(upper, totals, [", ".join(filter(None, (row["result"], row["size"]))) for row in totals])
    _draw_bars(lower, results, [f"{row['result']}: {row['source']}" for row in results])
    lower.set_xlabel("claims")
    handles = [upper.barh(0, 0, color=color)[0] for color in COLOR.values()]
    figure.legend(handles, list(COLOR), loc="outside upper center", ncols=len(COLOR), fontsize=8)
    return figure


def _draw_bars(axes: Axes, rows: Sequence[Row], names: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    ends = [0] * len(rows)
    for verdict, color in COLOR.items():
        counts = [row[str(verdict)] for row in rows]
        axes.barh(range(len(rows)), counts, left=ends, color=color, height=0.7)
        ends = [a + b for a, b in zip(ends, counts, strict=True)]
    for position, end in enumerate(ends):
        axes.text(end, position, f" {end}", va="center", fontsize=7, color=INK)
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)  # from the top down
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)


_SETTING = (
    "Verdicts of the recorded results of all studies, by the source of the claims. A claim counts once for each size "
    "at which it was checked."
)
SUMMARY = Summary(
    name="summary", title="Verdicts of all claims", measures="verdicts of all claims", source="", group="Other",
    scales=scales(
        Scale("quick", needs=DataNeed("recorded results"), cost="seconds", setting=_SETTING),
        Scale("full", needs=DataNeed("recorded results"), cost="seconds", setting=_SETTING),
    ),
)  # fmt: skip
