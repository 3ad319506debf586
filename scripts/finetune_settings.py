"""Choose the settings of the study finetune-classes on its validation classes.

    python scripts/finetune_settings.py IMAGES [WORK]

IMAGES is a folder of CIFAR-100. Each setting trains both losses of the study alone, seed 0, for as many steps; test
classes are not evaluated. WORK keeps the class folders, the pretrained network, and the runs, so the script can be
interrupted; the study can use it as its folder. Writes results/finetune_settings.json. Takes minutes on a GPU.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from winnow.data import load_images
from winnow.studies import StudyRequest
from winnow.studies.finetune_small import (
    BASE,
    FINETUNE_CLASSES,
    HELD_OUT,
    LOSSES,
    MORE_CLASSES,
    RECIPES,
    images_of,
    prepare_classes,
    weights_of,
)
from winnow.studies.pretraining import pretrain, read_record
from winnow.training import RunDir, load_config
from winnow.training.parallel import train_in_parallel
from winnow.training.results import collect_provenance
from winnow.training.sweep import PlannedRun

RESULT = Path(__file__).resolve().parents[1] / "results/finetune_settings.json"
COMMON = ["train.max_steps=1500", "train.eval_steps=100", "train.patience=100", "train.test_curve=false",
          "train.run_test=false", "seed=0"]  # fmt: skip
FAST = "train.lr=1e-3"
SETTINGS: Mapping[str, Sequence[str]] = {
    "3e-4, repeated": ["train.lr=3e-4"],
    "1e-3, repeated": [FAST],
    "3e-4": ["train.lr=3e-4"],
    "1e-3": [FAST],
    "3e-3": ["train.lr=3e-3"],
    "1e-3, 32 x 4": [FAST, "train.classes_per_batch=32"],
    "1e-3, color and erasing": [FAST, "augment.color_jitter=0.4", "augment.random_erasing=0.25"],
    "1e-3, weight decay 5e-4": [FAST, "train.weight_decay=5e-4"],
    "1e-3, cosine": [FAST, "train.schedule=cosine"],
}


def main(images: Path, work: Path) -> None:
    request = StudyRequest(FINETUNE_CLASSES.scales["full"], work, images, note=print)
    located = prepare_classes(request, MORE_CLASSES)
    seen, held_out = (load_images(str(images_of(request) / part)) for part in ("pretrain", HELD_OUT))
    pretrain(weights_of(request), seen, held_out, RECIPES["full"], note=print)
    shared = [
        *BASE.to_args(),
        "backbone.freeze_batch_norm=false",
        *located.to_args(),
        f"backbone.weights={weights_of(request)}",
        *COMMON,
    ]
    runs = {
        (name, loss): PlannedRun({"setting": name, "loss": loss}, load_config(None, [*shared, *its.to_args(), *words]),
                                 RunDir(work / "settings" / f"{loss}-{number}"))
        for number, (name, words) in enumerate(SETTINGS.items()) for loss, its in LOSSES.items()
    }  # fmt: skip
    for outcome in train_in_parallel(list(runs.values()), on_end=lambda one: print(one.run.name, flush=True)):
        if outcome.error is not None:
            raise outcome.error
    rows = []
    for (name, loss), run in runs.items():
        values = {entry.step: 100 * entry.val["MAP@R"] for entry in run.run_dir.read_history()}
        last = max(values)
        late = statistics.fmean(value for step, value in values.items() if 3 * step > 2 * last)
        rows.append(
            {
                "setting": name, "loss": loss, "before": round(values[0], 2), "last third": round(late, 2),
                "gain": round(late - values[0], 2), "curve": [round(one, 2) for one in values.values()],
            }
        )  # fmt: skip
    rows.sort(key=lambda row: -row["gain"])
    for row in rows:
        print({key: value for key, value in row.items() if key != "curve"})
    result = {**collect_provenance().to_dict(), "command": f"python {shlex.join(sys.argv)}",
              "about": "validation MAP@R in percent, losses alone, seed 0; settings named repeated equal those without "
              "this word", "common": shared,
              "settings": SETTINGS, "pretraining": read_record(weights_of(request)), "rows": rows}  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "runs/finetune-settings"))
