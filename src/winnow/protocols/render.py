"""The table of a protocol as Markdown, CSV, LaTeX, and JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.integrity import write_checked_text
from winnow.protocols.curves import HEADLINE, LAST_THIRD, RAW, is_late
from winnow.protocols.methods import LITERAL, MethodSpec, control_name, is_recipe
from winnow.protocols.spec import BACKBONES
from winnow.protocols.statistics import FEWEST_MODELS
from winnow.protocols.table import TABLE_FILE, Cell, PairedDifference, ProtocolTable, PublishedNumber, RunRecord
from winnow.report.claims import LEVEL, Estimate, format_interval, format_points, verdict
from winnow.report.figures import History, method_curves
from winnow.report.style import svg
from winnow.report.tables import Column, Row, Styled, to_csv, to_latex, to_markdown
from winnow.training.config import RunConfig, make_config
from winnow.training.results import zsr_scale_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Number = tuple[int, str]
"""Embedding size and metric of a column."""

CURVES_FILE = "curves.svg"
_SPLITS = {"train": "training", "val": "validation", "test": "test"}
_DIGITS = 4  # decimals in CSV


def render_markdown(table: ProtocolTable) -> str:
    """Return the page: the table, its notes, and the paired differences."""
    columns, rows = _main_table(table)
    blocks = [f"# {table.title}", to_markdown(rows, columns), _bullets(notes(table))]
    if table.missing:
        blocks.append(f"{_count_missing(table)} Train the rest with:\n\n```console\n$ {table.missing[0]}\n```")
    if any(is_late(cell.metric) for cell in table.cells()):
        blocks += ["## Last third of training", *_late_table(table)]
    pairs = [pair for pair in table.pairs if pair.metric.removeprefix(LAST_THIRD) in HEADLINE]
    if pairs:
        blocks += ["## Paired differences", *_paired_table(table, pairs)]
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


def render_latex(table: ProtocolTable) -> str:
    """Return a `tabular` for a paper; its notes are comments."""
    columns, rows = _main_table(table)
    return to_latex(rows, columns, comment="\n".join([table.title, *notes(table)]))


def render_csv(table: ProtocolTable) -> str:
    """Return a row for each method with all numbers, at four decimals."""
    rows: list[dict[str, float | str | None]] = []
    for row in table.rows:
        flat: dict[str, float | str | None] = {
            "method": row.method, "finished": row.finished, "planned": row.planned, "best step": row.steps,
        }  # fmt: skip
        if row.trained_steps is not None:
            flat["steps"] = row.trained_steps
        for cell in row.cells:
            flat |= _flat(cell)
        flat["missing images"] = "; ".join(missing_images(run for run in table.runs if run.method == row.method))
        flat["settings"] = shlex.join(table.settings)
        rows.append(flat)
    ends = ("missing images", "settings")
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ends]
    shown = [name for name in names if " paper" not in name or any(row.get(name) not in (None, "") for row in rows)]
    return to_csv(rows, [Column(name) for name in (*shown, *ends)])


def render_paired_csv(table: ProtocolTable) -> str:
    """Return a row for each comparison of two methods, in points."""
    rows: list[Row] = [
        {
            "method": pair.method, "against": pair.against, "models": pair.models, "dim": pair.dim,
            "metric": pair.metric, **_rounded("difference", pair.difference),
        }
        for pair in table.pairs
    ]  # fmt: skip
    names = ("method", "against", "models", "dim", "metric", "difference", "std", "low", "high")
    return to_csv(rows, [Column(name) for name in names])


def write_table(table: ProtocolTable, folder: Path) -> list[Path]:
    """Write `table.md`, `.csv`, `.tex`, `.json`, `paired_differences.csv`, and `curves.svg`; return their paths.

    Without validations of the runs there is no figure.

    Raises:
        OutputError: If one cannot be written.
    """
    texts = {
        "table.md": render_markdown(table), "table.csv": render_csv(table),
        "paired_differences.csv": render_paired_csv(table), "table.tex": render_latex(table),
        TABLE_FILE: table.to_json(),
    }  # fmt: skip
    figure = curves_figure(table)
    if figure is not None:
        texts[CURVES_FILE] = svg(figure)
    for name, text in texts.items():
        write_checked_text(folder / name, text)
    return [folder / name for name in texts]


def curves_figure(table: ProtocolTable) -> Figure | None:
    """Draw the curves of all methods; None if no run has validations."""
    runs: dict[str, list[History]] = {row.method: [] for row in table.rows}
    stops: dict[str, int] = {row.method: row.steps for row in table.rows if row.steps is not None}
    for run in table.runs:
        columns = run.validations
        history = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        runs.setdefault(run.method, []).append(history)
    shown = {method: histories for method, each in runs.items() if (histories := [one for one in each if one])}
    return method_curves(shown, stops) if shown else None


def notes(table: ProtocolTable) -> list[str]:
    """Return definitions, sources, and restrictions of the numbers, as short sentences."""
    found = [_reported(table), *_budget(table), *_sizes(table), *_intervals(table)]
    if table.protocol.selects_on_test:
        found.append("Selection: weights are selected on the test classes, as published, so all numbers are too high.")
    found += _published_notes(table)
    if any(row.finished and not row.cells and row.method not in table.left_out for row in table.rows):
        found.append("A method has numbers once every fold has a finished run.")
    missing = missing_images(table.runs)
    if missing:
        found.append(f"Missing images: {'; '.join(missing)}.")
    found += _control_notes(table)
    archives = sorted({one for run in table.runs for one in run.data.archive})
    found += [f"Images: {one}." for one in archives]
    found += filter(None, [zsr_scale_note(run.config for run in table.runs), table.note])
    if any(LITERAL in row.method for row in table.rows):
        found.append(
            f"`+ccp{LITERAL}` (`+ccp` in version 0.1.0): proxies are raw embeddings with the learning rate of the "
            "network, at which they hardly move, and a subproblem starts from the last weights, unless a setting "
            "replaces this. `+ccp` trains normalized proxies."
        )
    for row in table.rows:
        found += _early_notes(row.method, [run for run in table.runs if run.method == row.method])
    found += [f"{method} is excluded. {reason}" for method, reason in table.left_out.items()]
    if table.settings:
        found.append(f"Settings that replace the protocol's: {', '.join(f'`{one}`' for one in table.settings)}.")
    return found


def missing_images(runs: Iterable[RunRecord]) -> list[str]:
    """Return the number of images of each incomplete split, such as `test 8,122 of 8,131`."""
    return sorted(
        {
            f"{_SPLITS.get(split, split)} {one.found:,} of {one.expected:,}"
            for run in runs
            for split, one in run.data.missing.items()
        }
    )


def _main_table(table: ProtocolTable) -> tuple[list[Column], list[Row]]:
    """Return columns and rows of the main table, in Markdown and LaTeX."""
    numbers = _shown_numbers(table)
    columns = [Column("method", align="left"), Column("runs"), Column("best step")]
    if any(is_recipe(row.method) for row in table.rows):  # methods share what recipes differ in
        columns += [Column("image"), Column("weights", align="left")]
    for number in numbers:
        columns.append(Column(_heading(number)))
        if _is_published(table, number):
            columns.append(Column(f"{_heading(number)} paper", "paper"))
    rows: list[Row] = []
    for row in table.rows:
        shown: dict[str, Styled | float | str | None] = {
            "method": row.method, "runs": f"{row.finished} of {row.planned}", "best step": row.steps,
        }  # fmt: skip
        config = next((make_config(run.config) for run in table.runs if run.method == row.method), None)
        if config is not None:
            shown |= {"image": f"{config.image.crop} of {config.image.resize}", "weights": _weights(table, config)}
        for number in numbers:
            cell = row.find(*number)
            if cell is not None:
                shown[_heading(number)] = _shown(table, cell)
                shown[f"{_heading(number)} paper"] = _paper(cell.published)
        rows.append(shown)
    return columns, rows


def _weights(table: ProtocolTable, config: RunConfig) -> str:
    """Return how the evaluated weights were chosen."""
    where = "test" if table.protocol.selects_on_test else "validation"
    chosen = "last" if config.train.select_weights == "last" else f"best on {where}"
    return f"{chosen}, averaged" if config.train.average else chosen


def _late_table(table: ProtocolTable) -> tuple[str, str]:
    """Return an introduction, and selected weights next to the mean over the last third of training."""
    numbers = [number for number in _numbers(table) if is_late(number[1])]
    raw = any(metric.startswith(LAST_THIRD + RAW) for _, metric in numbers)
    about = [
        "Selected: the weights that the table above reports, at the best step.",
        "Last third: mean of a run over its validations in the last third of its steps, whatever step it selects.",
        *(["Raw: the same for the weights themselves, where a method evaluates their average."] if raw else []),
        "Test curves are for this comparison only; nothing is selected by them." if table.protocol.split == "test" else
        "The curves are of the validation classes.",
    ]  # fmt: skip
    columns = [Column("method", align="left"), Column("best step"), Column("steps")]
    rows: list[dict[str, Styled | float | str | None]] = [
        {"method": row.method, "best step": row.steps, "steps": row.trained_steps} for row in table.rows
    ]
    for dim, metric in dict.fromkeys((dim, _plain(metric)) for dim, metric in numbers):
        for start, title in (("", "selected"), (LAST_THIRD, "last third"), (LAST_THIRD + RAW, "last third, raw")):
            if start and (dim, start + metric) not in numbers:
                continue
            name = f"{_heading((dim, metric))}, {title}"
            columns.append(Column(name))
            for row, shown in zip(table.rows, rows, strict=True):
                cell = row.find(dim, start + metric)
                shown[name] = None if cell is None else Styled(cell.estimate.mean, _mean(cell))
    return " ".join(about), to_markdown(rows, columns)


def _plain(metric: str) -> str:
    return metric.removeprefix(LAST_THIRD).removeprefix(RAW)


def _numbers(table: ProtocolTable) -> list[Number]:
    """Return the embedding size and the metric of every cell, once."""
    return list(dict.fromkeys((cell.dim, cell.metric) for cell in table.cells()))


def _mean(cell: Cell) -> str:
    std = "" if cell.estimate.std is None else f" ± {cell.estimate.std:.2f}"
    return f"{cell.estimate.mean:.2f}{std} {format_interval(cell.estimate)}".rstrip()


def _paired_table(table: ProtocolTable, pairs: Sequence[PairedDifference]) -> tuple[str, str]:
    """Return an introduction and the table of paired differences, with verdicts where the paper has both methods."""
    about = ["Difference in points over the same folds and seeds; n counts the models of each method."]
    if any(pair.difference.low is not None for pair in pairs):
        about.append("Bold: the interval excludes 0.")
    columns = [Column(name, align="left") for name in ("method", "against", "metric")]
    columns += [Column("difference", f"difference [{LEVEL:.0%} interval]"), Column("n")]
    claims = [claimed_difference(table, pair) for pair in pairs]
    if any(claim is not None for claim in claims):
        columns += [Column("paper"), Column("sign", align="left")]
        columns += [] if table.protocol.report == "best" else [Column("size", align="left")]
        about.append("Sign and size: verdicts on the paper's difference.")
    rows: list[Row] = [
        {
            "method": pair.method, "against": pair.against, "metric": _heading((pair.dim, pair.metric)),
            "difference": _difference(pair.difference), "n": pair.models,
            "paper": None if claim is None else Styled(claim, format_points(claim)),
            **({} if claim is None else verdicts(table, pair, claim)),
        }
        for pair, claim in zip(pairs, claims, strict=True)
    ]  # fmt: skip
    return " ".join(about), to_markdown(rows, columns)


def claimed_difference(table: ProtocolTable, pair: PairedDifference) -> float | None:
    """Return the difference of the published numbers of two methods; None without both, or of two backbones."""
    rows = {row.method: row for row in table.rows}
    ours, theirs = (rows[name].find(pair.dim, pair.metric) for name in (pair.method, pair.against))
    if ours is None or theirs is None or ours.published is None or theirs.published is None:
        return None
    if ours.published.backbone != theirs.published.backbone:
        return None
    return ours.published.value - theirs.published.value


def verdicts(table: ProtocolTable, pair: PairedDifference, claimed: float) -> dict[str, str]:
    """Return the verdicts on the sign and on the size of a published difference.

    The size is shown for means only: in the conventional protocol the published numbers are the best of several runs.
    """
    complete = table.decides(pair.method, pair.against)
    difference = pair.difference if claimed >= 0 else _negative(pair.difference)
    size = verdict(difference, size=abs(claimed), complete=complete)
    return {"sign": str(verdict(difference, complete=complete)), "size": str(size)}


def _negative(estimate: Estimate) -> Estimate:
    low, high = (None if bound is None else -bound for bound in (estimate.high, estimate.low))
    return replace(estimate, mean=-estimate.mean, low=low, high=high)


def _shown_numbers(table: ProtocolTable) -> list[Number]:
    """Return the shown numbers: MAP@R and P@1, and in the conventional protocol the other R@k, as papers print them."""
    best = table.protocol.report == "best"
    return [number for number in _numbers(table) if number[1] in HEADLINE or (best and _is_rank(number[1]))]


def _is_rank(metric: str) -> bool:
    """Return whether a metric is an R@k other than R@1, which is P@1."""
    return metric.startswith("R@") and metric != "R@1"


def _is_published(table: ProtocolTable, number: Number) -> bool:
    return any(cell.published is not None for cell in table.cells() if (cell.dim, cell.metric) == number)


def _heading(number: Number) -> str:
    return f"{number[0]}-D {number[1]}"


def _shown(table: ProtocolTable, cell: Cell) -> Styled:
    """Return a cell as text: mean ± std [interval], after the best run if the protocol reports it."""
    value = f"{cell.value:.2f}"
    if _is_rank(cell.metric):
        return Styled(cell.value, value)
    std = "" if cell.estimate.std is None else f" ± {cell.estimate.std:.2f}"
    if table.protocol.report == "best":
        value, std = f"{value} ({cell.estimate.mean:.2f}{std})", ""
    return Styled(cell.value, f"{value}{std} {format_interval(cell.estimate)}".rstrip())


def _paper(published: PublishedNumber | None) -> Styled | None:
    if published is None:
        return None
    std = "" if published.std is None else f" ± {published.std:.2f}"
    return Styled(published.value, f"{published.value:.2f}{std}")


def _difference(estimate: Estimate) -> Styled:
    excludes_zero = estimate.low is not None and estimate.high is not None and not estimate.low <= 0 <= estimate.high
    text = f"{format_points(estimate.mean)} {format_interval(estimate)}".rstrip()
    return Styled(estimate.mean, text, bold=excludes_zero)


def _flat(cell: Cell) -> dict[str, float | str | None]:
    """Return the columns of a number in CSV."""
    name = _heading((cell.dim, cell.metric))
    found: dict[str, float | str | None] = {name: round(cell.value, _DIGITS)}
    found |= {f"{name} {key}": value for key, value in _rounded("mean", cell.estimate).items()}
    if cell.published is not None:
        one, paper = cell.published, f"{name} paper"
        found |= {
            paper: one.value, f"{paper} std": one.std, f"{paper} table": one.table,
            f"{paper} backbone": _backbone_title(one.backbone), f"{paper} caveat": one.caveat,
        }  # fmt: skip
    return found


def _rounded(name: str, estimate: Estimate) -> dict[str, float | None]:
    values = {name: estimate.mean, "std": estimate.std, "low": estimate.low, "high": estimate.high}
    return {key: None if value is None else round(value, _DIGITS) for key, value in values.items()}


def _reported(table: ProtocolTable) -> str:
    """Return which number a cell has."""
    split = {"test": "test", "val": "validation"}[table.protocol.split]
    std = " ± std" if any(cell.estimate.std is not None for cell in table.cells()) else ""
    value = {
        "ensembles": f"mean{std} over the ensembles of one run of each fold",
        "best": f"the best run by P@1, and in parentheses the mean{std} over runs",
        "mean": f"mean{std} over runs",
    }[table.protocol.report]
    return f"Metrics on {split} classes, in percent: {value}. Best step: mean over runs."


def _budget(table: ProtocolTable) -> list[str]:
    """Return how long the runs trained, where they have a fixed budget."""
    if table.budget != "fixed":
        return []
    return [
        "Budget: fixed. Every run trains to the end of its schedule. Its last weights are reported, averaged unless a "
        "setting says otherwise."
    ]


def _control_notes(table: ProtocolTable) -> list[str]:
    """Name the controls that a table of CCP lacks; earlier tables have no budget and no note."""
    if table.budget is None:
        return []
    methods = [row.method for row in table.rows]
    present = {MethodSpec.parse(method).components for method in methods}
    wanted = {name: control_name(MethodSpec.parse(name), averaged=table.budget != "fixed") for name in methods}
    return [
        f"{method} has no control of averaged weights and as many steps. Add the method `{control}`."
        for method, control in wanted.items()
        if control is not None and MethodSpec.parse(control).components not in present
    ]


def _sizes(table: ProtocolTable) -> list[str]:
    """Return the meanings of the two embedding sizes of ensembles."""
    dims = sorted({cell.dim for cell in table.cells()})
    if table.protocol.report != "ensembles" or len(dims) < 2:
        return []
    return [
        f"Separated ({dims[0]}-D): mean over the models of an ensemble.",
        f"Concatenated ({dims[-1]}-D): retrieval with the concatenated embeddings of an ensemble.",
    ]


def _intervals(table: ProtocolTable) -> list[str]:
    """Return the meaning of brackets, and the number of runs that they need."""
    methods = {cell.estimate.interval for cell in table.cells()}
    methods |= {pair.difference.interval for pair in table.pairs}
    several = table.protocol.folds > 1
    found = []
    if "bootstrap" in methods:
        over = "models, not over ensembles, which share models" if several else "runs"
        found.append(f"Brackets: {LEVEL:.0%} bootstrap interval of the mean over {over}.")
    if "student" in methods:
        which = ", of methods with one run of a fold" if "bootstrap" in methods else ""
        found.append(
            f"Brackets{which}: {LEVEL:.0%} interval of the mean by Student's t over the models, with one degree of "
            "freedom fewer than models. It includes the differences of folds."
        )
    if None in methods:
        needed = (
            f"{FEWEST_MODELS} finished models; that of concatenated embeddings, two finished runs of every fold"
            if several else "three finished runs"
        )  # fmt: skip
        found.append(f"An interval requires {needed}.")
    return found


def _published_notes(table: ProtocolTable) -> list[str]:
    """Return the source of the published numbers, and their caveats."""
    numbers = [cell.published for cell in table.cells() if cell.published is not None]
    if not numbers:
        return []
    tables = sorted({one.table for one in numbers if not one.source})
    backbones = " and ".join(sorted({_backbone_title(one.backbone) for one in numbers}))
    named = f"Table{'s' if len(tables) > 1 else ''} {' and '.join(tables)}"
    found = [f"Paper: [Thesis], {named}, {backbones}."] if tables else []
    found += [
        f"Paper, {row.method}: {cell.published.source}."
        for row in table.rows
        for cell in row.cells
        if cell.published is not None and cell.published.source
    ]
    for row in table.rows:
        for cell in row.cells:
            if cell.published is not None and cell.published.caveat:
                number = _heading((cell.dim, cell.metric))
                found.append(f"Caveat, {row.method}, {number} of the paper: {cell.published.caveat}.")
    return found


def _early_notes(method: str, runs: Sequence[RunRecord]) -> list[str]:
    """Count runs with the best weights before the first step, or before the prototypes were initialized."""
    found = []
    without_gain = sum(run.best_step == 0 for run in runs)
    if without_gain:
        found.append(f"{method}: {without_gain} of {len(runs)} runs have the best validation before the first step.")
    early = sum(run.best_step > 0 and not run.prototypes_ready for run in runs)
    if early:
        found.append(
            f"{method}: {early} of {len(runs)} runs have the best validation before the prototypes were initialized, "
            "so they use average pooling."
        )
    return found


def _count_missing(table: ProtocolTable) -> str:
    finished, planned = sum(row.finished for row in table.rows), sum(row.planned for row in table.rows)
    return f"{finished} of {planned} runs finished."


def _backbone_title(name: str) -> str:
    return BACKBONES[name].title if name in BACKBONES else name


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
