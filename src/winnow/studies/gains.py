"""Gains of CCP and GSP in MAP@R, in published tables and in recorded results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from winnow.errors import DataError
from winnow.report.claims import Verdict, format_points
from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.recorded_gains import NAMES, PUBLISHED, SETS, TABLES, gain_row, protocol_rows, study_rows
from winnow.studies.scores import Scores, mean
from winnow.studies.settings import scales
from winnow.studies.spec import Claim, DataNeed, Evidence, Measurement, Row, Scale, Study, StudyRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("results")

Key: TypeAlias = tuple[str, int]
"""Dataset and embedding size."""


@cache
def fair_table(number: str) -> Mapping[str, Mapping[Key, float]]:
    """Return MAP@R of a published table of the fair protocol in percent, by method."""
    content = json.loads(files("winnow.protocols").joinpath("published.json").read_text(encoding="utf-8"))
    found: dict[str, dict[Key, float]] = {}
    for table, protocol, _, dim, dataset, method, metric, value, _ in content["rows"]:
        if (table, protocol, metric) == (number, "fair", "MAP@R"):
            found.setdefault(method, {})[dataset, dim] = value
    return found


def published_rows(dim: int = 512) -> list[Row]:
    """Return a row for every published method with and without an addition."""
    return [
        gain_row(PUBLISHED, addition, dataset, size, base, table[base][dataset, size], value)
        for addition, number in TABLES.items()
        for table in [fair_table(number)]
        for method, values in table.items()
        for base in [method.removesuffix(f"+{addition}")]
        if base != method and base in table
        for (dataset, size), value in values.items()
        if size == dim
    ]


# --- Claims of [Thesis] on its tables ---------------------------------------------------------------------------------

ON_PAR = 0.1  # points below which [Thesis] calls methods on par
NEAR = 0.5  # points within which a mean is "about" a number


def gains(table: Mapping[str, Mapping[Key, float]], method: str, base: str) -> dict[str, float]:
    """Return the points by which a method is above another.

    Keys are base, dataset, and embedding size.
    """
    return {f"{base.upper()} on {SETS[dataset]}, {dim}": value - table[base][dataset, dim]
            for (dataset, dim), value in table[method].items()}  # fmt: skip


def added(addition: str) -> dict[str, float]:
    """Return the gains of an addition over every method that its table has without it."""
    table = fair_table(TABLES[addition])
    bases = {method: method.removesuffix(f"+{addition}") for method in table if method.endswith(f"+{addition}")}
    return {key: gain for method, base in bases.items() if base in table
            for key, gain in gains(table, method, base).items()}  # fmt: skip


def over_memory() -> dict[str, float]:
    """Return the points by which the best method with CCP is above that with XBM.

    Keys are dataset and embedding size.
    """
    table = fair_table("3.1")
    best = {one: {key: max(values[key] for name, values in table.items() if name.endswith(f"+{one}"))
                  for key in table["c2"]} for one in ("ccp", "xbm")}  # fmt: skip
    return {f"{SETS[dataset]}, {dim}": best["ccp"][dataset, dim] - best["xbm"][dataset, dim]
            for dataset, dim in table["c2"]}  # fmt: skip


def _range(points: Mapping[str, float]) -> str:
    return " to ".join(format_points(bound(points.values())) for bound in (min, max))


def _ccp_gains(s: Scores) -> Evidence:
    return Evidence(f"{_range(added('ccp'))}; least", min(added("ccp").values()))


def _ccp_range(s: Scores) -> Evidence:
    points = added("ccp")
    below = sum(gain < 1 for gain in points.values())
    low, high = min(points.values()), max(points.values())
    return Evidence(f"{_range(points)}, {below} of {len(points)} below 1; inside by", min(low - 1, 11.5 - high))


def _ccp_over_memory(s: Scores) -> Evidence:
    points = over_memory()
    return Evidence(f"{_range(points)}, best of each; above 1 by", min(points.values()) - 1)


def _gsp_mean(s: Scores) -> Evidence:
    found = mean(added("gsp-zsr"))
    return Evidence(f"{format_points(found)}; within {NEAR} of 1 by", NEAR - abs(found - 1))


def _gsp_on_par(s: Scores) -> Evidence:
    points = added("gsp-zsr")
    least = {key.rpartition(",")[0]: 0.0 for key in points}
    least = {one: min(gain for key, gain in points.items() if key.startswith(f"{one},")) for one in least}
    par = least.pop("PNCA on In-shop")
    second = min(least, key=least.__getitem__)
    ours = f"{format_points(par)} there, next {format_points(least[second])} ({second}); {ON_PAR} lies between by"
    return Evidence(ours, min(ON_PAR - par, least[second] - ON_PAR))


def _up_to(base: str, points: float, near: float) -> Callable[[Scores], Evidence]:
    def check(s: Scores) -> Evidence:
        found = max(gains(fair_table("5.1"), f"c1+{base}+gsp-zsr", f"c1+{base}").values())
        return Evidence(f"up to {format_points(found)}; within {near} by", near - abs(found - points))

    return check


def _zsr_range(s: Scores) -> Evidence:
    points = gains(fair_table("5.3"), "c2+gsp-zsr", "c2+gsp-only")
    below = sum(gain < 0.5 for gain in points.values())
    low, high = min(points.values()), max(points.values())
    return Evidence(f"{_range(points)}, {below} of {len(points)} below 0.5; inside by", min(low - 0.5, 1 - high))


# --- Study ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gains(Study):
    """Comparisons in published tables and in result files; nothing is measured."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Read the published tables and the results.

        Raises:
            DataError: If the folder of the results is missing.
        """
        folder = request.data or RESULTS
        if request.data is not None and not folder.is_dir():
            raise DataError(f"{folder}: folder not found. Name the folder of recorded results.")
        rows = [*published_rows(), *study_rows(folder), *protocol_rows(folder / "protocols")]
        return Measurement(rows=rows, settings={"results": str(folder)})

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the published relative gains, and the recorded gains in points."""
        return {"": _draw(measured.rows)}


@styled
def _draw(rows: Sequence[Row]) -> Figure:
    ours = [row for row in rows if row["numbers"] != PUBLISHED]
    heights = (4.6, 0.7 + 0.2 * len(ours)) if ours else (4.6,)
    figure = new_figure(7.4, sum(heights))
    panels = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for number, name in enumerate(NAMES.values()):
        shown = [row for row in rows if row["numbers"] == PUBLISHED and row["added"] == name]
        _draw_published(panels[0].add_subplot(2, 1, number + 1), shown, name)
    if ours:
        _draw_recorded(panels[1].subplots(), ours)
    return figure


def _draw_published(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Draw relative gains: a group for each dataset, a color for each method."""
    colors = method_colors(dict.fromkeys(row["method"] for row in rows))
    width = 0.8 / max(len(colors), 1)
    for row in rows:
        shift = (list(colors).index(row["method"]) - (len(colors) - 1) / 2) * width
        position = list(SETS.values()).index(row["dataset"]) + shift
        axes.bar(position, row["relative, %"], 0.9 * width, color=colors[row["method"]])
    handles = [axes.bar(0, 0, color=color) for color in colors.values()]
    axes.legend(handles, [one.upper() for one in colors], fontsize=7.5, ncols=len(colors), loc="upper right")
    axes.set_xticks(range(len(SETS)), list(SETS.values()))
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.margins(y=0.2)
    axes.set_title(f"+ {name}, published: relative gain in MAP@R, 512-D (%)")


def _draw_recorded(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the recorded gains with their intervals; incomplete comparisons are pale."""
    color = method_colors("12")["2"]
    for position, row in enumerate(rows):
        pale = 0.35 if row["verdict"] == Verdict.INCOMPLETE else 1.0
        axes.barh(position, row["points"], color=color, height=0.7, alpha=pale)
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [position, position], color=INK, linewidth=0.8)
    names = [f"{row['method'].upper()} + {row['added']} ({row['numbers']})" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)  # from the top down
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.grid(axis="x", visible=True)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("lines: 95% intervals; pale: incomplete")
    axes.set_title("Recorded gains in MAP@R (points)")


_SETTING = (
    "Published: 512-D embeddings of the fair protocol with BN-Inception; GSP includes ZSR. Recorded: runs with the "
    "published CCP or GSP, paired with runs that differ in nothing else but the frequency of validation; other "
    "backbones."
)
_CCP, _GSP, _CHAPTER = "[Thesis], Table 3.1", "[Thesis], Table 5.1", "[Thesis], chapter 6"
GAINS = Gains(
    name="gains", title="Gains of CCP and GSP, published and measured", measures="published and measured gains",
    source="[Thesis], Fig. 5.7", group="Other",
    scales=scales(
        Scale("quick", needs=DataNeed("recorded results"), cost="seconds", setting=_SETTING),
        Scale("full", needs=DataNeed("recorded results"), cost="seconds", setting=_SETTING),
    ),
    claims=(
        Claim("Published: CCP outperforms its baselines", _CCP, _ccp_gains),
        Claim("Published: CCP adds at least 1 and up to 11 points", _CHAPTER, _ccp_range),
        Claim("Published: CCP is at least 1 point above XBM", _CHAPTER, _ccp_over_memory),
        Claim("Published: GSP adds about 1 point on average", _GSP, _gsp_mean),
        Claim("Published: GSP is on par with GAP only with PNCA on In-shop", _GSP, _gsp_on_par),
        Claim("Published: GSP adds up to 2 points to XBM", _CHAPTER, _up_to("xbm", 2.0, NEAR)),
        Claim("Published: GSP adds up to 0.5 points to CCP", _CHAPTER, _up_to("ccp", 0.5, NEAR / 2)),
        Claim("Published: ZSR adds 0.5 to 1 points to GSP", _CHAPTER, _zsr_range),
    ),
)  # fmt: skip
