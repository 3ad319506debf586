"""Declarative studies: scales, variants, claims, figures, and the two kinds of study the runner sees."""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, field_validator

from winnow.report.claims import CheckedClaim, Estimate
from winnow.training.cache import RunCache
from winnow.training.overrides import Overrides
from winnow.training.results import Provenance, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.studies.runner import StudyRun
    from winnow.studies.scores import Scores

T = TypeVar("T")
Row: TypeAlias = Mapping[str, Any]
"""Row of a table: column to value. The value of the first column names the row."""
Size: TypeAlias = Literal["quick", "full"]


@dataclass(frozen=True)
class DataNeed:
    """Data that a study reads at one size."""

    name: str
    has_folder: bool = True  # whether `StudyRequest.data` names its folder
    prepare: Callable[[StudyRequest], Overrides] = lambda request: Overrides()
    """Makes synthetic data where it is missing; returns the settings that name the folder."""


@dataclass(frozen=True)
class Scale:
    """What one size of a study trains on."""

    name: Size
    base: Overrides = field(default_factory=Overrides)  # settings of all runs
    seeds: tuple[int, ...] = ()  # () if nothing is random
    needs: DataNeed = DataNeed("no data", has_folder=False)
    cost: str = ""  # such as "1 minute, 8 runs"
    setting: str = ""  # one sentence: dataset, network, differences from the source
    file: str | None = None  # config file of all runs, which `base` overrides
    trial: bool = False  # too short to check claims

    def pick(self, *, quick: T, full: T) -> T:
        """Return the value of this size."""
        return quick if self.name == "quick" else full


@dataclass(frozen=True)
class Scales:
    """The two sizes of a study."""

    quick: Scale  # minutes on two CPU cores
    full: Scale  # as in the source

    def __getitem__(self, name: Size) -> Scale:
        return self.quick if name == "quick" else self.full


@dataclass(frozen=True)
class Variant:
    """One row of a table: settings that are trained with every seed."""

    name: str  # also names the run folders: never renamed
    settings: Overrides
    group: str = ""  # color in the figure; `scores.sweep(group)`
    x: float | None = None  # place on the axes of a sweep
    y: float | None = None
    published: Mapping[str, float] = field(default_factory=dict)  # column to published value


@dataclass(frozen=True)
class Evidence:
    """Measurement that a claim is compared with."""

    ours: str  # what was measured, in one clause
    margin: float  # above 0 is what the claim says
    unit: str = "points"
    interval: Estimate | None = None  # of the margin, where the study repeats something other than seeds


@dataclass(frozen=True)
class Claim:
    """Statement of a source, and how to check it.

    `check` is called with the means over seeds, and with every seed alone for the interval.
    """

    text: str
    source: str  # such as "[Thesis], Fig. 5.8"
    check: Callable[[Scores], Evidence]
    size: float | None = None  # the claim is "by this much"
    equal: float | None = None  # the claim is "no difference": the interval lies within this much of 0
    given: int | None = None  # position of the claim that must be reproduced first
    scale: Size | None = None  # the only size at which the claim can be checked


@dataclass(frozen=True)
class Bars:
    """A bar per variant: mean, standard deviation, and a dot per seed."""

    x: str = ""  # column of the table that shows `Variant.x`, where variants have one
    y: str = ""


@dataclass(frozen=True)
class Curve:
    """A line per group over `Variant.x`, with a band of one standard deviation."""

    x: str  # title of the axis and of the table's column
    baseline: str | None = None  # variant drawn as a dashed line; may contain {group}
    log: bool = False
    y: str = ""  # column of the table that shows `Variant.y`, if any


@dataclass(frozen=True)
class Heatmap:
    """A map per group over `Variant.x` and `Variant.y`."""

    x: str
    y: str


@dataclass(frozen=True)
class Effects:
    """Main effects of two-level factors, per group, next to the published ones."""

    factors: Mapping[str, str]  # factor to config key
    published: str = ""  # key of `Variant.published`
    x: str = ""
    y: str = ""


FigureSpec: TypeAlias = Bars | Curve | Heatmap | Effects


@dataclass(frozen=True)
class Column:
    """Further column of a grid's table."""

    name: str
    value: Callable[[Sequence[StudyRun]], Any]  # from the finished runs of a variant, of which there is at least one


@dataclass(frozen=True)
class StudyRequest:
    """What to do in one call of a study."""

    scale: Scale
    runs: Path = Path("studies/runs")  # folder of the run folders: finished runs are read, started ones resumed
    data: Path | None = None  # folder of the data; None for its default location
    overrides: Overrides = field(default_factory=Overrides)  # settings of all runs that replace the study's
    variants: Sequence[str] = ()  # patterns of the variants to train now; () for all
    seeds: Sequence[int] | None = None  # seeds to train now; None for all
    train: bool = True  # False: only read what is finished
    imports: Sequence[Path] = ()  # JSON files of the study whose finished runs are imported
    options: Sequence[str] = ()  # further options of the command that is shown
    note: Callable[[str], None] = lambda text: None
    failed: list[str] = field(default_factory=list)  # runs that failed; the runner adds them
    cache: RunCache = field(default_factory=RunCache)  # objects that runs share, such as features

    @property
    def quick(self) -> bool:
        """Whether this is the quick size."""
        return self.scale.name == "quick"

    def command(self, study: str) -> str:
        """Return the command that runs a study with these settings."""
        return shlex.join(["winnow", "study", study, *self.overrides.to_args(), f"--{self.scale.name}", *self.options])


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a study has measured; the runner adds claims and provenance."""

    rows: Sequence[Row]  # the table: means over seeds, as shown
    exact: Sequence[Row] = ()  # the same rows before rounding, if claims need them
    by_seed: Mapping[int, Sequence[Row]] = field(default_factory=dict)  # rows of every seed alone, not rounded
    variants: Sequence[Variant] = ()  # for `Scores.sweep` and its relatives
    runs: Sequence[Mapping[str, Any]] = ()  # records of the runs, as JSON holds them
    missing: Mapping[str, Sequence[int]] = field(default_factory=dict)  # row to the seeds without a run
    planned: int = 0  # number of planned runs; 0 if the study has no resumable runs
    settings: Mapping[str, Any] = field(default_factory=dict)  # of JSON
    details: Mapping[str, Any] = field(default_factory=dict)  # further keys of JSON
    artifacts: Mapping[str, Any] = field(default_factory=dict)  # for figures; not written


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """A figure or table of a source that is measured again."""

    name: str  # of the command, with hyphens
    title: str
    measures: str  # at most five words, for the list of studies
    source: str  # such as "[Thesis], Fig. 5.8"; "" if no source has this comparison
    group: str  # heading in lists: one of `GROUPS`
    scales: Scales
    claims: tuple[Claim, ...] = ()
    metric: str = "MAP@R"  # column that `scores["row"]` reads

    @property
    def stem(self) -> str:
        """Name of the files that are written."""
        return self.name.replace("-", "_")

    @property
    def takes_overrides(self) -> bool:
        """Whether the study trains runs whose settings, variants, and seeds can be chosen."""
        return False

    @abstractmethod
    def measure(self, request: StudyRequest) -> Measurement:
        """Measure, or read what is stored in `request.runs`."""

    @abstractmethod
    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw figures by the suffix of their file name, "" for the main one; none where artifacts are missing."""

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds; artifacts are missing."""
        return Measurement(rows=content["rows"], runs=content.get("runs", ()), settings=content["settings"])


@dataclass(frozen=True, kw_only=True)
class GridStudy(Study):
    """Variants times seeds, trained by `winnow train`."""

    variants: Callable[[Scale], Iterable[Variant]]
    figure: FigureSpec = Bars()
    columns: tuple[Column, ...] = ()
    metrics: tuple[str, ...] = ("MAP@R", "P@1")  # columns of the table

    @property
    def takes_overrides(self) -> bool:
        """All grids do."""
        return True

    def measure(self, request: StudyRequest) -> Measurement:
        """Train the missing runs and return the table."""
        from winnow.studies.runner import grid_measurement, train_grid

        return grid_measurement(self, request.scale, train_grid(self, request))

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw `figure`."""
        from winnow.studies.figures import draw_grid

        return {"": draw_grid(self, measured)} if measured.rows else {}

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement from the runs of a result file."""
        from winnow.studies.runner import restore_grid

        return restore_grid(self, content)


class ClaimRecord(Record):
    """A checked claim, as JSON holds it."""

    text: str
    source: str
    ours: str
    unit: str = "points"
    margin: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    verdict: str

    @classmethod
    def of(cls, one: CheckedClaim) -> ClaimRecord:
        """Return the record of a checked claim."""
        found = one.difference
        numbers = {} if found is None else {"margin": found.mean, "low": found.low, "high": found.high, "n": found.n}
        return cls(text=one.text, source=one.source, ours=one.ours, verdict=str(one.verdict), **numbers)


class StudyReport(Provenance):
    """Result of a study, as its JSON file holds it."""

    name: str
    title: str
    setting: str = ""  # sentence: dataset, network, differences from the source
    settings: dict[str, Any] = Field(default_factory=dict)
    claims: list[ClaimRecord] = Field(default_factory=list)
    rows: list[dict[str, Any]] = Field(default_factory=list)
    missing: dict[str, list[int]] = Field(default_factory=dict)
    todo: str = ""  # one sentence: which runs are missing, and the command that trains them
    runs: list[dict[str, Any]] = Field(default_factory=list)
    note: str = ""
    figures: dict[str, Any] = Field(default_factory=dict, exclude=True)  # not part of JSON

    @field_validator("missing", mode="before")
    @classmethod
    def _read_missing(cls, missing: Mapping[str, Any]) -> dict[str, Any]:
        """Read "seeds 1, 2", the form of version 0.1.0, as a list."""
        return {
            name: [int(seed) for seed in re.findall(r"\d+", seeds)] if isinstance(seeds, str) else seeds
            for name, seeds in missing.items()
        }


GROUPS = (
    "Generalized Sum Pooling", "Zero-shot regularization", "Chance-constrained proxies", "Other",
)  # fmt: skip
"""Headings of the list of studies, in order."""
