"""Search over the settings of CCP: contrasts, claims on trials, and a search of a few trials."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.conftest import TINY, MakeFolder
from tests.studies.recorded import recorded_claims
from winnow.errors import DataError, MissingExtraError
from winnow.report.claims import Verdict
from winnow.studies import StudyRequest, ccp_search
from winnow.studies.ccp_search import CCP_SEARCH, PROXIES, WEIGHT, contrast
from winnow.studies.runner import run_studies, run_study
from winnow.studies.scores import check_claims
from winnow.tuning import Search, parse_space

QUICK = CCP_SEARCH.scales.quick


def test_a_contrast_of_two_groups_is_the_interval_of_welch() -> None:
    a, b = [1.0, 2.0, 4.0], [3.0, 7.0, 5.0, 6.0]
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    found = contrast([a, b], (1, -1))
    assert (found.mean, found.low, found.high, found.n) == (
        pytest.approx(np.mean(a) - np.mean(b)), pytest.approx(expected.low), pytest.approx(expected.high), 3,
    )  # fmt: skip
    scaled = contrast([a, b], (2, -2))
    assert scaled.low == pytest.approx(2 * expected.low)  # the interval scales with the coefficients
    assert contrast([[1.0, 1.0], [2.0, 2.0]], (1, -1)).low == -1


def test_a_contrast_covers_the_true_value_in_19_of_20_cases() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        groups = [rng.normal(mean, std, size).tolist() for mean, std, size in ((0, 1, 4), (1, 3, 6), (3, 2, 8))]
        found = contrast(groups, (-1, 2, -1))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 2 * 1 - 0 - 3 <= found.high
    assert 0.92 < covered / 400 < 0.98


def verdicts(trials: Sequence[tuple[float, int, float]]) -> list[Verdict]:
    """Return the verdicts on trials: proximal weight, proxies, and score."""
    rows = [dict(zip(("proximal weight", "proxies", "validation MAP@R"), one, strict=True)) for one in trials]
    measured = CCP_SEARCH.restore({"rows": rows, "settings": {"trials": len(rows)}})
    return [one.verdict for one in check_claims(CCP_SEARCH.claims, measured, QUICK, CCP_SEARCH.metric)]


def trials_of(scores: dict[tuple[float, int], float], spread: float) -> list[tuple[float, int, float]]:
    """Return four trials for each weight and number of proxies, whose scores vary by a spread."""
    return [
        (weight * (1 + repeat / 100), proxies, score + spread * (repeat - 1.5))
        for (weight, proxies), score in scores.items()
        for repeat in range(4)
    ]


GOOD = {(1e-7, 8): 40.0, (1e-3, 2): 50.0, (1e-3, 8): 55.0, (1e-3, 16): 56.0, (1.0, 8): 30.0}
BAD = {(1e-7, 8): 60.0, (1e-3, 2): 55.0, (1e-3, 8): 50.0, (1e-3, 16): 51.0, (1.0, 8): 70.0}


def test_claims_follow_the_trials() -> None:
    assert verdicts(trials_of(GOOD, 0.1))[:2] == [Verdict.REPRODUCED] * 2
    within = {key: score for key, score in GOOD.items() if key[0] == 1e-3}
    assert verdicts(trials_of(within, 0.1)) == [Verdict.INCOMPLETE] * 2 + [Verdict.REPRODUCED] * 2
    assert verdicts(trials_of(BAD, 0.1))[:2] == [Verdict.NOT_REPRODUCED] * 2
    assert verdicts(trials_of(dict.fromkeys(GOOD, 50.0), 1.0)) == [Verdict.WITHIN_SEED_NOISE] * 4


def test_too_few_trials_give_no_verdict() -> None:
    assert verdicts([(1e-3, 2, 51.0)]) == [Verdict.INCOMPLETE] * 4
    pairs = [one for one in trials_of(GOOD, 0.1)[:8] if one[1] in (2, 8)]
    assert verdicts(pairs)[1] is Verdict.INCOMPLETE  # no trial with a large weight
    assert verdicts(trials_of(GOOD, 0.1)[::2]) == [Verdict.INCOMPLETE] * 4  # two trials of each kind


def test_claims_of_the_recorded_result() -> None:
    found = recorded_claims(CCP_SEARCH, "small")
    assert found == [Verdict.WITHIN_SEED_NOISE, Verdict.REPRODUCED, Verdict.INCOMPLETE, Verdict.INCOMPLETE]


@pytest.mark.parametrize("size", ["quick", "full"])
def test_every_value_of_the_space_makes_a_config(size: str, tmp_path: Path) -> None:
    search = ccp_search.make_search(StudyRequest(CCP_SEARCH.scales[size], tmp_path, train=False))  # type: ignore[index]
    for weight, proxies in ((1e-7, 1), (10.0, 16)):
        config = search.config({WEIGHT: weight, PROXIES: proxies})
        assert (config.references.proximal_weight, config.references.proxies_per_class) == (weight, proxies)
        assert config.references.pool_size == 16
        assert config.loss.name == "c2"
        assert not config.train.run_test
    if size == "full":  # two thirds of the first hundred classes train, the last third validates
        config = search.first_config()
        assert (config.data.train_classes, config.data.val_classes) == ("1-66", "67-100")
        assert config.train.patience == 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_a_search_is_continued_and_reported(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    base = [arg for arg in TINY if not arg.startswith("pooling")]
    args = [f"data={make_folder(images=5)}", *base, "pooling=gap", "train.device=cpu", "train.max_steps=2",
            "train.eval_steps=1", "references=ccp", "references.pool_size=3"]  # fmt: skip
    space, _ = parse_space([f"{WEIGHT}=1e-7..10:log", f"{PROXIES}=1..3"])
    monkeypatch.setattr(ccp_search, "make_search", lambda request: Search(None, args, space, request.runs))
    monkeypatch.setattr(ccp_search, "TRIALS", {"quick": 2})
    notes: list[str] = []
    request = StudyRequest(QUICK, tmp_path / "runs", note=notes.append)
    with pytest.raises(DataError, match="no run of the study ccp-search is finished"):
        run_study(CCP_SEARCH, StudyRequest(QUICK, tmp_path / "none", train=False))
    first = run_study(CCP_SEARCH, request)
    assert len(first.rows) == len(notes) == 2
    scores = [row["validation MAP@R"] for row in first.rows]
    assert scores == sorted(scores, reverse=True)
    assert {one.verdict for one in first.claims} == {"Incomplete"}
    monkeypatch.setattr(ccp_search, "TRIALS", {"quick": 3})
    some = run_study(CCP_SEARCH, replace(request, train=False))
    assert some.todo == "2 of 3 runs finished. Run the rest with `winnow study ccp-search --quick`."
    monkeypatch.setattr(ccp_search, "TRIALS", {"quick": 2})
    assert run_study(CCP_SEARCH, request).rows == first.rows
    assert len(notes) == 2  # finished trials are not run again


def test_the_study_is_skipped_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    request = StudyRequest(QUICK, tmp_path / "runs")
    with pytest.raises(MissingExtraError, match=r"winnow study ccp-search requires optuna.*\[optuna\]"):
        run_study(CCP_SEARCH, request)
    (ended,) = run_studies({"ccp-search": CCP_SEARCH}, lambda study: request, tmp_path)
    assert ended.outcome == "skipped"
