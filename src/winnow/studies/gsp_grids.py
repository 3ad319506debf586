"""Grids over the settings of GSP: the kept fraction, prototypes, sharpness, components, and learned values."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.studies.scores import Scores, mean
from winnow.studies.settings import C2, CUB_FOLD1, EMOJI, GSP_ZSR, gsp, pooling, scales
from winnow.studies.spec import Claim, Curve, Evidence, GridStudy, Scale, Variant

GPU = "runs on CUB-200-2011, a GPU"
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
    source="[Thesis], Fig. 5.8", group="Generalized Sum Pooling",
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
