"""Zero-shot prediction of class embeddings: the prediction itself, what is read off a model, and the text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import TINY, MakeFolder
from tests.studies.planned import planned
from winnow.errors import DataError
from winnow.studies import STUDIES, Task, zero_shot
from winnow.studies.zero_shot_pictures import broken, coloured, palette
from winnow.studies.zero_shot_report import Pair, effective, sharing, told

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def test_splits_have_no_class_in_common() -> None:
    fit, others = zero_shot.draw_splits(10, 50, torch.Generator().manual_seed(0))
    assert fit.shape == others.shape == (50, 5)
    for one, other in zip(fit.tolist(), others.tolist(), strict=True):
        assert set(one) | set(other) == set(range(10))
    assert len({tuple(sorted(one)) for one in fit.tolist()}) > 30
    few, rest = zero_shot.draw_splits(4, 3, torch.Generator().manual_seed(0))
    assert few.shape == rest.shape == (3, 2)


def test_predictions_are_those_of_plain_regressions() -> None:
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


def test_linear_attributes_predict_all_and_equal_ones_by_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.rand(10, 4, generator=generator, dtype=torch.float64)
    y = z @ torch.randn(4, 16, generator=generator, dtype=torch.float64)
    fit, others = zero_shot.draw_splits(10, 30, generator)
    assert all(float(each.min()) == 1 for each in zero_shot.predict(z, y, fit, others, 1e-10).values())
    same = zero_shot.predict(torch.ones_like(z), y, fit, others, 0.05)
    assert all(each.tolist() == pytest.approx([0.2] * 30) for each in same.values())  # all are predicted alike


def test_class_rows_are_means() -> None:
    rows, labels = torch.tensor([[1.0, 0.0], [3.0, 4.0], [5.0, 5.0]]), torch.tensor([1, 1, 0])
    assert zero_shot.class_rows(rows, labels).tolist() == [[5.0, 5.0], [2.0, 2.0]]


def test_effective_numbers() -> None:
    assert effective(torch.full((3, 8), 0.125)) == pytest.approx(8)
    assert effective(torch.eye(4)) == pytest.approx(1)
    assert effective(torch.tensor([[0.5, 0.5, 0.0]])) == pytest.approx(2)


def test_a_difference_in_the_last_digit_is_no_sharing() -> None:
    assert [sharing(4, other) for other in (4.1, 5, 3)] == ["about as much", "more", "less"]


def test_images_are_grey_but_for_colours_where_there_is_weight() -> None:
    picture = Image.new("RGB", (4, 4), (10, 20, 30))
    made = np.asarray(coloured(picture, torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0.0, 1.0], [0.0, 0.5]])))
    grey = round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)  # luma of ITU-R 601
    assert (made[:2, :2] == grey).all()
    blue = 255 * palette()[1]
    assert made[0, 3] == pytest.approx((grey * 55 + blue * 200) / 255, abs=1)
    weak, strong = (np.abs(part.astype(int) - grey).sum() for part in (made[2:, 2:], made[:2, 2:]))
    assert 0 < weak < strong


def row(name: str, l2: float | None, cosine: float | None, sd: float = 1.0) -> dict[str, object]:
    return {"method": name, "MAP@R": 50.0, "zero-shot L2": l2, "L2 sd": sd, "zero-shot cosine": cosine,
            "cosine sd": sd, "prototypes of a class": 2.0, "classes of a prototype": 3.0}  # fmt: skip


@pytest.mark.parametrize(
    ("after", "better", "by"),
    [
        ((85.0, 80.0), "in 2 of 2 comparisons, 2 of these by more than seeds deviate; agrees.", "+35.0; agrees."),
        (
            (60.0, 50.5),
            "2 of 2 comparisons, 1 of these by more than seeds deviate; agrees in 1 of 2 alone.",
            "+10.0; d",
        ),
        ((50.5, 50.0), "in 1 of 2 comparisons, 0 of these by more than seeds deviate; cannot be told.", "+0.5; does"),
        ((85.0, 45.0), "in 1 of 2 comparisons, 1 of these by more than seeds deviate; does not agree.", "+35.0; agr"),
        ((40.0, 45.0), "in 0 of 2 comparisons, 0 of these by more than seeds deviate; does not agree.", "-5.0; does"),
    ],
)
def test_claims_are_checked_against_the_numbers(after: tuple[float, float], better: str, by: str) -> None:
    rows = [row("a", 50.0, 50.0), {**row("a + ZSR", *after), "classes of a prototype": 4.0}]
    pairs = [Pair("a", "a + ZSR", 0.5)]
    text = told(rows, pairs, small=False, early=1, splits=9, ridge=0.05, pretrained=None)
    first = text.split("\n\n")[0]
    assert better in first
    assert f"by up to {by}" in first
    assert "shared more in 1 of 1 pairs and less in 0; cannot be told" in first
    assert "Cifar-100 is not here" in text
    assert text.endswith("1 runs were best before their prototypes were set, and have no attributes to predict by.")
    one = [row("a", 50.0, 50.0, sd=0.0), row("a + ZSR", 60.0, 61.0, sd=0.0)]
    text = told(one, pairs, small=True, early=0, splits=9, ridge=0.05, pretrained=None)
    assert "in 2 of 2 comparisons (one seed); agrees." in text
    assert "shared more in 0 of 1 pairs and less in 0;" in text
    rows[1] = row("a + ZSR", None, None)
    text = told(rows, pairs, small=True, early=0, splits=9, ridge=0.05, pretrained={"accuracy": 0.7})
    assert text.startswith("Runs are missing")
    assert text.endswith("1 of 1 pairs wait for runs.")


def test_no_paragraph_is_long() -> None:
    rows = [row("a", 50.0, 50.0), row("a + ZSR", 60.0, 60.0)]
    for small in (True, False):
        text = told(rows, [Pair("a", "a + ZSR", 0.5)], small=small, early=1, splits=9, ridge=0.05,
                    pretrained={"accuracy": 0.7})  # fmt: skip
        assert max(len(part.split()) for part in text.split("\n\n")) < 120


def test_names_have_lines() -> None:
    assert broken("mu 0.2, eps 10, from nothing") == "mu 0.2, eps 10\nfrom nothing\nwithout ZSR"
    assert broken("mu 0.2, eps 10 + ZSR 0.5") == "mu 0.2, eps 10\nZSR 0.5"


@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
def test_every_planned_run_can_be_built(small: bool, tmp_path: Path) -> None:
    task = Task(small=small, runs=tmp_path, only_finished=True)
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "cifar100.safetensors").touch()
    begun = zero_shot.starts(task)
    compared, pairs = zero_shot.comparison(task, begun)
    assert (len(compared.methods), len(pairs)) == ((2, 1) if small else (10, 6))
    for method, config in planned(compared, tmp_path):
        assert config.pooling.num_prototypes == 8
        assert ("weights=random" in " ".join(method.words)) == ("nothing" in method.name)
        assert (config.zsr.weight > 0) == ("ZSR" in method.name)


def test_without_cifar_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        STUDIES["zero-shot"](Task(small=False, data=tmp_path, runs=tmp_path / "runs"))


def test_the_study_goes_from_runs_to_text(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(classes=20)
    words = [f"data={folder}", "data.test_fraction=0.5", *(word for word in TINY if "prototypes" not in word)]
    monkeypatch.setattr(zero_shot, "EMOJI", [*words, "pooling=gsp", "backbone.train=full", "train.device=cpu",
                                             "train.max_steps=4"])  # fmt: skip
    monkeypatch.setattr(zero_shot, "SPLITS", 50)
    monkeypatch.setattr(zero_shot, "SHOWN", 2)
    # The best weights are those of the last step, so that there are prototypes whatever the validation says.
    monkeypatch.setattr("winnow.training.early_stopping.MIN_DELTA", -2.0)
    task = Task(small=True, runs=tmp_path / "runs")
    findings = STUDIES["zero-shot"](task)
    assert "missing" not in findings.text
    assert all(0 <= one["zero-shot L2"] <= 100 for one in findings.rows)
    assert list(findings.pictures) == ["prototypes"]
    (key,) = findings.pictures["prototypes"].legends
    assert [text.get_text() for text in key.get_texts()] == [str(number + 1) for number in range(8)]
    *maps, bar, accuracies = findings.figure.axes
    assert accuracies.get_title(loc="left").startswith("Classes recognised")
    assert "whiskers: deviation over splits" in accuracies.get_xlabel()
    assert bar.get_ylabel() == "share of a class's attributes"
    # One scale for both methods, so that they compare.
    assert len({axes.images[0].get_clim() for axes in maps}) == 1
    again = STUDIES["zero-shot"](Task(small=True, runs=task.runs, only_finished=True))
    assert again.rows == findings.rows
