"""The study of re-ranking: from runs to text, and that the text follows the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from winnow.evaluation import KReciprocal, reranked_metrics, retrieval_metrics
from winnow.studies import STUDIES, Task, reranking
from winnow.studies.methods import Comparison

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def test_it_goes_from_runs_to_text(make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()

    def tiny(methods, small, **_):
        base = [word for word in TINY if not word.startswith("pooling")]
        return Comparison(methods, (0,), [f"data={folder}", *base, "train.device=cpu", "train.max_steps=2"])

    monkeypatch.setattr(reranking, "compare", tiny)
    found = STUDIES["reranking"](Task(small=True, runs=tmp_path / "runs"))
    assert [(row["method"], row["look"]) for row in found.rows] == [
        (method, look) for method in ("GAP", "GSP") for look in reranking.LOOKS
    ]
    run = found.details["runs"][0]
    assert found.rows[0]["MAP@R"] == pytest.approx(100 * run["metrics"]["test"]["MAP@R"], abs=0.006)
    none = STUDIES["reranking"](Task(small=True, runs=tmp_path / "none", only_finished=True))
    assert "`winnow study reranking --small` trains the others" in none.text
    assert list(none.rows) == []


def test_a_look_is_what_its_name_says() -> None:
    torch.manual_seed(0)
    vectors, labels = torch.nn.functional.normalize(torch.randn(40, 6), dim=1), torch.arange(40) // 5
    assert reranking.looked(vectors, labels, "plain") == retrieval_metrics(vectors, labels)
    assert reranking.looked(vectors, labels, "aqe") == reranked_metrics(vectors, labels, "aqe")
    expected = reranked_metrics(vectors, labels, "reciprocal", settings=KReciprocal(k1=8))
    assert reranking.looked(vectors, labels, "reciprocal, k1 = 8") == expected


def test_the_text_follows_the_numbers() -> None:
    values = {"plain": (0.30, 0.70), "aqe": (0.35, 0.68), "reciprocal, k1 = 8": (0.33, 0.7),
              "reciprocal, k1 = 20": (0.2, 0.6)}  # fmt: skip
    measured = {("GSP", look): [{"MAP@R": a, "P@1": b}] for look, (a, b) in values.items()}
    (line,) = reranking.told(measured)
    assert line.startswith("- With GSP aqe gathers most of the class. ")
    assert "aqe (+5.00, -2.00);" in line
    twice = {key: [runs[0], {**runs[0], "MAP@R": 0.3}] for key, runs in measured.items()}
    assert "than seeds deviate by (3.54)" in reranking.told(twice)[0], "with the second seed nothing is gained"
    measured["GSP", "plain"] = [{"MAP@R": 0.5, "P@1": 0.9}]
    assert "none gathers more of the class." in reranking.told(measured)[0]
