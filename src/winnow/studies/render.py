"""The one renderer of studies: a report as Markdown, CSV, JSON, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from winnow.errors import DataError
from winnow.files import parse_json, read_text
from winnow.integrity import check_listed, write_checked, write_checked_text
from winnow.report.claims import CheckedClaim, Estimate, Verdict, claims_table
from winnow.report.style import save
from winnow.report.tables import to_csv, to_markdown
from winnow.studies.spec import ClaimRecord, StudyReport
from winnow.training.results import zsr_scale_note


def write_report(report: StudyReport, folder: Path) -> list[Path]:
    """Write NAME.csv, .md, and .json; NAME.svg and .png of the main figure; NAME_KEY.png of others. Return the paths.

    Raises:
        OutputError: If a file cannot be written.
    """
    paths = {end: folder / f"{report.name}.{end}" for end in ("csv", "md", "json")}
    write_checked_text(paths["csv"], to_csv(report.rows))
    write_checked_text(paths["md"], to_page(report))
    for suffix, figure in report.figures.items():
        for end in ("svg", "png") if suffix == "" else ("png",):
            name = "_".join(filter(None, (report.name, suffix)))
            paths[f"{suffix}.{end}"] = folder / f"{name}.{end}"
            write_checked(paths[f"{suffix}.{end}"], partial(save, figure))
    write_checked_text(paths["json"], report.to_json())
    return list(paths.values())


def read_json(file: Path) -> Any:
    """Read a JSON file that may be the result of a study.

    Raises:
        DataError: If the file does not match its checksum, or is no JSON.
    """
    check_listed(file, error=DataError, remedy="Restore it, or run the study again.")
    try:
        return parse_json(read_text(file))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: expected the result of a study ({error}). Choose another file.") from None


def read_content(file: Path) -> dict[str, Any]:
    """Read the JSON file of a study.

    Raises:
        DataError: If the file does not match its checksum, or is no result of a study.
    """
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file}: expected the result of a study, got a {type(content).__name__}. Choose another file.")
    return content


def to_page(report: StudyReport) -> str:
    """Return the report as Markdown: title, setting, claims, table, missing runs, and notes."""
    table = to_markdown(visible_rows(report))
    parts = [f"# {report.title}", *_before(report), table.rstrip(), *_after(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_text(report: StudyReport) -> str:
    """Return the report without its table, for a terminal."""
    return "\n\n".join([*_before(report), *_after(report)])


def visible_rows(report: StudyReport) -> list[dict[str, Any]]:
    """Return the rows without columns that are empty in all of them."""
    filled = {key for row in report.rows for key, value in row.items() if value not in (None, "")}
    return [{key: value for key, value in row.items() if key in filled} for row in report.rows]


def claims_of(report: StudyReport) -> list[CheckedClaim]:
    """Return the checked claims of a report."""
    return [_checked(one) for one in report.claims]


def _checked(one: ClaimRecord) -> CheckedClaim:
    difference = None if one.margin is None else Estimate(one.margin, None, one.low, one.high, one.n)
    return CheckedClaim(one.text, one.source, one.ours, difference, Verdict(one.verdict))


def _before(report: StudyReport) -> Iterator[str]:
    """Yield the paragraphs above the table."""
    if report.setting:
        yield report.setting
    if report.claims:
        yield claims_table(claims_of(report)).rstrip()


def _after(report: StudyReport) -> Iterator[str]:
    """Yield the paragraphs below the table."""
    if report.todo:
        yield report.todo
    asked = report.settings.get("asked")
    if asked:
        yield f"Settings that replace the study's: {', '.join(f'`{one}`' for one in asked)}."
    scale = zsr_scale_note(run["config"] for run in report.runs if "config" in run)
    if scale:
        yield scale
    if report.note:
        yield report.note
