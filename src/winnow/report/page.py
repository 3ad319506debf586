"""The parts of a self-contained HTML page: nothing is loaded from anywhere, and every text is escaped.

Markup has a type of its own, so that a type checker sees a text that nobody escaped.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NewType

from PIL import Image

from winnow.files import write_text

Html = NewType("Html", str)

# The browser itself refuses any outside request, even for an icon.
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
"""


def text(value: object) -> Html:
    """Escape a text; a number and its per cent sign stay on one line."""
    return Html(html.escape(str(value)).replace(" %", "&nbsp;%"))


def join(parts: Iterable[Html]) -> Html:
    """Put parts after one another."""
    return Html("\n".join(parts))


def element(tag: str, *parts: Html, css: str = "", style: str = "") -> Html:
    """Wrap parts in an element.

    Args:
        tag: Its name.
        parts: What stands in it.
        css: Its classes.
        style: Its own style.
    """
    attributes = (f' class="{html.escape(css)}"' if css else "") + (f' style="{html.escape(style)}"' if style else "")
    return Html(f"<{tag}{attributes}>{''.join(parts)}</{tag}>")


def paragraphs(value: str, css: str = "") -> Html:
    """Return a text as paragraphs; an empty line parts them."""
    return join(element("p", text(part.strip()), css=css) for part in value.split("\n\n") if part.strip())


def data_uri(image: Image.Image, *, side: int = 256) -> str:
    """Return an image as a data URI (WebP), made smaller where its longer side exceeds `side`."""
    image = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    if max(image.size) > side:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=88, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def picture(image: Image.Image, alt: str, *, side: int = 256, css: str = "") -> Html:
    """Return an image that travels inside the page.

    Args:
        image: The image.
        alt: What it shows, for those who do not see it.
        side: Longest side in pixels.
        css: Its classes.
    """
    width, height = image.size
    attribute = f' class="{html.escape(css)}"' if css else ""
    return Html(
        f'<img src="{data_uri(image, side=side)}" alt="{html.escape(alt)}" width="{width}" height="{height}"'
        f' loading="lazy" decoding="async"{attribute}>'
    )


def captioned(image: Html, caption: Html, css: str = "") -> Html:
    """Return an image above its caption."""
    return element("figure", image, element("figcaption", caption), css=css)


def drawing(svg: str, alt: str, caption: str) -> Html:
    """Return an SVG figure above its caption."""
    data = base64.b64encode(svg.encode()).decode("ascii")
    card = Html(f'<div class="paper"><img src="data:image/svg+xml;base64,{data}" alt="{html.escape(alt)}"></div>')
    return captioned(card, text(caption), css="drawing")


def table(head: Sequence[Html], rows: Iterable[Sequence[Html]]) -> Html:
    """Return a table whose first column names its rows; on a narrow screen a name stands above its row's numbers."""
    top = element("tr", *(Html(f'<th scope="col">{cell}</th>') for cell in head))
    body = join(
        element("tr", Html(f'<th scope="row">{row[0]}</th>'), *(element("td", cell) for cell in row[1:]))
        for row in rows
    )
    style = f"--columns: {max(1, len(head) - 2)}"
    return element("table", element("thead", top), element("tbody", body), css="results", style=style)


def balanced(count: int, most: int) -> int:
    """Return how many columns, at most `most`, leave the fewest gaps in the last row of the fewest rows."""
    rows = max(1, -(-count // most))
    return max(1, -(-count // rows))


def tree(values: Mapping[str, Any]) -> Html:
    """Return nested settings as a list of names and values; a group has a dot between its name and theirs."""
    pairs = [element("dt", text(name)) + element("dd", text(value)) for name, value in _flat(values)]
    return element("dl", *(Html(pair) for pair in pairs), css="settings")


def _flat(values: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, "–" if value is None or value == {} else str(value)


def details(title: str, *parts: Html) -> Html:
    """Return a block that opens when its title is pressed."""
    return element("details", element("summary", text(title)), *parts)


@dataclass(frozen=True)
class Section:
    """A part of the page that has a heading and an entry in its contents.

    Attributes:
        name: Its anchor.
        title: Its heading.
        parts: What stands in it.
    """

    name: str
    title: str
    parts: Sequence[Html]

    def html(self) -> Html:
        """Return the section."""
        return Html(
            f'<section id="{html.escape(self.name)}">\n<h2>{text(self.title)}</h2>\n{join(self.parts)}\n</section>'
        )


def contents(sections: Iterable[Section]) -> Html:
    """Return links to sections."""
    links = (Html(f'<a href="#{html.escape(one.name)}">{text(one.title)}</a>') for one in sections)
    return Html(f'<nav aria-label="Contents">{join(links)}</nav>')


def write_page(path: str | Path, title: str, *parts: Html) -> None:
    """Write a page of the given parts as one file that needs no other.

    Args:
        path: The file; folders above it are made.
        title: The page's title in the browser.
        parts: What stands in its body.
    """
    css = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    head = f"{_HEAD}<title>{html.escape(title)}</title>\n<style>\n{css}</style>\n</head>\n"
    path = Path(path)
    write_text(path, f"{head}<body>\n{join(parts)}\n</body>\n</html>\n")
