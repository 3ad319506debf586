"""What a search found, as a page to look at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from winnow.data import read_image
from winnow.index import Entry, Hits, Index
from winnow.report import page
from winnow.report.page import Html, element, text


def write_found(
    path: str | Path, index: Index, names: Sequence[str], own: Sequence[int | None], hits: Hits, *, note: str = ""
) -> None:
    """Write one self-contained page with every query and its neighbours, nearest first.

    Args:
        path: The file.
        index: Where was searched.
        names: The queries: image files, or entries of the index.
        own: The entry that a query is itself; None where it is a file.
        hits: What was found.
        note: Something to say about the search.
    """
    blocks = []
    for row, name in enumerate(names):
        number = own[row]
        entry = None if number is None else index.entry(number)
        image = read_image(name) if entry is None else _picture(entry)
        found = [
            (index.entry(int(i)), float(d)) for i, d in zip(hits.ids[row], hits.distances[row], strict=True) if i >= 0
        ]
        blocks.append(
            _query(name if entry is None else _short(entry), image, found, None if entry is None else entry.label)
        )
    count = f"{len(index)} images" if len(index) != 1 else "one image"
    head = element(
        "header",
        element(
            "div",
            element("p", text(f"winnow search: {index.path.name}"), css="kicker"),
            element("h1", text("What lies nearest")),
            element(
                "p", text(f"The nearest of {count}, with their distance{'; ' + note if note else ''}."), css="evidence"
            ),
        ),
    )
    page.write_page(path, f"Search in {index.path.name}", head, element("main", *blocks))


def _query(name: str, image: Image.Image, found: list[tuple[Entry, float]], label: str | None) -> Html:
    columns = f"--columns: {page.balanced(len(found), 8)}; --narrow: {page.balanced(len(found), 4)}"
    listed = element("ol", *(_neighbour(entry, distance, label) for entry, distance in found), style=columns)
    seen = page.captioned(page.picture(image, f"query: {name}"), text(f"Query: {name}"))
    return element("article", seen, element("div", element("div", listed, css="found")), css="query")


def _neighbour(entry: Entry, distance: float, label: str | None) -> Html:
    """Return a neighbour; where both classes are known, marked by whether they are the same."""
    name = entry.label or _short(entry)
    says, mark, css = "", Html(""), "neighbour plain"
    if label is not None and entry.label is not None:
        right = entry.label == label
        says, css = ("right: ", "neighbour") if right else ("wrong: ", "neighbour wrong")
        mark = Html(f'<span class="mark" aria-hidden="true">{"✓" if right else "✗"}</span>')
    image = page.picture(_picture(entry), f"{says}{name}, distance {distance:.2f}", side=160)
    return element("li", image, mark, element("small", text(f"{name}, {distance:.2f}")), css=css)


def _picture(entry: Entry) -> Image.Image:
    with Image.open(io.BytesIO(entry.thumbnail)) as image:
        return image.convert("RGB")


def _short(entry: Entry) -> str:
    """Return the last two parts of a path: the folder says what, the file which."""
    return "/".join(entry.path.replace("\\", "/").split("/")[-2:])
