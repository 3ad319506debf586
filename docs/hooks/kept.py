"""What was measured and kept in `results/` beside studies: the figures of benchmarks, tables of protocols."""

from __future__ import annotations

import csv
import json
import re

from markup import escaped
from measured import RESULTS

KERNEL = re.compile("its (.*) kernel alone")


def protocols() -> str:
    """The kept tables of protocols; what is still missing is listed in them, with its command."""
    lines: list[str] = []
    for path in sorted((RESULTS / "protocols").glob("*.md")):
        # Tables of one protocol on other copies or with other settings share a title, but not a file.
        titled = path.read_text(encoding="utf-8").strip().replace("\n", f" ({path.stem})\n", 1)
        lines += [re.sub("^#", "###", titled, flags=re.MULTILINE), ""]
        lines += [f"Every run with its settings, commit and machine: `results/protocols/{path.stem}.json`.", ""]
    return "\n".join(lines)


def figures(name: str) -> str:
    """The kept figures of a benchmark, a table for each device it was run on; nothing where there are none."""
    from winnow.bench.record import show_bytes, show_seconds

    lines: list[str] = []
    for path in sorted((RESULTS / "bench").glob(f"{name}-*.json")):
        kept = json.loads(path.read_text())
        machine = kept["machine"]
        where = machine["gpu"] if kept["settings"]["device"] == "cuda" else f"{machine['threads']} cores"
        facts = list(dict.fromkeys(fact for row in kept["rows"] for fact in row.get("facts", {})))
        lines += [f"`{kept['command']}` on {where} ({path.name}):", ""]
        lines += ["| " + " | ".join(["case", "rival", "median", "ratio", "memory", *facts]) + " |"]
        lines += ["|---|---|" + "--:|" * (3 + len(facts))]
        for row in kept["rows"]:
            if KERNEL.fullmatch(row["rival"]):
                continue
            ratio, memory = row["ratio"], row["peak_bytes"]
            cells = [row["case"], row["rival"], show_seconds(row["seconds"]["median"])]
            cells += ["" if ratio is None else f"{ratio:.2f}", "" if memory is None else show_bytes(memory)]
            cells += [f"{row['facts'][fact]:.4g}" if fact in row.get("facts", {}) else "" for fact in facts]
            lines.append("| " + " | ".join(map(escaped, cells)) + " |")
        lines += ["", f"Ratios are to {kept['against']}.", *kept["notes"], ""]
    return "\n".join(lines)


def selected(name: str, column: str, value: str) -> str:
    """The rows of a kept table that have a value in a column, without that column and those that are empty there."""
    with open(RESULTS / f"{name}.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[column] == value]
    columns = [key for key in rows[0] if key != column and any(row[key] for row in rows)]
    numbers = [all(re.fullmatch(r"-?[\d.]*", row[key]) for row in rows) for key in columns]
    lines = ["| " + " | ".join(columns) + " |", "|" + "".join("--:|" if one else "---|" for one in numbers)]
    lines += ["| " + " | ".join(escaped(row[key]) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def profile() -> str:
    """What each kernel of the fused pooling takes, case by case."""
    kept = json.loads((RESULTS / "bench" / "pooling-cuda.json").read_text())
    cases: dict[str, dict[str, float]] = {}
    for row in kept["rows"]:
        if found := KERNEL.fullmatch(row["rival"]):
            cases.setdefault(row["case"], {})[found[1]] = row["seconds"]["median"]
        elif row["rival"] in ("winnow", "winnow, replayed", "memory floor"):
            cases.setdefault(row["case"], {})[row["rival"]] = row["seconds"]["median"]
    names = ["prototypes", "scores", "pool", "weights gradient", "gradient", "unclip"]
    names = ["winnow", "winnow, replayed", *names, "memory floor"]
    lines = ["Microseconds:", "", "| " + " | ".join(["case", *names]) + " |", "|---|" + "--:|" * len(names)]
    for case, found in cases.items():
        cells = [f"{found[name] * 1e6:.3g}" if name in found else "" for name in names]
        lines.append("| " + " | ".join([case, *cells]) + " |")
    return "\n".join(lines)
