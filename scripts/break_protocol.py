"""Test that a protocol that is killed repeatedly writes the same tables as an uninterrupted one.

    python scripts/break_protocol.py

Trains the 24 models of a fair protocol on emoji collages without interruption, then the same with SIGKILL after longer
and longer times until it ends. Takes minutes on two cores, writes results/protocols/killed.json, and fails if a table
differs.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from winnow.data.emoji import load_emoji
from winnow.training.results import collect_provenance

ROOT = Path(__file__).resolve().parents[1]
CLASSES = 48
COMMAND = [
    "protocol", "fair", "photos", "c2", "c2+gsp-zsr", "backbone=tf_efficientnet_lite0", "backbone.weights=auto",
    "backbone.train=full", "image.resize=40", "image.crop=32", "train.max_steps=40", "train.eval_steps=10",
    "train.lr=1e-4",
    "-o", "runs",
]  # fmt: skip
TABLES = ("table.csv", "paired_differences.csv", "table.md", "table.tex")


def make_photos(folder: Path) -> None:
    """Write classes of the bundled emoji dataset as a folder of class folders."""
    images = load_emoji().train
    for index, label in enumerate(images.labels):
        if label < CLASSES:
            target = folder / f"{int(label):03d}" / f"{index:05d}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            images.read(index).save(target)


def train(folder: Path, limit: float | None) -> bool:
    """Run the command in a folder for at most `limit` seconds; return whether it ended by itself."""
    try:
        subprocess.run([sys.executable, "-m", "winnow", *COMMAND], cwd=folder, check=True, timeout=limit)
    except subprocess.TimeoutExpired:  # the process was killed
        return False
    return True


def finished(folder: Path) -> int:
    return len(list(folder.glob("runs/*/*/result.json")))


def main() -> None:
    provenance = collect_provenance().to_dict()
    with tempfile.TemporaryDirectory() as name:
        whole, broken = Path(name) / "whole", Path(name) / "broken"
        for folder in (whole, broken):
            make_photos(folder / "photos")
        train(whole, None)
        kills: list[dict[str, Any]] = []
        limit = 20.0
        while not train(broken, limit):
            kills.append({"after seconds": limit, "runs finished by then": finished(broken)})
            limit += 7
        same = {table: (whole / "runs" / table).read_bytes() == (broken / "runs" / table).read_bytes()
                for table in TABLES}  # fmt: skip
        rows = (whole / "runs" / "table.csv").read_text()
    result = {
        **provenance,
        "command": "python scripts/break_protocol.py",
        "protocol": shlex.join(["winnow", *COMMAND]),
        "about": "Fair protocol on 48 classes of the bundled emoji dataset, on a CPU: uninterrupted, and killed.",
        "kills": kills,
        "tables are the same to the last byte": same,
        "table": rows,
    }
    target = ROOT / "results" / "protocols" / "killed.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(target.read_text())
    if not kills or not all(same.values()):
        raise SystemExit("the tables differ" if kills else "the protocol ended before it was killed")


if __name__ == "__main__":
    main()
