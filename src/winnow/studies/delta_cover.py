"""Rankings of checkpoints on a coreset of the images and on random subsets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from winnow.evaluation import retrieval_metrics
from winnow.functional import l2_normalize
from winnow.models import Embedder, Head
from winnow.pooling.base import as_tokens
from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.artifacts import StoredRun, require_run
from winnow.studies.settings import C2, EMOJI_BASE, EMOJI_IMAGES, gsp, pooling, scales, train
from winnow.studies.spec import Measurement, Row, Scale, Study, StudyRequest
from winnow.training import Callback, Trainer, load_config
from winnow.training.build import build_setup, init_objective, load_splits, resolve_config
from winnow.training.evaluation import embed
from winnow.training.inputs import FeatureInputs
from winnow.training.overrides import Overrides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.training.build import TrainingSetup
    from winnow.training.config import RunConfig

HEADS = {"GAP": pooling("gap"), "GSP": gsp(0.05, 20), "GSP, soft": gsp(0.3, 5), "GMP": pooling("gmp_projected")}
"""Heads whose checkpoints are ranked; the names also name stored runs."""
PER_CLASS = (2, 3, 4, 6)  # images of each class in a subset
SIDE = 4  # larger maps of local features are averaged to this side
DRAWS = 10  # random subsets of each size
CORESET, RANDOM, CLASSES = "coreset", "random images", "random classes"
CORRELATION, LOWEST, LOST = "rank correlation", "lowest", "points lost by the selection"
FRACTION = "images, %"


# --- Subsets ----------------------------------------------------------------------------------------------------------


def coreset_images(features: Tensor, count: int) -> Tensor:
    r"""Select images whose local features cover all local features.

    Repeatedly select the image with the worst-covered local feature:

    $$i_{t+1} = \arg\max_i \max_j \min_{k \in \text{selected local features}} \lVert x_{ij} - x_k \rVert_2$$

    Args:
        features: (N, n, d) local features.
        count: Images to select, at most N; the first has the local feature farthest from the mean of all.

    Returns:
        (count,) int64.

    Raises:
        ValueError: If there are fewer images.
    """
    if not 0 < count <= len(features):
        raise ValueError(f"count: expected 1 to {len(features)} images, got {count}. Select fewer.")
    points = features.flatten(0, 1)
    nearest = (points - points.mean(dim=0)).norm(dim=1).view(features.shape[:2])
    selected: list[int] = []
    for step in range(count):
        gaps = nearest.amax(dim=1)
        gaps[selected] = -1.0
        selected.append(int(gaps.argmax()))
        distances = torch.cdist(points, features[selected[-1]]).amin(dim=1).view(features.shape[:2])
        nearest = distances if step == 0 else torch.minimum(nearest, distances)
    return torch.tensor(selected)


def subsets(features: Tensor, labels: Tensor, per_class: int, seed: int) -> dict[str, Tensor]:
    """Return three subsets of about equal size.

    They are a coreset of each class, random images of each class, and all images of random classes.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = [torch.nonzero(labels == label).flatten() for label in sorted(set(labels.tolist()))]
    coreset = torch.cat([group[coreset_images(features[group], min(per_class, len(group)))] for group in groups])
    drawn = torch.cat([group[torch.randperm(len(group), generator=generator)[:per_class]] for group in groups])
    order = torch.randperm(len(groups), generator=generator).tolist()
    whole: list[Tensor] = []
    for number in order:
        if sum(map(len, whole)) >= len(coreset):
            break
        whole.append(groups[number])
    return {CORESET: coreset, RANDOM: drawn, CLASSES: torch.cat(whole)}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    r"""Return Kendall's $\tau_a$.

    It is the fraction of concordant pairs minus the fraction of discordant pairs; a tie is neither.
    """
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    signs = [(first[i] - first[j]) * (second[i] - second[j]) for i, j in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(pairs)


def compare_subsets(embeddings: Sequence[Tensor], labels: Tensor, features: Tensor) -> list[Row]:
    """Return the table: rank correlation and lost MAP@R of each kind of subset."""

    def scores(rows: Tensor) -> list[float]:
        return [retrieval_metrics(each[rows], labels[rows])["MAP@R"] for each in embeddings]

    whole = scores(torch.arange(len(labels)))
    rows: list[Row] = []
    for per_class in PER_CLASS:
        drawn = [subsets(features, labels, per_class, seed) for seed in range(DRAWS)]
        for kind in (CORESET, RANDOM, CLASSES):
            chosen = [one[kind] for one in (drawn[:1] if kind == CORESET else drawn)]
            measured = [scores(subset) for subset in chosen]
            taus = [rank_correlation(whole, each) for each in measured]
            lost = [max(whole) - whole[each.index(max(each))] for each in measured]
            rows.append({
                "subset": kind, "images per class": per_class,
                FRACTION: round(100 * len(chosen[0]) / len(labels), 1),
                CORRELATION: round(statistics.mean(taus), 3), LOWEST: round(min(taus), 3),
                LOST: round(100 * statistics.mean(lost), 3),
            })  # fmt: skip
    return rows


# --- Checkpoints ------------------------------------------------------------------------------------------------------


@dataclass
class CheckpointEmbeddings(Callback):
    """Validation embeddings of every checkpoint."""

    model: nn.Module
    val: FeatureInputs
    embeddings: list[Tensor] = field(default_factory=list)

    def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
        """Embed the validation images."""
        self.embeddings.append(l2_normalize(embed(self.model, self.val)))


def embed_checkpoints(config: RunConfig, setup: TrainingSetup, val: FeatureInputs) -> list[Tensor]:
    """Train a head; return the validation embeddings of its checkpoints."""
    torch.manual_seed(config.seed)
    backbone = setup.embedder.backbone
    embedder = Embedder(backbone, Head(backbone.num_features, config.dim, config.pooling, norm=config.head), config)
    objective = init_objective(replace(setup, config=config, embedder=embedder))
    checkpoints = CheckpointEmbeddings(objective.model, val)
    Trainer(config, objective, setup.train, val, callback=checkpoints).fit()
    return checkpoints.embeddings


def train_heads(request: StudyRequest, seeds: int) -> tuple[list[Tensor], FeatureInputs]:
    """Return the validation embeddings of all checkpoints, and the images.

    Raises:
        ConfigError: If a stored run has other settings.
        DataError: If a run is missing and training is off.
    """
    base = request.scale.base
    config = resolve_config(load_config(None, base.to_args()))
    setup = build_setup(config, load_splits(config, request.cache), Callback(), request.cache)
    found: list[Tensor] = []
    val = setup.val
    assert isinstance(val, FeatureInputs), "a frozen backbone has stored features"
    for name, its in HEADS.items():
        for seed in range(seeds):
            own = resolve_config(load_config(None, [*(base | its).to_args(), f"seed={seed}"]))

            def make(config: RunConfig = own) -> StoredRun:
                return StoredRun({}, {"embeddings": torch.stack(embed_checkpoints(config, setup, val))})

            run = f"{name.replace(', ', '-')}-seed{seed}"
            stored = require_run(request, run, {"config": own.model_dump(mode="json")}, make)
            found += stored.tensors["embeddings"].unbind()
            request.note(f"{name}, seed {seed}: {len(stored.tensors['embeddings'])} checkpoints")
    return found, val


# --- Study ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DeltaCover(Study):
    """Checkpoints of heads, ranked on all validation images and on subsets."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Train the heads and rank their checkpoints."""
        seeds = request.scale.pick(quick=1, full=3)
        embeddings, val = train_heads(request, seeds)
        maps = val.whole()
        maps = maps if maps.dim() == 3 else adaptive_avg_pool2d(maps, SIDE)
        rows = compare_subsets(embeddings, torch.from_numpy(val.labels), as_tokens(maps))
        settings = {"words": request.scale.base.to_args(), "seeds": seeds, "checkpoints": len(embeddings),
                    "images": len(val.labels), "random subsets": DRAWS}  # fmt: skip
        return Measurement(rows=rows, settings=settings)

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw rank correlation and lost points over the fraction of images."""
        return {"": _draw(measured.rows)}


@styled
def _draw(rows: Sequence[Row]) -> Figure:
    figure = new_figure(7.6, 3.4)
    left, right = figure.subplots(1, 2)
    for kind, color in method_colors((RANDOM, CORESET, CLASSES)).items():
        own = [row for row in rows if row["subset"] == kind]
        fractions = [row[FRACTION] for row in own]
        left.plot(fractions, [row[CORRELATION] for row in own], "o-", color=color, label=kind)
        left.plot(fractions, [row[LOWEST] for row in own], ":", color=color, linewidth=1)
        right.plot(fractions, [row[LOST] for row in own], "o-", color=color, label=kind)
    left.set_title("Rank correlation; dotted: lowest draw")
    right.set_title("Points of MAP@R lost by the selection")
    for axes in (left, right):
        axes.set_xlabel("validation images in the subset (%)")
    left.legend(fontsize=8)
    return figure


def _base(steps: int, every: int) -> Overrides:
    return EMOJI_BASE | C2["quick"] | Overrides({"dim": 128}) | train(max_steps=steps, eval_steps=every)


_SETTING = (
    "Bundled emoji collages, frozen EfficientNet-Lite0, C2, {} steps: checkpoints of four heads ranked by MAP@R on all "
    f"validation images and on subsets. Random subsets: means of {DRAWS} draws. A coreset is one subset."
)
DELTA_COVER = DeltaCover(
    name="delta-cover", title="Validation on a coreset", measures="validation on few images",
    source="[Thesis], section 6.3", group="Other",
    scales=scales(
        Scale("quick", _base(150, 25), needs=EMOJI_IMAGES, cost="2 minutes", setting=_SETTING.format(150)),
        Scale("full", _base(1000, 100), needs=EMOJI_IMAGES, cost="15 minutes", setting=_SETTING.format("1,000")),
    ),
)  # fmt: skip
