"""Sweeps of GSP's settings: on the embedded set in small, on a fold of CUB-200-2011 in full; curves and grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from winnow.studies.cub_losses import CONFIG
from winnow.studies.methods import Comparison, Method
from winnow.studies.poolings import EMBEDDED, PNCA, WORDS

CUB_LOSSES = {"C2": ["loss=c2", "loss.preset=cub"], "PNCA": [*PNCA, "train.freeze_backbone_steps=100"]}
CUB = "CUB-200-2011"
WHERE = {
    True: "On the embedded set with a frozen backbone, {steps} steps",
    False: "On the first fold of the fair protocol on CUB-200-2011 with ResNet-50 (the documents: BN-Inception)",
}


def losses(small: bool) -> Mapping[str, Sequence[str]]:
    """Return the words of C2 and Proxy-NCA++ for the set a size is trained on."""
    return EMBEDDED if small else CUB_LOSSES


def compare(methods: Sequence[Method], small: bool, *, seeds: int = 1, steps: int = 200) -> Comparison:
    """Return a comparison on the embedded set, or in full on CUB with three seeds."""
    if not small:
        return Comparison(methods, seeds=(0, 1, 2), file=CONFIG)
    words = [*WORDS, "dim=128", f"train.max_steps={steps}", f"train.eval_steps={max(1, steps // 4)}"]
    return Comparison(methods, seeds=tuple(range(seeds)), words=words)


def gsp(mu: float | None = None, eps: float | None = None, m: int | None = None, zsr: float = 0.0) -> list[str]:
    """Return the words of GSP; what is None stays as it is by default."""
    settings = {"mu": mu, "eps": eps, "num_prototypes": m}
    words = ["pooling=gsp", *(f"pooling.{key}={value:g}" for key, value in settings.items() if value is not None)]
    return [*words, f"zsr={zsr:g}"] if zsr else words


def where(small: bool, steps: int = 200) -> str:
    """Say on what a comparison was made."""
    return WHERE[small].format(steps=steps)
