"""Grids of poolings: on bundled emoji, on CUB-200-2011, and on the tokens of a vision transformer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from winnow.studies.scores import Scores
from winnow.studies.settings import (
    C2,
    CUB200,
    CUB_FOLD1,
    EMOJI,
    GSP_ZSR,
    LARGE_POOLINGS,
    LOSSES,
    component,
    every_pooling,
    gsp,
    pooling,
    scales,
    train,
    zero_shot,
)
from winnow.studies.spec import Claim, DataNeed, Evidence, GridStudy, Scale, StudyRequest, Variant
from winnow.studies.synthetic_images import write_cifar
from winnow.training.overrides import Overrides

GSP_GROUP = "Generalized Sum Pooling"


# --- poolings: Fig. 5.12 on emoji -------------------------------------------------------------------------------------

# mu and eps were chosen on the validation classes.
EMOJI_POOLINGS = every_pooling(
    Overrides({"pooling": {"mu": 0.05, "eps": 20}}), Overrides({"pooling": {"mu": 0.95, "eps": 20}})
)
NEW_POOLINGS = {"RK-FBP": pooling("rk_fbp"), "RK-FBP, rank 1": pooling("rk_fbp", rank=1)}
"""Poolings that the thesis does not compare; its claims leave them out."""


def _emoji_variants(scale: Scale) -> Iterator[Variant]:
    every = EMOJI_POOLINGS | NEW_POOLINGS | scale.pick(quick={}, full=LARGE_POOLINGS)
    for name, settings in every.items():
        for loss, its in LOSSES["quick"].items():
            yield Variant(f"{name}, {loss}", settings | its, f"{loss}, new" if name in NEW_POOLINGS else loss)


def _pooling_claims(loss: str) -> tuple[Claim, Claim]:
    def over_gap(s: Scores) -> Evidence:
        ours, gap = s[f"{GSP_ZSR}, {loss}"], s[f"GAP, {loss}"]
        return Evidence(f"{ours:.2f}, GAP {gap:.2f}", ours - gap)

    def over_others(s: Scores) -> Evidence:
        scores = {name.removesuffix(f", {loss}"): score for name, score in s.group(loss).items()}
        others = [name for name in scores if is_other(name) and not (loss == "C2" and name.startswith("NetVLAD"))]
        best = max(others, key=scores.__getitem__)
        rank = 1 + sum(score > scores[GSP_ZSR] for score in scores.values())
        ours = f"rank {rank} of {len(scores)}, best other {best} {scores[best]:.2f}"
        return Evidence(ours, scores[GSP_ZSR] - scores[best])

    except_netvlad = " except NetVLAD" if loss == "C2" else ""
    return (
        Claim(f"{loss}: {GSP_ZSR} improves on GAP", "[Thesis], Fig. 5.5", over_gap),
        Claim(f"{loss}: {GSP_ZSR} is ahead of all other poolings{except_netvlad}", "[Thesis], Fig. 5.5", over_others),
    )


def is_other(name: str) -> bool:
    """Return whether a pooling uses neither GSP nor ZSR."""
    return "GSP" not in name and "ZSR" not in name


_POOLING_DETAILS = (
    "poolings with the parameters of their papers, GSP with mu 0.05 and eps 20 (chosen on the validation classes with "
    "C2), no other pooling tuned; with PNCA, proxies learn 100 times as fast from batches of one image of 32 classes"
)
_COLLAGE = "[Thesis]: CIFAR Collage"
POOLINGS = GridStudy(
    name="poolings", title="Poolings on bundled emoji", measures="all poolings, emoji", source="[Thesis], Fig. 5.12",
    group=GSP_GROUP,
    scales=scales(
        EMOJI(steps=200, every=50, seeds=1, cost="3 minutes, 46 runs", details=_POOLING_DETAILS, source=_COLLAGE),
        EMOJI(steps=1000, every=100, seeds=3, cost="1 hour, 150 runs", details=_POOLING_DETAILS, source=_COLLAGE),
    ),
    variants=_emoji_variants, claims=(*_pooling_claims("C2"), *_pooling_claims("PNCA")),
)  # fmt: skip


# --- cub-poolings: Fig. 5.12b -----------------------------------------------------------------------------------------

# Published settings of GSP: what is dropped as background is what mu does not keep.
CUB_POOLINGS = every_pooling(background=Overrides({"pooling": {"mu": 0.7}})) | LARGE_POOLINGS
# What is trained first, where there is no time for all.
FIRST = ("GAP", GSP_ZSR, "GSP", "ZSR alone (mu = 1)", "GeMean", "NetVLAD 8x16", "OTP 8x16", "DeLF", "CBAM")
EQUIVALENT = ("DeLF", "GeMean")  # to GSP, in the thesis
OTHERS = "others"


def _cub_variants(scale: Scale) -> Iterator[Variant]:
    for name in dict.fromkeys((*FIRST, *CUB_POOLINGS)):
        yield Variant(name, CUB_POOLINGS[name], OTHERS if is_other(name) else "GSP, ZSR")


def _cub_over_gap(s: Scores) -> Evidence:
    return Evidence(f"{s[GSP_ZSR]:.2f}, GAP {s['GAP']:.2f}", s[GSP_ZSR] - s["GAP"])


def _cub_first(s: Scores) -> Evidence:
    others = {name: score for name, score in s.group(OTHERS).items() if name != "GAP"}
    best = max(others, key=others.__getitem__)
    return Evidence(f"{s[GSP_ZSR]:.2f}, best other {best} {others[best]:.2f}", s[GSP_ZSR] - others[best])


def _cub_equivalent(name: str) -> Claim:
    def check(s: Scores) -> Evidence:
        return Evidence(f"{s[name]:.2f}, {s[GSP_ZSR]:.2f}", s[name] - s[GSP_ZSR])

    return Claim(f"{name} is equivalent to {GSP_ZSR} within 0.5 points", "[Thesis], Fig. 5.12", check, equal=0.5)


def _cub_no_other(s: Scores) -> Evidence:
    others = {name: score for name, score in s.group(OTHERS).items() if name not in ("GAP", *EQUIVALENT)}
    best = max(others, key=others.__getitem__)
    return Evidence(
        f"best is {best} {others[best]:.2f}, GAP {s['GAP']:.2f}; below 1 point by", 1 + s["GAP"] - others[best]
    )


_CUB_DETAILS = "C2, 128-D where the name states no other, poolings with the parameters of their papers, none tuned here"
_CUB_SOURCE = "[Thesis]: BN-Inception, mean of four folds"
CUB_POOLING_STUDY = GridStudy(
    name="cub-poolings", title="Poolings on one fold of CUB-200-2011", measures="all poolings, one CUB fold",
    source="[Thesis], Fig. 5.12", group=GSP_GROUP,
    scales=scales(
        CUB_FOLD1(seeds=1, cost="CUB-200-2011, a GPU", base=C2["full"] | train(max_steps=20), trial=True,
                  details="C2, 20 steps: a trial whose numbers mean nothing", source=""),
        CUB_FOLD1(seeds=1, cost="23 runs on CUB-200-2011, a GPU", base=C2["full"], details=_CUB_DETAILS,
                  source=_CUB_SOURCE),
    ),
    variants=_cub_variants,
    claims=(
        Claim(f"{GSP_ZSR} improves on GAP", "[Thesis], Fig. 5.12", _cub_over_gap),
        Claim(f"{GSP_ZSR} is ahead of all other poolings", "[Thesis], Fig. 5.12", _cub_first),
        *map(_cub_equivalent, EQUIVALENT),
        Claim("No other pooling is more than 1 point ahead of GAP", "[Thesis], Fig. 5.12", _cub_no_other),
    ),
)  # fmt: skip


# --- tokens-vit: new --------------------------------------------------------------------------------------------------

CLASS, MEAN = "class token", "mean of tokens"
SYNTHETIC = (30, 6)  # training and test images per class
WEIGHTS = Path("data/vit_small_patch16_224.dino.safetensors")  # else the download of timm

# A transformer of 64 channels and 6 blocks without pretraining, on collages of 64 pixels: 16 tokens, 4 of them of the
# cell that determines the class.
SMALL_VIT = Overrides.parse(
    "data=cifar_collage", "backbone=test_vit", "backbone.weights=random", "backbone.train=full", "image.resize=64",
    "image.crop=64", "augment.scale=[1, 1]", "augment.ratio=[1, 1]", "augment.hflip=false", "dim=64",
    "train.projection_init=random", "train.classes_per_batch=16", "train.samples_per_class=2", "train.lr=1e-3",
    "train.eval_steps=50", "train.max_steps=300",
)  # fmt: skip
VIT = Overrides.parse("backbone=vit_small_patch16_224.dino", "image.resize=256", "image.crop=224")


def _synthetic_cifar(request: StudyRequest) -> Overrides:
    """Write synthetic images in the files of CIFAR-100, unless a folder is named."""
    folder = request.data or request.runs / "cifar100"
    if request.data is None and request.train:
        write_cifar(folder, train=SYNTHETIC[0], test=SYNTHETIC[1])
    return Overrides({"data": {"root": str(folder)}})


def _vit_weights(request: StudyRequest) -> Overrides:
    """Name the weights, and the folder of CUB-200-2011 if one is requested."""
    weights = str(WEIGHTS) if WEIGHTS.is_file() else "auto"
    return CUB200.prepare(request) | Overrides({"backbone": {"weights": weights}})


def _token_variants(scale: Scale) -> Iterator[Variant]:
    # mu is the fraction that determines the class where that is known, else the published one.
    own, weight = scale.pick(quick=(gsp(0.25, 10, 16), 0.5), full=(gsp(0.3, 5), 0.1))
    poolings = {
        CLASS: Overrides({"backbone": {"tokens": "cls"}}) | pooling("gap"), MEAN: pooling("gap"),
        "GeM": pooling("gemean"), "GSP": own, GSP_ZSR: own | zero_shot(weight),
    }  # fmt: skip
    losses = scale.pick(quick={"PNCA": component("loss", "proxy_nca")}, full=dict(LOSSES["full"]))
    for loss, its in losses.items():
        for name, settings in poolings.items():
            yield Variant(f"{name}, {loss}", settings | its, loss)


def _gsp_helps(loss: str, size: Literal["full"] | None = None) -> Claim:
    def check(s: Scores) -> Evidence:
        scores = {name.rpartition(", ")[0]: score for name, score in s.group(loss).items()}
        best = max((name for name in scores if not is_other(name)), key=scores.__getitem__)
        other = max((name for name in scores if is_other(name)), key=scores.__getitem__)
        return Evidence(f"{best} {scores[best]:.2f}, {other} {scores[other]:.2f}", scores[best] - scores[other])

    return Claim(f"{loss}: GSP improves on class token, mean, and GeM", "new", check, scale=size)


TOKENS_VIT = GridStudy(
    name="tokens-vit", title="Pooling of the tokens of a vision transformer",
    measures="GSP on vision transformer tokens", source="", group=GSP_GROUP,
    scales=scales(
        Scale("quick", SMALL_VIT, (0, 1), DataNeed("CIFAR-100 (synthetic by default)", prepare=_synthetic_cifar),
              "3 minutes, 10 runs",
              "Vision transformer of 64 channels without pretraining, 300 steps on collages in which 4 of 16 tokens "
              "determine the class."),
        CUB_FOLD1(seeds=3, cost="30 runs on CUB-200-2011, a GPU", base=VIT, source="",
                  details="ViT-S/16 with DINO weights instead, all of it trained",
                  needs=DataNeed("CUB-200-2011", prepare=_vit_weights)),
    ),
    variants=_token_variants, claims=(_gsp_helps("PNCA"), _gsp_helps("C2", "full")),
)  # fmt: skip
