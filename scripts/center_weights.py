"""Measure weights of center regularizers with Proxy-Anchor, on the validation classes of the bundled emoji.

`python scripts/center_weights.py FOLDER [120] [800]`

Trains 15 runs of 120 steps, a few minutes on one core, and 34 of 800, a quarter of an hour, or only the runs of one
length. Finished runs in FOLDER are not trained again. Writes results/center_weights.md, .csv, and .json, whose rows are
on the page on regularizers.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.files import write_text
from winnow.report.tables import Column, columns_of, to_csv, to_markdown
from winnow.studies.runner import folder_name
from winnow.studies.settings import EMOJI_BASE, component, gsp, train
from winnow.training import RunDir, load_config
from winnow.training.overrides import Overrides
from winnow.training.parallel import train_in_parallel
from winnow.training.results import collect_provenance
from winnow.training.sweep import PlannedRun

TARGET = Path(__file__).resolve().parents[1] / "results" / "center_weights"
TITLE = "Weights of center regularizers"
SETTING = (
    "MAP@R (%) on the 89 validation classes of the bundled emoji, with the best weights on the same classes; frozen "
    "EfficientNet-Lite0, GSP, 128-D, Proxy-Anchor, AdamW. 800 steps: learning rate 1e-3, proxies x100, batches of 16 x "
    "4. 120 steps: 3e-3, proxies x10, 32 x 2."
)
BASE = EMOJI_BASE | gsp(0.05, 20) | component("loss", "proxy_anchor") | Overrides({"dim": 128})
BASE |= train(optimizer="adamw")
LENGTHS = {
    120: BASE | train(lr="3e-3", lr_multipliers={"references.proxies": 10}, classes_per_batch=32, samples_per_class=2,
                      max_steps=120, eval_steps=40),
    800: BASE | train(lr="1e-3", lr_multipliers={"references.proxies": 100}, classes_per_batch=16, samples_per_class=4,
                      max_steps=800, eval_steps=100),
}  # fmt: skip
SEEDS = (0, 1, 2)
NONE = ("none", "", None)
SHORT_WEIGHTS = (0.3, 1, 3, 10)
TRIED: Sequence[tuple[str, str, Mapping[str, Any], Sequence[float]]] = [
    ("r1", "farthest, gamma 10", {"toward": "farthest", "gamma": 10}, (0.3, 3, 10, 30, 100)),
    ("r1", "farthest, gamma 2", {"toward": "farthest", "gamma": 2}, (10,)),
    ("r1", "farthest, gamma 30", {"toward": "farthest", "gamma": 30}, (10,)),
    ("r1", "nearest, gamma 10", {"toward": "nearest", "gamma": 10}, (0.3, 3, 10)),
    ("r1", "nearest, gamma 2", {"toward": "nearest", "gamma": 2}, (10,)),
    ("r2", "cosine, nearest, t 4", {"toward": "nearest", "measure": "cosine", "t": 4}, (1, 10)),
    ("r2", "cosine, farthest, t 4", {"toward": "farthest", "measure": "cosine", "t": 4}, (1, 10, 30)),
    ("r2", "distance, farthest, t 10", {"toward": "farthest", "measure": "distance", "t": 10}, (3, 10)),
    ("hard", "cosine, nearest, K 1", {"toward": "nearest", "measure": "cosine", "k": 1}, (1,)),
    ("hard", "cosine, farthest, K 8", {"toward": "farthest", "measure": "cosine", "k": 8}, (3, 10)),
    ("uniformface", "", {}, (0.3, 3, 30)),
    ("mhe", "s 2", {"s": 2}, (0.1, 1, 10)),
]
REPEATED = {NONE, ("r1", "farthest, gamma 10", 10), ("r1", "nearest, gamma 10", 0.3)}
"""Long runs with three seeds."""


@dataclass(frozen=True)
class Tried:
    """Row of the table: a regularizer with its weight."""

    steps: int
    name: str
    details: str
    weight: float | None
    settings: Overrides
    seeds: tuple[int, ...] = SEEDS

    @property
    def label(self) -> str:
        return ", ".join(str(one) for one in (self.name, self.details, self.weight) if one not in ("", None))

    def plan(self, folder: Path, seed: int) -> PlannedRun:
        args = [*(LENGTHS[self.steps] | self.settings).to_args(), f"seed={seed}"]
        run_dir = RunDir(folder / str(self.steps) / f"{folder_name(self.label)}-seed{seed}")
        return PlannedRun({"method": self.label, "seed": str(seed)}, load_config(None, args), run_dir)


def rows_of(steps: int) -> Iterator[Tried]:
    """Yield all that is tried with a number of steps."""
    yield Tried(steps, *NONE, Overrides())
    if steps == 120:
        for weight in SHORT_WEIGHTS:
            yield Tried(
                steps, "r1", "farthest", weight, component("regularizer", "r1", toward="farthest", weight=weight)
            )
        return
    for name, details, values, weights in TRIED:
        for weight in weights:
            seeds = SEEDS if (name, details, weight) in REPEATED else SEEDS[:1]
            yield Tried(steps, name, details, weight, component("regularizer", name, **values, weight=weight), seeds)


def main(folder: Path, lengths: Sequence[int]) -> None:
    """Train the missing runs and write the table."""
    provenance = collect_provenance().to_dict()
    plan = {one: [one.plan(folder, seed) for seed in one.seeds] for steps in lengths for one in rows_of(steps)}
    # All settings with the first seed before any with the second.
    order = sorted((run for runs in plan.values() for run in runs), key=lambda run: run.config.seed)
    train_in_parallel(order, on_end=lambda outcome: print(outcome.run.name, outcome.error or "", flush=True))
    rows, records = [], []
    for one, runs in plan.items():
        results = {run.config.seed: result for run in runs if (result := run.run_dir.read_result()) is not None}
        scores = {seed: 100 * result.metrics["val"]["MAP@R"] for seed, result in results.items()}
        row = {"steps": one.steps, "regularizer": one.name, "settings": one.details, "weight": one.weight}
        row |= {f"seed {seed}": round(scores[seed], 2) if seed in scores else None for seed in SEEDS}
        rows.append({**row, "mean": round(statistics.mean(scores.values()), 2) if len(scores) > 1 else None})
        for seed, result in results.items():
            shown = result.to_dict()
            kept = {
                key: shown[key] for key in ("commit", "machine", "versions", "metrics", "steps", "best_step", "seconds")
            }
            records.append({"method": one.label, "seed": seed, **kept, "planned steps": one.steps})
    content = {
        **provenance, "command": " ".join(["python scripts/center_weights.py FOLDER", *map(str, lengths)]),
        "setting": SETTING, "settings": {f"{steps} steps": LENGTHS[steps].to_args() for steps in lengths},
        "rows": rows, "runs": records,
    }  # fmt: skip
    write(content)


def write(content: Mapping[str, Any]) -> None:
    """Write the three files of a result."""
    rows = content["rows"]
    columns = [
        Column(one.key, digits=2, align=one.align) if one.key.startswith(("seed", "mean")) else one
        for one in columns_of(rows)
    ]
    table = to_markdown(rows, columns)
    write_text(TARGET.with_suffix(".md"), f"# {TITLE}\n\n{content['setting']}\n\n{table}")
    write_text(TARGET.with_suffix(".csv"), to_csv(rows))
    write_text(TARGET.with_suffix(".json"), json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(arg) for arg in sys.argv[2:]] or list(LENGTHS))
