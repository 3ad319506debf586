"""Gains of CCP and GSP in MAP@R, in recorded results of studies and protocols."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from winnow.errors import DataError
from winnow.integrity import check_listed
from winnow.losses import LOSSES
from winnow.protocols.methods import ADDITIONS, SHORT_LOSSES, MethodSpec
from winnow.protocols.spec import DATASETS, FAIR
from winnow.protocols.table import PairedDifference, ProtocolTable, TableRow, read_table
from winnow.references import REFERENCES
from winnow.report.claims import Estimate, estimate, verdict
from winnow.studies.render import read_json
from winnow.studies.spec import Row
from winnow.training.config import make_config, read_recorded

SETS = {"sop": "SOP", "inshop": "In-shop", "cub200": "CUB", "cars196": "Cars196"}
"""Datasets of the published tables and their names there."""
TABLES = {"ccp": "3.1", "gsp-zsr": "5.1"}
"""Table of [Thesis] that compares methods with an addition and without; its GSP includes ZSR."""
NAMES = {"ccp": "CCP", "gsp-zsr": "GSP"}  # of the additions in the tables
FORM = frozenset(REFERENCES.presets("ccp")["literal"])
"""Settings of CCP in which [Thesis], its code, and winnow differ; runs of every form count."""
FOLDERS = ("", "frozen")  # of recorded studies
PUBLISHED = "published"
"""First column of a published comparison."""

Config: TypeAlias = Mapping[str, Any]


def gain_row(
    numbers: str, addition: str, dataset: str, dim: int | None, method: str, before: float, after: float,
    found: Estimate | None = None, runs: str = "", complete: bool = True,
) -> Row:  # fmt: skip
    """Return a row of the table.

    Args:
        numbers: "published", or the result files.
        addition: Key of `TABLES`.
        dataset: Key of `SETS`.
        dim: Embedding size.
        method: Method without the addition.
        before: MAP@R in percent without it.
        after: MAP@R in percent with it.
        found: Paired difference of a recorded result.
        runs: Number of finished runs, such as "1 of 3", if some are missing.
        complete: Whether these runs decide the claim.
    """
    row = {
        "numbers": numbers, "source": f"[Thesis], Table {TABLES[addition]}", "dataset": SETS[dataset], "dim": dim,
        "method": method, "added": NAMES[addition], "MAP@R without": round(before, 2), "MAP@R with": round(after, 2),
        "points": round(after - before, 2), "relative, %": round(100 * (after / before - 1), 1),
    }  # fmt: skip
    if numbers == PUBLISHED:
        return row
    interval = (None, None) if found is None else (found.low, found.high)
    low, high = (None if bound is None else round(bound, 2) for bound in interval)
    found_verdict = verdict(found, complete=complete)
    return {**row, "low": low, "high": high, "n": found and found.n, "runs": runs, "verdict": str(found_verdict)}


# --- Recorded studies -------------------------------------------------------------------------------------------------


def study_rows(folder: Path) -> list[Row]:
    """Return the gains of CCP and GSP in recorded studies on the published datasets.

    A run counts by its config, regardless of the name of its variant: it has the published CCP or GSP, and the same
    seed as a run that differs in nothing else. Runs that several studies share make one row.
    """
    rows: dict[tuple[float, ...], Row] = {}
    for within in FOLDERS:
        for file in sorted((folder / within).glob("*.json")):
            name = f"{within}/{file.stem}".lstrip("/")
            for scores, row in _compared(name, read_json(file)):
                known = rows.setdefault(scores, row)
                if known is not row:
                    names = f"{known['numbers']}, {name}"
                    # A study that plans fewer seeds may have all of its runs.
                    rows[scores] = {**(known if row["runs"] else row), "numbers": names}
    return list(rows.values())


def _compared(name: str, content: Any) -> Iterator[tuple[tuple[float, ...], Row]]:
    """Yield the scores behind each comparison of a result file, and its row."""
    methods = list(_methods(content).values())
    for (own, base), addition in itertools.product(itertools.permutations(methods, 2), TABLES):
        config, other = (next(iter(runs.values()))[0] for runs in (own, base))
        seeds = sorted(set(own) & set(base))
        if not seeds or not has_addition(config, addition) or not is_base(other, config, addition):
            continue
        before, after = ([runs[seed][1] for seed in seeds] for runs in (base, own))
        found = estimate([b - a for a, b in zip(before, after, strict=True)])
        planned = len(content.get("settings", {}).get("seeds", seeds))
        runs = f"{len(seeds)} of {planned}" if len(seeds) < planned else ""
        loss = str(config["loss"]["name"])
        row = gain_row(
            name, addition, dataset_of(config) or "", config["dim"], SHORT_LOSSES.get(loss, loss),
            statistics.mean(before), statistics.mean(after), found, runs, not runs,
        )  # fmt: skip
        yield (*before, *after), row


def _methods(content: Any) -> dict[str, dict[int, tuple[Config, float]]]:
    """Return config and MAP@R of runs on published datasets, by variant and seed."""
    found: dict[str, dict[int, tuple[Config, float]]] = {}
    for run in content.get("runs", ()) if isinstance(content, dict) else ():
        if isinstance(run, dict) and isinstance(run.get("config"), dict) and dataset_of(run["config"]) is not None:
            config = read_recorded(run["config"]).model_dump()
            score = 100 * run["metrics"]["test"]["MAP@R"]
            found.setdefault(run["method"], {})[config["seed"]] = config, score
    return found


def dataset_of(config: Config) -> str | None:
    """Return the published dataset of a run; None for another dataset."""
    name = Path(config.get("data", {}).get("path", "")).name
    return next((known for known in SETS if name.startswith(known)), None)  # such as cub200_2011


def has_addition(config: Config, addition: str) -> bool:
    """Return whether a run has CCP or GSP with the published settings of its dataset."""
    dataset = dataset_of(config)
    if dataset is None:
        return False
    proxies = LOSSES[config["loss"]["name"]].default_references == "proxies"
    published = make_config(ADDITIONS[addition].settings(DATASETS[dataset], FAIR, proxies).tree).model_dump()
    if addition == "gsp-zsr":  # text and code of the authors have two scales
        own, theirs = ({**one["zsr"], "logit_scale": None} for one in (config, published))
        return bool(config["pooling"] == published["pooling"] and own == theirs)
    return all(config["references"].get(key) == value for key, value in published["references"].items()
               if key not in FORM)  # fmt: skip


def is_base(base: Config, config: Config, addition: str) -> bool:
    """Return whether runs differ in an addition alone.

    The base has pairs of the batch instead of CCP, or GAP instead of GSP.
    """
    own = {"ccp": {"references"}, "gsp-zsr": {"pooling", "zsr"}}[addition]
    plain = (
        base["references"]["name"] == "batch" if addition == "ccp"
        else base["pooling"]["name"] == "gap" and not base["zsr"]["weight"]
    )  # fmt: skip
    # Subproblems of CCP end by validations, which may be more frequent for them.
    free = {"eval_steps", "patience"}
    one, other = ({key: value for key, value in each.items() if key not in own | {"train", "seed"}}
                  for each in (base, config))  # fmt: skip
    first, second = ({key: value for key, value in each["train"].items() if key not in free} for each in (base, config))
    return plain and one == other and first == second


# --- Recorded protocols -----------------------------------------------------------------------------------------------


def protocol_rows(folder: Path) -> list[Row]:
    """Return the gains in tables of protocols on test classes.

    A table counts with its largest embedding.
    """
    rows: list[Row] = []
    for file in sorted(folder.glob("*.json")):
        check_listed(file, error=DataError)
        try:
            table = read_table(file)
        except DataError:  # records of other kinds lie in the same folder
            continue
        if table.protocol.split != "test" or table.dataset not in SETS:
            continue
        methods = {MethodSpec.parse(one.method): one for one in table.rows}
        for method, one in methods.items():
            addition = method.published.additions[-1] if method.additions else ""
            base = methods.get(MethodSpec(method.loss, method.additions[:-1], method.settings))
            if base is not None and addition in TABLES:
                rows += _protocol_row(file.stem, table, base, one, addition)
    return rows


def _protocol_row(name: str, table: ProtocolTable, base: TableRow, one: TableRow, addition: str) -> Iterator[Row]:
    """Yield the comparison of two methods, unless they share no model."""
    pairs = [pair for pair in table.pairs
             if (pair.method, pair.against, pair.metric) == (one.method, base.method, "MAP@R")]  # fmt: skip
    pair = max(pairs, key=lambda pair: pair.dim, default=None)
    finished = all(each.finished == each.planned for each in (base, one))
    if pair is None and not finished:
        return
    dim = max(_means(one)) if pair is None else pair.dim
    before, after = _means(base)[dim], _means(one)[dim]
    if pair is not None and not finished:
        before, after = _of_shared_models(pair, base, one, before, after)
    runs = "" if finished or pair is None else f"{pair.models} of {one.planned}"
    yield gain_row(
        name, addition, table.dataset, dim, base.method, before, after, None if pair is None else pair.difference, runs,
        table.decides(one.method, base.method),
    )  # fmt: skip


def _means(row: TableRow) -> dict[int, float]:
    """Return the mean MAP@R of a method by embedding size.

    It is the mean also if the protocol reports the best run.
    """
    return {cell.dim: cell.estimate.mean for cell in row.cells if cell.metric == "MAP@R"}


def _of_shared_models(
    pair: PairedDifference, base: TableRow, one: TableRow, before: float, after: float
) -> tuple[float, float]:
    """Return the scores of the models that both methods have."""
    if base.finished == one.finished == pair.models:
        return before, after
    gain = pair.difference.mean
    return (after - gain, after) if one.finished == pair.models else (before, before + gain)
