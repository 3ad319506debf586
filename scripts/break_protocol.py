"""Show that a protocol which is killed again and again ends in the same table as one that is not.

python scripts/break_protocol.py

Takes some minutes on two cores: trains the 24 models of a fair protocol on collages of emoji unbroken, then the same
with SIGKILL after ever longer times until it is done, and writes results/protocols/killed.json. Ends in an error
where a table differs.
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
    """Write some classes of the embedded set as a folder of class folders."""
    images = load_emoji().train
    for index, label in enumerate(images.labels):
        if label < CLASSES:
            target = folder / f"{int(label):03d}" / f"{index:05d}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            images.read(index).save(target)


def train(place: Path, limit: float | None) -> bool:
    """Give the command in a folder, and kill it after some seconds; return whether it came to its end."""
    try:
        subprocess.run([sys.executable, "-m", "winnow", *COMMAND], cwd=place, check=True, timeout=limit)
    except subprocess.TimeoutExpired:  # it was sent SIGKILL
        return False
    return True


def finished(place: Path) -> int:
    return len(list(place.glob("runs/*/*/result.json")))


def main() -> None:
    begun = collect_provenance().to_dict()
    with tempfile.TemporaryDirectory() as name:
        whole, broken = Path(name) / "whole", Path(name) / "broken"
        for place in (whole, broken):
            make_photos(place / "photos")
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
        **begun,
        "command": "python scripts/break_protocol.py",
        "protocol": shlex.join(["winnow", *COMMAND]),
        "about": "A fair protocol on 48 classes of the embedded set, on a CPU: unbroken, and killed again and again.",
        "kills": kills,
        "tables are the same to the last byte": same,
        "table": rows,
    }
    target = ROOT / "results" / "protocols" / "killed.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(target.read_text())
    if not kills or not all(same.values()):
        raise SystemExit("the tables differ" if kills else "it was done before it could be killed")


if __name__ == "__main__":
    main()
