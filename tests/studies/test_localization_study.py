"""Study of localization: boxes of the test images, weights of trained models, and claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TINY, MakeFolder
from winnow.data.emoji import load_emoji
from winnow.errors import DataError
from winnow.models import Embedder
from winnow.report.claims import Verdict
from winnow.studies import Measurement, StudyRequest
from winnow.studies.localization import AREA, EFFECTIVE, IN_BOX, LOCALIZATION, LOCATIONS, POINTING, object_boxes
from winnow.studies.runner import plan_grid, run_study
from winnow.studies.scores import check_claims, seed_means
from winnow.training.build import load_splits, resolve_config
from winnow.training.overrides import Overrides

QUICK = LOCALIZATION.scales["quick"]


def test_boxes_of_the_quick_size_are_those_of_the_collages(tmp_path: Path) -> None:
    config = resolve_config(plan_grid(LOCALIZATION, StudyRequest(QUICK, tmp_path))[0][2].config)
    assert (config.image.resize, config.image.crop) == (128, 128)
    images = load_emoji().test
    assert images is not None
    chosen = images.select([5, 2])
    boxes = object_boxes(config, chosen) * 128
    assert boxes.tolist() == [pytest.approx(images.foreground_box(index)) for index in (5, 2)]


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
@pytest.mark.filterwarnings("ignore:GSP is evaluated before its prototypes are set")
@pytest.mark.slow
def test_the_study_measures_the_saved_models(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    args = [arg for arg in TINY if not arg.startswith("pooling")]
    args += ["train.device=cpu", "train.max_steps=2", "image.crop=32"]
    scale = replace(QUICK, base=Overrides.parse(f"data={folder}", *args), seeds=(0, 1))
    request = StudyRequest(scale, tmp_path / "runs", seeds=[0])
    with pytest.raises(DataError, match=r"images\.txt and bounding_boxes\.txt not found"):
        run_study(LOCALIZATION, request)
    assert not list(tmp_path.rglob("config.yaml")), "nothing is trained before the boxes are found"

    names = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.png"))
    rng = np.random.default_rng(0)
    corners = {name: rng.integers(0, 18, 2) for name in names}
    (folder / "images.txt").write_text("".join(f"{n} {name}\n" for n, name in enumerate(names)))
    (folder / "bounding_boxes.txt").write_text(
        "".join(f"{n} {corners[name][0]} {corners[name][1]} 20 15\n" for n, name in enumerate(names))
    )
    report = run_study(LOCALIZATION, request)
    rows = {row["method"]: row for row in report.rows}
    assert list(rows) == [one.name for one in LOCALIZATION.variants(scale)]
    assert rows["GAP"][IN_BOX] == rows["GAP"][AREA]
    assert rows["GAP"][EFFECTIVE] == pytest.approx(rows["GAP"][LOCATIONS])
    assert {one.verdict for one in report.claims} == {"Incomplete"}

    # Again with the public interface of the saved model, one image and one pixel at a time.
    run = next(run for variant, seed, run in plan_grid(LOCALIZATION, request) if variant.name == "DeLF" and seed == 0)
    splits = load_splits(run.config)
    assert splits.test is not None
    images = [splits.test.read(index) for index in range(len(splits.test))]
    maps = Embedder.from_pretrained(run.run_dir.path).explain(images)
    shares, hits = [], []
    for index, one in enumerate(maps):
        assert one.weights is not None
        # 40 pixels are resized to 32, of which the crop takes all.
        left, top = corners[splits.test.name(index)]
        pixels = np.kron(one.weights, np.ones((320 // one.weights.shape[0],) * 2))
        y, x = (np.arange(320) + 0.5 for _ in range(2))
        across = (8 * left <= x) & (x <= 8 * (left + 20))
        down = (8 * top <= y) & (y <= 8 * (top + 15))
        inside = down[:, None] & across[None]
        shares.append(pixels[inside].sum() / pixels.sum())
        row, column = np.unravel_index(one.weights.argmax(), one.weights.shape)
        cell = 40 / one.weights.shape[0]
        hits.append(left <= (column + 0.5) * cell <= left + 20 and top <= (row + 0.5) * cell <= top + 15)
    assert rows["DeLF"][IN_BOX] == pytest.approx(100 * np.mean(shares), abs=0.006)
    assert rows["DeLF"][POINTING] == pytest.approx(100 * np.mean(hits), abs=0.006)

    restored = LOCALIZATION.restore(json.loads(report.to_json()))
    assert [dict(row) for row in restored.rows] == report.rows
    assert len(LOCALIZATION.figures(restored)[""].axes) == 2


@pytest.mark.parametrize("inside", ["", "images", "CUB_200_2011/images"])
def test_the_data_may_be_the_folder_of_the_official_archive(tmp_path: Path, inside: str) -> None:
    (tmp_path / inside / "001.Black_footed_Albatross").mkdir(parents=True)
    request = StudyRequest(LOCALIZATION.scales["full"], tmp_path / "runs", data=tmp_path)
    assert plan_grid(LOCALIZATION, request)[0][2].config.data.path == str(tmp_path / inside)


def test_claims_compare_with_gap_and_delf() -> None:
    # Weight in the box and hits of each seed.
    values = {
        "GAP": [(20, 25), (20, 25), (20, 25)],
        "DeLF": [(30, 90), (31, 90), (29, 90)],
        "GSP": [(40, 24), (41, 25), (39, 26)],
        "GSP + ZSR": [(18, 10), (20, 11), (22, 9)],
    }
    by_seed = {
        seed: [
            {"method": name, IN_BOX: float(own[seed][0]), POINTING: float(own[seed][1])} for name, own in values.items()
        ]
        for seed in range(3)
    }
    means = seed_means(by_seed)
    measured = Measurement(rows=means, exact=means, by_seed=by_seed)
    found = [one.verdict for one in check_claims(LOCALIZATION.claims, measured, QUICK, LOCALIZATION.metric)]
    assert found == [
        Verdict.REPRODUCED, Verdict.WITHIN_SEED_NOISE, Verdict.REPRODUCED, Verdict.WITHIN_SEED_NOISE,
        Verdict.NOT_REPRODUCED,
    ]  # fmt: skip
