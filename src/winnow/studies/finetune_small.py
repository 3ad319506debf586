"""Fine-tuning a small network on class-disjoint CIFAR-100: averaged weights and CCP over whole curves."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.data import ImageSet, load_images
from winnow.data.datasets import DATASETS
from winnow.files import make_folder
from winnow.report.figures import method_curves
from winnow.studies.pretraining import Recipe, pretrain, read_record
from winnow.studies.runner import Runs, StudyRun, grid_measurement, restore_grid, train_grid
from winnow.studies.scores import Scores
from winnow.studies.settings import NOTHING, component, scales, train
from winnow.studies.spec import (
    Claim,
    Column,
    DataNeed,
    Evidence,
    GridStudy,
    Measurement,
    Scale,
    Size,
    StudyRequest,
    Variant,
)
from winnow.studies.synthetic_images import write_cifar
from winnow.training.overrides import Overrides
from winnow.training.results import Metrics, ValidationEntry
from winnow.training.sweep import validation_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --- Images -----------------------------------------------------------------------------------------------------------

Classes = Mapping[str, int]
"""Number of classes of CIFAR-100 in each role; no class has two."""
CLASSES: Classes = {"pretrain": 30, "train": 45, "val": 10, "test": 15}
MORE_CLASSES: Classes = {"pretrain": 15, "train": 60, "val": 10, "test": 15}
HELD_OUT = "held out"
"""Folder of images of the pretraining classes that measure the accuracy."""
UNSEEN = "unseen"
"""Folder of the other classes, which are split into training, validation, and test classes."""
Counts = Mapping[str, int]
"""Images per class in each role, and `HELD_OUT` ones."""
COUNTS: Mapping[Size, Counts] = {
    "quick": {"pretrain": 8, HELD_OUT: 2, "train": 10, "val": 10, "test": 10},
    "full": {"pretrain": 150, HELD_OUT: 20, "train": 200, "val": 120, "test": 200},
}
RECIPES: Mapping[Size, Recipe] = {
    "quick": Recipe(epochs=2, batch=32, lr=0.05), "full": Recipe(epochs=25, batch=128, lr=0.1),
}  # fmt: skip
SYNTHETIC = (10, 1)
"""Training and test images per class of the synthetic files."""


def class_roles(classes: Classes, seed: int = 0) -> dict[str, list[int]]:
    """Return the labels of each role, in random order."""
    order = np.random.default_rng(seed).permutation(sum(classes.values())).tolist()
    ends = np.cumsum(list(classes.values())).tolist()
    return {
        role: order[end - count : end] for (role, count), end in zip(classes.items(), ends, strict=True)
    }  # fmt: skip


def first_images(images: ImageSet, label: int, count: int) -> list[int]:
    """Return the positions of the images of a class with the smallest checksums of their pixels.

    The choice does not depend on the order of the images, which the files of CIFAR-100 and class folders have
    differently.
    """
    rows = np.flatnonzero(images.labels == label).tolist()
    checksums = {row: zlib.crc32(np.asarray(images.read(row)).tobytes()) for row in rows}
    return sorted(rows, key=lambda row: (checksums[row], row))[:count]


def write_classes(folder: Path, images: ImageSet, classes: Classes, counts: Counts) -> Path:
    """Write the images of all roles as class folders, unless the folder exists; return the folder.

    Args:
        folder: Target folder.
        images: Training images of CIFAR-100.
        classes: Classes in each role.
        counts: Images per class; of the pretraining classes the last ones are held out.
    """
    if folder.is_dir():
        return folder
    make_folder(folder.parent)
    position = 0
    with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        target = Path(parent) / folder.name
        for role, labels in class_roles(classes).items():
            for label in labels:
                kept = counts[role]
                wanted = kept + (counts[HELD_OUT] if role == "pretrain" else 0)
                for number, row in enumerate(first_images(images, label, wanted)):
                    part = UNSEEN if role != "pretrain" else "pretrain" if number < kept else HELD_OUT
                    own = target / part / f"{position:02d} {images.class_names[label]}"
                    own.mkdir(parents=True, exist_ok=True)
                    images.read(row).save(own / f"{number:03d}.png", optimize=True)
                position += 1
        shutil.move(target, folder)  # in one step, so a folder that exists is complete
    return folder


def images_of(request: StudyRequest) -> Path:
    """Return the folder of the class folders, which is written once."""
    return request.runs / "classes"


def weights_of(request: StudyRequest) -> Path:
    """Return the file of the pretrained weights."""
    return request.runs / "pretrained.safetensors"


def prepare_classes(request: StudyRequest, classes: Classes) -> Overrides:
    """Write the class folders: of CIFAR-100, or at the quick size of synthetic images unless a folder is requested."""
    folder = images_of(request)
    if request.train and not folder.is_dir():
        root = request.data
        if request.quick and root is None:
            root = request.runs / "cifar100"
            write_cifar(root, train=SYNTHETIC[0], test=SYNTHETIC[1])
        write_classes(folder, DATASETS["cifar100"].load(root).train, classes, COUNTS[request.scale.name])
    spans, first = {}, 1
    for split in ("train", "val", "test"):
        spans[f"{split}_classes"] = f"{first}-{first + classes[split] - 1}"
        first += classes[split]
    return Overrides({"data": {"path": str(folder / UNSEEN), **spans}})


# --- Variants ---------------------------------------------------------------------------------------------------------

BASE = Overrides.parse(
    "backbone=resnet20", "backbone.train=full", "image.resize=32", "image.crop=32", "pooling=gap", "dim=64",
    "augment.scale=[0.25, 1.0]", "train.classes_per_batch=16", "train.samples_per_class=4", "train.eval_batch_size=500",
    "train.average=0", "train.test_curve=true",
)  # fmt: skip
LOSSES = {"C2": component("loss", "c2", pos_margin=0, neg_margin=1), "MS": component("loss", "ms")}
PROXIES = "references.proxies"


def _ccp(*, moving: bool) -> Overrides:
    """Return the settings of CCP as its text has it, or with normalized proxies at a rate of their own."""
    settings = component(
        "references", "ccp", proxies_per_class=8, pool_size=12, patience=2, normalize_proxies=moving,
        start_from="best" if moving else "last",
    )  # fmt: skip
    return settings | train(lr_multipliers={PROXIES: 100 if moving else 1})


def _mended(**values: object) -> Overrides:
    """Return the settings of CCP in fine-tuning on more classes."""
    return component("references", "ccp", **({"patience": 2, "lr_multiplier": 10} | values))


AVERAGED = train(average=0.998)
ALONE, AVERAGE, LITERAL, MOVING, BOTH, ALTERNATING = (
    "alone", "averaged", "+ CCP, literal", "+ CCP, moving", "+ CCP, moving, averaged", "+ CCP, alternating",
)  # fmt: skip
Forms = Mapping[str, Overrides]
"""Settings of the forms of a loss."""
FORMS: Forms = {
    ALONE: NOTHING, AVERAGE: AVERAGED, LITERAL: _ccp(moving=False), MOVING: _ccp(moving=True),
    BOTH: _ccp(moving=True) | AVERAGED,
}  # fmt: skip
MORE_FORMS: Forms = {
    ALONE: NOTHING, AVERAGE: AVERAGED,
    LITERAL: _mended(normalize_proxies=False, lr_multiplier=1, start_from="last"), MOVING: _mended(),
    BOTH: _mended() | AVERAGED, ALTERNATING: _mended(max_steps=100),
}  # fmt: skip


def name_of(loss: str, form: str) -> str:
    """Return the name of a variant."""
    return f"{loss} {form}" if form.startswith("+") else f"{loss}, {form}"


def _variants(forms: Forms, scale: Scale) -> Iterator[Variant]:
    for loss, its in LOSSES.items():
        for form, settings in forms.items():
            yield Variant(name_of(loss, form), its | settings, loss)


# --- Numbers of a run -------------------------------------------------------------------------------------------------

BEFORE, LATE, TURN = "before training", "last third", "turn of proxies"


def measure_run(run: StudyRun, history: Sequence[ValidationEntry]) -> dict[str, float | None]:
    """Return MAP@R on test classes before training and in the last third of it, in percent, and the proxies' turn.

    The turn is the angle in degrees between the proxies as selected and at the end of the first subproblem.
    """
    late = [entry for entry in history if 3 * entry.step > 2 * run.result.steps]

    def mean_of(each: Sequence[Metrics]) -> float:
        return 100 * statistics.fmean(one["MAP@R"] for one in each)

    turn = run.result.problems[0].rotation_degrees if run.result.problems else None
    return {BEFORE: mean_of([history[0].test]), LATE: mean_of([entry.test for entry in late]), TURN: turn}


def _column(name: str) -> Column:
    def value(runs: Sequence[StudyRun]) -> float | None:
        found = [one for run in runs if (one := run.measured.get(name)) is not None]
        return round(statistics.mean(found), 2) if found else None

    return Column(name, value)


def _deviation(runs: Sequence[StudyRun]) -> float | None:
    found = [one for run in runs if (one := run.measured.get(LATE)) is not None]
    return round(statistics.stdev(found), 2) if len(found) > 1 else None


# --- Claims -----------------------------------------------------------------------------------------------------------


def _improves(name: str, base: str, column: str) -> Callable[[Scores], Evidence]:
    def check(s: Scores) -> Evidence:
        ours, theirs = s.cell(name, column), s.cell(base, column)
        return Evidence(f"{ours:.2f} and {theirs:.2f}", ours - theirs)

    return check


def _gains(name: str) -> Callable[[Scores], Evidence]:
    def check(s: Scores) -> Evidence:
        before, after = s.cell(name, BEFORE), s.cell(name, LATE)
        return Evidence(f"{before:.2f} to {after:.2f}", after - before)

    return check


def _claims(forms: Forms) -> Iterator[Claim]:
    for loss in LOSSES:
        alone, average, literal, moving, both = (name_of(loss, form) for form in FORMS)
        yield Claim(f"{loss}: fine-tuning gains on the test classes, last third", "new", _gains(alone))
        compared = [
            ("averaged weights improve the loss alone", "new", average, alone),
            ("CCP, literal, improves the loss alone", "[Thesis], Table 3.1", literal, alone),
            ("CCP, moving, improves the loss alone", "[Thesis], Table 3.1", moving, alone),
            ("CCP, moving, improves CCP, literal", "new", moving, literal),
            ("CCP, moving, improves averaged weights of the loss alone", "new", moving, average),
            ("CCP, moving and averaged, improves averaged weights of the loss alone", "new", both, average),
        ]
        if ALTERNATING in forms:
            mended = name_of(loss, ALTERNATING)
            compared += [
                ("CCP, alternating, improves the loss alone", "[Thesis], Table 3.1", mended, alone),
                ("CCP, alternating, improves CCP, moving", "new", mended, moving),
            ]
        for text, source, ours, theirs in compared:
            for column, when in (("MAP@R", "early stop"), (LATE, LATE)):
                yield Claim(f"{loss}: {text}, {when}", source, _improves(ours, theirs, column))


# --- Study ------------------------------------------------------------------------------------------------------------

Curves = Mapping[str, Sequence[Mapping[str, Sequence[float]]]]
"""Columns of the validations of each run, by variant."""


@dataclass(frozen=True, kw_only=True)
class FinetuneSmall(GridStudy):
    """Grid whose runs start from one pretrained network and are measured over their whole curves.

    Attributes:
        classes: Classes in each role.
        forms: Settings of the forms of each loss.
    """

    classes: Classes
    forms: Forms

    def located(self, request: StudyRequest) -> FinetuneSmall:
        """Return the study with the pretrained weights in its variants."""
        weights = Overrides({"backbone": {"weights": str(weights_of(request))}})

        def variants(scale: Scale) -> Iterator[Variant]:
            for one in self.variants(scale):
                yield replace(one, settings=one.settings | weights)

        return replace(self, variants=variants)

    def measure(self, request: StudyRequest) -> Measurement:
        """Pretrain the network, train the missing runs, and return the table with the curves."""
        located, folder, weights = self.located(request), images_of(request), weights_of(request)
        if request.train:
            prepare_classes(request, self.classes)
            seen, held_out = (load_images(str(folder / part)) for part in ("pretrain", HELD_OUT))
            pretrain(weights, seen, held_out, RECIPES[request.scale.name], note=request.note)
        measured: dict[str, list[StudyRun]] = {}
        curves: dict[str, list[dict[str, list[float]]]] = {}
        for name, runs in train_grid(located, request).items():
            logs = [run.run_dir.read_history() for run in runs if run.run_dir is not None]
            measured[name] = [replace(run, measured=measure_run(run, log)) for run, log in zip(runs, logs, strict=True)]
            curves[name] = [validation_columns(log) for log in logs]
        table = grid_measurement(located, request.scale, measured)
        details: dict[str, Any] = {"pretraining": read_record(weights), "curves": curves}
        return replace(table, details={**table.details, **details}, artifacts={**table.artifacts, "curves": curves})

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement from a result file, with its curves."""
        table = restore_grid(self, content)
        return replace(table, artifacts={**table.artifacts, "curves": content["curves"]})

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the curves of each loss: C2 in the main figure."""
        curves, runs = measured.artifacts.get("curves", {}), measured.artifacts.get("runs", {})
        drawn = {loss: draw_curves(loss, self.forms, curves, runs) for loss in LOSSES}
        suffixes = {loss: "" if number == 0 else loss.lower() for number, loss in enumerate(LOSSES)}
        return {suffixes[loss]: figure for loss, figure in drawn.items() if figure is not None}


def draw_curves(loss: str, forms: Forms, curves: Curves, runs: Runs) -> Figure | None:
    """Draw validation and test curves of the variants of a loss; None without runs."""
    shown = {form: curves.get(name_of(loss, form), ()) for form in forms}
    histories = {
        form: [[dict(zip(one, row, strict=True)) for row in zip(*one.values(), strict=True)] for one in each]
        for form, each in shown.items()
        if each
    }
    if not histories:
        return None
    stops = {form: statistics.fmean(run.result.best_step for run in runs[name_of(loss, form)]) for form in histories}
    return method_curves({_label(form): each for form, each in histories.items()},
                         {_label(form): stop for form, stop in stops.items()})  # fmt: skip


def _label(form: str) -> str:
    return form.removeprefix("+ ").replace("CCP, ", "CCP ")  # 20 characters at most


def _setting(classes: Classes, more: str) -> str:
    return (
        f"{classes['pretrain']} classes pretrain a ResNet-20 by classification; of the others {classes['train']} "
        f"train, {classes['val']} validate, and {classes['test']} test. The whole network is fine-tuned{more}. "
        "Averaged: decay 0.998"
    )


def _study(
    name: str, title: str, classes: Classes, forms: Forms, base: Overrides, steps: tuple[int, int], setting: str,
    costs: tuple[str, str],
) -> FinetuneSmall:  # fmt: skip
    """Return a study of this kind.

    Args:
        name: Name of the study.
        title: Title of its report.
        classes: Classes in each role.
        forms: Settings of the forms of each loss.
        base: Settings of all runs.
        steps: Steps of a run, and between validations.
        setting: Description of the setting.
        costs: Costs of both sizes.
    """
    need = partial(prepare_classes, classes=classes)
    quick, full = train(max_steps=20, eval_steps=5, patience=100), train(max_steps=steps[0], eval_steps=steps[1])
    return FinetuneSmall(
        name=name, title=title, measures="CCP, averages, whole curves", source="", group="Chance-constrained proxies",
        scales=scales(
            Scale("quick", base | quick, (0,), DataNeed("CIFAR-100 (synthetic by default)", prepare=need), costs[0],
                  f"Synthetic images in the files of CIFAR-100, 20 steps. {setting}.", trial=True),
            Scale("full", base | full | train(patience=100), (0, 1, 2), DataNeed("CIFAR-100", prepare=need), costs[1],
                  f"CIFAR-100 split by class, {steps[0]:,} steps. {setting}."),
        ),
        variants=partial(_variants, forms), claims=tuple(_claims(forms)), classes=classes, forms=forms,
        columns=(_column(LATE), Column(f"{LATE} std", _deviation), _column(BEFORE), _column(TURN)),
    )  # fmt: skip


FINETUNE_SMALL = _study(
    "finetune-small", "Averaged weights and CCP in fine-tuning", CLASSES, FORMS, BASE | train(lr="3e-4"), (600, 50),
    _setting(CLASSES, "; batches of 16 x 4, 64-D, learning rate 3e-4. Literal: raw proxies at the rate of the network, "
             "subproblems start from the last weights. Moving: normalized proxies at 100 times the rate, from the best "
             "weights"),
    ("2 minutes, 10 runs", "1 hour, 30 runs"),
)  # fmt: skip
FINETUNE_CLASSES = _study(
    "finetune-classes", "Averaged weights and CCP in fine-tuning on more classes", MORE_CLASSES, MORE_FORMS,
    BASE | component("backbone", "resnet20", freeze_batch_norm=False) | train(lr="1e-3"), (1500, 100),
    _setting(MORE_CLASSES, ", with batch norm; batches of 16 x 4, 64-D, learning rate 1e-3. Literal: raw proxies at "
             "the rate of the network, subproblems start from the last weights. Moving: normalized proxies at 10 times "
             "the rate, from the best weights. Alternating: the same with at most 100 steps per subproblem"),
    ("2 minutes, 12 runs", "3 hours, 36 runs"),
)  # fmt: skip
