"""Typed result of a run and its provenance.

The JSON of each class has the keys of the class, in their order.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field

import winnow
from winnow.files import parse_json

_PACKAGES = ("torch", "torchvision", "timm", "lightning-fabric", "numpy", "pillow")

Metrics = dict[str, float]
"""Metric name, such as `MAP@R`, to its value in [0, 1]."""


class Record(BaseModel):
    """Base class of the content of result files.

    Reading accepts missing keys and keeps unknown ones.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True, frozen=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the values of a JSON object.

        Raises:
            ValueError: If a value has another type.
        """
        return cls.model_validate(dict(values))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; keys that were missing when it was read stay missing."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read JSON text.

        Raises:
            ValueError: If the text is not a JSON object or a value has another type.
        """
        values = parse_json(text)
        if not isinstance(values, dict):
            raise ValueError(f"text: expected a JSON object, got {type(values).__name__}. Check the file.")
        return cls.from_dict(values)

    def to_json(self) -> str:
        """Return the JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


class Machine(Record):
    """Computer and interpreter of a run."""

    python: str = ""
    system: str = ""
    processor: str = ""
    cores: int | None = None
    threads: int | None = None
    gpu: str | None = None


class Provenance(Record):
    """Command, commit, machine, and package versions of a result."""

    command: str = ""
    commit: str | None = None
    winnow: str = ""
    machine: Machine = Field(default_factory=Machine)
    versions: dict[str, str] = Field(default_factory=dict)


class MissingPart(Record):
    """Images that one split of a benchmark dataset lacks."""

    found: int
    expected: int
    names: list[str] = Field(default_factory=list)  # the first of the missing files


class DataSummary(Record):
    """Number of images and classes of each split."""

    images: dict[str, int] = Field(default_factory=dict)
    classes: dict[str, int] = Field(default_factory=dict)
    missing: dict[str, MissingPart] = Field(default_factory=dict)
    archive: list[str] = Field(default_factory=list)  # how benchmark images differ from the official archive
    queries: int | None = None  # saved test embeddings start with this many queries, then the gallery follows


class Seconds(Record):
    """Time of a run."""

    training: float = 0.0
    testing: float = 0.0


class ParameterCount(Record):
    """Number of parameters of a run."""

    trained: int = 0
    frozen: int = 0


class CCPProblem(Record):
    """One subproblem of a run with CCP.

    Values are validation values of `references.monitor`.
    """

    model_config = ConfigDict(frozen=False)

    first_step: int
    start: float  # value of the first weights
    radius_before: float | None = None  # mean covering radius of the pool around the last subproblem's proxies
    radius_after: float  # the same around the selected proxies
    steps: int = 0
    best: float = -1.0  # the start counts only if subproblems start from the last weights
    best_step: int = 0
    end: float | None = None  # value of the last weights
    # Mean angle between the proxies as selected and at the last validation of the subproblem.
    rotation_degrees: float | None = Field(None, alias="turned")


class RunResult(Provenance):
    """Result of a run, as `result.json` holds it."""

    config: dict[str, Any] = Field(default_factory=dict)  # as written: it may name components that are not installed
    data: DataSummary = Field(default_factory=DataSummary)
    metrics: dict[str, Metrics]  # "val" of the best weights, and "test" if the run has a test split
    untrained: dict[str, Metrics] = Field(default_factory=dict)  # the same for the baseline: no training, GAP
    left_out: dict[str, int] = Field(default_factory=dict)  # test queries without a relevant reference
    processes: int = 1
    steps: int = 0
    best_step: int = 0
    seconds: Seconds = Field(default_factory=Seconds)
    parameters: ParameterCount = Field(default_factory=ParameterCount)
    prototypes_ready: bool = True
    problems: list[CCPProblem] = Field(default_factory=list)


def zsr_scale_note(configs: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence if runs have another scale of zero-shot regularization than the default, else ""."""
    terms = [one["zsr"] for one in configs if one.get("zsr", {}).get("weight")]
    scales = {float(term.get("logit_scale", term.get("scale", 1))) for term in terms}
    named = " and ".join(f"`zsr.logit_scale={scale:g}`" for scale in sorted(scales))
    return f"Runs with ZSR have {named}; the authors' code has 9.5, the default is 1." if scales - {1.0} else ""


_METRIC_GROUPS = ("val", "raw", "test", "raw_test")
"""Metrics of a line of `log.jsonl`: prefixes of their keys, and attributes of a `ValidationEntry`."""


@dataclass(frozen=True, eq=False)
class ValidationEntry(Mapping[str, float]):
    """One validation of a run: a line of `log.jsonl`.

    It can be read as the mapping in that line.
    """

    step: int
    seconds: float | None  # of training so far; None in imported runs
    losses: dict[str, float]  # mean of every loss term since the last validation
    val: Metrics
    lr: float | None = None  # learning rate before the validation; None where it is constant
    raw: Metrics = field(default_factory=dict)  # of the weights themselves, where `val` is of their average
    test: Metrics = field(default_factory=dict)  # of the weights of `val`, with `train.test_curve`; for curves only
    raw_test: Metrics = field(default_factory=dict)  # of the weights of `raw`
    turned: float | None = None  # mean angle in degrees by which CCP's proxies turned in this subproblem

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> ValidationEntry:
        """Read a line of the log."""
        metrics: dict[str, Metrics] = {group: {} for group in _METRIC_GROUPS}
        losses = {}
        for name, value in line.items():
            group, separator, metric = name.partition("/")
            if separator and group in metrics:
                metrics[group][metric] = value
            elif name not in ("step", "seconds", "lr", "turned"):
                losses[name] = value
        lr, turned = line.get("lr"), line.get("turned")
        return cls(line["step"], line.get("seconds"), losses, lr=lr, turned=turned, **metrics)

    def to_dict(self) -> dict[str, float]:
        """Return the line of the log."""
        seconds = {} if self.seconds is None else {"seconds": self.seconds}
        lr = {} if self.lr is None else {"lr": self.lr}
        groups = {group: getattr(self, group) for group in _METRIC_GROUPS}
        metrics = {f"{group}/{name}": value for group, each in groups.items() for name, value in each.items()}
        turned = {} if self.turned is None else {"turned": self.turned}
        return {"step": self.step, **seconds, **self.losses, **metrics, **lr, **turned}

    def __getitem__(self, key: str) -> float:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


def collect_provenance() -> Provenance:
    """Return the command, commit, machine, and versions of this process."""
    return Provenance(
        command=shlex.join(["winnow", *sys.argv[1:]]),
        commit=_commit(),
        winnow=winnow.__version__,
        machine=Machine(
            python=platform.python_version(),
            system=platform.system(),
            processor=_processor(),
            cores=os.cpu_count(),
            threads=torch.get_num_threads(),
            gpu=torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        ),
        versions={name: found for name in _PACKAGES if (found := version_of(name)) is not None},
    )


def _commit() -> str | None:
    """Return the commit of the source tree, or None for an installed package.

    A tree with changes is marked.

    `$WINNOW_COMMIT` overrides it: a tree copied to a cluster node has no history or another repository's.
    """
    return os.environ.get("WINNOW_COMMIT") or _tree_commit(Path(winnow.__file__).parent)


@cache
def _tree_commit(source: Path) -> str | None:
    """Ask git once: later commits do not change the code that was imported."""
    try:
        # A package installed inside another repository is not tracked by it.
        tracked = ["git", "ls-files", "--error-unmatch", "__init__.py"]
        subprocess.run(tracked, cwd=source, capture_output=True, timeout=10, check=True)
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=source, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
