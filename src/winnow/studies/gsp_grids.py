"""Grids over the settings of GSP: the kept fraction, prototypes, sharpness, components, and learned values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from winnow.models.factory import read_state_dict
from winnow.report.claims import format_points
from winnow.studies.scores import MissingScoreError, Scores, mean
from winnow.studies.settings import (
    C2,
    CUB_FOLD1,
    EMOJI,
    GSP_ZSR,
    LOSSES,
    NOTHING,
    TUNED,
    gsp,
    pooling,
    scales,
    train,
)
from winnow.studies.spec import Claim, Column, Curve, Effects, Evidence, GridStudy, Heatmap, Scale, Variant

if TYPE_CHECKING:
    from winnow.studies.runner import StudyRun

GPU = "runs on CUB-200-2011, a GPU"
GSP_GROUP = "Generalized Sum Pooling"
LOW, HIGH = 0.3, 0.7  # fractions that count as low and as high


# --- mu: Fig. 5.8 -----------------------------------------------------------------------------------------------------


def _mu_variants(scale: Scale) -> Iterator[Variant]:
    full = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    eps, fractions = scale.pick(quick=(20, (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)), full=(5, full))
    yield Variant("GAP", pooling("gap") | C2[scale.name], "GAP")
    for mu in fractions:
        yield Variant(f"mu {mu:g}", gsp(mu, eps, zsr=0.1) | C2[scale.name], GSP_ZSR, x=mu)


def _low(s: Scores) -> list[float]:
    return [score for mu, score in s.sweep(GSP_ZSR).items() if mu <= LOW]


def _high(s: Scores) -> list[float]:
    return [score for mu, score in s.sweep(GSP_ZSR).items() if mu >= HIGH]


def _mu_gain(s: Scores) -> Evidence:
    return Evidence(f"{mean(_low(s)):.2f} (mu ≤ {LOW}), {s['GAP']:.2f} (GAP)", mean(_low(s)) - s["GAP"])


def _mu_similar(s: Scores) -> Evidence:
    spread, quarter = max(_low(s)) - min(_low(s)), abs(s.best(GSP_ZSR) - s["GAP"]) / 4
    return Evidence(f"within {spread:.2f} points; a quarter of the gain is {quarter:.2f}", quarter - spread)


def _mu_drop(s: Scores) -> Evidence:
    low, high = mean(_low(s)), mean(_high(s))
    return Evidence(f"{low:.2f} (mu ≤ {LOW}), {high:.2f} (mu ≥ {HIGH}), {s['GAP']:.2f} (GAP)", low - high)


MU = GridStudy(
    name="mu", title="MAP@R as a function of the kept fraction mu", measures="fraction kept, mu",
    source="[Thesis], Fig. 5.8", group=GSP_GROUP,
    scales=scales(
        EMOJI(steps=200, seeds=1, cost="1 minute, 8 runs", details="C2, ZSR weight 0.1, eps 20 ([Thesis]: 5)"),
        CUB_FOLD1(seeds=3, cost=f"30 {GPU}", details="C2, ZSR weight 0.1, eps 5"),
    ),
    variants=_mu_variants, figure=Curve(x="mu", baseline="GAP"),
    claims=(
        Claim("Low mu improves on GAP", "[Thesis], Fig. 5.8", _mu_gain),
        Claim("Low values of mu perform similarly", "[Thesis], Fig. 5.8", _mu_similar, given=0),
        Claim("MAP@R falls toward GAP as mu grows", "[Thesis], Fig. 5.8", _mu_drop, given=0),
    ),
)  # fmt: skip


# --- m-eps: Fig. 5.10 -------------------------------------------------------------------------------------------------

BEST = {"C2": (5.0, 64.0), "PNCA": (0.5, 64.0)}  # published best (eps, m)


def _m_eps_variants(scale: Scale) -> Iterator[Variant]:
    mu = scale.pick(quick=0.05, full=0.3)
    counts, sharpness = scale.pick(
        quick=((16, 64), (0.5, 5.0, 20.0, 50.0)), full=((16, 32, 64, 128), (0.5, 1.0, 5.0, 10.0, 20.0))
    )
    for loss, settings in LOSSES[scale.name].items():
        yield Variant(f"GAP, {loss}", pooling("gap") | settings, loss)
        for m in counts:
            for eps in sharpness:
                yield Variant(f"m {m}, eps {eps:g}, {loss}", gsp(mu, eps, m, zsr=0.1) | settings, loss, x=eps, y=m)


def _published_best(loss: str) -> Claim:
    def check(s: Scores) -> Evidence:
        grid, (eps, m) = s.grid(loss), BEST[loss]
        if (eps, m) not in grid:
            raise MissingScoreError(f"m {m:g}, eps {eps:g}, {loss}: no run.")
        other = max((place for place in grid if place != (eps, m)), key=grid.__getitem__)
        lead = grid[eps, m] - grid[other]
        ours = f"{grid[eps, m]:.2f}; best other is m = {other[1]:g}, eps = {other[0]:g} with {grid[other]:.2f}"
        return Evidence(ours, lead)

    return Claim(f"{loss}: m = {BEST[loss][1]:g} and eps = {BEST[loss][0]:g} are best", "[Thesis], Fig. 5.10", check)


M_EPS = GridStudy(
    name="m-eps", title="MAP@R over the number of prototypes and the sharpness",
    measures="prototypes m and sharpness eps", source="[Thesis], Fig. 5.10", group=GSP_GROUP,
    scales=scales(
        EMOJI(steps=200, seeds=1, cost="2 minutes, 18 runs", details="ZSR weight 0.1, mu 0.05 ([Thesis]: 0.3)"),
        CUB_FOLD1(seeds=3, cost=f"126 {GPU}", details="ZSR weight 0.1, mu 0.3"),
    ),
    variants=_m_eps_variants, figure=Heatmap(x="eps", y="m"), claims=tuple(map(_published_best, BEST)),
)  # fmt: skip


# --- prototypes: Fig. 5.11 --------------------------------------------------------------------------------------------

ENOUGH = 64  # from here on the thesis reports little change


def _prototype_variants(scale: Scale) -> Iterator[Variant]:
    for loss, settings in LOSSES[scale.name].items():
        mu, eps = scale.pick(quick=(0.05, 20.0), full=(0.3, {"C2": 5.0, "PNCA": 0.5}[loss]))
        yield Variant(f"GAP, {loss}", pooling("gap") | settings, loss)
        for m in scale.pick(quick=(4, 16, 64, 128), full=(8, 16, 32, 64, 128, 256)):
            yield Variant(f"m {m}, {loss}", gsp(mu, eps, m, zsr=0.1) | settings, loss, x=m)


def _many(s: Scores, loss: str) -> list[float]:
    return [score for m, score in s.sweep(loss).items() if m >= ENOUGH]


def _prototype_claims(loss: str) -> tuple[Claim, Claim]:
    def improves(s: Scores) -> Evidence:
        many, gap = _many(s, loss), s[f"GAP, {loss}"]
        return Evidence(f"{min(many):.2f} to {max(many):.2f}, GAP {gap:.2f}; the lowest", min(many) - gap)

    def saturates(s: Scores) -> Evidence:
        many, gain = _many(s, loss), max(s.sweep(loss).values()) - s[f"GAP, {loss}"]
        spread, quarter = max(many) - min(many), abs(gain) / 4
        return Evidence(f"within {spread:.2f} points; a quarter of the gain is {quarter:.2f}", quarter - spread)

    return (
        Claim(f"{loss}: every m of at least {ENOUGH} improves on GAP", "[Thesis], Fig. 5.11", improves),
        Claim(f"{loss}: more than {ENOUGH} prototypes bring little", "[Thesis], Fig. 5.11", saturates),
    )


_PROTOTYPE_SOURCE = "[Thesis]: SOP and In-shop, fine-tuned BN-Inception"
PROTOTYPES = GridStudy(
    name="prototypes", title="MAP@R over the number of prototypes", measures="number of prototypes",
    source="[Thesis], Fig. 5.11", group=GSP_GROUP,
    scales=scales(
        EMOJI(steps=200, seeds=1, cost="1 minute, 10 runs", source=_PROTOTYPE_SOURCE,
              details="ZSR weight 0.1, mu 0.05 and eps 20 ([Thesis]: 0.3, and 5 with C2, 0.5 with PNCA)"),
        CUB_FOLD1(seeds=3, cost=f"42 {GPU}", source=_PROTOTYPE_SOURCE,
                  details="ZSR weight 0.1, mu 0.3, eps 5 with C2 and 0.5 with PNCA"),
    ),
    variants=_prototype_variants, figure=Curve(x="m", baseline="GAP, {group}", log=True),
    claims=(*_prototype_claims("C2"), *_prototype_claims("PNCA")),
)  # fmt: skip


# --- components: Table 5.3 --------------------------------------------------------------------------------------------

ZSR_ALONE = "ZSR alone (mu = 1)"
COMPONENTS = {"GAP": 20.58, "GSP": 20.85, ZSR_ALONE: 21.08, GSP_ZSR: 21.52}
"""Published MAP@R on CUB, 128-D."""


def _component_variants(scale: Scale) -> Iterator[Variant]:
    mu, eps = scale.pick(quick=(0.05, 20.0), full=(0.3, 5.0))
    settings = {
        "GAP": pooling("gap"), "GSP": gsp(mu, eps), ZSR_ALONE: gsp(1, eps, zsr=0.1), GSP_ZSR: gsp(mu, eps, zsr=0.1),
    }  # fmt: skip
    for name, published in COMPONENTS.items():
        yield Variant(name, settings[name] | C2[scale.name], published={"[Thesis], CUB": published})


def _over_gap(name: str) -> Claim:
    def check(s: Scores) -> Evidence:
        return Evidence(f"{s[name]:.2f}, GAP {s['GAP']:.2f}", s[name] - s["GAP"])

    return Claim(f"{name} improves on GAP", "[Thesis], Table 5.3", check)


def _both_best(s: Scores) -> Evidence:
    best = max((name for name in COMPONENTS if name != GSP_ZSR), key=s.__getitem__)
    return Evidence(f"{s[GSP_ZSR]:.2f}, best other {best} {s[best]:.2f}", s[GSP_ZSR] - s[best])


def _boost(s: Scores) -> Evidence:
    gain = s[GSP_ZSR] - s["GSP"]
    return Evidence(f"{format_points(gain)} points; beyond 0.5", gain - 0.5)


COMPONENT_STUDY = GridStudy(
    name="components", title="GSP and ZSR, alone and together", measures="GSP and ZSR, alone and together",
    source="[Thesis], Table 5.3", group="Zero-shot regularization",
    scales=scales(
        EMOJI(steps=200, seeds=3, cost="1 minute, 12 runs",
              details="C2, ZSR weight 0.1, mu 0.05 and eps 20 ([Thesis]: 0.3 and 5)"),
        CUB_FOLD1(seeds=3, cost=f"12 {GPU}", details="C2, ZSR weight 0.1, mu 0.3 and eps 5",
                  source="[Thesis]: all four folds of CUB-200-2011 and of three other datasets, BN-Inception"),
    ),
    variants=_component_variants,
    claims=(
        _over_gap("GSP"), _over_gap(ZSR_ALONE),
        Claim("GSP and ZSR together are best", "[Thesis], Table 5.3", _both_best),
        Claim("ZSR adds at least 0.5 points to GSP", "[Thesis], chapter 6 (0.5 to 1 points)", _boost),
    ),
)  # fmt: skip


# --- screening: Table 5.4 ---------------------------------------------------------------------------------------------

FACTORS = {"m": "pooling.num_prototypes", "mu": "pooling.mu", "eps": "pooling.eps", "lambda": "zsr.weight"}
VALIDATION = "[Thesis], CUB validation"
# m, mu, eps, lambda to the published MAP@R. The level of lambda is the product of the others, so no main effect is
# confounded with an interaction of two factors.
SCREENED = {
    (16, 0.3, 0.5, 0.1): {"C2": 40.63, "PNCA": 40.59},
    (16, 0.7, 0.5, 0.5): {"C2": 40.41, "PNCA": 40.34},
    (128, 0.3, 0.5, 0.5): {"C2": 40.22, "PNCA": 40.35},
    (128, 0.7, 0.5, 0.1): {"C2": 40.07, "PNCA": 40.85},
    (16, 0.3, 20, 0.5): {"C2": 36.11, "PNCA": 40.51},
    (16, 0.7, 20, 0.1): {"C2": 39.11, "PNCA": 39.88},
    (128, 0.3, 20, 0.1): {"C2": 39.61, "PNCA": 39.12},
    (128, 0.7, 20, 0.5): {"C2": 35.36, "PNCA": 39.92},
}


def _screening_variants(scale: Scale) -> Iterator[Variant]:
    for loss, settings in LOSSES[scale.name].items():
        baseline = {"C2": 39.77, "PNCA": 39.90}[loss]
        yield Variant(f"GAP, {loss}", pooling("gap") | settings, loss, published={VALIDATION: baseline})
        for setting, published in SCREENED.items():
            m, mu, eps, weight = setting
            levels = ", ".join(f"{factor} {value:g}" for factor, value in zip(FACTORS, setting, strict=True))
            yield Variant(f"{levels}, {loss}", gsp(mu, eps, m, weight) | settings, loss,
                          published={VALIDATION: published[loss]})  # fmt: skip


def _screening_claims(loss: str) -> list[Claim]:
    def lower(factor: str) -> Claim:
        def check(s: Scores) -> Evidence:
            return Evidence("low minus high level", -s.effects(loss, FACTORS)[factor])

        return Claim(f"{loss}: a lower {factor} is better", "[Thesis], Table 5.4", check)

    def strongest(s: Scores) -> Evidence:
        sizes = {factor: abs(effect) for factor, effect in s.effects(loss, FACTORS).items()}
        other = max((factor for factor in sizes if factor != "eps"), key=sizes.__getitem__)
        return Evidence(f"{sizes['eps']:.2f}, next {other} {sizes[other]:.2f}", sizes["eps"] - sizes[other])

    return [*map(lower, ("lambda", "mu", "eps")),
            Claim(f"{loss}: eps has the largest effect", "[Thesis], Table 5.4", strongest)]  # fmt: skip


_SCREENING_DETAILS = "effects are means of four runs at the high minus four at the low level"
SCREENING = GridStudy(
    name="screening", title="Main effects of the settings of GSP", measures="main effects of m, mu, eps, ZSR",
    source="[Thesis], Table 5.4", group="Zero-shot regularization",
    scales=scales(
        EMOJI(steps=200, seeds=1, cost="2 minutes, 18 runs", details=_SCREENING_DETAILS,
              source="[Thesis]: validation classes of CUB-200-2011, fine-tuned BN-Inception"),
        CUB_FOLD1(seeds=3, cost=f"54 {GPU}", details=_SCREENING_DETAILS,
                  source=f"{TUNED}; its effects are on validation classes"),
    ),
    variants=_screening_variants, figure=Effects(FACTORS, VALIDATION),
    claims=(*_screening_claims("C2"), *_screening_claims("PNCA")),
)  # fmt: skip


# --- learned: new -----------------------------------------------------------------------------------------------------

STARTS = {"quick": ((0.05, 20.0), (0.3, 5.0)), "full": ((0.3, 5.0),)}
_MU = pooling("gsp", learn_mu=True)
_EPS = pooling("gsp", learn_eps=True)
LEARNED = {  # one number learns slowly at the rate of a matrix, hence the factors
    "fixed": NOTHING,
    "mu learned": _MU | train(lr_multipliers={"*.mu_logit": 30}),
    "eps learned": _EPS | train(lr_multipliers={"*.log_eps": 30}),
    "both learned": _MU | _EPS | train(lr_multipliers={"*.mu_logit": 30, "*.log_eps": 30}),
}
MATTERS = 0.5  # points that count as a gain


def _learned_variants(scale: Scale) -> Iterator[Variant]:
    for mu, eps in STARTS[scale.name]:
        for name, learned in LEARNED.items():
            yield Variant(f"mu {mu:g}, eps {eps:g}: {name}", gsp(mu, eps) | learned | C2[scale.name], name)


def final_values(weights: Mapping[str, Any], mu: float, eps: float) -> dict[str, float]:
    """Return the mu and eps of a model; where they were not learned, the values that were set."""
    for key, value in weights.items():
        if key.endswith("pooling.mu_logit"):
            mu = 1 / (1 + math.exp(-float(value)))
        if key.endswith("pooling.log_eps"):
            eps = math.exp(float(value))
    return {"mu": mu, "eps": eps}


def _at_the_end(key: str) -> Column:
    def value(runs: Sequence[StudyRun]) -> float | None:
        found = []
        for run in runs:
            file = run.run_dir.model_folder / "model.safetensors" if run.run_dir is not None else None
            if file is not None and file.is_file():  # an imported run has no model
                start = run.result.config["pooling"]
                found.append(final_values(read_state_dict(file), start["mu"], start["eps"])[key])
        return round(mean(found), 4) if found else None

    return Column(f"{key} at the end", value)


def _learning_helps(mu: float, eps: float, size: Literal["quick"] | None = None) -> Claim:
    def check(s: Scores) -> Evidence:
        scores = {name: s[f"mu {mu:g}, eps {eps:g}: {name}"] for name in LEARNED}
        gains = {name: score - scores["fixed"] for name, score in scores.items() if name != "fixed"}
        listed = ", ".join(f"{name} {format_points(gain)}" for name, gain in gains.items())
        return Evidence(f"{listed}; the best beyond {MATTERS}", max(gains.values()) - MATTERS)

    return Claim(f"From mu = {mu:g}, eps = {eps:g}, learning gains at least {MATTERS} points", "new", check, scale=size)


_LEARNED_DETAILS = "C2, no ZSR; learned values learn 30 times as fast"
LEARNED_STUDY = GridStudy(
    name="learned", title="GSP with learned mu and eps", measures="learned vs. fixed mu and eps", source="",
    group=GSP_GROUP,
    scales=scales(
        EMOJI(steps=200, seeds=1, cost="1 minute, 8 runs", details=_LEARNED_DETAILS, source=""),
        CUB_FOLD1(seeds=3, cost=f"12 {GPU}", details=_LEARNED_DETAILS, source=""),
    ),
    variants=_learned_variants, columns=(_at_the_end("mu"), _at_the_end("eps")),
    claims=(_learning_helps(0.05, 20.0, "quick"), _learning_helps(0.3, 5.0)),
)  # fmt: skip
