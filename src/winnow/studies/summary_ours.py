"""What CCP and GSP add in our own kept results of studies, by the settings of their runs."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from winnow.losses import LOSSES
from winnow.protocols.methods import ADDITIONS, EARLIER_ADDITIONS, SHORT_LOSSES
from winnow.protocols.spec import DATASETS, FAIR
from winnow.training.config import make_config

SETS = {"sop": "SOP", "inshop": "In-shop", "cub200": "CUB", "cars196": "Cars196"}
ADDED = ("ccp", "gsp")
FOLDERS = ("", "frozen")  # of kept results, within that of all
OFTEN = {"eval_steps", "patience"}  # by which CCP's problems end, and which may be its own for that

Config = Mapping[str, Any]


def improvement(
    source: str, on: str, base: str, added: str, before: float, after: float, dim: int | None,
    doubt: float | None = None, runs: str = "",
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
        runs: Which part of its runs it has, as in `1 of 3`; empty where they are all there or enough.
    """
    row = {
        "source": source, "set": on, "dim": dim, "method": base, "added": added, "MAP@R without": round(before, 2),
        "MAP@R with": round(after, 2), "points": round(after - before, 2),
        "relative, %": round(100 * (after / before - 1), 1),
    }  # fmt: skip
    row |= {} if doubt is None else {"points in doubt": round(doubt, 2)}
    return row | ({"part of its runs": runs} if runs else {})


def from_studies(folder: Path) -> list[dict[str, Any]]:
    """Return what CCP and GSP add in kept results on the documents' sets.

    A run counts by its config, whatever its method is called: with the documents' CCP or GSP, beside one that differs
    from it in nothing else. Both have the same seeds. Runs that several studies tell of make one row.
    """
    rows: dict[tuple[float, ...], dict[str, Any]] = {}
    for within in FOLDERS:
        for path in sorted((folder / within).glob("*.json")):
            name = f"{within}/{path.stem}".lstrip("/")
            for scores, row in _compared(name, json.loads(path.read_text(encoding="utf-8"))):
                told = rows.get(scores)
                if told is None:
                    rows[scores] = row
                    continue
                told["source"] += f", {name}"
                if "part of its runs" not in row:  # another study asks for no more seeds than there are
                    told.pop("part of its runs", None)
    return list(rows.values())


def _compared(name: str, content: Any) -> Iterator[tuple[tuple[float, ...], dict[str, Any]]]:
    """Yield the scores behind each comparison of a result, and its row."""
    methods = list(_methods(content).values())
    for (own, base), added in itertools.product(itertools.permutations(methods, 2), ADDED):
        config, other = (next(iter(runs.values()))[0] for runs in (own, base))
        seeds = sorted(set(own) & set(base))
        if not seeds or not has(config, added) or not is_base(other, config, added):
            continue
        before, after = ([runs[seed][1] for seed in seeds] for runs in (base, own))
        doubt = max(map(statistics.stdev, (before, after))) if len(seeds) > 1 else None
        planned = len(content.get("settings", {}).get("seeds", seeds))
        some = f"{len(seeds)} of {planned}" if len(seeds) < planned else ""
        row = improvement(
            f"ours, {name}", SETS[set_of(config) or ""], _called(config), added.upper(), statistics.mean(before),
            statistics.mean(after), config["dim"], doubt, some,
        )  # fmt: skip
        yield (*before, *after), row


def _methods(content: Any) -> dict[str, dict[int, tuple[Config, float]]]:
    """Return the settings and MAP@R in percent of a result's runs on the documents' sets, by method and seed."""
    found: dict[str, dict[int, tuple[Config, float]]] = {}
    for run in content.get("runs", ()) if isinstance(content, dict) else ():
        if isinstance(run, dict) and isinstance(run.get("config"), dict) and set_of(run["config"]) is not None:
            config = make_config(run["config"]).model_dump()  # what older ones do not name is the default
            score = 100 * run["metrics"]["test"]["MAP@R"]
            found.setdefault(run["method"], {})[config["seed"]] = config, score
    return found


def set_of(config: Config) -> str | None:
    """Return which of the documents' sets a run was trained on, by its name or its folder's; None for another."""
    name = Path(config.get("data", {}).get("path", "")).name
    return next((known for known in SETS if name.startswith(known)), None)  # as cub200_2011


def has(config: Config, added: str) -> bool:
    """Whether a run has CCP or GSP as the documents' tables mean it on its set; their GSP has ZSR."""
    on = set_of(config)
    if on is None:
        return False
    proxies = LOSSES[config["loss"]["name"]].default_references == "proxies"
    theirs = make_config(
        ADDITIONS[EARLIER_ADDITIONS.get(added, added)].settings(DATASETS[on], FAIR, proxies).tree
    ).model_dump()
    if added == "gsp":
        return bool(config["pooling"] == theirs["pooling"] and config["zsr"] == theirs["zsr"])
    # Where a problem starts the documents tell in two ways.
    return all(
        config["references"].get(key) == value for key, value in theirs["references"].items() if key != "start_from"
    )


def is_base(base: Config, config: Config, added: str) -> bool:
    """Whether a run is what CCP or GSP is added to: the batch's pairs or average pooling, and all else the same."""
    own = {"ccp": {"references"}, "gsp": {"pooling", "zsr"}}[added]
    plain = (
        base["references"]["name"] == "batch" if added == "ccp"
        else base["pooling"]["name"] == "gap" and not base["zsr"]["weight"]
    )  # fmt: skip
    one, other = ({key: value for key, value in each.items() if key not in own | {"train", "seed"}}
                  for each in (base, config))  # fmt: skip
    first, second = ({key: value for key, value in each["train"].items() if key not in OFTEN}
                     for each in (base, config))  # fmt: skip
    return plain and one == other and first == second


def _called(config: Config) -> str:
    """Return what tables call a loss."""
    name = str(config["loss"]["name"])
    return SHORT_LOSSES.get(name, name)
