"""What every study is given and what it hands back."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.files import write_text
from winnow.report.style import save
from winnow.training.cache import RunCache
from winnow.training.results import collect_provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What a study is asked for.

    Attributes:
        small: Minutes on two CPU cores instead of the documents' sizes.
        data: Folder of the study's data, for a study that is marked `with_data`; None for where it usually is.
        runs: Folder of its training runs, for a study that trains several: finished ones are kept there.
        only_finished: Train nothing more; make the table of what is there.
        note: Told how it goes.
        shared: What its runs have in common with those of other studies, such as features of the embedded set.
        words: Settings of all its runs that go before its own, as in `train.precision=bf16-mixed`.
        methods: Patterns of the methods that are trained now, as in `m 64*`; none for all.
        seeds: Those that are trained now; None for all.
        options: Of the command line, for commands that are told: where it writes and reads.
        recorded: JSON files of the same study, whose runs are taken in.
    """

    small: bool
    data: Path | None = None
    runs: Path = Path("studies/runs")
    only_finished: bool = False
    note: Callable[[str], None] = lambda text: None
    shared: RunCache = field(default_factory=RunCache)
    words: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] | None = None
    options: Sequence[str] = ()
    recorded: Sequence[Path] = ()

    @property
    def train(self) -> bool:
        """Whether missing runs are trained."""
        return not self.only_finished

    def command(self, name: str) -> str:
        """Return what runs a study in this size, with these settings."""
        return shlex.join(["winnow", "study", name, *self.words, "--small" if self.small else "--full", *self.options])


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        title: Of the table and the figure.
        text: Paragraphs, parted by empty lines: what came out beside what the documents say; how it was made; what is
            missing, if anything is. Several claims make a list in the first.
        rows: The table.
        figure: The picture.
        settings: What was asked for.
        details: Further numbers, for the JSON file alone.
        pictures: Further pictures, of images, by what they show.
    """

    title: str
    text: str
    rows: Sequence[Row]
    figure: Figure
    settings: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, Figure] = field(default_factory=dict)


Study = Callable[[Task], Findings]
"""The first line of its docstring says what it is, one that begins with `Cost:` how long it takes."""


_WITH_RUNS: set[Study] = set()
_WITH_DATA: dict[Study, tuple[bool, bool]] = {}


def with_runs(study: Study) -> Study:
    """Mark a study whose training runs take settings, and let it say which were asked for."""

    @wraps(study)
    def telling(task: Task) -> Findings:
        return telling_settings(study(task), task.words)

    _WITH_RUNS.add(telling)
    return telling


def with_data(*, small: bool, full: bool) -> Callable[[Study], Study]:
    """Mark a study that reads data from where `--data` says, in its small size, its full one, or both."""

    def marked(study: Study) -> Study:
        _WITH_DATA[study] = small, full
        return study

    return marked


def takes_data(study: Study, small: bool) -> bool:
    """Return whether a study reads data from where it is told to in a size."""
    return _WITH_DATA.get(study, (False, False))[0 if small else 1]


def takes_settings(study: Study) -> bool:
    """Return whether a study trains runs that take settings."""
    return study in _WITH_RUNS


def cost(study: Study) -> str:
    """Return how long a study takes, as its docstring says; empty where it does not."""
    lines = [line.strip() for line in (study.__doc__ or "").splitlines()]
    return next((line.removeprefix("Cost: ") for line in lines if line.startswith("Cost: ")), "")


def telling_settings(findings: Findings, words: Sequence[str]) -> Findings:
    """Return findings that also say which settings were asked for in place of the study's own."""
    if not words:
        return findings
    told = f"Settings other than the study's: {', '.join(f'`{word}`' for word in words)}."
    return replace(findings, text=paragraphs(findings.text, told), settings={**findings.settings, "asked": list(words)})


def paragraphs(*texts: str) -> str:
    """Put texts one below the other; empty ones are left out."""
    return "\n\n".join(text for text in texts if text)


def write_findings(name: str, findings: Findings, folder: Path) -> list[Path]:
    """Write NAME.csv, .md, .svg, .png and .json, and NAME_KEY.png of further pictures; return their paths.

    Raises:
        OutputError: when one cannot be written.
    """
    paths = {end: folder / f"{name}.{end}" for end in ("csv", "md", "svg", "png", "json")}
    columns = list(dict.fromkeys(column for row in findings.rows for column in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(findings.rows)
    write_text(paths["csv"], table.getvalue())
    write_text(paths["md"], f"# {findings.title}\n\n{findings.text}\n\n{markdown_rows(findings.rows, columns)}")
    save(findings.figure, paths["svg"])
    save(findings.figure, paths["png"])
    for key, picture in findings.pictures.items():
        paths[key] = folder / f"{name}_{key}.png"
        save(picture, paths[key])
    content = {"name": name, "title": findings.title, **collect_provenance().to_dict(),
               "settings": dict(findings.settings),
               "text": findings.text, "rows": [dict(row) for row in findings.rows], **findings.details}  # fmt: skip
    write_text(paths["json"], json.dumps(content, indent=2) + "\n")
    return list(paths.values())


def markdown_rows(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return rows as a Markdown table; numbers with about four digits, what is missing as a dash."""
    if not columns:
        return ""
    filled = [[column, *_cells([row.get(column) for row in rows])] for column in columns]
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in zip(*filled, strict=True)]
    lines.insert(1, "|---" * len(columns) + "|")
    return "\n".join(lines) + "\n"


def _cells(values: Sequence[Any]) -> list[str]:
    """Return a column's texts; where a number has one or two decimals, shorter ones (20, 20.1) get as many."""
    texts = ["–" if value in (None, "") else f"{value:.4g}" if isinstance(value, float) else str(value)
             for value in values]  # fmt: skip
    plain = [isinstance(value, float) and "e" not in text for value, text in zip(values, texts, strict=True)]
    most = max(
        (len(text.partition(".")[2]) for text, is_plain in zip(texts, plain, strict=True) if is_plain), default=0
    )
    return [
        f"{value:.{most}f}" if is_plain and len(text.partition(".")[2]) < most <= 2 else text
        for value, text, is_plain in zip(values, texts, plain, strict=True)
    ]
