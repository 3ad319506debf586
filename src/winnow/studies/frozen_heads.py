"""Learning-rate schedules and norms in the head of a frozen backbone."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.studies.scores import Scores
from winnow.studies.settings import C2, CUB_FROZEN, SINGLE_EMOJI, pooling, scales, train
from winnow.studies.spec import Claim, Evidence, GridStudy, Scale, Variant
from winnow.training.overrides import Overrides

BASE = "constant, no norm"
PEAK = 3  # factor on the learning rate that a decay to 0 allows
COSINE = "cosine"
HIGH, HIGH_COSINE = f"constant, rate x{PEAK}", f"cosine, rate x{PEAK}"
POSITIONS = {"pooled": "of pooled features", "embedding": "of embeddings"}
NORMS = {
    f"{norm} norm {where}": Overrides({"head": {"norm": norm, "position": position}})
    for position, where in POSITIONS.items()
    for norm in ("layer", "batch")
}
SCALED = "layer norm of pooled features, with weights"


def _variants(scale: Scale) -> Iterator[Variant]:
    lr, steps = scale.pick(quick=(3e-3, 500), full=(1e-4, 1500))
    shared = C2[scale.name] | pooling("gap")
    yield Variant(BASE, shared, "constant")
    schedules = {
        COSINE: train(schedule="cosine"),
        "step": train(schedule="step", milestones=[steps // 2, 3 * steps // 4]),
        "plateau": train(schedule="plateau") | Overrides({"plateau": {"factor": 0.5, "patience": 2, "cooldown": 0}}),
        HIGH: train(lr=PEAK * lr),
        HIGH_COSINE: train(schedule="cosine", warmup_steps=steps // 20, lr=PEAK * lr),
    }
    for name, settings in schedules.items():
        yield Variant(name, shared | settings, "schedule" if "constant" not in name else "constant")
    norms = NORMS | {SCALED: NORMS["layer norm of pooled features"] | Overrides({"head": {"affine": True}})}
    for name, settings in norms.items():
        yield Variant(name, shared | settings, "norm")


def _improves(name: str, base: str = BASE) -> Claim:
    def check(s: Scores) -> Evidence:
        return Evidence(f"{s[name]:.2f}, {s[base]:.2f}", s[name] - s[base])

    return Claim(f"{name[0].upper()}{name[1:]} improves on {base}", "new", check)


FROZEN_HEADS = GridStudy(
    name="frozen-heads", title="Schedules and norms in the head of a frozen backbone",
    measures="schedules, norms, frozen backbone", source="", group="Other",
    scales=scales(
        SINGLE_EMOJI(seeds=3, cost="5 minutes, 33 runs", details="C2, 128-D", source=""),
        CUB_FROZEN(seeds=3, cost="33 runs on CUB-200-2011, half an hour on two cores", steps=1500, every=150,
                   details="GAP, C2, batches of 8 x 4"),
    ),
    variants=_variants,
    claims=(
        _improves(COSINE), _improves("step"), _improves("plateau"), _improves(HIGH_COSINE, HIGH),
        _improves(HIGH_COSINE), *map(_improves, (*NORMS, SCALED)),
    ),
)  # fmt: skip
