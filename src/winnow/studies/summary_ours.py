"""What CCP and GSP add in our own kept results: those of studies, and the tables of protocols."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from winnow.protocols.variants import Variant

SETS = {"sop": "SOP", "inshop": "In-shop", "cub200": "CUB", "cars196": "Cars196"}
LEAST = 3  # runs of each, from which on their interval says something
KEPT = ("sop", "inshop", "cub", "cars")  # how the names of studies' results on these sets begin
GSP = ("GSP", "GSP + ZSR")  # what the documents compare with average pooling; other kinds of GSP are ours


class Score(NamedTuple):
    """A method's MAP@R in percent, how far its seeds deviate (None for one), and which runs it waits for."""

    mean: float
    deviation: float | None
    missing: str


def improvement(
    source: str, on: str, base: str, added: str, before: float, after: float, dim: int | None,
    doubt: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a row of the summary: MAP@R in percent without and with what is added.

    Args:
        source: Where it is from.
        on: The set.
        base: What is added to.
        added: What is.
        before: Without it.
        after: With it.
        dim: Size of the embedding.
        doubt: By how many points the difference may be chance; None where it is not known.
    """
    row = {
        "source": source, "set": on, "dim": dim, "method": base, "added": added, "MAP@R without": round(before, 2),
        "MAP@R with": round(after, 2), "points": round(after - before, 2),
        "relative, %": round(100 * (after / before - 1), 1),
    }  # fmt: skip
    return row if doubt is None else row | {"points in doubt": round(doubt, 2)}


def from_studies(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what CCP and GSP add in kept results on the documents' sets: `A + B` beside `A`, and GSP beside GAP.

    Returns:
        A row for each comparison whose runs are all finished, in doubt by what seeds deviate by; and, in words, those
        that have some but not all.
    """
    rows, unfinished = [], []
    for path in sorted(folder.glob("*.json")):
        if not path.stem.startswith(KEPT):
            continue
        scores = dict(_scores(json.loads(path.read_text(encoding="utf-8"))))
        for name, own in scores.items():
            base, _, added = ("GAP", "", name) if name in GSP else name.rpartition(" + ")
            if base not in scores or not added.startswith(("CCP", "GSP")):
                continue
            both = (scores[base], own)
            if any(one.missing for one in both):
                waits = [f"{each} {one.missing}" for each, one in zip((base, name), both, strict=True) if one.missing]
                unfinished.append(f"{' and '.join(waits)} ({path.stem})")
                continue
            doubts = [one.deviation for one in both if one.deviation is not None]
            rows.append(
                improvement(f"ours, {path.stem}", "", base, added, both[0].mean, own.mean, None,
                            max(doubts, default=None))
            )  # fmt: skip
    return rows, unfinished


def _scores(content: Any) -> Iterator[tuple[str, Score]]:
    """Yield each method's score, of a result's rows or else of its runs."""
    if not isinstance(content, dict):
        return
    found = [row for row in content.get("rows", []) if isinstance(row, dict) and {"method", "MAP@R"} <= set(row)]
    if found:
        for row in found:
            if isinstance(row["MAP@R"], float):
                yield row["method"], Score(row["MAP@R"], row.get("MAP@R sd"), row.get("missing") or "")
        return
    by_method: dict[str, list[float]] = {}
    for run in content.get("runs", []):
        score = run.get("MAP@R", run.get("metrics", {}).get("test", {}).get("MAP@R")) if isinstance(run, dict) else None
        if score is not None and "method" in run:
            by_method.setdefault(run["method"], []).append(100 * score)
    for name, values in by_method.items():
        yield name, Score(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None, "")


def from_tables(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what CCP and GSP add in tables of protocols on the documents' sets: `a+b` beside `a`.

    Methods with settings of their own count beside those with the same ones, and are left out where there is none.

    A method counts with the mean of its runs, also where the protocol reports the best of them, and with the largest
    embedding of its table: where models are judged alone and joined, both are the same runs. A difference is in doubt
    by half the width of its interval in the table.

    Args:
        folder: Of tables as `winnow protocol` writes them.

    Returns:
        A row for each comparison whose runs are all finished, or that has the same runs of both and an interval of
        their difference; and, in words, the others that have some.
    """
    rows, unfinished = [], []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not _is_judged_on_test(content):
            continue
        methods = {one["method"]: one for one in content["rows"]}
        for name, one in methods.items():
            variant = Variant.read(name)
            first, _, added = variant.name.rpartition("+")
            base = str(Variant(first, variant.settings))
            if base not in methods or not added.startswith(("ccp", "gsp")):
                continue
            both = (methods[base], one)
            if any(each["finished"] < each["planned"] for each in both) and not _enough(content["pairs"], both):
                counts = [f"{each['method']} {each['finished']} of {each['planned']}" for each in both]
                told = f"{' and '.join(counts)} runs{_so_far(content['pairs'], name, base)} ({path.stem})"
                unfinished += [told] if one["finished"] else []
                continue
            means = [
                {cell["size"]: cell["spread"]["mean"] for cell in each["cells"] if cell["metric"] == "MAP@R"}
                for each in both
            ]
            dim = max(means[1])
            label = added[:3].upper() + added[3:]  # as GSP-alone
            doubt = next((half for size, half in _halves(content["pairs"], name, base) if size == dim), None)
            some = f", {one['finished']} of {one['planned']} runs" if one["finished"] < one["planned"] else ""
            rows.append(
                improvement(f"ours, {path.stem}{some}", SETS[content["set"]], base, label, means[0][dim],
                            means[1][dim], dim, doubt)
            )  # fmt: skip
    return rows, unfinished


def _enough(pairs: Sequence[Mapping[str, Any]], both: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two methods have the same runs, no fewer than LEAST, and an interval of their difference."""
    base, one = both
    return base["finished"] == one["finished"] and any(
        pair["models"] == one["finished"] >= LEAST and pair["difference"].get("low") is not None for pair in pairs
        if (pair["method"], pair["against"]) == (one["method"], base["method"])
    )  # fmt: skip


def _halves(pairs: Sequence[Mapping[str, Any]], method: str, against: str) -> Iterator[tuple[int, float]]:
    """Yield each size and half the width of the interval of the difference there."""
    for pair in pairs:
        spread = pair["difference"]
        known = spread.get("low") is not None
        if known and (pair["method"], pair["against"], pair["metric"]) == (method, against, "MAP@R"):
            yield pair["size"], (spread["high"] - spread["low"]) / 2


def _so_far(pairs: Sequence[Mapping[str, Any]], method: str, against: str) -> str:
    """Tell the difference over the runs that both have, with the largest embedding: nothing where they share none."""
    found = {
        pair["size"]: f", over {pair['models']} of each {pair['difference']['mean']:+.2f} points" for pair in pairs
        if (pair["method"], pair["against"], pair["metric"]) == (method, against, "MAP@R")
    }  # fmt: skip
    return found[max(found)] if found else ""


def _is_judged_on_test(content: Any) -> bool:
    """Whether this is a protocol's table of test classes of a set that the documents have."""
    protocol = content.get("protocol") if isinstance(content, dict) else None
    return isinstance(protocol, dict) and protocol.get("judged") == "test" and content.get("set") in SETS
