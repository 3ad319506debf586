"""The sections of a comparison's page, each made from its own part of the comparison."""

from __future__ import annotations

import numpy as np

from winnow.report import page
from winnow.report.content import Comparison, Method, Neighbour, Query
from winnow.report.figures import METRICS, has_validation, metric_bars, training_curves
from winnow.report.numbers import best_rows, comparison_table, evidence, headline, percent, signed, spread
from winnow.report.page import Html, Section, element, text
from winnow.report.style import PRETRAINED, method_colors, svg

_TERMS = {
    "MAP@R": "Among the R nearest images, R being how many there are to find: the mean precision at the places of the "
    "right ones. High only if all are found, and found first.",
    "P@1": "How often the very nearest image is of the same class.",
    "P@R": "How many of the R nearest images are of the same class.",
}


def finding(comparison: Comparison, contents: Html) -> Html:
    """Return the head of the page: the finding in one sentence, how sure it is, a bar per method, and the contents."""
    shown = [(method.name, spread(method, "MAP@R"), colour) for method, colour in _coloured(comparison)]
    means = [(name, found.mean, colour) for name, found, colour in shown if found is not None]
    if comparison.baseline is not None and "MAP@R" in comparison.baseline[1]:
        means.insert(0, (comparison.baseline[0], comparison.baseline[1]["MAP@R"], PRETRAINED))
    longest = max(value for _, value, _ in means) or 1.0
    bars = [
        element(
            "li",
            element("span", text(name), css="name"),
            element(
                "span",
                element("i", style=f"--colour: {colour}; width: {80 * value / longest:.1f}%"),
                element("b", text(f"{percent(value)} %")),
                css="bar",
            ),
        )
        for name, value, colour in means
    ]
    says = element(
        "div",
        element("p", text(comparison.title), css="kicker"),
        element("h1", text(headline(comparison))),
        page.paragraphs(evidence(comparison), css="evidence"),
    )
    figure = element("figure", element("figcaption", text("MAP@R, test classes")), element("ol", *bars, css="scores"))
    return element("header", says, figure, contents)


def task(comparison: Comparison) -> Section:
    """Return what is asked of the methods, with examples, and what the metrics mean."""
    terms = [element("div", element("dt", text(name)), element("dd", text(said))) for name, said in _TERMS.items()]
    return Section(
        "task",
        "The task",
        [
            element(
                "div", element("div", page.paragraphs(comparison.summary)), _examples(comparison.queries), css="split"
            ),
            element("dl", *terms, css="terms"),
        ],
    )


def _examples(queries: list[Query]) -> Html:
    """Return a query, an image that is right to find for it, and one that is wrong, as far as there are such."""
    if not queries:
        return Html("")

    def first(query: Query, right: bool) -> Neighbour | None:
        return next((one for found in query.neighbours.values() for one in found if one.right is right), None)

    query = next((one for one in queries if first(one, True) and first(one, False)), queries[0])
    shown = [page.captioned(page.picture(query.image, f"query: {query.name}"), text(f"A query: {query.name}"))]
    for neighbour, says in (
        (first(query, True), "Right to find, the same class"),
        (first(query, False), "Wrong to find, another class"),
    ):
        if neighbour is not None:
            caption = f"{says}: {neighbour.name}"
            shown.append(page.captioned(page.picture(neighbour.image, caption), text(caption)))
    return element("div", *shown, css="examples")


def results(comparison: Comparison) -> Section:
    """Return the table of numbers and the figures of training and test."""
    rows = comparison_table(comparison)
    metrics = [name for name in METRICS if name in rows[0]]
    best = {name: best_rows(rows, name) for name in metrics}
    # What stands beside each row's name: its meaning and its colour.
    looks = [] if comparison.baseline is None else [("Nothing trained.", PRETRAINED)]
    looks += [(_meaning(method), colour) for method, colour in _coloured(comparison)]
    reference = comparison.methods[0].name
    cells = []
    for number, row in enumerate(rows):
        meaning, colour = looks[number]
        name = element("span", css="swatch", style=f"--colour: {colour}") + text(row["method"])
        line = [Html(name + element("small", text(meaning)))]
        for metric in metrics:
            value = Html("–") if row[metric] is None else text(percent(row[metric]))
            value = element("b", value) if number in best[metric] else value
            line.append(Html(value + _plus_minus(row[f"{metric} std"])))
        change = row["MAP@R difference"]
        line.append(Html("–" if change is None else text(signed(change)) + _plus_minus(row["MAP@R difference se"])))
        cells.append(line)
    head = [text("Method"), *(text(f"{name}, %") for name in metrics), text(f"MAP@R minus {reference}, points")]
    several = any(len(method.runs) > 1 for method in comparison.methods)
    note = "Test classes, none of which was seen in training. Best in bold." + (
        " ± is the standard deviation over seeds; in the last column, the standard error of the mean difference, "
        "paired by seed." if several else ""
    )  # fmt: skip
    return Section(
        "numbers",
        "The numbers",
        [
            page.table(head, cells),
            element("p", text(note), css="note"),
            element("div", *_figures(comparison), css="drawings", style="margin-top: 1.75rem"),
        ],
    )


def _figures(comparison: Comparison) -> list[Html]:
    runs = {method.name: method.runs for method in comparison.methods}
    several = any(len(each) > 1 for each in runs.values())
    bars = metric_bars(
        {name: [run.metrics for run in each] for name, each in runs.items()}, baseline=comparison.baseline
    )
    says = "Bars are means over seeds, dots single seeds, whiskers the standard deviation." if several else "One seed."
    drawn = [page.drawing(svg(bars), "Bar chart of the test metrics in the table above", says)]
    histories = {name: [run.history for run in each] for name, each in runs.items()}
    if has_validation(histories):
        alt = f"Line chart of validation MAP@R and loss against the training step for {', '.join(runs)}"
        says = "How they learn. Thick: the mean; thin: single seeds." if several else "How they learn."
        drawn.append(page.drawing(svg(training_curves(histories)), alt, says))
    return drawn


def making(comparison: Comparison) -> Section:
    """Return how the page was made, and with which settings."""
    parts = [page.tree(comparison.provenance)] if comparison.provenance else []
    if comparison.settings:
        parts.append(page.details("All settings", page.tree(comparison.settings)))
    return Section("making", "How this was made", [*parts])


def _coloured(comparison: Comparison) -> list[tuple[Method, str]]:
    return list(
        zip(comparison.methods, method_colors(method.name for method in comparison.methods).values(), strict=True)
    )


def _meaning(method: Method) -> str:
    """Return what a method is, how many seeds it has, and how long one takes."""
    count, seconds = len(method.runs), float(np.mean([run.seconds for run in method.runs]))
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    runs = f"{count} seeds, {took} each." if count > 1 else f"1 seed, {took}."
    return f"{method.meaning} {runs.replace(' ', chr(0xA0))}"


def _plus_minus(value: float | None) -> Html:
    return Html("") if value is None else element("small", text(f" ± {percent(value)}"))
