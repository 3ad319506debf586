"""Settings that studies share: scales, losses, GSP, CCP, and every pooling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files

from winnow.studies import synthetic_images
from winnow.studies.spec import DataNeed, Scale, Scales, StudyRequest
from winnow.training.overrides import Overrides

NOTHING = Overrides()
PLAIN_WEIGHTS = ("train.average=0",)
"""Setting of all runs: a study evaluates the weights themselves, unless a variant asks for their average."""
CONFIG = str(files("winnow.studies") / "cub_fair_fold1.yaml")
"""Config of the first fold of the fair protocol on CUB-200-2011."""


def _single_emoji(request: StudyRequest) -> Overrides:
    """Write single emoji next to the runs, where all studies of this size find them."""
    folder = request.runs.parent / "single-emoji"
    if request.train:
        synthetic_images.write_single_emoji(folder)
    return Overrides({"data": str(folder)})


def _cub_images(request: StudyRequest) -> Overrides:
    """Return the setting of the class folders in the requested folder, which may be that of the official archive."""
    if request.data is None:
        return Overrides()
    inside = ("images", "CUB_200_2011/images")
    found = next((folder for name in inside if (folder := request.data / name).is_dir()), request.data)
    return Overrides({"data": str(found)})


CUB200 = DataNeed("CUB-200-2011", prepare=_cub_images)
EMOJI_IMAGES = DataNeed("bundled emoji", has_folder=False)
SINGLE_EMOJI_IMAGES = DataNeed("synthetic single emoji", has_folder=False, prepare=_single_emoji)

# --- Components -------------------------------------------------------------------------------------------------------


def component(section: str, name: str, **values: object) -> Overrides:
    """Return the settings of a component: `component("loss", "c2", preset="cub")`."""
    return Overrides({section: {"name": name, **values}})


def train(**values: object) -> Overrides:
    """Return settings of training."""
    return Overrides({"train": values})


def pooling(name: str, **values: object) -> Overrides:
    """Return the settings of a pooling."""
    return component("pooling", name, **values)


def zero_shot(weight: float) -> Overrides:
    """Return zero-shot regularization with the scale of the authors' code, as in the published tables."""
    return Overrides({"zsr": {"weight": weight, "preset": "authors"}})


def gsp(mu: float | None = None, eps: float | None = None, m: int | None = None, zsr: float = 0.0) -> Overrides:
    """Return the settings of GSP; None keeps a default, and `zsr` is the weight of zero-shot regularization."""
    values = {"mu": mu, "eps": eps, "num_prototypes": m}
    settings = pooling("gsp", **{key: value for key, value in values.items() if value is not None})
    return settings | zero_shot(zsr) if zsr else settings


RAW_PROXIES: Mapping[str, object] = {"normalize_proxies": False, "lr_multiplier": 1.0}
"""Proxies of CCP as the recorded results have them."""


def ccp(
    *, proxies_per_class: int | None = None, pool_size: int | None = None, max_problems: int | None = None
) -> Overrides:  # fmt: skip
    """Return the settings of CCP with the published proxies and pools for CUB, except for those that are given.

    Proxies are raw embeddings with the learning rate of the network, as in all recorded results.
    """
    values = {"proxies_per_class": proxies_per_class, "pool_size": pool_size, "max_problems": max_problems}
    given = {key: value for key, value in values.items() if value is not None}
    return component("references", "ccp", preset="cub", **RAW_PROXIES, **given)


FAST_PROXIES = train(lr_multipliers={"references.proxies": 100})
"""Proxies learn a hundred times as fast as the rest; without it a short training does not start to learn."""

C2: Mapping[str, Overrides] = {
    "quick": component("loss", "c2", pos_margin=0.2, neg_margin=0.9),
    "full": component("loss", "c2", preset="cub"),
}
"""Contrastive loss: chosen on the emoji validation classes, and published for CUB."""
PNCA: Mapping[str, Overrides] = {
    "quick": component("loss", "proxy_nca") | train(classes_per_batch=32, samples_per_class=1) | FAST_PROXIES,
    "full": component("loss", "proxy_nca") | train(classes_per_batch=32, samples_per_class=1) | FAST_PROXIES
    | train(freeze_backbone_steps=100),
}  # fmt: skip
"""Proxy-NCA++ with one image of each class in a batch, as [Thesis] trains proxies."""
LOSSES: Mapping[str, Mapping[str, Overrides]] = {
    size: {"C2": C2[size], "PNCA": PNCA[size]} for size in ("quick", "full")
}
PAIR_LOSSES: Mapping[str, Mapping[str, Overrides]] = {
    "quick": {"C2": C2["quick"], "MS": component("loss", "ms"), "Triplet": component("loss", "triplet")},
    "full": {name: component("loss", name.lower(), preset="cub") for name in ("C2", "MS", "Triplet")},
}

CUB_XBM = component("references", "memory", num_batches=25, start_step=1000)
"""Cross-batch memory on CUB."""

GSP_ZSR = "GSP + ZSR"
"""Name of the variant that the papers call GSP: theirs includes zero-shot regularization."""


def every_pooling(selection: Overrides = NOTHING, background: Overrides = NOTHING) -> dict[str, Overrides]:
    """Return the settings of every pooling by its name in the tables.

    Args:
        selection: Settings of GSP where its prototypes select what is kept.
        background: Settings of GSP where they select what is dropped.
    """
    return {
        "GAP": pooling("gap"),
        "GMP": pooling("gmp"),
        "GMP, projected": pooling("gmp_projected"),
        "GAP+GMP": pooling("gap_gmp"),
        "CBAM": pooling("cbam"),
        "CroW": pooling("crow"),
        "DeLF": pooling("delf"),
        "GeMax": pooling("gemax"),
        "GeMean": pooling("gemean"),
        "GSoP": pooling("gsop"),
        "OTP 8x16": pooling("otp", num_prototypes=8),
        "SOLAR": pooling("solar"),
        "T-SMK": pooling("tsmk"),
        "NetVLAD 8x16": pooling("netvlad", clusters=8),
        "WELDON": pooling("weldon"),
        "GSP": pooling("gsp") | selection,
        "GMP+GSP": pooling("gmp_gsp") | selection,
        "GeMean+GSP": pooling("gemean_gsp") | selection,
        "GSP, background": pooling("gsp", role="background") | background,
        "ZSR alone (mu = 1)": pooling("gsp") | selection | Overrides({"pooling": {"mu": 1}}) | zero_shot(0.1),
        GSP_ZSR: pooling("gsp") | selection | zero_shot(0.1),
    }


LARGE_POOLINGS = {
    "OTP 64x128": pooling("otp", num_prototypes=64) | Overrides({"dim": 8192}),
    "NetVLAD 64x128": pooling("netvlad", clusters=64) | Overrides({"dim": 8192}),
}
"""Poolings with embeddings of 8,192 dimensions, which take long to search."""

# --- Scales -----------------------------------------------------------------------------------------------------------

EMOJI_BASE = Overrides.parse(
    "data=emoji", "backbone.train=frozen", "train.classes_per_batch=16", "train.lr=1e-3"
)  # fmt: skip
"""Bundled emoji collages with the batches and the learning rate of the demo."""
CUB_THESIS = "[Thesis]: CUB-200-2011, fine-tuned BN-Inception"
TUNED = (
    "[Thesis]: fine-tuned BN-Inception, four fifths of the training classes for training, patience 10, mean of 3 runs"
)


def scales(quick: Scale, full: Scale) -> Scales:
    """Return the two sizes of a study."""
    return Scales(replace(quick, name="quick"), replace(full, name="full"))


def EMOJI(
    *, steps: int, seeds: int, cost: str, details: str = "", source: str = CUB_THESIS, every: int | None = None
) -> Scale:  # fmt: skip
    """Return a scale on bundled emoji collages with a frozen backbone.

    Args:
        steps: Training steps.
        seeds: Number of seeds.
        cost: Time and number of runs.
        details: What all variants share.
        source: How the source differs; "" if no source has this comparison.
        every: Steps between validations; a quarter of all by default.
    """
    base = EMOJI_BASE | Overrides({"dim": 128}) | train(max_steps=steps, eval_steps=every or max(1, steps // 4))
    setting = f"Bundled emoji collages, frozen EfficientNet-Lite0, {steps} steps"
    return Scale("quick", base, tuple(range(seeds)), EMOJI_IMAGES, cost, _setting(setting, details, source))


def SINGLE_EMOJI(*, seeds: int, cost: str, details: str = "", source: str = CUB_THESIS) -> Scale:
    """Return a scale on single emoji, where CCP goes through several subproblems in 500 steps."""
    base = Overrides.parse(*synthetic_images.SINGLE_EMOJI) | pooling("gap") | Overrides({"dim": 128})
    base |= train(lr="3e-3", max_steps=500, eval_steps=10)
    setting = (
        "Single emoji (40 training, 20 validation, 40 test classes of 20 images), frozen EfficientNet-Lite0, GAP, at "
        "most 500 steps; learning rate and margins were chosen with seed 0 on the test classes"
    )
    return Scale("quick", base, tuple(range(seeds)), SINGLE_EMOJI_IMAGES, cost, _setting(setting, details, source))


def CUB_FOLD1(
    *, seeds: int, cost: str, base: Overrides = NOTHING, details: str = "", source: str = TUNED, trial: bool = False,
    needs: DataNeed = CUB200,
) -> Scale:  # fmt: skip
    """Return a scale on the first fold of the fair protocol on CUB-200-2011 with ResNet-50.

    Args:
        seeds: Number of seeds.
        cost: Number of runs, and what they need.
        base: Settings of all runs that replace those of the config file.
        details: What all variants share.
        source: How the source differs; "" if no source has this comparison.
        trial: Whether the runs are too short to check claims.
        needs: Data and weights.
    """
    setting = (
        "CUB-200-2011, first fold of the fair protocol (classes 1-75 train, 76-100 validate, 101-200 test), ResNet-50"
    )
    text = _setting(setting, details, source)
    return Scale("full", base, tuple(range(seeds)), needs, cost, text, CONFIG, trial)


def CUB_FROZEN(*, steps: int, seeds: int, cost: str, every: int, details: str = "") -> Scale:
    """Return a scale on the first fold of CUB-200-2011 with the bundled backbone, frozen.

    Args:
        steps: Training steps.
        seeds: Number of seeds.
        cost: Number of runs, and the time.
        every: Steps between validations.
        details: What all variants share.
    """
    base = Overrides.parse("backbone=tf_efficientnet_lite0", "backbone.weights=auto", "backbone.train=frozen")
    base |= train(lr="1e-4", projection_init="pca", max_steps=steps, eval_steps=every)
    setting = (
        "CUB-200-2011, first fold of the fair protocol (classes 1-75 train, 76-100 validate, 101-200 test), frozen "
        f"EfficientNet-Lite0, 128-D, Adam 1e-4, {steps:,} steps"
    )
    return Scale("full", base, tuple(range(seeds)), CUB200, cost, _setting(setting, details, ""), CONFIG)


def CUB_CCP(*, seeds: int, cost: str, details: str = "", source: str = TUNED) -> Scale:
    """Return a scale on CUB-200-2011 that validates every 25 steps with a patience of 60, with CCP and without."""
    base = pooling("gap") | train(eval_steps=25, patience=60)
    details = "; ".join(filter(None, ("GAP, validated every 25 steps with a patience of 60", details)))
    return CUB_FOLD1(seeds=seeds, cost=cost, base=base, details=details, source=source)


def _setting(setting: str, details: str, source: str) -> str:
    """Return the sentences of a setting."""
    return " ".join(f"{part}." for part in ("; ".join(filter(None, (setting, details))), source) if part)
