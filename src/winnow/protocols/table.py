"""The table of a protocol: rows, paired differences, published numbers, and records of all finished runs."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
    model_validator,
)

from winnow.errors import DataError
from winnow.files import read_text
from winnow.integrity import check_listed
from winnow.protocols.curves import is_late, read_curve
from winnow.protocols.ensembles import Numbers, Results, all_values, method_values
from winnow.protocols.methods import MethodSpec, is_recipe, paired_methods, present_name, recorded_name
from winnow.protocols.plan import ProtocolRequest, ProtocolRun, rerun_command
from winnow.protocols.spec import Budget, ProtocolSpec, has_second_version
from winnow.protocols.statistics import FEWEST_MODELS, clip_interval
from winnow.report.claims import Estimate
from winnow.training.recipes import find_recipe
from winnow.training.results import Provenance, Record, RunResult, collect_provenance
from winnow.training.sweep import validation_columns

TABLE_FILE = "table.json"

MethodName = Annotated[str, AfterValidator(present_name)]
"""Method, under its present name if a file of version 0.1.0 is read."""

_RECORDED = (
    "command", "commit", "winnow", "machine", "versions", "config", "data", "metrics", "steps", "best_step", "seconds",
    "problems", "prototypes_ready",
)  # fmt: skip
"""Keys of a result that a record has."""


class PublishedNumber(Record):
    """A number of a published table, in percent."""

    value: float
    std: float | None = None
    table: str  # of [Thesis]; "" for the number of a recipe
    backbone: str
    source: str = ""  # of the number of a recipe
    caveat: str = Field("", alias="doubt")  # reason why it may be wrong


class _Estimated(Record):
    """Base of numbers with an interval.

    JSON has the estimate without n, which is stored once elsewhere, and names the method of an interval that is not the
    bootstrap's.
    """

    @field_serializer("estimate", "difference", check_fields=False)
    def _without_n(self, estimate: Estimate) -> dict[str, float | str | None]:
        numbers = {"mean": estimate.mean, "std": estimate.std, "low": estimate.low, "high": estimate.high}
        return {**numbers, "interval": estimate.interval} if estimate.interval == "student" else {**numbers}


class Cell(_Estimated):
    """A number of the table, in percent."""

    dim: int = Field(alias="size")  # embedding size of a model, or of the concatenated models
    metric: str
    value: float  # mean, or the best of the runs, as the protocol reports it
    estimate: Estimate = Field(alias="spread")  # over ensembles or runs; n counts models
    published: PublishedNumber | None = Field(None, alias="document")


class TableRow(Record):
    """A method of the table; it has no cells if a fold has no finished run."""

    method: MethodName
    finished: int
    planned: int
    steps: int | None = None  # to the selected weights, mean over runs
    trained_steps: int | None = None  # to the end of training, mean over runs; missing in earlier tables
    cells: tuple[Cell, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _count_models(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {**values, "cells": [_with_n(cell, "spread", values["finished"]) for cell in values["cells"]]}

    def find(self, dim: int, metric: str) -> Cell | None:
        """Return the cell of an embedding size and a metric."""
        return next((cell for cell in self.cells if (cell.dim, cell.metric) == (dim, metric)), None)


class PairedDifference(_Estimated):
    """Difference of two methods in points, over the folds and seeds that both have."""

    method: MethodName
    against: MethodName
    dim: int = Field(alias="size")
    metric: str
    difference: Estimate
    models: int  # of each method

    @model_validator(mode="before")
    @classmethod
    def _count_models(cls, values: Any) -> Any:
        return _with_n(values, "difference", values["models"]) if isinstance(values, Mapping) else values


class RunRecord(RunResult):
    """A finished run: its result, and which run of which method it is."""

    method: MethodName
    seed: int | None = None
    fold: int | None = None
    run: int | None = None
    validations: dict[str, list[float]] = Field(default_factory=dict)  # step and metrics; lr where it changes

    @model_serializer(mode="wrap")
    def _name_first(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        first = ("method", "seed", "fold", "run")
        return {key: values[key] for key in (*first, *(key for key in values if key not in first)) if key in values}


class ProtocolTable(Provenance):
    """Content of `table.json`."""

    title: str
    protocol: ProtocolSpec
    dataset: str = Field(alias="set")
    backbone: str
    budget: Budget | None = None  # None in tables of version 0.1.0, whose runs stopped early
    settings: tuple[str, ...] = ()  # that replace the protocol's
    note: str = ""
    rows: tuple[TableRow, ...]
    pairs: tuple[PairedDifference, ...]
    missing: tuple[str, ...] = ()  # command that trains the missing runs
    left_out: dict[str, str] = Field(default_factory=dict)  # methods without numbers though finished, and the reasons
    runs: tuple[RunRecord, ...]

    @model_validator(mode="before")
    @classmethod
    def _name_earlier_ccp(cls, values: Any) -> Any:
        """Give CCP of version 0.1.0, which a run tells by its settings, its present name."""
        if not isinstance(values, Mapping) or not all(isinstance(run, Mapping) for run in values.get("runs", ())):
            return values
        names = {run.get("method"): recorded_name(str(run.get("method")), run.get("config", {}))
                 for run in values.get("runs", ())}  # fmt: skip

        def renamed(one: Mapping[str, Any]) -> dict[str, Any]:
            return {key: names.get(value, value) if key in ("method", "against") else value
                    for key, value in one.items()}  # fmt: skip

        def in_command(text: str) -> str:
            return shlex.join(names.get(word, word) for word in shlex.split(text))

        if all(name == present for name, present in names.items()):
            return values
        return {
            **values,
            **{key: [renamed(one) for one in values[key]] for key in ("rows", "pairs", "runs") if key in values},
            "missing": [in_command(text) for text in values.get("missing", ())],
            "left_out": {names.get(key, key): reason for key, reason in values.get("left_out", {}).items()},
        }

    def cells(self) -> list[Cell]:
        """Return the cells of all rows."""
        return [cell for row in self.rows for cell in row.cells]

    def decides(self, method: str, against: str) -> bool:
        """Return whether the finished runs of two methods decide a claim about their difference.

        All planned runs do. So do four paired models or more, if every fold has equally many.
        """
        if all(row.finished == row.planned for row in self.rows if row.method in (method, against)):
            return True
        ours, theirs = ({(run.fold, run.run) for run in self.runs if run.method == name} for name in (method, against))
        paired = Counter(fold for fold, _ in ours & theirs)
        whole = len(paired) == self.protocol.folds and len(set(paired.values())) == 1
        return whole and self.protocol.folds > 1 and paired.total() >= FEWEST_MODELS


def make_table(request: ProtocolRequest, runs: Sequence[ProtocolRun]) -> ProtocolTable:
    """Return the table of the finished runs; methods whose runs do not fit together are excluded with a reason."""
    results = {run.key: result for run in runs if (result := run.result()) is not None}
    values, reasons = all_values(request, runs, results)
    rows = []
    for method in values:
        finished = [result for key, result in results.items() if key[0] == method]
        row = {
            "method": method, "finished": len(finished), "planned": sum(run.method == method for run in runs),
            "steps": round(np.mean([result.best_step for result in finished])) if finished else None,
            "trained_steps": round(np.mean([result.steps for result in finished])) if finished else None,
            "cells": _cells(request, method, values[method]),
        }  # fmt: skip
        rows.append(TableRow.from_dict(row))
    pairs = [
        pair
        for method, against in ((str(one), str(base)) for one, base in paired_methods(request.specs))
        if values[method] and values[against]
        for pair in _paired_differences(request, method, against, runs, results)
    ]
    protocol = request.protocol
    chapter = " of chapter 3" if has_second_version(protocol) else ""
    return ProtocolTable(
        title=f"{request.dataset.title}, {protocol.name} protocol{chapter}, {request.network}",
        **collect_provenance().to_dict(),
        protocol=protocol,
        dataset=request.dataset.name,
        backbone=request.network,
        budget=request.budget,
        settings=tuple(request.overrides),
        note=request.note,
        rows=tuple(rows),
        pairs=tuple(pairs),
        missing=() if len(results) == len(runs) else (rerun_command(request),),
        left_out=reasons,
        runs=tuple(record_run(run, result) for run in runs if (result := results.get(run.key)) is not None),
    )


def read_table(file: Path) -> ProtocolTable:
    """Read a `table.json`, also of version 0.1.0.

    Raises:
        DataError: If the file cannot be read or is no table.
    """
    check_listed(file, error=DataError, remedy="Restore it, or run the protocol again.")
    try:
        return ProtocolTable.from_json(read_text(file))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected the table of a protocol. Choose another file. ({error})") from None


def record_run(run: ProtocolRun, result: RunResult) -> RunRecord:
    """Return the record of a finished run: its origin, settings, metrics, and validations."""
    content = result.to_dict()
    return RunRecord.from_dict(
        {
            "method": run.method, "fold": run.fold, "run": run.run,
            **{key: content[key] for key in _RECORDED if key in content},
            "validations": validation_columns(read_curve(run.planned.run_dir)),
        }
    )  # fmt: skip


def published_number(
    protocol: ProtocolSpec, dataset: str, method: str, backbone: str, dim: int, metric: str
) -> PublishedNumber | None:
    """Return the published number of a cell.

    Args:
        protocol: Protocol; the table of its chapter is preferred.
        dataset: Name of the dataset.
        method: Name of the method; both forms of CCP are compared with the same number.
        backbone: Name of the backbone; numbers of the fair protocol exist for BN-Inception only, and apply to all.
        dim: Embedding size.
        metric: `MAP@R` or `P@1`.
    """
    if is_recipe(method):
        return _published_recall(MethodSpec.parse(method), protocol, dataset, backbone, dim, metric)
    known = str(MethodSpec.parse(method).published)
    found = [
        PublishedNumber(
            value=value, std=std, table=table, backbone=network,
            caveat=_published()["caveats"].get(f"{table} {network} {on} {name} {size} {measure}", ""),
        )
        for table, kind, network, size, on, name, measure, value, std in _published()["rows"]
        if (kind, size, on, name, measure) == (protocol.name, dim, dataset, known, metric)
        and (network == backbone or not protocol.selects_on_test)
    ]  # fmt: skip
    chapter = str(protocol.chapter)
    return min(found, key=lambda one: (not one.table.startswith(chapter), one.std is None), default=None)


def _published_recall(
    spec: MethodSpec, protocol: ProtocolSpec, dataset: str, backbone: str, dim: int, metric: str
) -> PublishedNumber | None:
    """Return the published number of a recipe; None with other settings, or on another network."""
    found = None if spec.settings or spec.recipe is None else find_recipe(spec.recipe).published.get(dataset)
    comparable = (protocol.name, backbone, dim, metric) == ("conventional", "resnet50", 512, "P@1")
    if found is None or not comparable:
        return None
    return PublishedNumber(value=found.value, table="", backbone=backbone, source=found.source)


@cache
def _published() -> dict[str, Any]:
    text = files("winnow.protocols").joinpath("published.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def _with_n(values: Any, key: str, n: int) -> Any:
    """Return the JSON of a number with what its estimate leaves out: the number of models, and the bootstrap's name.

    Other values are returned as they are.
    """
    if isinstance(values, Mapping) and isinstance(values.get(key), Mapping):
        method = None if values[key].get("low") is None else "bootstrap"
        return {**values, key: {"interval": method, **values[key], "n": n}}
    return values


def _cells(request: ProtocolRequest, method: str, numbers: Numbers) -> list[Cell]:
    cells = []
    for (dim, metric), scores in numbers.items():
        estimate = clip_interval(scores.estimate(), 0, 100)
        value = estimate.mean
        if request.protocol.report == "best" and not is_late(
            metric
        ):  # the run of the best P@1, also for the other metrics
            value = float(scores.ensembles.flat[int(numbers[dim, "P@1"].ensembles.argmax())])
        published = published_number(
            request.protocol, request.dataset.name, method, request.backbone.name, dim, metric
        )  # fmt: skip
        cells.append(Cell(dim=dim, metric=metric, value=value, estimate=estimate, published=published))
    return cells


def _paired_differences(
    request: ProtocolRequest, method: str, against: str, runs: Sequence[ProtocolRun], results: Results
) -> list[PairedDifference]:
    """Return the differences of two methods over the folds and runs that both have."""
    shared = [
        run
        for run in runs
        if run.method in (method, against) and all((name, *run.key[1:]) in results for name in (method, against))
    ]
    ours, theirs = (method_values(request, name, shared, results) for name in (method, against))
    return [
        PairedDifference(
            method=method, against=against, dim=dim, metric=metric, models=len(shared) // 2,
            difference=scores.minus(theirs[dim, metric]).estimate(),
        )
        for (dim, metric), scores in ours.items()
        if (dim, metric) in theirs
    ]  # fmt: skip
