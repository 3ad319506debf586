"""Study of re-ranking: rows of searches, and claims that pair seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from tests.studies.recorded import read_recorded, recorded_claims
from winnow.evaluation import KReciprocal, expand_queries, reranked_metrics, retrieval_metrics
from winnow.report.claims import Verdict
from winnow.studies import StudyRequest, reranking
from winnow.studies.reranking import PLAIN, RERANKING, RERANKINGS, search_metrics
from winnow.studies.runner import run_study
from winnow.studies.scores import check_claims
from winnow.training.overrides import Overrides


def test_searches_are_what_their_names_say() -> None:
    torch.manual_seed(0)
    vectors, labels = torch.nn.functional.normalize(torch.randn(40, 6), dim=1), torch.arange(40) // 5
    expanded = expand_queries(vectors, vectors, num_neighbors=5, exclude_self=True)
    expected = {
        PLAIN: retrieval_metrics(vectors, labels),
        "aqe": retrieval_metrics(expanded, labels),
        "reciprocal, k1 = 8": reranked_metrics(vectors, labels, "reciprocal", settings=KReciprocal(k1=8)),
        "reciprocal, k1 = 20": reranked_metrics(vectors, labels, "reciprocal"),
    }
    assert list(expected) == [PLAIN, *RERANKINGS]
    for name, metrics in expected.items():
        found = search_metrics(vectors, labels, name)
        assert found == {key: pytest.approx(100 * metrics[key]) for key in reranking.METRICS}


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_the_study_searches_the_embeddings_of_its_runs(make_folder: MakeFolder, tmp_path: Path) -> None:
    args = [arg for arg in TINY if not arg.startswith("pooling")]
    base = Overrides.parse(f"data={make_folder()}", *args, "train.device=cpu", "train.max_steps=2")
    scale = replace(RERANKING.scales["quick"], base=base, seeds=(0, 1))
    report = run_study(RERANKING, StudyRequest(scale, tmp_path, seeds=[0]))
    assert [(row["method"], row["re-ranking"]) for row in report.rows] == [
        (method, name) for method in ("GAP", "GSP") for name in (PLAIN, *RERANKINGS)
    ]
    assert report.rows[0]["MAP@R"] == pytest.approx(100 * report.runs[0]["metrics"]["test"]["MAP@R"], abs=0.006)
    assert report.missing == {"GAP": [1], "GSP": [1]}
    assert {one.verdict for one in report.claims} == {"Incomplete"}
    restored = RERANKING.restore(json.loads(report.to_json()))
    assert [dict(row) for row in restored.rows] == report.rows
    assert len(RERANKING.figures(restored)[""].axes) == 2


def test_claims_compare_the_same_seeds() -> None:
    """MAP@R differs more between seeds than by query expansion, but query expansion raises it with every seed."""
    content = read_recorded(RERANKING)
    gains = {PLAIN: (0.0, 0.0), "aqe": (1.0, 0.1), "reciprocal, k1 = 8": (-1.0, -0.1), "reciprocal, k1 = 20": (-1, 1)}
    content["by seed"] = {
        str(seed): [
            {"search": f"{method}, {name}", **dict.fromkeys(reranking.METRICS, 20.0 * seed + gain + slope * seed)}
            for method in ("GAP", "GSP")
            for name, (gain, slope) in gains.items()
        ]
        for seed in range(3)
    }
    measured = RERANKING.restore(content)
    found = [one.verdict for one in check_claims(RERANKING.claims, measured, RERANKING.scales["quick"])]
    assert found == 2 * [Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.WITHIN_SEED_NOISE]
    assert next(row for row in measured.rows if row["re-ranking"] == "aqe")["MAP@R"] == 21.1


def test_the_recorded_result_has_these_claims() -> None:
    gsp = recorded_claims(RERANKING)[3:]
    assert gsp == [Verdict.REPRODUCED] * 3
