"""Zero-shot prediction of class embeddings: the prediction, its claims, and the study from runs to report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import TINY, MakeFolder
from tests.studies.recorded import read_recorded, recorded_claims
from winnow.errors import DataError
from winnow.report.claims import Verdict
from winnow.studies import Measurement, StudyRequest, zero_shot
from winnow.studies.runner import run_study
from winnow.studies.scores import check_claims
from winnow.studies.zero_shot import COUNTS, MEASURES, ZERO_SHOT
from winnow.studies.zero_shot_figures import colored, prototype_colors
from winnow.training.overrides import Overrides

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def test_splits_have_no_class_in_common() -> None:
    fit, others = zero_shot.draw_splits(10, 50, torch.Generator().manual_seed(0))
    assert fit.shape == others.shape == (50, 5)
    for one, other in zip(fit.tolist(), others.tolist(), strict=True):
        assert set(one) | set(other) == set(range(10))
    assert len({tuple(sorted(one)) for one in fit.tolist()}) > 30
    few, rest = zero_shot.draw_splits(4, 3, torch.Generator().manual_seed(0))
    assert few.shape == rest.shape == (3, 2)


def test_predictions_equal_those_of_single_regressions() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.random((8, 3)), rng.normal(size=(8, 6))
    fit, others = zero_shot.draw_splits(8, 20, torch.Generator().manual_seed(1))
    found = zero_shot.predict(torch.from_numpy(z), torch.from_numpy(y), fit, others, 0.05)
    for split in range(20):
        b, c = fit[split].numpy(), others[split].numpy()
        a = np.linalg.solve(z[b].T @ z[b] + 0.05 * np.eye(3), z[b].T @ y[b])
        right = {"L2": 0, "cosine": 0}
        for place, label in enumerate(c):
            v = z[label] @ a
            right["L2"] += int(np.argmin([np.sum((v - y[k]) ** 2) for k in c]) == place)
            cosines = [v @ y[k] / np.linalg.norm(v) / np.linalg.norm(y[k]) for k in c]
            right["cosine"] += int(np.argmax(cosines) == place)
        for measure, count in right.items():
            assert float(found[measure][split]) == pytest.approx(count / len(c))
    assert 0 < float(found["L2"].mean()) < 1


def test_linear_attributes_predict_all_classes_and_equal_ones_one_of_five() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.rand(10, 4, generator=generator, dtype=torch.float64)
    y = z @ torch.randn(4, 16, generator=generator, dtype=torch.float64)
    fit, others = zero_shot.draw_splits(10, 30, generator)
    assert all(float(each.min()) == 1 for each in zero_shot.predict(z, y, fit, others, 1e-10).values())
    same = zero_shot.predict(torch.ones_like(z), y, fit, others, 0.05)
    assert all(each.tolist() == pytest.approx([0.2] * 30) for each in same.values())


def test_class_means_against_a_loop() -> None:
    rows, labels = torch.rand(20, 3, dtype=torch.float64), torch.arange(20) % 4
    expected = torch.stack([rows[labels == label].mean(dim=0) for label in range(4)])
    assert torch.allclose(zero_shot.class_means(rows, labels), expected)


def test_effective_numbers_of_known_distributions() -> None:
    assert zero_shot.effective_number(torch.full((3, 8), 0.125)) == pytest.approx(8)
    assert zero_shot.effective_number(torch.eye(4)) == pytest.approx(1)
    assert zero_shot.effective_number(torch.tensor([[0.5, 0.5, 0.0]])) == pytest.approx(2)
    block = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 1.0]])  # a prototype of two classes, two of one
    assert zero_shot.counts_of(block) == {COUNTS[0]: pytest.approx(4 / 3), COUNTS[1]: pytest.approx(4 / 3)}


def test_images_are_gray_except_for_colors_where_there_is_weight() -> None:
    image = Image.new("RGB", (4, 4), (10, 20, 30))
    made = np.asarray(colored(image, torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0.0, 1.0], [0.0, 0.5]])))
    gray = round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)  # luma of ITU-R 601
    assert (made[:2, :2] == gray).all()
    blue = 255 * prototype_colors()[1]
    assert made[0, 3] == pytest.approx((gray * 55 + blue * 200) / 255, abs=1)
    weak, strong = (np.abs(region.astype(int) - gray).sum() for region in (made[2:, 2:], made[:2, 2:]))
    assert 0 < weak < strong


@pytest.mark.parametrize(
    ("gain", "verdicts"),
    [
        (35.0, [Verdict.REPRODUCED] * 2),
        (10.0, [Verdict.REPRODUCED, Verdict.NOT_REPRODUCED]),
        (-5.0, [Verdict.NOT_REPRODUCED] * 2),
        (0.2, [Verdict.WITHIN_SEED_NOISE, Verdict.NOT_REPRODUCED]),
    ],
)
def test_claims_compare_each_variant_with_the_one_without_zsr(gain: float, verdicts: list[Verdict]) -> None:
    scale = replace(ZERO_SHOT.scales["quick"], seeds=(0, 1, 2))
    variants = list(ZERO_SHOT.variants(scale))
    by_seed = {
        seed: [
            {"method": one.name, COUNTS[0]: 4.0, COUNTS[1]: 5 + (one.group == "with ZSR"),
             **{f"zero-shot {each}": 40 + (one.group == "with ZSR") * (gain + noise) for each in MEASURES}}
            for one in variants
        ]
        for seed, noise in enumerate((-0.5, 0.0, 0.5))
    }  # fmt: skip
    measured = Measurement(rows=by_seed[1], by_seed=by_seed, variants=variants)
    found = check_claims(ZERO_SHOT.claims, measured, scale, ZERO_SHOT.metric)
    assert [one.verdict for one in found] == [*verdicts, Verdict.REPRODUCED]
    assert found[0].difference is not None
    assert found[0].difference.mean == pytest.approx(gain)

    without = {seed: [{**row, "zero-shot L2": None} for row in rows] for seed, rows in by_seed.items()}
    early = Measurement(rows=without[1], by_seed=without, variants=variants)
    assert check_claims(ZERO_SHOT.claims, early, scale, ZERO_SHOT.metric)[0].verdict is Verdict.INCOMPLETE


def test_claims_of_the_recorded_result() -> None:
    *predictions, by_far, shared = recorded_claims(ZERO_SHOT)
    assert {*predictions, by_far} == {Verdict.INCOMPLETE}  # recorded without single runs
    assert shared is Verdict.WITHIN_SEED_NOISE
    gains = [row["zero-shot L2"] for row in read_recorded(ZERO_SHOT)["rows"]]
    assert max(gains) == 56.83


def test_variants_start_from_the_weights_that_their_names_say(tmp_path: Path) -> None:
    scale, weights = ZERO_SHOT.scales["full"], tmp_path / "cifar100.safetensors"
    for one in ZERO_SHOT.started_from(weights).variants(scale):
        expected = "random" if "from nothing" in one.name else str(weights)
        assert one.settings.flat()["backbone.weights"] == expected
    assert [one.name for one in ZERO_SHOT.started_from(None).variants(scale)] == [
        one.name for one in ZERO_SHOT.variants(scale) if "from nothing" in one.name
    ]


def test_missing_data_are_reported_before_training(tmp_path: Path) -> None:
    request = StudyRequest(ZERO_SHOT.scales["full"], tmp_path / "runs", tmp_path)
    with pytest.raises(DataError):
        run_study(ZERO_SHOT, request)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_study_predicts_with_every_trained_model(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = [f"data={make_folder(classes=20)}", "data.test_fraction=0.5", "loss=proxy_nca",
            *(arg for arg in TINY if "prototypes" not in arg), "backbone.train=full", "train.device=cpu",
            "train.max_steps=4"]  # fmt: skip
    monkeypatch.setattr(zero_shot, "SPLITS", 50)
    monkeypatch.setattr(zero_shot, "SHOWN", 2)
    # The last step counts as the best: its weights have prototypes whatever the validation says.
    monkeypatch.setattr("winnow.training.early_stopping.MIN_DELTA", -2.0)
    scale = replace(ZERO_SHOT.scales["quick"], base=Overrides.parse(*args))
    request = StudyRequest(scale, tmp_path / "runs")
    report = run_study(ZERO_SHOT, request)
    assert not report.missing
    for row in report.rows:
        runs = [run["measured"] for run in report.runs if run["method"] == row["method"]]
        assert row["zero-shot L2"] == pytest.approx(np.mean([run["zero-shot L2"] for run in runs]), abs=0.006)
        assert row["L2 std"] == pytest.approx(np.std([run["zero-shot L2"] for run in runs], ddof=1), abs=0.006)
        assert 0 <= row["zero-shot L2"] <= 100
    assert list(report.figures) == ["", "prototypes"]
    *maps, _, _ = report.figures[""].axes
    assert len({axes.images[0].get_clim() for axes in maps}) == 1  # one scale, for comparison
    again = run_study(ZERO_SHOT, replace(request, train=False))
    assert again.rows == report.rows
    restored = ZERO_SHOT.restore(report.to_dict())  # single runs are recorded now
    assert restored.rows == report.rows
    assert {seed: [row["zero-shot L2"] for row in rows] for seed, rows in restored.by_seed.items()} == {
        seed: [round(run["measured"]["zero-shot L2"], 2) for run in report.runs if run["seed"] == seed]
        for seed in (0, 1)
    }
