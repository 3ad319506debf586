"""Measure what weights of centre regularisers do beside Proxy-Anchor, by the embedded set's validation classes.

python scripts/centre_weights.py FOLDER 120 800

Trains 15 runs of 120 steps, a few minutes on one core, and 34 of 800, a quarter of an hour, or those of one length
alone. They are kept in FOLDER, and finished ones are not trained again. Writes results/centre_weights.md, .csv and
.json with what was asked for, from which the page on centres has its tables.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.files import write_text
from winnow.studies import Task
from winnow.studies.base import markdown_rows
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import records
from winnow.studies.poolings import WORDS
from winnow.training.cache import RunCache
from winnow.training.results import collect_provenance

TARGET = Path(__file__).resolve().parents[1] / "results" / "centre_weights"
GSP = ["pooling=gsp", "pooling.mu=0.05", "pooling.eps=20", "dim=128", "train.optimizer=adamw"]
LONG = [*WORDS, *GSP, "loss=proxy_anchor", "train.lr=1e-3", "train.lr_multipliers={'references.proxies': 100}",
        "train.classes_per_batch=16", "train.samples_per_class=4", "train.max_steps=800",
        "train.eval_steps=100"]  # fmt: skip
SHORT = [*WORDS, *GSP, "loss=proxy_anchor", "train.lr=3e-3", "train.lr_multipliers={'references.proxies': 10}",
         "train.classes_per_batch=32", "train.samples_per_class=2", "train.max_steps=120",
         "train.eval_steps=40"]  # fmt: skip
FARTHEST, NEAREST = ["regularizer.toward=farthest"], ["regularizer.toward=nearest"]
TRIED: Sequence[tuple[str, str, Sequence[str], Sequence[float]]] = [
    ("r1", "farthest, gamma 10", [*FARTHEST, "regularizer.gamma=10"], (0.3, 3, 10, 30, 100)),
    ("r1", "farthest, gamma 2", [*FARTHEST, "regularizer.gamma=2"], (10,)),
    ("r1", "farthest, gamma 30", [*FARTHEST, "regularizer.gamma=30"], (10,)),
    ("r1", "nearest, gamma 10", [*NEAREST, "regularizer.gamma=10"], (0.3, 3, 10)),
    ("r1", "nearest, gamma 2", [*NEAREST, "regularizer.gamma=2"], (10,)),
    ("r2", "cosine, nearest, t 4", [*NEAREST, "regularizer.measure=cosine", "centres.t=4"], (1, 10)),
    ("r2", "cosine, farthest, t 4", [*FARTHEST, "regularizer.measure=cosine", "centres.t=4"], (1, 10, 30)),
    ("r2", "distance, farthest, t 10", [*FARTHEST, "regularizer.measure=distance", "centres.t=10"], (3, 10)),
    ("hard", "cosine, nearest, K 1", [*NEAREST, "regularizer.measure=cosine", "regularizer.k=1"], (1,)),
    ("hard", "cosine, farthest, K 8", [*FARTHEST, "regularizer.measure=cosine", "regularizer.k=8"], (3, 10)),
    ("uniformface", "", [], (0.3, 3, 30)),
    ("mhe", "s 2", ["regularizer.s=2"], (0.1, 1, 10)),
]
THRICE = {("none", "", None), ("r1", "farthest, gamma 10", 10), ("r1", "nearest, gamma 10", 0.3)}
WEIGHTS = (0.3, 1, 3, 10)

Key = tuple[str, str, float | None]
Found = dict[Key, list[dict[str, Any]]]


def tried() -> dict[Key, list[str]]:
    """Return the words of everything that is tried in the long training."""
    found: dict[Key, list[str]] = {("none", "", None): []}
    for name, settings, words, weights in TRIED:
        found |= {(name, settings, weight): [f"regularizer={name}", *words, f"regularizer.weight={weight:g}"]
                  for weight in weights}  # fmt: skip
    return found


def train(words: Sequence[str], methods: Mapping[Key, Sequence[str]], seeds: Sequence[int], task: Task) -> Found:
    """Return the runs of some methods by their key."""
    named = {", ".join(str(part) for part in key if part not in ("", None)): key for key in methods}
    compared = Comparison([Method(name, methods[key]) for name, key in named.items()], seeds=seeds, words=words)
    found = compared.train(task)
    return {named[name]: runs for name, runs in found.items()}


def validated(runs: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return MAP@R on the validation classes in percent, by seed."""
    return {run["config"]["seed"]: 100 * run["metrics"]["val"]["MAP@R"] for run in runs}


def long(task: Task) -> Found:
    """Return everything that was tried after 800 steps, some of it with three seeds."""
    everything = tried()
    once = train(LONG, everything, (0,), task)
    return once | train(LONG, {key: everything[key] for key in everything if key in THRICE}, (0, 1, 2), task)


def short(task: Task) -> Found:
    """Return R1 toward the farthest after 120 steps."""
    weights: dict[Key, list[str]] = {("none", "", None): []}
    for weight in WEIGHTS:
        weights["r1", "farthest", weight] = ["regularizer=r1", *FARTHEST, f"regularizer.weight={weight:g}"]
    return train(SHORT, weights, (0, 1, 2), task)


LENGTHS = {120: (short, SHORT), 800: (long, LONG)}


def main(folder: Path, lengths: Sequence[int]) -> None:
    """Train what is not trained yet and write the tables."""
    shared = RunCache()
    tables = {steps: LENGTHS[steps][0](Task(small=True, runs=folder / str(steps), note=print, shared=shared))
              for steps in lengths}  # fmt: skip
    rows: list[dict[str, Any]] = []
    for steps, found in tables.items():
        for (name, settings, weight), runs in found.items():
            by_seed = validated(runs)
            row = {"steps": steps, "centres": name, "settings": settings, "weight": weight}
            row |= {f"seed {seed}": round(by_seed[seed], 2) if seed in by_seed else None for seed in (0, 1, 2)}
            mean = round(statistics.mean(by_seed.values()), 2) if len(by_seed) > 1 else None
            rows.append({**row, "mean": mean})
    text = (
        "MAP@R in percent on the 89 validation classes of the embedded set, best weights by the same; a frozen "
        "backbone, GSP, 128-D, Proxy-Anchor and AdamW. 800 steps: learning rate 1e-3, proxies x100, batches of 16 x 4. "
        "120 steps: 3e-3, proxies x10, 32 x 2."
    )
    write_text(
        TARGET.with_suffix(".md"), f"# Weights of centre regularisers\n\n{text}\n\n{markdown_rows(rows, list(rows[0]))}"
    )
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(TARGET.with_suffix(".csv"), table.getvalue())
    runs = [{**one, "steps asked": steps} for steps, found in tables.items()
            for one in records({", ".join(map(str, key)): runs for key, runs in found.items()})]  # fmt: skip
    for one in runs:
        del one["config"], one["command"]  # the words below, and this script's
    command = " ".join(["python scripts/centre_weights.py FOLDER", *map(str, lengths)])
    words = {f"{steps} steps": LENGTHS[steps][1] for steps in lengths}
    content = {**collect_provenance().to_dict(), "command": command, "text": text, "settings": words,
               "rows": rows, "runs": runs}  # fmt: skip
    write_text(TARGET.with_suffix(".json"), json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]] or list(LENGTHS))
