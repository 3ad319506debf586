"""Recipes: complete settings by name, each with its reason, its source, and the published numbers.

A recipe is data, and one entry of `RECIPES`. `recipe=NAME` in a config puts the settings of the recipe before all
others, so any other setting replaces one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from winnow.errors import ConfigError, did_you_mean


class Setting(NamedTuple):
    """A setting of a recipe, and the reason for its value."""

    text: str  # KEY=VALUE
    reason: str


Settings: TypeAlias = tuple[Setting, ...]


class PublishedRecall(NamedTuple):
    """A published R@1 in percent, with ResNet-50 and 512 dimensions."""

    value: float
    source: str


class MeasuredRecall(NamedTuple):
    """R@1 of finished runs in percent, from a table of the conventional protocol."""

    value: float  # of the best run
    mean: float
    std: float | None  # over runs
    runs: int
    minutes: float  # of training, mean over runs
    gpu: str
    source: str  # result file below the repository


_NOTHING: Mapping[str, Settings] = MappingProxyType({})
_UNPUBLISHED: Mapping[str, PublishedRecall] = MappingProxyType({})


@dataclass(frozen=True)
class Recipe:
    """Complete settings of a run.

    Attributes:
        name: Value of `recipe=`.
        about: What it is, in a line.
        citation: Source of the settings.
        settings: Settings for all data; those for CUB-200-2011 where authors differ by dataset.
        by_dataset: Further settings by the name of a benchmark dataset, which replace those above.
        with_proxies: Further settings of a loss that is compared with proxies.
        published: Published numbers by dataset.
        differences: What the authors do and these settings do not, in a sentence each.
    """

    name: str
    about: str
    citation: str
    settings: Settings
    by_dataset: Mapping[str, Settings] = field(default_factory=lambda: _NOTHING)
    with_proxies: Settings = ()
    published: Mapping[str, PublishedRecall] = field(default_factory=lambda: _UNPUBLISHED)
    differences: tuple[str, ...] = ()

    def explained(self, data: str, *, proxies: bool) -> Settings:
        """Return the settings for data with their reasons; of two values of a key the later one.

        Args:
            data: Name of a benchmark dataset, or another value of `data.path`.
            proxies: Whether the loss is compared with proxies.
        """
        every = (*self.settings, *(self.with_proxies if proxies else ()), *self.by_dataset.get(data, ()))
        return tuple({one.text.partition("=")[0]: one for one in every}.values())

    def settings_for(self, data: str, *, proxies: bool) -> list[str]:
        """Return the settings as arguments, as `explained` does."""
        return [one.text for one in self.explained(data, proxies=proxies)]


# Settings that several recipes share

_RESNET50: Settings = (
    Setting("backbone=resnet50.tv_in1k", "the network of the published numbers, with torchvision's first weights"),
    Setting("backbone.train=full", "all numbers are of fine-tuned networks"),
    Setting("backbone.freeze_batch_norm=true", "batches are small next to those of pretraining"),
    Setting("dim=512", "size of the published numbers"),
    Setting("train.precision=bf16-mixed", "half the time of 32 bits, in which the authors train"),
    Setting("train.monitor=P@1", "the published metric"),
    Setting("train.patience=1000", "the number of epochs ends training, not a stall of validation"),
    Setting("train.average=0", "none of the authors averages weights"),
)  # fmt: skip

_PROXY_ANCHOR_IMAGES: Settings = (
    Setting("image.resize=256", "as the authors"),
    Setting("image.crop=224", "as the authors"),
    Setting("augment.resize=original", "as the authors: crops keep the detail of the files"),
    Setting("augment.scale=[0.08,1.0]", "as the authors: harder crops than the 0.16 of [GSP]"),
)

_MAX_AND_AVERAGE: Settings = (
    Setting("pooling=gap_gmp", "as the authors: average plus maximum"),
    Setting("train.projection_init=random", "as the authors"),
)

_RANDOM_BATCHES: Settings = (
    Setting("train.sampler=random", "as the authors: proxies make positive pairs, so no class has to occur twice"),
    Setting("train.batch_size=120", "as the authors with ResNet-50"),
)


def _because(reason: str, *settings: Setting) -> Settings:
    """Return settings with another reason."""
    return tuple(one._replace(reason=reason) for one in settings)


_FAST_PROXIES: Settings = (
    Setting("train.lr_multipliers={'references.proxies': 100}", "as the authors: proxies learn 100 times faster"),
)

_STEP: Settings = (
    Setting("train.unit=epochs", "the authors count epochs"),
    Setting("train.max_steps=60", "as the authors"),
    Setting("train.freeze_backbone_steps=5", "as the authors: head and proxies first"),
    Setting("train.schedule=step", "as the authors"),
    Setting("train.milestones=5", "as the authors on CUB-200-2011"),
    Setting("train.step_factor=0.5", "as the authors"),
)

_LARGE_PROXY_ANCHOR: Settings = (
    Setting("train.lr=6e-4", "as the authors, who publish it for BN-Inception only"),
    Setting("train.batch_size=180", "as the authors, for BN-Inception"),
    Setting("train.freeze_backbone_steps=1", "as the authors, for BN-Inception"),
    Setting("train.milestones=20", "as the authors, for BN-Inception"),
    Setting("train.step_factor=0.25", "as the authors, for BN-Inception"),
    Setting("backbone.freeze_batch_norm=false", "as the authors, for BN-Inception"),
)

_THESIS: Settings = (
    *_RESNET50,
    Setting("image.resize=256", "as [Thesis]"),
    Setting("image.crop=227", "as [Thesis]"),
    Setting("pooling=gap_gmp", "as [Thesis]: average plus maximum in the conventional protocol"),
    Setting("train.projection_init=random", "as [Thesis]"),
    Setting("train.classes_per_batch=28", "as [Thesis] with ResNet-50"),
    Setting("train.samples_per_class=4", "as [Thesis]"),
    Setting("train.optimizer=adam", "as [Thesis]"),
    Setting("train.weight_decay=4e-4", "as [Thesis] with ResNet-50"),
    Setting("train.lr=1e-5", "as [Thesis] on CUB-200-2011"),
    Setting("train.schedule=plateau", "as [Thesis]: half the rate after four validations without a gain"),
    Setting("train.eval_steps=25", "as [Thesis]; plateau and subproblems of CCP count validations"),
    Setting("train.max_steps=3000", "early stopping of the published runs ends at about 800 to 2,700 steps"),
)

_THESIS_CARS: Settings = (Setting("train.lr=1e-4", "as [Thesis] on all datasets but CUB-200-2011"),)

_THESIS_LARGE: Settings = (
    *_THESIS_CARS,
    Setting("train.eval_steps=250", "as [Thesis] on large datasets"),
    Setting("train.max_steps=20000", "a budget for 60,000 and 26,000 training images"),
)


def _preset(component: str, name: str) -> Setting:
    return Setting(f"{component}.preset={name}", f"settings of [Thesis] for {name}")


def _thesis_datasets(*components: str, more: Mapping[str, Settings] = _NOTHING) -> dict[str, Settings]:
    """Return the settings of [Thesis] by dataset, with the presets of components."""
    shared = {"cars196": ("cars", _THESIS_CARS), "sop": ("sop", _THESIS_LARGE), "inshop": ("inshop", _THESIS_LARGE)}
    return {
        data: (*settings, *(_preset(one, preset) for one in components), *more.get(data, ()))
        for data, (preset, settings) in shared.items()
    }


_CCP: Settings = (
    Setting("normalize=ball", "as [CCP], chapter 3 of [Thesis]"),
    Setting("references=ccp", "chance-constrained proxies"),
    _preset("references", "cub"),
)

_MEMORY: Settings = (
    Setting("references=memory", "cross-batch memory (XBM)"),
    Setting("references.num_batches=25", "as [Thesis] on CUB-200-2011 and Cars196"),
    Setting("references.start_step=1000", "as [Thesis]: earlier embeddings drift too fast"),
)
_LARGE_MEMORY: Mapping[str, Settings] = {
    "sop": (Setting("references.num_batches=1400", "as [Thesis]"),),
    "inshop": (Setting("references.num_batches=400", "as [Thesis]"),),
}

_GSP: Settings = (
    Setting("pooling=gmp_gsp", "GSP in place of the average, plus the maximum"),
    Setting("pooling.num_prototypes=64", "as [GSP] on small datasets"),
    Setting("pooling.mu=0.3", "as [GSP]"),
    Setting("pooling.eps=5", "as [GSP] with losses over pairs of images"),
    Setting("zsr=0.1", "as [GSP]: zero-shot regularization"),
)
_MORE_PROTOTYPES: Settings = (Setting("pooling.num_prototypes=128", "as [GSP] on large datasets"),)


def _libc(layers: int, heads: int, temperature: float, classes: int, images: int, data: str) -> Settings:
    values = {
        "libc.num_layers": layers, "libc.num_heads": heads, "libc.temperature": temperature,
        "train.classes_per_batch": classes, "train.samples_per_class": images,
    }  # fmt: skip
    return tuple(Setting(f"{key}={value}", f"as the authors on {data}") for key, value in values.items())


_TRAINED_PROXIES = (
    "In the authors' code proxies keep their length and learn as slowly as the network, so they hardly turn."
)
_RARER_PROXIES: Settings = (Setting("references.max_steps=1000", "ten times as many, as between validations"),)
_CCP_CITATION = "[CCP]: Gürbüz, Can, Alatan, Deep Metric Learning with Chance Constraints, WACV 2024"
_TABLE_32 = "[Thesis], Table 3.2"
_TABLE_52 = "[Thesis], Table 5.2"


def _published(source: str, **values: float) -> dict[str, PublishedRecall]:
    return {data: PublishedRecall(value, source) for data, value in values.items()}


_ENTRIES = (
    Recipe(
        "proxy-anchor",
        "Proxy-Anchor as its authors train it",
        "Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020; code tjddus9597/Proxy-Anchor-CVPR2020",
        (
            *_RESNET50,
            Setting("loss=proxy_anchor", "the loss of the recipe"),
            Setting("loss.margin=0.1", "as the authors"),
            Setting("loss.alpha=32", "as the authors"),
            *_MAX_AND_AVERAGE,
            *_PROXY_ANCHOR_IMAGES,
            *_RANDOM_BATCHES,
            Setting("train.optimizer=adamw", "as the authors"),
            Setting("train.lr=1e-4", "as the authors"),
            Setting("train.weight_decay=1e-4", "as the authors"),
            *_STEP,
        ),
        by_dataset={
            "cars196": (Setting("train.milestones=10", "as the authors on Cars196"),),
            "sop": _LARGE_PROXY_ANCHOR,
            "inshop": _LARGE_PROXY_ANCHOR,
        },
        with_proxies=_FAST_PROXIES,
        published={
            **_published("README of the authors' code", cub200=69.9, cars196=87.7),
            **_published("[Thesis], Table 3.2, from the paper of LIBC", sop=80.0, inshop=92.1),
        },
        differences=(
            "The authors clip each value of the gradient at 10; here its norm is at most 10.",
            "The authors choose the epoch on the test classes.",
        ),
    ),
    Recipe(
        "potential-field",
        "potential-field loss (PFML), the best published numbers",
        "Bhatnagar, Ahuja, Potential Field Based Deep Metric Learning, CVPR 2025",
        (
            *_RESNET50,
            Setting("loss=pfml", "the loss of the recipe"),
            Setting("loss.delta=0.2", "the middle of the interval 0.1 to 0.3 in which the authors search"),
            Setting("loss.alpha=4", "of the 0 to 6 in which the authors search"),
            *_because("not published; as Proxy-Anchor", *_MAX_AND_AVERAGE, *_PROXY_ANCHOR_IMAGES, *_RANDOM_BATCHES),
            Setting("train.optimizer=adam", "as the authors"),
            Setting("train.lr=5e-4", "as the authors"),
            Setting("train.weight_decay=1e-4", "not published; as Proxy-Anchor"),
            Setting("train.unit=epochs", "the authors count epochs"),
            Setting("train.max_steps=200", "as the authors"),
            Setting("train.freeze_backbone_steps=5", "not published; as Proxy-Anchor"),
            Setting("train.schedule=cosine", "not published"),
        ),
        by_dataset={"sop": (Setting("references.proxies_per_class=2", "as the authors on SOP"),)},
        with_proxies=(
            *_FAST_PROXIES,
            Setting("references.proxies_per_class=15", "as the authors on CUB-200-2011 and Cars196"),
            Setting("references.batch_weight=0.5", "forces within the batch; each pair is summed twice"),
        ),
        published=_published("mean of five runs in the paper", cub200=73.4, cars196=92.7, sop=82.9),
        differences=(
            "The authors publish no code, batch size, augmentation, weight decay, warm-up, or schedule.",
            "The forces of proxies on each other are left out (references.proxy_weight).",
        ),
    ),
    Recipe(
        "hist-head",
        "class distributions as in HIST: layer norm in place of l2",
        "Lim et al., Hypergraph-Induced Semantic Tuplet Loss for Deep Metric Learning, CVPR 2022; code ljin0429/HIST",
        (
            *_RESNET50,
            Setting("loss=proxy_nca", "the first term of HIST with equal variances: softmax over distances to classes"),
            Setting("loss.temperature=0.03125", "as the authors: 1 / tau, tau = 32"),
            Setting("head=layer", "as the authors: layer norm without weights in place of l2"),
            *_MAX_AND_AVERAGE,
            *_PROXY_ANCHOR_IMAGES,
            Setting("train.sampler=random", "as the authors: class means make positive pairs"),
            Setting("train.batch_size=32", "as the authors"),
            Setting("train.optimizer=adam", "as the authors"),
            Setting("train.lr=1.2e-4", "as the authors on CUB-200-2011"),
            Setting("train.weight_decay=5e-5", "as the authors on CUB-200-2011"),
            *_STEP,
            Setting("train.max_steps=40", "as the authors on CUB-200-2011"),
            Setting("train.freeze_backbone_steps=1", "as the authors"),
        ),
        by_dataset={
            "cars196": (
                Setting("train.lr=1e-4", "as the authors on Cars196"),
                Setting("train.weight_decay=1e-4", "as the authors on Cars196"),
                Setting("train.max_steps=50", "as the authors on Cars196"),
                Setting("train.milestones=10", "as the authors on Cars196"),
            ),
            "sop": (
                Setting("loss.temperature=0.0625", "as the authors on SOP: tau = 16"),
                Setting("train.lr=1e-4", "as the authors on SOP"),
                Setting("train.weight_decay=1e-4", "as the authors on SOP"),
                Setting("train.max_steps=60", "as the authors on SOP"),
                Setting("train.milestones=10", "as the authors on SOP"),
                Setting("backbone.freeze_batch_norm=false", "as the authors on SOP"),
            ),
        },
        with_proxies=(
            Setting("train.lr_multipliers={'references.proxies': 833}", "as the authors: class means learn at 0.1"),
        ),
        published=_published("a later reproduction log (CausalityHQ/sfora), which reaches 70.1", cub200=71.4),
        differences=("The hypergraph network and the variances of the classes are left out.",),
    ),
    Recipe(
        "ms+ccp",
        "multi-similarity with chance-constrained proxies",
        _CCP_CITATION,
        (*_THESIS, Setting("loss=ms", "the loss of the recipe"), _preset("loss", "cub"), *_CCP),
        by_dataset=_thesis_datasets("loss", "references"),
        differences=(_TRAINED_PROXIES,),
        published=_published(_TABLE_32, cub200=70.37, cars196=89.02, sop=82.27, inshop=92.71),
    ),
    Recipe(
        "c2+ccp",
        "contrastive loss with chance-constrained proxies",
        _CCP_CITATION,
        (
            *_THESIS,
            Setting("loss=c2", "the loss of the recipe"),
            _preset("loss", "cub"),
            *_CCP,
            Setting("references.max_steps=100", "new proxies, because the first ones stay outside the margin"),
        ),
        by_dataset=_thesis_datasets("loss", "references", more={"sop": _RARER_PROXIES, "inshop": _RARER_PROXIES}),
        differences=(_TRAINED_PROXIES, "Subproblems end after 100 steps, also while validation rises."),
        published=_published(_TABLE_32, cub200=71.04, cars196=85.93, sop=82.34, inshop=92.46),
    ),
    Recipe(
        "c1+xbm",
        "cosine contrastive loss with a cross-batch memory",
        "Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020, as [Thesis] trains it",
        (*_THESIS, Setting("loss=c1", "the loss of the recipe"), _preset("loss", "cub"), *_MEMORY),
        by_dataset=_thesis_datasets("loss", more=_LARGE_MEMORY),
        published=_published(_TABLE_52, cub200=66.68, cars196=82.83, sop=81.44, inshop=91.56),
    ),
    Recipe(
        "c1+xbm+gsp",
        "the same with GSP and zero-shot regularization",
        "[GSP]: Gürbüz, Şener, Alatan, Generalized Sum Pooling for Metric Learning, ICCV 2023",
        (*_THESIS, Setting("loss=c1", "the loss of the recipe"), _preset("loss", "cub"), *_MEMORY, *_GSP),
        by_dataset=_thesis_datasets(
            "loss", more={data: (*settings, *_MORE_PROTOTYPES) for data, settings in _LARGE_MEMORY.items()}
        ),
        published=_published(_TABLE_52, cub200=66.63, cars196=82.60, sop=81.54, inshop=91.75),
    ),
    Recipe(
        "libc+gsp",
        "intra-batch connections (LIBC) with GSP",
        "Seidenschwarz et al., Learning Intra-Batch Connections for Deep Metric Learning, ICML 2021; code "
        "dvl-tum/intra_batch; with GSP in the supplement of [GSP]",
        (
            *_RESNET50,
            Setting("image.resize=256", "as the authors"),
            Setting("image.crop=227", "as the authors"),
            Setting("augment.resize=original", "as the authors: crops keep the detail of the files"),
            Setting("augment.random_erasing=0.5", "as the authors"),
            Setting("loss=norm_softmax", "a classifier of plain embeddings next to that of refined ones"),
            Setting("libc=1", "as the authors: both classifiers weigh the same"),
            Setting("libc.num_layers=1", "as the authors on CUB-200-2011"),
            Setting("libc.num_heads=2", "as the authors on CUB-200-2011"),
            Setting("libc.temperature=0.2", "as the authors on CUB-200-2011"),
            *_GSP,
            Setting("pooling.eps=0.5", "as [GSP] with losses over proxies"),
            Setting("train.projection_init=random", "as the authors"),
            Setting("train.classes_per_batch=6", "as the authors on CUB-200-2011"),
            Setting("train.samples_per_class=9", "as the authors on CUB-200-2011"),
            Setting("train.optimizer=adam", "the authors use RAdam"),
            Setting("train.lr=1.5637e-5", "as the authors on CUB-200-2011"),
            Setting("train.weight_decay=6.06e-6", "as the authors on CUB-200-2011"),
            Setting("train.unit=epochs", "the authors count epochs"),
            Setting("train.max_steps=70", "as the authors"),
            Setting("train.schedule=step", "as the authors"),
            Setting("train.milestones=[30,50]", "as the authors: before epochs 31 and 51"),
            Setting("train.step_factor=0.1", "as the authors"),
        ),
        by_dataset={
            "cars196": (
                *_libc(2, 8, 0.1111, 10, 7, "cars196"),
                Setting("train.lr=3.668e-5", "as the authors on Cars196"),
                Setting("train.weight_decay=2.55e-9", "as the authors on Cars196"),
            ),
            "sop": (
                *_libc(1, 8, 0.6047, 15, 6, "sop"),
                *_MORE_PROTOTYPES,
                Setting("train.lr=2.472e-4", "as the authors on SOP"),
                Setting("train.weight_decay=2.77e-13", "as the authors on SOP"),
            ),
            "inshop": (
                *_libc(1, 4, 0.1859, 14, 4, "inshop"),
                *_MORE_PROTOTYPES,
                Setting("train.lr=1.1266e-4", "as the authors on In-shop"),
                Setting("train.weight_decay=1.055e-7", "as the authors on In-shop"),
            ),
        },
        with_proxies=_FAST_PROXIES,
        published=_published("paper of LIBC, without GSP", cub200=70.3, cars196=88.1, sop=81.4, inshop=92.8),
        differences=(
            "The authors return to the weights with the best test recall at both reductions of the rate.",
            "The authors draw the learning rate and the weight decay at random and keep the best by test recall.",
        ),
    ),
    Recipe(
        "common",
        "one recipe for every loss, as in recipe=common loss=ms",
        "none: the same network, images, steps, and rates for all losses, and the last weights of a fixed budget",
        (
            *_RESNET50,
            *_because("as Proxy-Anchor", *_MAX_AND_AVERAGE, *_PROXY_ANCHOR_IMAGES),
            Setting("train.classes_per_batch=28", "112 images, about as many as in Proxy-Anchor and [Thesis]"),
            Setting("train.samples_per_class=4", "losses over pairs need positives; proxies do without"),
            Setting("train.optimizer=adamw", "as Proxy-Anchor"),
            Setting("train.lr=5e-5", "between 1e-5 of [Thesis] and 1e-4 of Proxy-Anchor"),
            Setting("train.weight_decay=1e-4", "as Proxy-Anchor"),
            Setting("train.unit=epochs", "the same number of images for all losses"),
            Setting("train.max_steps=60", "as Proxy-Anchor"),
            Setting("train.freeze_backbone_steps=1", "head and proxies start at random"),
            Setting("train.schedule=cosine", "no milestone that could suit one loss better"),
            Setting("train.average=0.998", "the last steps weigh less on the result"),
            Setting("train.select_weights=last", "no choice among epochs that could suit one loss better"),
        ),
        with_proxies=(
            Setting("train.lr_multipliers={'references.proxies': 200}", "1e-2, the rate of Proxy-Anchor's proxies"),
        ),
    ),
    Recipe(
        "best",
        "parts that several authors or measurements favor, at 256 pixels",
        "none: parts of Proxy-Anchor, HIER, and DADA, and averaged weights",
        (
            *_RESNET50,
            Setting("loss=proxy_anchor", "the strongest loss with public code and reproduced numbers"),
            *_because("as Proxy-Anchor", *_MAX_AND_AVERAGE, *_PROXY_ANCHOR_IMAGES, *_RANDOM_BATCHES),
            Setting("image.resize=288", "the same view as 224 of 256"),
            Setting("image.crop=256", "more detail for 1.3 times the work; most authors have 224"),
            Setting("head=layer", "layer norm without weights: in 5 of 12 published codes"),
            Setting("head.position=pooled", "as HIER, Proxy-NCA++, and DADA: before the projection"),
            Setting("train.optimizer=adamw", "as Proxy-Anchor"),
            Setting("train.lr=1e-4", "as Proxy-Anchor"),
            Setting("train.weight_decay=1e-4", "as Proxy-Anchor"),
            Setting("train.unit=epochs", "the budget follows the size of the data"),
            Setting("train.max_steps=30", "over 60 epochs its best weights are those of epoch 19 to 26"),
            Setting("train.freeze_backbone_steps=5", "as Proxy-Anchor"),
            Setting("train.schedule=cosine", "a decay without milestones to tune"),
            Setting("train.average=0.998", "averaged weights gain where a network is fine-tuned"),
        ),
        by_dataset={
            data: (Setting("train.freeze_backbone_steps=1", "as Proxy-Anchor on large datasets"),)
            for data in ("sop", "inshop")
        },
        with_proxies=_because("as Proxy-Anchor", *_FAST_PROXIES),
    ),
)

RECIPES: Mapping[str, Recipe] = MappingProxyType({one.name: one for one in _ENTRIES})
"""All recipes by name."""


def find_recipe(name: str) -> Recipe:
    """Return a recipe by its name.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name not in RECIPES:
        raise ConfigError(
            f"recipe: unknown name '{name}'{did_you_mean(name, RECIPES)} Available: {', '.join(RECIPES)}."
        )
    return RECIPES[name]


def measured_recalls() -> Mapping[str, Mapping[str, MeasuredRecall]]:
    """Return the measured numbers by method, such as `recipe=proxy-anchor`, and by dataset.

    `scripts/recipe_results.py` writes their file from tables of the conventional protocol.
    """
    return _measured()


@cache
def _measured() -> Mapping[str, Mapping[str, MeasuredRecall]]:
    text = files("winnow.training").joinpath("recipe_results.json").read_text(encoding="utf-8")
    return {
        method: {data: MeasuredRecall(**values) for data, values in by_data.items()}
        for method, by_data in json.loads(text)["methods"].items()
    }
