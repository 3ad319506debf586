"""Collect the measured numbers of recipes from tables of the conventional protocol.

python scripts/recipe_results.py            # write src/winnow/training/recipe_results.json
python scripts/recipe_results.py --check    # fail if the file differs from the tables

A row counts if its method is a recipe, such as `recipe=proxy-anchor` or `recipe=common,loss=ms`, and a run is finished.
Of several tables with the same row the one with the most runs counts, then the last by name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from winnow.protocols.methods import is_recipe
from winnow.protocols.table import ProtocolTable, TableRow, read_table

ROOT = Path(__file__).resolve().parents[1]
TABLES = "results/protocols"
OUTPUT = "src/winnow/training/recipe_results.json"


def collect(root: Path = ROOT) -> dict[str, Any]:
    """Return the content of the file: numbers by method and dataset."""
    methods: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted((root / TABLES).glob("conventional*.json")):
        table = read_table(path)
        for row, values in recipe_rows(table, path.relative_to(root).as_posix()):
            found = methods.setdefault(row.method, {})
            if values["runs"] >= found.get(table.dataset, values)["runs"]:
                found[table.dataset] = values
    return {"methods": methods}


def recipe_rows(table: ProtocolTable, source: str) -> Iterator[tuple[TableRow, dict[str, Any]]]:
    """Yield the recipes of a table that have a finished run, with their numbers."""
    for row in table.rows:
        cell = row.find(512, "P@1")
        if not is_recipe(row.method) or cell is None:
            continue
        runs = [run for run in table.runs if run.method == row.method]
        minutes = sum(run.seconds.training for run in runs) / 60 / len(runs)
        yield row, {
            "value": round(cell.value, 2), "mean": round(cell.estimate.mean, 2),
            "std": None if cell.estimate.std is None else round(cell.estimate.std, 2), "runs": row.finished,
            "minutes": round(minutes, 1), "gpu": str(runs[0].machine.gpu), "source": source,
        }  # fmt: skip


def main() -> None:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    check = parser.parse_args().check
    text = json.dumps(collect(), indent=1) + "\n"
    file = ROOT / OUTPUT
    if not check:
        file.write_text(text, encoding="utf-8")
    elif file.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{OUTPUT}: differs from {TABLES}. Run `python scripts/recipe_results.py`.")


if __name__ == "__main__":
    main()
