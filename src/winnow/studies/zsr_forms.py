"""Forms of zero-shot regularization on frozen features: scale, rate of the class embeddings, classes of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from winnow.studies.scores import Scores
from winnow.studies.settings import C2, CUB_FROZEN, EMOJI, FAST_PROXIES, NOTHING, component, gsp, scales, train
from winnow.studies.spec import Claim, Column, Evidence, GridStudy, Scale, Variant
from winnow.training.overrides import Overrides

if TYPE_CHECKING:
    from winnow.studies.runner import StudyRun

WITHOUT, TEXT, AUTHORS = "no ZSR", "scale 1", "scale 9.5"
FASTER = f"{TEXT}, faster"  # class embeddings at a learning rate of 0.01
SHARED = "proxies as class embeddings"
CLASSES, BATCH, PROXIES = "twice the classes", "twice the batch", "Proxy-Anchor"
WEIGHT = 0.1  # as published
RATES = (10, 100)  # factors on the learning rate of the class embeddings
SAME = 0.5  # points


def _zsr(**settings: object) -> Overrides:
    return Overrides({"zsr": {"weight": WEIGHT, **settings}})


def _rate(factor: float) -> str:
    return f"{TEXT}, rate {factor}"


def _variants(scale: Scale) -> Iterator[Variant]:
    selection = scale.pick(quick=gsp(0.05, 20), full=gsp(0.3, 20))
    shared = C2[scale.name] | selection
    classes, images = scale.pick(quick=(16, 4), full=(8, 4))
    factor = scale.pick(quick=10, full=100)  # a learning rate of 0.01 on both sets
    faster = _zsr(lr_multiplier=factor)
    forms = {WITHOUT: NOTHING, TEXT: _zsr(), AUTHORS: _zsr(preset="authors")}
    forms |= {_rate(one): _zsr(lr_multiplier=one) for one in RATES}
    for name, form in forms.items():
        yield Variant(name, shared | form, WITHOUT if name == WITHOUT else "ZSR")
    for batch, (count, size) in {CLASSES: (2 * classes, images // 2), BATCH: (2 * classes, images)}.items():
        larger = shared | train(classes_per_batch=count, samples_per_class=size)
        yield Variant(f"{batch}, {WITHOUT}", larger, WITHOUT)
        yield Variant(f"{batch}, {FASTER}", larger | faster, "ZSR")
    proxies = component("loss", "proxy_anchor") | FAST_PROXIES | selection
    with_proxies = {WITHOUT: NOTHING, FASTER: faster, SHARED: _zsr(preset="authors", class_embeddings="proxies")}
    for name, form in with_proxies.items():
        yield Variant(f"{PROXIES}, {name}", proxies | form, WITHOUT if name == WITHOUT else "ZSR")


def _validation(runs: Sequence[StudyRun]) -> float:
    """Return MAP@R of the selected weights on the validation classes, by which a form would be chosen."""
    return fmean(100 * run.result.metrics["val"]["MAP@R"] for run in runs)


def _over_guessing(runs: Sequence[StudyRun]) -> float | None:
    """Return the loss of ZSR in the last quarter of the validations, as a multiple of the loss of guessing."""
    ratios = []
    for run in runs:
        lines = [] if run.run_dir is None else [one for one in run.run_dir.read_history() if "zsr/guess" in one]
        ratios += [one["zsr"] / one["zsr/guess"] for one in lines[-max(1, len(lines) // 4) :]]
    return round(fmean(ratios), 3) if ratios else None


def _improves(name: str, base: str = WITHOUT, source: str = "new") -> Claim:
    def check(s: Scores) -> Evidence:
        return Evidence(f"{s[name]:.2f}, {s[base]:.2f}", s[name] - s[base])

    return Claim(f"{name[0].upper()}{name[1:]} improves on {base}", source, check)


def _text_is_free(s: Scores) -> Evidence:
    return Evidence(f"{s[TEXT]:.2f}, {s[WITHOUT]:.2f}", s[TEXT] - s[WITHOUT])


def _authors_cost(s: Scores) -> Evidence:
    return Evidence(f"{s[AUTHORS]:.2f}, {s[WITHOUT]:.2f}", s[WITHOUT] - s[AUTHORS])


ZSR_FORMS = GridStudy(
    name="zsr-forms", title="Forms of zero-shot regularization on frozen features", measures="scale and rates of ZSR",
    source="[GSP]", group="Zero-shot regularization",
    scales=scales(
        EMOJI(steps=600, seeds=3, cost="15 minutes, 36 runs", source="", every=100,
              details="GSP with eps 20 and mu 0.05, C2, weight 0.1, class embeddings in 128-D"),
        CUB_FROZEN(seeds=3, cost="36 runs on CUB-200-2011, 1 hour on two cores", steps=1000, every=200,
                   details="GSP with eps 20 and mu 0.3, C2, weight 0.1, class embeddings in 128-D"),
    ),
    variants=_variants,
    columns=(Column("val MAP@R", _validation), Column("ZSR loss / ln C", _over_guessing)),
    claims=(
        _improves(TEXT, source="[Thesis], Table 5.3"),
        Claim(f"{TEXT.capitalize()} makes no difference within {SAME} points", "new", _text_is_free, equal=SAME),
        *(_improves(_rate(one)) for one in RATES),
        Claim(f"The authors' scale of 9.5 is below {WITHOUT}", "new", _authors_cost),
        *(_improves(f"{setup}, {FASTER}", f"{setup}, {WITHOUT}") for setup in (CLASSES, BATCH, PROXIES)),
        _improves(f"{PROXIES}, {SHARED}", f"{PROXIES}, {WITHOUT}"),
    ),
)  # fmt: skip
