"""Pages of studies: an overview, and a page for each study, from the study and its files in `results/`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from charts import Mark, chart, difference_text
from markup import escaped
from PIL import Image
from published import KINDS, RESULTS, Published, published

from winnow.report.claims import Verdict, claims_table
from winnow.report.tables import to_markdown
from winnow.studies import GROUPS, STUDIES, Study
from winnow.studies.render import claims_of, visible_rows

NOTES = Path(__file__).resolve().parents[1] / "studies"
"""Folder of the one hand-written paragraph that a study may have: NAME.md."""


def grouped() -> dict[str, list[Study]]:
    """Return the studies by group, in the order of `winnow study --list`."""
    return {group: [one for one in STUDIES.values() if one.group == group] for group in GROUPS}


def nav() -> list[dict[str, Any]]:
    """Return the navigation of the study pages."""
    return [{group: [{one.title: f"studies/{one.name}.md"} for one in studies]} for group, studies in grouped().items()]


def overview() -> str:
    """Return a table of the studies of each group with their verdicts."""
    lines: list[str] = []
    for group, studies in grouped().items():
        lines += [
            f"## {group}",
            "",
            "| study | source | verdicts | results | cost, quick size |",
            "|---|---|---|---|---|",
        ]
        for one in studies:
            found = published(one.name)
            files = "<br>".join(f"[{KINDS[result.kind]}]({one.name}.md#{result.kind})" for result in found) or "–"
            cells = [escaped(one.source) or "–", _verdicts(found), files, escaped(one.scales["quick"].cost)]
            lines.append(f"| [{escaped(one.title)}]({one.name}.md) | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _verdicts(found: list[Published]) -> str:
    counts = Counter(claim.verdict for one in found for claim in one.report.claims)
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "–"


def claims() -> str:
    """Return the claims of all studies that have a verdict, folded by verdict, and the number of the others.

    A claim is listed at the largest size at which it has one.
    """
    listed: dict[tuple[str, str], tuple[Verdict, str]] = {}
    incomplete: set[tuple[str, str]] = set()
    for study in STUDIES.values():
        for one in published(study.name):
            for claim in claims_of(one.report):
                key = (study.name, claim.text)
                if claim.verdict in (Verdict.INCOMPLETE, Verdict.NOT_APPLICABLE):
                    incomplete.add(key)
                elif key not in listed:
                    size = f"[{study.name}](studies/{study.name}.md#{one.kind})"
                    cells = [escaped(claim.text), size, escaped(claim.source), escaped(claim.measured)]
                    cells += ["–" if claim.n is None else str(claim.n)]
                    listed[key] = claim.verdict, "| " + " | ".join(cells) + " |"
    lines: list[str] = []
    for verdict in Verdict:
        rows = [row for found, row in listed.values() if found is verdict]
        if rows:
            count = f"{len(rows)} claim{'s' if len(rows) > 1 else ''}"
            lines += [f'??? abstract "{verdict}: {count}"', ""]
            lines += ["    | claim | study | source | ours [95% interval] | n |", "    |---|---|---|---|--:|"]
            lines += [*(f"    {row}" for row in rows), ""]
    rest = len(incomplete - set(listed))
    return "\n".join([*lines, f"{rest} more claims are incomplete: fewer than 3 paired runs, or a run is missing."])


def forest(one: Published) -> str:
    """Return a chart of the claims that are differences in points, with its caption; the claim holds right of 0."""
    marks = [
        Mark(claim.text, claim.margin, claim.low, claim.high, difference_text(claim.margin, claim.low, claim.high))
        for claim in one.report.claims if claim.margin is not None and " points" in claim.ours
    ]  # fmt: skip
    if len(marks) < 2:
        return ""
    known = [mark for mark in marks if mark.low is not None and mark.high is not None]
    above, below = sum(mark.ends[0] > 0 for mark in known), sum(mark.ends[1] < 0 for mark in known)
    finding = f"Of {len(known)} margins with an interval, {above} lie above 0 and {below} below."
    if not known:
        finding = "No margin has an interval: that needs two runs."
    drawn = chart(marks, label="Margins of the claims", unit="margin, points")
    return f"{drawn}\n\n**{finding}** Dots: difference in the claimed direction; lines: 95% intervals. {_file(one)}"


def caption(one: Published) -> str:
    """Return the finding below a figure: the first claim with a verdict, its n, and the file."""
    decided = (claim for claim in claims_of(one.report) if claim.verdict is not Verdict.INCOMPLETE)
    found = next((claim for claim in decided if claim.verdict is not Verdict.NOT_APPLICABLE), None)
    if found is None:
        return f"**No claim has a verdict yet.** {_file(one)}"
    n = "" if found.n is None else f" n = {found.n}."
    measured = f" {escaped(found.measured)}." if found.measured else ""
    return f"**{escaped(found.text)}: {str(found.verdict).lower()}.**{measured}{n} {_file(one)}"


def _file(one: Published) -> str:
    """Return the end of a caption: its file."""
    return f"`{one.path.relative_to(RESULTS.parent).as_posix()}`.\n{{ .caption }}"


def page(study: Study) -> str:
    """Return the page of a study: source and cost, its paragraph, then every result with its claims first."""
    quick, full = study.scales["quick"].cost, study.scales["full"].cost
    lines = [f"# {study.title}", ""]
    lines += [f"Source: {escaped(study.source)}. " if study.source else "No source has this comparison. "]
    lines += [f"Quick size: {quick}. Published size: {full}." if full and quick else "", ""]
    if (NOTES / f"{study.name}.md").is_file():
        lines += [(NOTES / f"{study.name}.md").read_text(encoding="utf-8").strip(), ""]
    for one in published(study.name):
        lines += section(one)
    lines += ["## Reproduce", "", "```console", f"$ winnow study {study.name}", f"$ winnow study {study.name} --full"]
    return "\n".join([*lines, "```", ""])


def section(one: Published) -> Iterator[str]:
    """Yield one result: setting, claims, figure, folded table, missing runs, and origin."""
    report = one.report
    yield from (f"## {KINDS[one.kind]} {{ #{one.kind} }}", "")
    claims = claims_table(claims_of(report)).rstrip() if report.claims else ""
    for paragraph in (report.setting, claims, forest(one)):
        if paragraph:
            yield from (str(paragraph), "")
    for picture in one.pictures():
        path = picture.relative_to(RESULTS).as_posix()
        size = f'style="--width: {natural_width(picture)}px"'
        yield from (f"[![{escaped(report.title)}]({path})]({path}){{ .figure {size} }}", "")
    if one.pictures():
        yield from (caption(one), "")
    if report.rows:
        count = len(report.rows)
        yield f'??? abstract "Table, {count} row{"s" if count > 1 else ""}"'
        yield from ("", *(f"    {line}" for line in to_markdown(visible_rows(report)).splitlines()), "")
    for paragraph in (report.todo, report.note, f"{one.origin()}\n{{ .origin }}"):
        if paragraph:
            yield from (paragraph, "")


def natural_width(picture: Path) -> int:
    """Return the width of a figure in CSS pixels, in which its labels have the size of text."""
    if picture.suffix == ".svg":
        points = re.search(r'<svg[^>]* width="([\d.]+)pt"', picture.read_text(encoding="utf-8"))
        assert points is not None, picture
        return round(float(points[1]) * 96 / 72)
    with Image.open(picture) as image:
        return round(image.width * 96 / image.info["dpi"][0])


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every study page."""
    for study in STUDIES.values():
        yield f"studies/{study.name}.md", page(study)


def pictures() -> Iterator[tuple[str, Path]]:
    """Yield the path and the file of every picture on these pages."""
    for study in STUDIES.values():
        for path in (path for one in published(study.name) for path in one.pictures()):
            yield f"studies/{path.relative_to(RESULTS).as_posix()}", path
