"""What a comparison of methods is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from winnow.errors import DataError
from winnow.report.heatmaps import Weights


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One training of a method.

    Attributes:
        seed: Its seed; runs of two methods with the same seed are compared with each other.
        metrics: Test metrics as fractions: "MAP@R", "P@1", "P@R", "R@1" and so on.
        history: Its log, one entry per validation.
        seconds: How long it took.
    """

    seed: int
    metrics: dict[str, float]
    history: list[dict[str, Any]]
    seconds: float


@dataclass(frozen=True, eq=False)
class Method:
    """A method and its runs.

    Attributes:
        name: Short, such as "GSP + ZSR".
        meaning: One short sentence.
        runs: One per seed.
    """

    name: str
    meaning: str
    runs: list[MethodRun]

    def __post_init__(self) -> None:
        if not self.runs:
            raise DataError(f"the method {self.name!r} has no run to report")
        seeds = [run.seed for run in self.runs]
        if len(set(seeds)) < len(seeds):
            raise DataError(f"the method {self.name!r} has two runs with the same seed: {seeds}")
        for run in self.runs:
            if "MAP@R" not in run.metrics:
                raise DataError(f"the run of {self.name!r} with seed {run.seed} lacks the metric MAP@R")


@dataclass(frozen=True, eq=False)
class Neighbour:
    """An image that a method found near a query.

    Attributes:
        image: The image.
        right: Whether it is of the query's class.
        distance: Between the embeddings.
        name: What it shows.
    """

    image: Image.Image
    right: bool
    distance: float
    name: str


@dataclass(frozen=True, eq=False)
class Query:
    """A query and what each method found.

    Attributes:
        image: The query.
        name: What it shows.
        neighbours: Method name to its neighbours, nearest first.
    """

    image: Image.Image
    name: str
    neighbours: dict[str, list[Neighbour]]


@dataclass(frozen=True, eq=False)
class HeatMap:
    """An image and what each method's pooling keeps of it.

    Attributes:
        image: The image.
        name: What it shows.
        weights: Method name to (h, w) pooling weights that sum to one.
    """

    image: Image.Image
    name: str
    weights: dict[str, Weights]


@dataclass(frozen=True, eq=False)
class Prototype:
    """A learned prototype of GSP and what it likes.

    Attributes:
        index: Its number.
        share: The mean share of an image's kept weight that goes to it.
        patches: What it likes best, best first.
    """

    index: int
    share: float
    patches: list[Image.Image]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods compared on the same data.

    Attributes:
        title: What the page is called.
        summary: What the task is, in a few sentences; an empty line begins a new paragraph.
        methods: The first is what the others are compared with, usually average pooling.
        baseline: Name and test metrics of the untrained backbone.
        queries: For the gallery.
        heatmaps: What the poolings keep.
        prototypes: What GSP learned.
        settings: Of the runs, may be nested.
        provenance: Command, commit, machine, versions; may be nested.
    """

    title: str
    summary: str
    methods: list[Method]
    baseline: tuple[str, dict[str, float]] | None = None
    queries: list[Query] = field(default_factory=list)
    heatmaps: list[HeatMap] = field(default_factory=list)
    prototypes: list[Prototype] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.methods:
            raise DataError("a comparison needs at least one method")
        names = [method.name for method in self.methods]
        if len(set(names)) < len(names):
            raise DataError(f"two methods of a comparison have the same name: {', '.join(names)}")
