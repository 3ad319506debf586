"""Measure weights of center regularizers with Proxy-Anchor, on the validation classes of the bundled emoji dataset.

    python scripts/center_weights.py FOLDER [STEPS]...

Trains 15 runs of 120 steps in a few minutes on one core, and 34 runs of 800 steps in a quarter of an hour; STEPS
selects one of both. Runs stay in FOLDER, and a rerun reads finished ones. Writes results/centre_weights.md, .csv, and
.json, the source of the tables on the page about center regularization.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from winnow.files import write_text
from winnow.report.tables import to_markdown
from winnow.training import RunCache, RunDir, RunResult, load_config, train
from winnow.training.results import collect_provenance

TARGET = Path(__file__).resolve().parents[1] / "results" / "centre_weights"
COMMON = [
    "data=emoji", "backbone.train=frozen", "dim=128",
    "pooling=gsp", "pooling.mu=0.05", "pooling.eps=20", "loss=proxy_anchor", "train.optimizer=adamw",
    "train.device=cpu",
]  # fmt: skip
SCHEDULE = {
    120: ["train.lr=3e-3", "train.lr_multipliers={'references.proxies': 10}", "train.classes_per_batch=32",
          "train.samples_per_class=2", "train.max_steps=120", "train.eval_steps=40"],
    800: ["train.lr=1e-3", "train.lr_multipliers={'references.proxies': 100}", "train.classes_per_batch=16",
          "train.samples_per_class=4", "train.max_steps=800", "train.eval_steps=100"],
}  # fmt: skip

FARTHEST, NEAREST = "regularizer.toward=farthest", "regularizer.toward=nearest"
TRIED: Sequence[tuple[str, str, Sequence[str], Sequence[float]]] = [
    ("r1", "farthest, gamma 10", [FARTHEST, "regularizer.gamma=10"], (0.3, 3, 10, 30, 100)),
    ("r1", "farthest, gamma 2", [FARTHEST, "regularizer.gamma=2"], (10,)),
    ("r1", "farthest, gamma 30", [FARTHEST, "regularizer.gamma=30"], (10,)),
    ("r1", "nearest, gamma 10", [NEAREST, "regularizer.gamma=10"], (0.3, 3, 10)),
    ("r1", "nearest, gamma 2", [NEAREST, "regularizer.gamma=2"], (10,)),
    ("r2", "cosine, nearest, t 4", [NEAREST, "regularizer.measure=cosine", "regularizer.t=4"], (1, 10)),
    ("r2", "cosine, farthest, t 4", [FARTHEST, "regularizer.measure=cosine", "regularizer.t=4"], (1, 10, 30)),
    ("r2", "distance, farthest, t 10", [FARTHEST, "regularizer.measure=distance", "regularizer.t=10"], (3, 10)),
    ("hard", "cosine, nearest, K 1", [NEAREST, "regularizer.measure=cosine", "regularizer.k=1"], (1,)),
    ("hard", "cosine, farthest, K 8", [FARTHEST, "regularizer.measure=cosine", "regularizer.k=8"], (3, 10)),
    ("uniformface", "", [], (0.3, 3, 30)),
    ("mhe", "s 2", ["regularizer.s=2"], (0.1, 1, 10)),
]
"""Regularizer, description and config of its settings, and weights, of the runs of 800 steps."""

Key = tuple[str, str, float | None]
NONE: Key = ("none", "", None)
THREE_SEEDS = {NONE, ("r1", "farthest, gamma 10", 10), ("r1", "nearest, gamma 10", 0.3)}
TEXT = (
    "MAP@R in percent on the 89 validation classes of the bundled emoji dataset, which also select the weights. Frozen "
    "backbone, GSP, 128-D, Proxy-Anchor, AdamW. 800 steps: learning rate 1e-3, proxies x100, batches of 16 x 4. "
    "120 steps: 3e-3, proxies x10, 32 x 2."
)


def variants(steps: int) -> dict[Key, list[str]]:
    """Return the overrides of each variant."""
    tried = TRIED if steps == 800 else [("r1", "farthest", [FARTHEST], (0.3, 1, 3, 10))]
    found: dict[Key, list[str]] = {NONE: []}
    for name, settings, overrides, weights in tried:
        for weight in weights:
            found[name, settings, weight] = [f"regularizer={name}", *overrides, f"regularizer.weight={weight:g}"]
    return found


def train_one(overrides: list[str], folder: Path, cache: RunCache) -> RunResult:
    """Train a run, resume a started one, or read a finished one."""
    run = RunDir(folder)
    if (result := run.read_result()) is not None:
        return result
    print(f"training {folder}", flush=True)
    return train(load_config(None, overrides), run, resume=run.config_file.is_file(), cache=cache)


def measure(steps: int, folder: Path, cache: RunCache) -> dict[Key, list[RunResult]]:
    """Return the results of each variant: three seeds for the short runs and selected long ones, else one."""
    results: dict[Key, list[RunResult]] = {}
    for key, overrides in variants(steps).items():
        name = ", ".join(str(part) for part in key if part not in ("", None))
        seeds = (0, 1, 2) if steps == 120 or key in THREE_SEEDS else (0,)
        results[key] = [
            train_one([*COMMON, *SCHEDULE[steps], *overrides, f"seed={seed}"], folder / f"{name}, seed {seed}", cache)
            for seed in seeds
        ]
    return results


def to_row(steps: int, key: Key, results: Sequence[RunResult]) -> dict[str, Any]:
    """Return a row of the table; the column names are those of the first published file."""
    values = [100 * one.metrics["val"]["MAP@R"] for one in results]
    row: dict[str, Any] = {"steps": steps, "centres": key[0], "settings": key[1], "weight": key[2]}
    row |= {f"seed {seed}": round(values[seed], 2) if seed < len(values) else None for seed in (0, 1, 2)}
    return {**row, "mean": round(statistics.mean(values), 2) if len(values) > 1 else None}


def main(folder: Path, lengths: Sequence[int]) -> None:
    """Train all missing runs and write the tables."""
    cache = RunCache()
    found = {steps: measure(steps, folder / str(steps), cache) for steps in lengths}
    rows = [to_row(steps, key, results) for steps, by_key in found.items() for key, results in by_key.items()]
    write_text(TARGET.with_suffix(".md"), f"# Weights of center regularizers\n\n{TEXT}\n\n{to_markdown(rows)}")
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(TARGET.with_suffix(".csv"), table.getvalue())
    runs = [
        {
            "method": ", ".join(map(str, key)),
            **{k: v for k, v in one.to_dict().items() if k not in ("config", "command")},
        }
        for by_key in found.values()
        for key, results in by_key.items()
        for one in results
    ]
    content = {
        **collect_provenance().to_dict(),
        "command": " ".join(["python scripts/center_weights.py FOLDER", *map(str, lengths)]),
        "text": TEXT,
        "settings": {f"{steps} steps": [*COMMON, *SCHEDULE[steps]] for steps in lengths},
        "rows": rows,
        "runs": runs,
    }
    write_text(TARGET.with_suffix(".json"), json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), [int(steps) for steps in sys.argv[2:]] or list(SCHEDULE))
