"""Render published tables of protocols again from their JSON files.

`python scripts/render_protocols.py [results/protocols/NAME.json ...]`; without files all tables. Nothing is measured:
the JSON files stay as they are, and `tests/protocols/test_render.py` compares their numbers with the rendered ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

from winnow.protocols import read_table
from winnow.protocols.render import render_csv, render_latex, render_markdown

FOLDER = Path(__file__).resolve().parents[1] / "results" / "protocols"


def tables() -> list[Path]:
    """Return the JSON files of published tables, which are named PROTOCOL-DATASET-BACKBONE."""
    return sorted(FOLDER.glob("*-*-*.json"))


def render(file: Path) -> bool:
    """Write the Markdown, CSV, and LaTeX table of a JSON file; return whether one of them changed."""
    table = read_table(file)
    texts = {".md": render_markdown(table), ".csv": render_csv(table), ".tex": render_latex(table)}
    paths = {file.with_suffix(suffix): text for suffix, text in texts.items()}
    changed = [path for path, text in paths.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.write_text(paths[path], encoding="utf-8")
    return bool(changed)


if __name__ == "__main__":
    for each in [Path(arg).resolve() for arg in sys.argv[1:]] or tables():
        print(f"{each.name}: {'rendered' if render(each) else 'unchanged'}")
