"""By how much CCP and GSP improve what they are added to: the documents' tables, and ours beside them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import DataError
from winnow.report.style import INK, method_colours, new_figure, styled
from winnow.studies.base import Findings, Row, Task, with_data
from winnow.studies.summary_ours import SETS, from_studies, from_tables, improvement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path("results")
ADDED = {"ccp": "3.1", "gsp": "5.1"}  # what is added to a method, and the table that compares with and without
ON_PAR = 0.1  # points of MAP@R within which the documents speak of par


def documents() -> list[dict[str, Any]]:
    """Return every row of Tables 3.1 and 5.1 with CCP or GSP beside the row without."""
    text = files("winnow.protocols").joinpath("documents.json").read_text(encoding="utf-8")
    content = json.loads(text)
    numbers = {
        (table, method, on, dim, metric): value
        for table, protocol, _, dim, on, method, metric, value, _ in content["rows"]
        if protocol == "fair"
    }
    rows = []
    for (table, method, on, dim, metric), value in numbers.items():
        base, _, added = method.rpartition("+")
        if metric == "MAP@R" and ADDED.get(added) == table and (table, base, on, dim, metric) in numbers:
            before = numbers[table, base, on, dim, metric]
            rows.append(improvement(f"thesis, Table {table}", SETS[on], base, added.upper(), before, value, dim))
    return rows


@with_data(small=True, full=True)
def study(task: Task) -> Findings:
    """Relative improvement by CCP and GSP, from the documents' tables and from ours (Figs. 3.4 and 5.7).

    Ours are the kept results of studies and, once there are enough runs, of protocols.

    Cost: seconds.
    """
    rows = documents()
    folder = task.data or RESULTS
    if task.data is not None and not folder.is_dir():
        raise DataError(f"--data {folder}: there is no such folder; name that of kept results, such as results")
    (own, waiting), (finished, unfinished) = from_studies(folder), from_tables(folder / "protocols")
    own += finished
    return Findings(
        title="Improvements in MAP@R",
        text=" ".join(
            [*(claim(rows, added) for added in ("CCP", "GSP")), *told(own), *left_out([*waiting, *unfinished])]
        ),
        rows=[*(row for row in rows if row["dim"] == 512), *own],
        figure=draw(rows, own),
        settings={"results": str(folder), "small": task.small},
        details={"all rows": [*rows, *own]},
    )


def claim(rows: Sequence[Row], added: str) -> str:
    """Check what the documents say of their own table: an improvement everywhere but for one case."""
    points = {(row["method"], row["set"], row["dim"]): row["points"] for row in rows if row["added"] == added}
    worse = sorted({f"{method.upper()} on {on}" for (method, on, _), gain in points.items() if gain < ON_PAR})
    relative = [row["relative, %"] for row in rows if row["added"] == added]
    says = {
        "CCP": ("of CCP as consistently ahead of its baselines", not worse),
        "GSP": ("of about one point from GSP everywhere but for PNCA on In-shop",
                worse == ["PNCA on In-shop"] and 0.5 < statistics.mean(points.values()) < 1.5),
    }[added]  # fmt: skip
    exceptions = f"below {ON_PAR} points for {', '.join(worse)}" if worse else f"never below {ON_PAR} points"
    verdict = "bears out" if says[1] else "does not quite bear out"
    return (
        f"The thesis speaks {says[0]}; in its table, with 128 and 512 numbers, the gain is "
        f"{min(points.values()):+.2f} to {max(points.values()):+.2f} points of MAP@R, "
        f"{statistics.mean(points.values()):+.2f} in the mean and "
        f"{statistics.mean(relative):+.1f} % relative, {exceptions}: the table {verdict} the claim."
    )


def told(own: Sequence[Row]) -> list[str]:
    """Say how our own results stand beside the documents' direction, and whether that can be told from chance."""
    if not own:
        return ["None of our results with and without a method is at hand here; --data names the folder they are in."]
    best = max(own, key=lambda row: float(row["relative, %"]))
    parts = [
        "Ours have other backbones, and studies one fold, so that sizes do not compare, only directions. The largest "
        f"relative gain is {best['relative, %']:+.1f} % ({best['added']} beside {best['method']}, {best['source']})."
    ]
    for added in ("CCP", "GSP"):
        rows = [row for row in own if row["added"].startswith(added)]
        if not rows:
            continue
        known = [row for row in rows if "points in doubt" in row]
        sure = [row for row in known if abs(row["points"]) > row["points in doubt"]]
        ahead, behind = (sum(sign * row["points"] > 0 for row in sure) for sign in (1, -1))
        outcome = (
            "cannot be told yet" if not sure
            else "does not agree" if not ahead
            else "agrees" if ahead == len(known) else f"agrees in {ahead} of {len(known)} alone"
        )  # fmt: skip
        parts.append(
            f"Of our {len(rows)} comparisons with {added} {sum(row['points'] > 0 for row in rows)} go the documents' "
            f"way. By more than chance, which is what seeds deviate by or in protocols the interval of the difference, "
            f"{ahead} go that way and {behind} the other, of {len(known)} whose chance is known: that {added} improves "
            f"what it is added to {outcome}."
        )
    return parts


def left_out(unfinished: Sequence[str]) -> list[str]:
    """Name the comparisons that wait for runs."""
    return [f"Left out until their runs are finished: {'; '.join(unfinished)}."] if unfinished else []


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
        colours = method_colours(methods)
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
    doubt = [row.get("points in doubt", 0.0) for row in own]
    axes.barh(range(len(own)), [row["points"] for row in own], xerr=doubt, color=method_colours("12")["2"], height=0.7,
              error_kw={"ecolor": INK, "elinewidth": 0.8})  # fmt: skip
    names = [
        f"{str(row['method']).upper()} + {row['added']}" if row["method"] != "GAP" else f"{row['added']} for GAP"
        for row in own
    ]
    axes.set_yticks(range(len(own)), [f"{name} ({row['source'][6:]})" for name, row in zip(names, own, strict=True)])
    axes.tick_params(axis="y", labelsize=7.5)
    axes.invert_yaxis()
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.grid(axis="x", visible=True)
    axes.grid(axis="y", visible=False)
    axes.set_title("ours: points of MAP@R; whiskers: chance, where known")
