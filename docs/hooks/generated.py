"""Generate reference pages from the code and study pages from results while the site is built.

A page includes a generated table by a comment such as `<!-- generated: config -->`. Losses, references, miners, and
studies have a generated page each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import benchmark_results
import commandline
import parts
import published
import studies

from winnow.palette import palette_css

ROOT = Path(__file__).resolve().parents[2]
_MARKER = re.compile(r"^<!-- generated: (?P<name>[a-z]+) -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """List the page of each component below the page of its kind, and of each study below the overview."""
    _section(_section(config.nav, "Results"), "Studies").extend(studies.nav())
    for entry in _section(config.nav, "Reference"):
        for title, page in entry.items() if isinstance(entry, dict) else ():
            kind = str(page).removeprefix("reference/").removesuffix(".md")
            if kind in parts.PAGED:
                pages = [{name: f"reference/{kind}/{name}.md"} for name in parts.PAGED[kind]()]
                entry[title] = [{f"All {kind}": page}, *pages]
    return config


def _section(nav: list[Any], title: str) -> list[Any]:
    """Return the entries of a section of the navigation."""
    found: list[Any] = next(one[title] for one in nav if isinstance(one, dict) and title in one)
    return found


def on_files(files: Any, config: Any) -> Any:
    """Write the page of each component and of each study."""
    from mkdocs.structure.files import File

    for kind, find in parts.PAGED.items():
        registry = find()
        for name in registry:
            text = "\n".join([f"# {name}", "", *parts.part_page(registry, name)])
            files.append(File.generated(config, f"reference/{kind}/{name}.md", content=text))
    for path, text in studies.pages():
        if (note := files.get_file_from_path(path)) is not None:  # the paragraph, which the page includes
            files.remove(note)
        files.append(File.generated(config, path, content=text))
    colors = palette_css('[data-md-color-scheme="slate"]')
    files.append(File.generated(config, "assets/palette.css", content=colors))
    for path, picture in studies.pictures():
        files.append(File.generated(config, path, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each comment by the text that it names."""
    return _MARKER.sub(lambda found: WRITERS[found["name"]](), markdown)


def _top_level(name: str) -> str:
    """Return a file of the repository root with its links relative to the documentation."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


WRITERS: dict[str, Callable[[], str]] = {
    "config": parts.config,
    **{kind: partial(parts.listed, kind) for kind in parts.PAGED},
    "regularizers": parts.regularizers,
    "poolings": parts.poolings,
    "changelog": partial(_top_level, "CHANGELOG.md"),
    "claims": studies.claims,
    "commands": commandline.commands,
    "contributing": partial(_top_level, "CONTRIBUTING.md"),
    "exits": commandline.exits,
    "evaluation": partial(benchmark_results.benchmark, "evaluate"),
    "forest": published.leaderboard,
    "poolingdots": published.poolings,
    "longcenters": partial(published.selected, "center_weights", "steps", "800"),
    "shortcenters": partial(published.selected, "center_weights", "steps", "120"),
    "manyclasses": partial(benchmark_results.benchmark, "losses"),
    "index": partial(benchmark_results.benchmark, "index"),
    "pooling": partial(benchmark_results.benchmark, "pooling"),
    "profile": benchmark_results.kernels,
    "datasets": parts.datasets,
    "protocols": published.protocols,
    "recipes": parts.recipes,
    "recipesources": parts.recipe_sources,
    "reranking": partial(published.selected, "reranking", "method", "GSP"),
    "security": partial(_top_level, "SECURITY.md"),
    "studies": studies.overview,
    "serving": partial(benchmark_results.benchmark, "serve"),
    "training": partial(benchmark_results.benchmark, "train"),
}
