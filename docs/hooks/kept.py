"""What was measured and kept in `results/`: studies, and the figures of benchmarks."""

from __future__ import annotations

import csv
import inspect
import json
import re
from base64 import b64encode
from pathlib import Path

from markup import escaped

RESULTS = Path(__file__).resolve().parents[2] / "results" / "bench"
KERNEL = re.compile("its (.*) kernel alone")


def studies() -> str:
    """Every study: what it is, its command, and what it found where that is kept; first, what is missing."""
    from winnow.studies import STUDIES
    from winnow.studies.base import cost

    lines: list[str] = []
    small: list[str] = []
    partial: list[str] = []
    for name, study in STUDIES.items():
        first = (inspect.getdoc(study) or "").splitlines()[0]
        told = f"{first} Cost: {cost(study)}" if cost(study) else first
        file = f"{name.replace('-', '_')}.md"
        kept = RESULTS.parent / file
        if not kept.is_file():
            kept = RESULTS.parent / "small" / file
        content = json.loads(kept.with_suffix(".json").read_text("utf-8")) if kept.is_file() else {"rows": []}
        is_full = kept.is_file() and not content["settings"]["small"]
        if not is_full:
            small.append(f"[{name}](#{name})")
        elif content.get("missing") or any(row.get("missing") for row in content["rows"]):
            partial.append(f"[{name}](#{name})")
        command = f"$ winnow study {name}{' --full' if is_full else ''}"
        lines += [f"## {name} {{ #{name} }}", "", told, "", "```console", command, "```", ""]
        if kept.is_file():
            if not is_full:
                lines += [f"In its small setting. Missing is its full one: `winnow study {name} --full`.", ""]
            lines += shown(kept, first)
        for picture in sorted((RESULTS.parent / "small").glob(f"{name.replace('-', '_')}_*.png")):
            if picture.with_suffix(".json").is_file():
                continue  # the figure of a study whose name begins alike
            lines += ["In the small setting:", "", image(picture.read_bytes(), "png", first), ""]
        frozen = RESULTS.parent / "frozen" / file
        if frozen.is_file():
            lines += ["The full setting with a backbone that is not trained, on a CPU:", "", *shown(frozen, first)]
    missing = f"Missing are the full settings of {', '.join(small)}." if small else ""
    missing += f" Runs are missing of {', '.join(partial)}." if partial else ""
    return "\n".join([missing.strip(), "", *lines])


def shown(kept: Path, first: str) -> list[str]:
    """The paragraph, the table and the picture of a kept study."""
    picture = kept.with_suffix(".svg").read_text(encoding="utf-8")
    inner = picture[picture.index("<svg") :]
    # As an image its ids and styles are its own.
    shown = image(inner.encode(), "svg+xml", first)
    return [kept.read_text(encoding="utf-8").partition("\n")[2].strip(), "", shown, ""]


def image(content: bytes, kind: str, first: str) -> str:
    """A picture inside the page."""
    return f'<img alt="{first}" src="data:image/{kind};base64,{b64encode(content).decode()}">'


def protocols() -> str:
    """The kept tables of protocols; what is still missing is listed in them, with its command."""
    lines: list[str] = []
    for path in sorted((RESULTS.parent / "protocols").glob("*.md")):
        # Tables of one protocol on other copies or with other settings share a title, but not a file.
        titled = path.read_text(encoding="utf-8").strip().replace("\n", f" ({path.stem})\n", 1)
        lines += [re.sub("^#", "###", titled, flags=re.MULTILINE), ""]
        lines += [f"Every run with its settings, commit and machine: `results/protocols/{path.stem}.json`.", ""]
    return "\n".join(lines)


def figures(name: str) -> str:
    """The kept figures of a benchmark, a table for each device it was run on; nothing where there are none."""
    from winnow.bench.record import show_bytes, show_seconds

    lines: list[str] = []
    for path in sorted(RESULTS.glob(f"{name}-*.json")):
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
    with open(RESULTS.parent / f"{name}.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[column] == value]
    columns = [key for key in rows[0] if key != column and any(row[key] for row in rows)]
    numbers = [all(re.fullmatch(r"-?[\d.]*", row[key]) for row in rows) for key in columns]
    lines = ["| " + " | ".join(columns) + " |", "|" + "".join("--:|" if one else "---|" for one in numbers)]
    lines += ["| " + " | ".join(escaped(row[key]) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def profile() -> str:
    """What each kernel of the fused pooling takes, case by case."""
    kept = json.loads((RESULTS / "pooling-cuda.json").read_text())
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
