"""By how much CCP and GSP improve what they are added to: the documents' tables, and ours beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import DataError
from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.base import Findings, Row, Task, paragraphs, with_data
from winnow.studies.poolings import THEIR_GSP
from winnow.studies.summary_claims import claims, fair_table
from winnow.studies.summary_ours import SETS, from_studies, improvement
from winnow.studies.summary_tables import from_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path("results")
TABLES = {"ccp": "3.1", "gsp-zsr": "5.1"}  # what is added to a method, and the table that compares with and without


def documents() -> list[dict[str, Any]]:
    """Return every row of Tables 3.1 and 5.1 with CCP or GSP beside the row without."""
    rows = []
    for added, number in TABLES.items():
        table = fair_table(number)
        for method, values in table.items():
            base, _, last = method.rpartition("+")
            if last == added and base in table:
                name = added.removesuffix("-zsr").upper()
                rows += [improvement(f"thesis, Table {number}", SETS[on], base, name, table[base][on, dim],
                                     value, dim) for (on, dim), value in values.items()]  # fmt: skip
    return rows


@with_data(small=True, full=True)
def study(task: Task) -> Findings:
    """Relative improvement by CCP and GSP, from the documents' tables and from ours (Figs. 3.4 and 5.7).

    Ours are the kept results of studies and protocols.

    Cost: seconds; the same in full.
    """
    rows = documents()
    folder = task.data or RESULTS
    if task.data is not None and not folder.is_dir():
        raise DataError(f"--data {folder}: there is no such folder; name that of kept results, such as results")
    own = [*from_studies(folder), *from_tables(folder / "protocols")]
    thesis = "\n".join(["What the thesis says of its own tables, in points of MAP@R:", "", *claims()])
    return Findings(
        title="Improvements in MAP@R",
        text=paragraphs(told(own), thesis, made(own)),
        rows=[*(row for row in rows if row["dim"] == 512), *own],
        figure=draw(rows, own),
        settings={"results": str(folder), "small": task.small},
        details={"all rows": [*rows, *own]},
    )


def is_part(row: Row) -> bool:
    """Whether a comparison waits for more runs."""
    return "part of its runs" in row


def told(own: Sequence[Row]) -> str:
    """Say how our own results stand beside the documents' direction, and whether that can be told from chance."""
    lines = ["Of our own results, whether what is added improves:", ""]
    for added in ("CCP", "GSP"):
        rows = [row for row in own if row["added"] == added]
        if not rows:
            lines.append(f"- {added}: no comparison is at hand; cannot be told.")
            continue
        known = [row for row in rows if "points in doubt" in row]
        sure = [row for row in known if abs(row["points"]) > row["points in doubt"]]
        ahead, behind = (sum(sign * row["points"] > 0 for row in sure) for sign in (1, -1))
        outcome = (
            "cannot be told" if not sure
            else "does not agree" if behind >= ahead
            else "agrees" if ahead == len(known) else f"agrees in {ahead} of {len(known)} alone"
        )  # fmt: skip
        lines.append(
            f"- {added}: better in {sum(row['points'] > 0 for row in rows)} of {len(rows)}. Of the {len(known)} that "
            f"were made more than once, by more than chance: {ahead} better, {behind} worse; {outcome}."
        )
    return "\n".join(lines)


def made(own: Sequence[Row]) -> str:
    """Say what is compared with what."""
    if not own:
        return "None of our results with and without a method is at hand here; --data names the folder they are in."
    return (
        f"The documents' GSP is what we call {THEIR_GSP}: Table 5.1 repeats the row of Table 5.3 with both. Ours count "
        "by the settings of their runs: with the documents' CCP or GSP, beside runs of the same seeds that differ in "
        "nothing else but how often is validated; what several studies tell of counts once, and what waits for more "
        "runs counts with those it has (pale). Chance is what seeds deviate by, in protocols the interval of the "
        "difference. Backbones are others than the documents', and studies have one fold, so that directions compare, "
        "not sizes. Of the thesis the table has embeddings of 512 numbers; claims are checked with those of 128 too."
    )


@styled
def draw(rows: Sequence[Row], own: Sequence[Row]) -> Figure:
    """Draw the relative improvements of 512-D embeddings, set by set, and ours below."""
    figure = new_figure(7.4, 4.6 + (0.7 + 0.2 * len(own) if own else 0))
    parts = figure.subfigures(
        2 if own else 1, 1, squeeze=False, height_ratios=(4.6, 0.7 + 0.2 * len(own)) if own else None
    )
    for place, added in enumerate(("CCP", "GSP")):
        axes = parts[0, 0].add_subplot(2, 1, place + 1)
        chosen = [row for row in rows if row["added"] == added and row["dim"] == 512]
        methods = list(dict.fromkeys(str(row["method"]) for row in chosen))
        colours = method_colors(methods)
        width = 0.8 / max(len(methods), 1)
        for row in chosen:
            number = methods.index(str(row["method"]))
            where = list(SETS.values()).index(str(row["set"])) + (number - (len(methods) - 1) / 2) * width
            axes.bar(where, row["relative, %"], 0.9 * width, color=colours[str(row["method"])])
        handles = [axes.bar(0, 0, color=colour) for colour in colours.values()]
        axes.legend(handles, [name.upper() for name in methods], fontsize=7.5, ncols=len(methods), loc="upper right")
        axes.set_xticks(range(len(SETS)), list(SETS.values()))
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.margins(y=0.2)
        axes.set_title(f"+ {added}, thesis: MAP@R of 512-D embeddings, relative %")
    if own:
        _draw_ours(parts[1, 0], own)
    return figure


def _draw_ours(part: Any, own: Sequence[Mapping[str, Any]]) -> None:
    axes = part.subplots()
    colour = method_colors("12")["2"]
    for place, row in enumerate(own):
        axes.barh(place, row["points"], xerr=row.get("points in doubt"), color=colour, height=0.7,
                  alpha=0.35 if is_part(row) else 1.0, error_kw={"ecolor": INK, "elinewidth": 0.8})  # fmt: skip
    names = [f"{str(row['method']).upper()} + {row['added']} ({row['source'].removeprefix('ours, ')})" for row in own]
    axes.set_yticks(range(len(own)), names)
    axes.tick_params(axis="y", labelsize=7)
    axes.invert_yaxis()
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.grid(axis="x", visible=True)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("whiskers: chance, where known; pale: runs are missing")
    axes.set_title("ours: points of MAP@R")
