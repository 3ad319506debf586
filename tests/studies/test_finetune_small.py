"""Fine-tuning on class-disjoint CIFAR-100: images, runs, numbers, claims, and a study of synthetic images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.studies.grids import made_up
from winnow.data import ArrayImages, load_images
from winnow.data.datasets.cifar import CIFAR100_CLASSES
from winnow.report.claims import Verdict
from winnow.studies import StudyRequest, finetune_small
from winnow.studies.finetune_small import (
    ALONE,
    AVERAGE,
    BEFORE,
    BOTH,
    CLASSES,
    FINETUNE_CLASSES,
    FINETUNE_SMALL,
    HELD_OUT,
    LATE,
    LITERAL,
    LOSSES,
    MORE_CLASSES,
    MOVING,
    UNSEEN,
    class_roles,
    first_images,
    measure_run,
    name_of,
    write_classes,
)
from winnow.studies.pretraining import Recipe
from winnow.studies.render import write_report
from winnow.studies.runner import StudyRun, plan_grid, run_study
from winnow.studies.scores import check_claims, seed_means
from winnow.studies.settings import train
from winnow.training import RunResult, ValidationEntry
from winnow.training.overrides import Overrides
from winnow.training.results import CCPProblem

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

FULL = FINETUNE_SMALL.scales["full"]


def noise(per_class: int, seed: int = 0) -> ArrayImages:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(100), per_class)
    pixels = rng.integers(0, 256, size=(len(labels), 32, 32, 3), dtype=np.uint8)
    return ArrayImages(pixels, labels, "noise", class_names=CIFAR100_CLASSES)


def test_no_class_has_two_roles() -> None:
    roles = class_roles(CLASSES)
    assert [len(labels) for labels in roles.values()] == list(CLASSES.values())
    assert sorted(label for labels in roles.values() for label in labels) == list(range(100))
    assert roles == class_roles(CLASSES)


def test_the_chosen_images_do_not_depend_on_their_order() -> None:
    images = noise(6)
    order = np.random.default_rng(1).permutation(len(images))
    shuffled = ArrayImages(images.pixels[order], images.labels[order], "noise", class_names=CIFAR100_CLASSES)
    for label in (0, 57):
        chosen = [[np.asarray(each.read(row)).tobytes() for row in first_images(each, label, 4)]
                  for each in (images, shuffled)]  # fmt: skip
        assert chosen[0] == chosen[1]
        assert len(set(chosen[0])) == 4


def test_class_folders_hold_the_images_of_their_role(tmp_path: Path) -> None:
    images = noise(5)
    counts = {"pretrain": 3, HELD_OUT: 2, "train": 4, "val": 1, "test": 2}
    folder = write_classes(tmp_path / "classes", images, CLASSES, counts)
    roles = class_roles(CLASSES)
    parts = {part: load_images(str(folder / part)) for part in ("pretrain", HELD_OUT, UNSEEN)}
    assert [len(one) for one in parts.values()] == [90, 60, 45 * 4 + 10 + 15 * 2]
    names = [name.partition(" ")[2] for name in parts[UNSEEN].class_names]
    assert names == [CIFAR100_CLASSES[label] for role in ("train", "val", "test") for label in roles[role]]
    assert not set(names) & {name.partition(" ")[2] for name in parts["pretrain"].class_names}
    seen = {path.read_bytes() for path in (folder / "pretrain").rglob("*.png")}
    assert not seen & {path.read_bytes() for path in (folder / HELD_OUT).rglob("*.png")}
    first = next((folder / UNSEEN).rglob("000.png"))
    label = CIFAR100_CLASSES.index(first.parent.name.partition(" ")[2])
    own = {np.asarray(images.read(row)).tobytes() for row in np.flatnonzero(images.labels == label)}
    assert np.asarray(Image.open(first)).tobytes() in own
    stamp = first.stat().st_mtime_ns
    write_classes(folder, images, CLASSES, counts)
    assert first.stat().st_mtime_ns == stamp


def test_forms_differ_in_what_their_names_say(tmp_path: Path) -> None:
    request = StudyRequest(FULL, tmp_path, train=False)
    plan = plan_grid(FINETUNE_SMALL.located(request), request)
    assert len(plan) == 30
    for variant, seed, run in plan:
        config: Any = run.config
        moving, averaged = "moving" in variant.name, "averaged" in variant.name
        assert config.train.average == (0.998 if averaged else 0)
        assert (config.references.name == "ccp") == ("CCP" in variant.name)
        if "CCP" in variant.name:
            assert config.references.normalize_proxies == moving
            assert config.references.start_from == ("best" if moving else "last")
            assert config.train.lr_multipliers == {"references.proxies": 100 if moving else 1}
        assert (config.loss.name, config.seed) == (variant.group.lower(), seed)
        assert config.train.test_curve
        assert config.train.select_weights == "best"
        assert config.train.patience > config.train.max_steps / config.train.eval_steps  # every run has a whole curve
        data = config.data
        assert (data.train_classes, data.val_classes, data.test_classes) == ("1-45", "46-55", "56-70")


def test_more_classes_have_a_form_with_new_proxies(tmp_path: Path) -> None:
    assert sum(MORE_CLASSES.values()) == sum(CLASSES.values()) == 100
    request = StudyRequest(FINETUNE_CLASSES.scales["full"], tmp_path, train=False)
    plan = plan_grid(FINETUNE_CLASSES.located(request), request)
    assert len(plan) == 36
    for variant, _, run in plan:
        config: Any = run.config
        assert not config.backbone.freeze_batch_norm
        assert (config.data.train_classes, config.data.test_classes) == ("1-60", "71-85")
        if "CCP" in variant.name:
            literal, alternating = "literal" in variant.name, "alternating" in variant.name
            assert config.references.normalize_proxies != literal
            assert config.references.lr_multiplier == (1 if literal else 10)
            assert config.references.max_steps == (100 if alternating else None)
    assert len(FINETUNE_CLASSES.claims) == len(FINETUNE_SMALL.claims) + 8


def test_numbers_of_a_run_are_of_its_test_curve() -> None:
    history = [
        ValidationEntry(step, 0.0, {}, {"MAP@R": 0.9}, None, {}, {"MAP@R": step / 1000}, {"MAP@R": 0.8})
        for step in range(0, 601, 100)
    ]
    problems = [CCPProblem(first_step=0, start=0.1, radius_after=1.0, turned=12.5)]
    result = RunResult.from_dict({"metrics": {}, "steps": 600, "problems": problems})
    found = measure_run(StudyRun("C2, alone", 0, result), history)
    assert found == {BEFORE: 0.0, LATE: pytest.approx(55.0), "turn of proxies": 12.5}  # of the steps 500 and 600


def test_claims_compare_both_numbers() -> None:
    late = {ALONE: 20.0, AVERAGE: 21.0, LITERAL: 17.0, MOVING: 20.5, BOTH: 22.0}
    stop = {ALONE: 20.0, AVERAGE: 20.0, LITERAL: 20.4, MOVING: 19.0, BOTH: 20.0}
    by_seed = {
        seed: [
            {"method": name_of(loss, form), "MAP@R": stop[form] + 0.01 * seed * (form != ALONE),
             LATE: late[form] + 0.01 * seed * (form != ALONE), BEFORE: 19.0}
            for loss in LOSSES
            for form in late
        ]
        for seed in FULL.seeds
    }  # fmt: skip
    blank = made_up(FINETUNE_SMALL, FULL, lambda variant, seed: 0.0)
    measured = replace(blank, rows=seed_means(by_seed), exact=seed_means(by_seed), by_seed=by_seed)
    found = {one.text: one for one in check_claims(FINETUNE_SMALL.claims, measured, FULL)}
    assert len(found) == len(FINETUNE_SMALL.claims)
    for loss in LOSSES:
        literal = {when: found[f"{loss}: CCP, literal, improves the loss alone, {when}"] for when in
                   ("early stop", LATE)}  # fmt: skip
        assert [one.verdict for one in literal.values()] == [Verdict.REPRODUCED, Verdict.NOT_REPRODUCED]  # it flips
        both = found[f"{loss}: CCP, moving and averaged, improves averaged weights of the loss alone, {LATE}"]
        assert both.difference is not None
        assert both.difference.mean == pytest.approx(1.0)
        assert found[f"{loss}: fine-tuning gains on the test classes, last third"].verdict is Verdict.REPRODUCED


@pytest.mark.slow
def test_study_pretrains_trains_and_draws_whole_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"pretrain": 1, HELD_OUT: 1, "train": 4, "val": 2, "test": 3}
    monkeypatch.setattr(finetune_small, "COUNTS", {"quick": counts})
    monkeypatch.setattr(finetune_small, "RECIPES", {"quick": Recipe(epochs=1, batch=15, lr=0.05)})
    monkeypatch.setattr(finetune_small, "LOSSES", {"C2": LOSSES["C2"]})
    monkeypatch.setattr(finetune_small, "SYNTHETIC", (4, 1))
    quick = FINETUNE_SMALL.scales["quick"]
    base = quick.base | train(max_steps=3, eval_steps=1, device="cpu", classes_per_batch=4)
    names = [name_of("C2", form) for form in (AVERAGE, BOTH)]
    few = Overrides({"references": {"proxies_per_class": 1, "pool_size": 2}})
    variants = [
        replace(one, settings=one.settings | few) if "CCP" in one.name else one
        for one in FINETUNE_SMALL.variants(quick)
        if one.name in names
    ]
    study = replace(FINETUNE_SMALL, variants=lambda scale: variants)
    request = StudyRequest(replace(quick, base=base), tmp_path / "runs")
    report = run_study(study, request)
    assert [row["method"] for row in report.rows] == names
    curves = report.to_dict()["curves"]
    for row in report.rows:
        (columns,) = curves[row["method"]]
        assert columns["step"] == [0, 1, 2, 3]
        assert row[LATE] == round(100 * columns["test MAP@R"][3], 2)  # only step 3 is in the last third of 3
        assert row[BEFORE] == round(100 * columns["test MAP@R"][0], 2)
        assert {"MAP@R", "raw MAP@R", "test MAP@R", "raw test MAP@R"} <= set(columns)
    assert list(report.figures) == [""]
    assert report.rows[0]["turn of proxies"] is None
    assert report.rows[1]["turn of proxies"] > 0
    write_report(report, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "finetune_small.json").read_text())
    restored = study.restore(content)
    assert [row[LATE] for row in restored.rows] == [row[LATE] for row in report.rows]
    assert list(study.figures(restored)) == [""]
    again = run_study(study, replace(request, train=False))
    assert again.rows == report.rows
