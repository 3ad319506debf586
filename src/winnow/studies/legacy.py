"""Adapter for studies that are still functions; removed when the last of them is a `Study`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnow.studies import base
from winnow.studies.spec import DataNeed, Measurement, Scale, Scales, Study, StudyRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class FunctionStudy(Study):
    """A study that is a function from a task to findings."""

    function: base.Study

    @property
    def takes_overrides(self) -> bool:
        """Whether the function is marked so."""
        return base.takes_settings(self.function)

    def measure(self, request: StudyRequest) -> Measurement:
        """Call the function."""
        task = base.Task(
            request.quick, request.data, request.runs, not request.train, request.note, request.cache,
            request.overrides.to_args(), request.variants, request.seeds, request.options, request.imports,
        )  # fmt: skip
        found = self.function(task)
        details = dict(found.details)
        runs = details.pop("runs", ())
        missing = {name: [int(seed) for seed in text.partition(" ")[2].split(", ")]
                   for name, text in details.pop("missing", {}).items()}  # fmt: skip
        planned = (len(runs) + sum(map(len, missing.values()))) if "runs" in found.details else 0
        return Measurement(
            rows=found.rows, runs=runs, missing=missing, planned=planned, settings=found.settings,
            details={**details, "title": found.title, "text": found.text},
            artifacts={"figures": {"": found.figure, **found.pictures}},
        )  # fmt: skip

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Return the figures of the findings."""
        figures: Mapping[str, Figure] = measured.artifacts.get("figures", {})
        return figures


def function_study(name: str, function: base.Study, measures: str, source: str, group: str) -> FunctionStudy:
    """Return a function as a study."""
    first, _, cost = (function.__doc__ or "").partition("Cost: ")
    quick, _, full = " ".join(cost.split()).rstrip(".").partition("; in full ")

    def scale(size: Any, cost: str, small: bool) -> Scale:
        return Scale(size, needs=DataNeed("data", base.takes_data(function, small)), cost=cost)

    return FunctionStudy(
        name=name, title=first.splitlines()[0], measures=measures, source=source, group=group, function=function,
        scales=Scales(scale("quick", quick, True), scale("full", full or quick, False)),
    )  # fmt: skip
