"""The pages of studies: an overview, and one for each, made of what is kept in `results/`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markup import escaped
from measured import RESULTS, Measured, measured, section

GROUPS = {
    "GSP": ("toy-map", "tokens", "iterations", "mu", "m-eps", "prototypes", "losses", "poolings", "collage",
            "cub-poolings", "summary"),
    "ZSR": ("zero-shot", "components", "screening"),
    "CCP": ("ccp-mnist", "ccp-geometry", "ccp-alternate", "ccp-pool", "ccp-batch", "ccp-cost", "ccp-samples",
            "ccp-search", "cub-losses"),
    "Average pooling": ("average-pooling",),
    "Centres": ("centres",),
}  # fmt: skip
"""Themes of the documents and their studies, in the documents' order; `BEYOND` are all others."""
BEYOND = "Beyond the documents"
ABOUT = {
    "GSP": "Generalized Sum Pooling, chapter 5 ([concept](../concepts/gsp.md)).",
    "ZSR": "Zero-shot regularisation, chapter 5 ([concept](../concepts/zsr.md)).",
    "CCP": "Proxies from the data, chapter 3 ([concept](../concepts/ccp.md)).",
    "Average pooling": "What averaging does to local features, chapter 4 ([concept](../concepts/poolings.md)).",
    "Centres": "Regularisation of class centres, document 004 ([concept](../concepts/regularizers.md)).",
    BEYOND: "Questions that the documents leave open, and what the others rest on.",
}


def grouped() -> dict[str, list[str]]:
    """Every study under its theme."""
    from winnow.studies import STUDIES

    groups = {title: list(names) for title, names in GROUPS.items()}
    placed = {name for names in groups.values() for name in names}
    return {**groups, BEYOND: [name for name in STUDIES if name not in placed]}


def nav() -> list[dict[str, Any]]:
    """The pages of studies as the navigation lists them: by theme, under short titles; one alone under its theme's."""
    entries: list[dict[str, Any]] = []
    for title, names in grouped().items():
        pages = [{heading(name).partition(" (")[0]: f"studies/{name}.md"} for name in names]
        entries.append({title: pages if len(names) > 1 else f"studies/{names[0]}.md"})
    return entries


def heading(name: str) -> str:
    """The title of what a study found; its name where nothing is kept."""
    return next((one.title for one in measured(name)), name)


def overview() -> str:
    """A table of the studies of every theme."""
    lines: list[str] = []
    for title, names in grouped().items():
        lines += [f"## {title}", "", ABOUT[title], ""]
        lines += ["| study | what it shows | documents | measured | cost |", "|---|---|---|---|---|"]
        for name in names:
            about, cost = described(name)
            shows, place = placed(about[0])
            kept = "<br>".join(f"[{_kept(one)}]({name}.md#{one.kind})" for one in measured(name)) or "–"
            cells = [escaped(shows), escaped(place) or "–", kept, escaped(cost)]
            lines.append(f"| [`{name}`]({name}.md) | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _kept(one: Measured) -> str:
    kind = {"frozen": "frozen network"}.get(one.kind, one.kind)
    return kind if one.is_whole else f"{kind} (in part)"


def described(name: str) -> tuple[list[str], str]:
    """The paragraphs of a study's docstring, the first line being one, and what it costs."""
    from winnow.studies import STUDIES
    from winnow.studies.base import cost

    paragraphs = (inspect.getdoc(STUDIES[name]) or "").split("\n\n")
    return [one for one in paragraphs if not one.startswith("Cost: ")], cost(STUDIES[name])


def placed(first: str) -> tuple[str, str]:
    """Part a study's first line into what it shows and where that is in the documents, its last bracket."""
    found = re.fullmatch(r"(?P<shows>.*?)\s\((?P<place>new|[^();]*(?:\d|new)[^();]*)(?:;[^()]*)?\)\.", first)
    if found is None:
        return first, ""
    return found["shows"] + ("" if found["shows"].endswith("?") else "."), found["place"]


def page(name: str) -> str:
    """The page of a study."""
    about, cost = described(name)
    found = measured(name)
    lines = [f"# {heading(name)}", "", "\n\n".join(about), ""]
    lines += ["```console", f"$ winnow study {name} --small", f"$ winnow study {name} --full", "```", ""]
    whole = cost.endswith("the same in full.") or any(one.kind == "full" for one in found)
    missing = "" if whole else " Its full setting is still to be measured."
    lines += [f"Cost: {cost}{missing}" if cost else missing.strip(), ""]
    for one in found:
        lines += section(one)
    return "\n".join(lines)


def pages() -> Iterator[tuple[str, str]]:
    """Every page of a study: its place and its text."""
    for names in grouped().values():
        yield from ((f"studies/{name}.md", page(name)) for name in names)


def pictures() -> Iterator[tuple[str, Path]]:
    """Every picture that these pages show: its place and its file."""
    for names in grouped().values():
        for path in (path for name in names for one in measured(name) for path in one.pictures()):
            yield f"studies/{path.relative_to(RESULTS).as_posix()}", path
