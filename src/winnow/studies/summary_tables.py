"""What CCP and GSP add in our own tables of protocols."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winnow.protocols.methods import MethodSpec
from winnow.studies.summary_ours import SETS, improvement

ADDED = {"ccp": "ccp", "gsp-zsr": "gsp"}
LEAST = 3  # runs of each, from which on their interval says something


def from_tables(folder: Path) -> list[dict[str, Any]]:
    """Return what CCP and GSP add in tables of protocols on the documents' sets: `a+b` beside `a`.

    Methods with settings of their own count beside those with the same ones, and are left out where there is none.

    A method counts with the mean of its runs, also where the protocol reports the best of them, and with the largest
    embedding of its table: where models are judged alone and joined, both are the same runs. A difference is in doubt
    by half the width of its interval in the table. Where runs are missing, the row is of the models that both have,
    and says so unless they are enough: the same of both, and an interval of their difference.

    Args:
        folder: Of tables as `winnow protocol` writes them.
    """
    rows = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not _is_judged_on_test(content):
            continue
        methods = {MethodSpec.parse(one["method"]): one for one in content["rows"]}
        for method, one in methods.items():
            added = method.additions[-1] if method.additions else ""
            base = MethodSpec(method.loss, method.additions[:-1], method.settings)
            if base not in methods or added not in ADDED:
                continue
            row = _row(path.stem, content, methods[base], one, ADDED[added])
            rows += [] if row is None else [row]
    return rows


def _row(
    name: str, content: Mapping[str, Any], base: Mapping[str, Any], one: Mapping[str, Any], added: str
) -> dict[str, Any] | None:
    """Return a comparison of a table; None where the two share no model."""
    key = (one["method"], base["method"], "MAP@R")
    pairs = [pair for pair in content["pairs"] if (pair["method"], pair["against"], pair["metric"]) == key]
    finished = all(each["finished"] == each["planned"] for each in (base, one))
    pair = max(pairs, key=lambda pair: int(pair["size"]), default=None)
    if pair is None and not finished:
        return None
    dim = max(_means(one)) if pair is None else int(pair["size"])
    before, after = _means(base)[dim], _means(one)[dim]
    part = source = ""
    if pair is not None and not finished:
        some = f"{pair['models']} of {one['planned']}"
        if _enough(pair, base, one):
            source = f", {some} runs"
        else:
            part, gain = some, pair["difference"]["mean"]  # of the models that both have
            before, after = (after - gain, after) if one["finished"] == pair["models"] else (before, before + gain)
    doubt = None if pair is None else _half(pair)
    return improvement(f"ours, {name}{source}", SETS[content["set"]], base["method"], added.upper(), before, after, dim,
                       None if part else doubt, part)  # fmt: skip


def _means(method: Mapping[str, Any]) -> dict[int, float]:
    """Return a method's mean MAP@R by the size of its embedding."""
    return {cell["size"]: cell["spread"]["mean"] for cell in method["cells"] if cell["metric"] == "MAP@R"}


def _enough(pair: Mapping[str, Any], base: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    """Whether two methods have the same runs, no fewer than LEAST, and an interval of their difference."""
    return base["finished"] == one["finished"] == pair["models"] >= LEAST and _half(pair) is not None


def _half(pair: Mapping[str, Any]) -> float | None:
    """Return half the width of the interval of a difference; None where there is none."""
    spread = pair["difference"]
    return None if spread.get("low") is None else (spread["high"] - spread["low"]) / 2


def _is_judged_on_test(content: Any) -> bool:
    """Whether this is a protocol's table of test classes of a set that the documents have."""
    protocol = content.get("protocol") if isinstance(content, dict) else None
    return isinstance(protocol, dict) and protocol.get("judged") == "test" and content.get("set") in SETS
