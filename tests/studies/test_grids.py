"""Grid studies: which runs they plan, and that their claims follow the numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.grids import made_up
from winnow.report.claims import Verdict
from winnow.studies import (
    STUDIES,
    GridStudy,
    Scale,
    StudyRequest,
    Variant,
    ccp_grids,
    frozen_heads,
    gsp_grids,
    loss_grids,
    zsr_forms,
)
from winnow.studies.runner import folder_name, plan_grid
from winnow.studies.scores import MissingScoreError, check_claims, main_effects
from winnow.studies.settings import CUB200
from winnow.training import load_config
from winnow.training.objective import check_components, check_objective
from winnow.training.overrides import Overrides

pytestmark = [
    pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights"),
    pytest.mark.filterwarnings("ignore:backbone test_vit starts from random weights"),
]
GRIDS = {name: study for name, study in STUDIES.items() if isinstance(study, GridStudy)}
SIZES = [(study, study.scales[size]) for study in GRIDS.values() for size in ("quick", "full")]
IDS = [f"{study.name}-{scale.name}" for study, scale in SIZES]
CHECKED = [(study, scale) for study, scale in SIZES if not scale.trial and study.claims]
CHECKED_IDS = [f"{study.name}-{scale.name}" for study, scale in CHECKED]


def with_seeds(scale: Scale, seeds: int) -> Scale:
    return replace(scale, seeds=tuple(range(seeds)))


def verdicts(study: GridStudy, score: Callable[[Variant, int], float]) -> list[Verdict]:
    """Return the verdicts on made-up scores with four seeds."""
    scale = with_seeds(study.scales["quick"], 4)
    return [one.verdict for one in check_claims(study.claims, made_up(study, scale, score), scale, study.metric)]


@pytest.mark.parametrize(("study", "scale"), SIZES, ids=IDS)
def test_every_planned_run_can_be_built_and_has_a_folder_of_its_own(
    study: GridStudy, scale: Scale, tmp_path: Path
) -> None:
    needs = scale.needs if scale.needs is CUB200 else replace(scale.needs, prepare=lambda request: Overrides())
    plan = plan_grid(study, StudyRequest(replace(scale, needs=needs), tmp_path, train=False))
    for _, seed, run in plan:
        check_objective(run.config)
        check_components(run.config)
        assert run.config.seed == seed
    assert (
        len({run.run_dir.path for _, _, run in plan})
        == len(plan)
        == len(scale.seeds) * len({v.name for v, _, _ in plan})
    )


NAMED = {
    "mu": lambda config: getattr(config.pooling, "mu", None),
    "m": lambda config: getattr(config.pooling, "num_prototypes", None),
    "eps": lambda config: getattr(config.pooling, "eps", None),
    "lambda": lambda config: config.zsr.weight,
    "dim": lambda config: config.dim,
    "delta": lambda config: config.regularizer.delta,
}
"""Settings that names of variants state, such as `m 64, eps 5`."""


@pytest.mark.parametrize(("study", "scale"), SIZES, ids=IDS)
def test_runs_have_the_settings_that_their_names_say(study: GridStudy, scale: Scale, tmp_path: Path) -> None:
    needs = replace(scale.needs, prepare=lambda request: Overrides())
    for variant, _, run in plan_grid(study, StudyRequest(replace(scale, needs=needs), tmp_path, train=False)):
        for part in re.split("[,:] ", variant.name):
            key, _, value = part.partition(" ")
            if key in NAMED and re.fullmatch(r"[\d.]+", value):
                assert NAMED[key](run.config) == float(value), variant.name
        first = re.split("[,: ]", variant.name)[0]
        if first in ("GAP", "GSP", "GMP"):
            assert run.config.pooling.name.startswith(first.lower())


@pytest.mark.parametrize(("study", "scale"), CHECKED, ids=CHECKED_IDS)
def test_claims_are_incomplete_without_runs(study: GridStudy, scale: Scale) -> None:
    names = [one.name for one in study.variants(scale)]
    nothing = made_up(study, scale, lambda variant, seed: 0.0, dict.fromkeys(names, scale.seeds))
    assert {one.verdict for one in check_claims(study.claims, nothing, scale, study.metric)} == {Verdict.INCOMPLETE}


@pytest.mark.parametrize(("study", "scale"), CHECKED, ids=CHECKED_IDS)
def test_one_seed_gives_no_verdict(study: GridStudy, scale: Scale) -> None:
    rng = random.Random(0)
    one = with_seeds(scale, 1)
    found = check_claims(
        study.claims, made_up(study, one, lambda variant, seed: rng.uniform(10, 60)), one, study.metric
    )
    assert found
    assert {one.verdict for one in found} <= {Verdict.INCOMPLETE, Verdict.NOT_APPLICABLE}


@pytest.mark.parametrize(("study", "scale"), CHECKED, ids=CHECKED_IDS)
def test_verdicts_do_not_depend_on_a_common_offset(study: GridStudy, scale: Scale) -> None:
    """Claims are about differences: 5 points more everywhere change no margin that is measured in points."""
    scale, rng = with_seeds(scale, 4), random.Random(1)
    scores = {(one.name, seed): rng.uniform(20, 40) for one in study.variants(scale) for seed in scale.seeds}
    found = [
        check_claims(
            study.claims,
            made_up(study, scale, lambda variant, seed, more=more: scores[variant.name, seed] + more),
            scale,
            study.metric,
        )
        for more in (0.0, 5.0)
    ]
    for before, after in zip(*found, strict=True):
        assert before.verdict == after.verdict
        if before.difference is not None and after.difference is not None:
            assert before.difference.mean == pytest.approx(after.difference.mean, abs=1e-6)


# --- Single claims against scores whose answer is known ---------------------------------------------------------------


def test_mu() -> None:
    def falls(variant: Variant, seed: int) -> float:
        if variant.x is None:  # GAP
            return 20 + seed / 10
        return (30 if variant.x <= 0.3 else 22) + seed / 10

    assert verdicts(gsp_grids.MU, falls) == [Verdict.REPRODUCED] * 3
    rises = verdicts(gsp_grids.MU, lambda variant, seed: 20 + 10 * (variant.x or 1) + seed / 10)
    assert rises == [Verdict.NOT_REPRODUCED, Verdict.NOT_APPLICABLE, Verdict.NOT_APPLICABLE]
    noise = verdicts(gsp_grids.MU, lambda variant, seed: 20 + (variant.x is None) * (-1) ** seed)
    assert noise[0] is Verdict.WITHIN_SEED_NOISE


def test_the_interval_of_a_margin_is_that_of_its_seeds() -> None:
    """GAP is constant, so the margin of a seed is the score of that seed minus a constant."""
    from scipy import stats

    gains = [1.0, 2.0, 4.0, 3.0]
    scale = with_seeds(gsp_grids.MU.scales["quick"], 4)
    rows = made_up(gsp_grids.MU, scale, lambda variant, seed: 20 + (variant.x is not None) * gains[seed])
    found = check_claims(gsp_grids.MU.claims, rows, scale)[0].difference
    assert found is not None
    low, high = stats.t.interval(0.95, 3, loc=2.5, scale=stats.sem(gains))
    assert (found.mean, found.low, found.high, found.n) == (
        pytest.approx(2.5),
        pytest.approx(low),
        pytest.approx(high),
        4,
    )


def test_a_claim_reads_only_its_rows() -> None:
    """A missing run of another row does not make a claim incomplete; one of its own does."""
    study, scale = gsp_grids.COMPONENT_STUDY, with_seeds(gsp_grids.COMPONENT_STUDY.scales["quick"], 3)
    alone = gsp_grids.ZSR_ALONE

    def of(without: str) -> dict[str, Verdict]:
        rows = made_up(study, scale, lambda variant, seed: 20 + len(variant.name) + seed / 10, {without: [1]})
        return {one.text: one.verdict for one in check_claims(study.claims, rows, scale)}

    assert of(alone)["GSP improves on GAP"] is not Verdict.INCOMPLETE
    assert of(alone)[f"{alone} improves on GAP"] is Verdict.INCOMPLETE
    assert of("GSP")["GSP improves on GAP"] is Verdict.INCOMPLETE


def test_main_effects_against_a_linear_model() -> None:
    """Scores that are linear in the factors have effects equal to the slopes times the steps between levels."""
    levels = {"a": (0.1, 0.3), "b": (1.0, 5.0)}
    variants = [
        Variant(f"{a} {b}", Overrides({"pooling": {"mu": a, "eps": b}})) for a in levels["a"] for b in levels["b"]
    ]
    scores = {one.name: 7 * float(one.name.split()[0]) - 2 * float(one.name.split()[1]) for one in variants}
    factors = {"a": "pooling.mu", "b": "pooling.eps"}
    baseline = Variant("GAP", Overrides({"pooling": {"name": "gap"}}))  # not part of the design
    effects = main_effects([*variants, baseline], {**scores, "GAP": 100.0}, factors)
    assert effects == {"a": pytest.approx(7 * 0.2), "b": pytest.approx(-8.0)}
    with pytest.raises(MissingScoreError):
        main_effects(variants, dict(list(scores.items())[1:]), factors)


def test_claims_are_reproduced_on_some_scores_and_not_on_others() -> None:
    for study in (gsp_grids.MU, gsp_grids.COMPONENT_STUDY, ccp_grids.CCP_POOL, loss_grids.CENTERS):
        rng, seen = random.Random(2), set()
        scale = with_seeds(study.scales["quick"], 3)
        for _ in range(40):
            scores = {one.name: rng.uniform(20, 40) for one in study.variants(scale)}
            rows = made_up(study, scale, lambda variant, seed, scores=scores: scores[variant.name] + seed / 1000)
            seen |= {(one.text, one.verdict) for one in check_claims(study.claims, rows, scale, study.metric)}
        first = {one.text for one in check_claims(study.claims[:1], rows, scale, study.metric)}
        for text in first:
            assert {(text, Verdict.REPRODUCED), (text, Verdict.NOT_REPRODUCED)} <= seen


def test_folder_names_are_accepted_by_every_file_system() -> None:
    assert folder_name("GSP: m 64, eps 0.5/GAP+É") == "gsp--m-64--eps-0-5-gap-é"


def test_forms_of_zsr() -> None:
    gains = {"scale 1": 0.1, "scale 9.5": -1.0, "scale 1, rate 10": 2.0, "scale 1, rate 100": -2.0}

    def score(variant: Variant, seed: int) -> float:
        faster = "faster" in variant.name and not variant.name.startswith("twice the batch")
        noise = 0.1 * (-1) ** seed * (variant.name in ("twice the batch, no ZSR", "Proxy-Anchor, no ZSR"))
        return 30 + gains.get(variant.name, faster) + seed + noise

    good, bad = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED
    found = verdicts(zsr_forms.ZSR_FORMS, score)
    assert found[1:6] == [good, good, bad, good, good]
    assert found[7] is good
    assert found[6] is found[8] is Verdict.WITHIN_SEED_NOISE


def test_forms_of_zsr_vary_what_their_names_say() -> None:
    for size in ("quick", "full"):
        scale = zsr_forms.ZSR_FORMS.scales[size]  # type: ignore[index]
        configs = {
            one.name: load_config(scale.file, [*scale.base.to_args(), *one.settings.to_args()])
            for one in zsr_forms.ZSR_FORMS.variants(scale)
        }
        for name, config in configs.items():
            assert config.zsr.weight == (0 if "no ZSR" in name else 0.1)
            assert config.zsr.logit_scale == (9.5 if "9.5" in name or "proxies as" in name else 1)
            if "faster" in name:
                assert config.train.lr is not None
                assert config.train.lr * config.zsr.lr_multiplier == pytest.approx(0.01)
        one, classes, batch = (configs[name].train for name in ("no ZSR", *(f"twice the {what}, no ZSR" for what in
                               ("classes", "batch"))))  # fmt: skip
        assert 2 * one.classes_per_batch == classes.classes_per_batch == batch.classes_per_batch
        assert one.samples_per_class == 2 * classes.samples_per_class == batch.samples_per_class


def test_frozen_heads() -> None:
    better = ("cosine", "layer norm of pooled features")

    def score(variant: Variant, seed: int) -> float:
        noise = 0.1 * (-1) ** seed * (variant.name == "step")
        return 20 + seed + (variant.name in better) - (variant.name == "plateau") + noise

    found = dict(zip((claim.text for claim in frozen_heads.FROZEN_HEADS.claims),
                     verdicts(frozen_heads.FROZEN_HEADS, score), strict=True))  # fmt: skip
    assert found["Cosine improves on constant, no norm"] is Verdict.REPRODUCED
    assert found["Plateau improves on constant, no norm"] is Verdict.NOT_REPRODUCED
    assert found["Layer norm of pooled features improves on constant, no norm"] is Verdict.REPRODUCED
    assert found["Step improves on constant, no norm"] is Verdict.WITHIN_SEED_NOISE
