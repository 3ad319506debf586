"""A study's kept measurements, read from `results/` and taken apart for its page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "results"
KINDS = {"full": "In full", "short": "In full, but for shorter training", "frozen": "In full, with a frozen network",
         "small": "In small"}  # fmt: skip
"""Kinds of measurements, the fullest first, and their headings; some have a folder of their own."""


@dataclass(frozen=True)
class Measured:
    """One kept measurement.

    Attributes:
        kind: One of `KINDS`.
        path: Its JSON file.
        title: Of its table and figure.
        verdict: What came out beside what the documents say.
        rest: How it was made and what is missing, if the text says that in paragraphs of their own.
        table: In Markdown.
        content: Of the JSON file.
    """

    kind: str
    path: Path
    title: str
    verdict: str
    rest: str
    table: str
    content: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        """Whether no run is missing."""
        return not (self.content.get("missing") or any(row.get("missing") for row in self.content["rows"]))

    def pictures(self) -> list[Path]:
        """Its figure, and those of images beside it."""
        further = sorted(self.path.parent.glob(f"{self.path.stem}_*.png"))
        # What has a table of its own is the figure of a study whose name begins alike.
        return [self.path.with_suffix(".svg"), *(one for one in further if not one.with_suffix(".json").is_file())]

    def origin(self) -> str:
        """Command, commit and machine, and where the runs were trained if that is another."""
        made = _machine(self.content["machine"])
        runs = self.content.get("runs") or []
        trained = dict.fromkeys(_machine(run["machine"]) for run in runs if "machine" in run)
        told = f"Made with `{self.content['command']}`"
        if commit := self.content["commit"]:
            told += f" at commit `{commit[:10]}{'-dirty' if commit.endswith('-dirty') else ''}`"
        told += f" on {made}" + (f", runs on {' and '.join(trained)}." if list(trained) not in ([], [made]) else ".")
        return f"{told} All numbers, settings and versions: `results/{self.path.relative_to(RESULTS)}`."


def measured(name: str) -> list[Measured]:
    """The kept measurements of a study, the fullest first."""
    stem = name.replace("-", "_")
    places = [RESULTS / folder / f"{stem}.json" for folder in (".", "short", "frozen", "small")]
    found = [read(place) for place in places if place.is_file()]
    return sorted(found, key=lambda one: list(KINDS).index(one.kind))


def read(path: Path) -> Measured:
    """Take a kept measurement apart."""
    content = json.loads(path.read_text(encoding="utf-8"))
    heading, _, body = path.with_suffix(".md").read_text(encoding="utf-8").partition("\n")
    text, *table = re.split(r"^(?=\|)", body, maxsplit=1, flags=re.MULTILINE)
    verdict, rest = parted(text)
    folder = path.parent.name
    kind = "small" if content["settings"]["small"] else folder if folder in KINDS else "full"
    return Measured(kind, path, heading.removeprefix("# "), verdict, rest, "".join(table).strip(), content)


def parted(text: str) -> tuple[str, str]:
    """Part a text after its first paragraph and the list that belongs to it."""
    # Markdown takes lines with dashes for a list after an empty line only.
    paragraphs = re.sub(r"\n+(?=- )", "\n\n", text.strip()).split("\n\n")
    listed = takewhile(lambda one: one.startswith("- "), paragraphs[1:])
    first = 1 + sum(1 for _ in listed)
    return "\n\n".join(paragraphs[:first]), "\n\n".join(paragraphs[first:])


def section(one: Measured) -> Iterator[str]:
    """A measurement on its study's page: verdict, figures, how it was made, the table folded, its origin."""
    yield from (f"## {KINDS[one.kind]} {{ #{one.kind} }}", "")
    if one.verdict.startswith("- "):
        yield from ("What the documents say, and what came out here:", "")
    yield from (one.verdict, "")
    for picture in one.pictures():
        place = picture.relative_to(RESULTS).as_posix()
        yield from (f"[![{one.title}]({place})]({place}){{ .figure }}", "")
    yield from (one.rest, "")
    if one.table:
        rows = len(one.table.splitlines()) - 2
        yield f'??? abstract "The table, {rows} row{"s" if rows > 1 else ""}"'
        yield from ("", *(f"    {line}" for line in one.table.splitlines()), "")
    yield from (f"{one.origin()}\n{{ .origin }}", "")


def _machine(found: Mapping[str, Any]) -> str:
    return str(found["gpu"] or f"{found['processor']}, {found['cores']} cores")
