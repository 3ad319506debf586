"""Validation on a few images that cover the others: how few still rank checkpoints the same? (thesis, section 6.3)"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from winnow.evaluation import retrieval_metrics
from winnow.functional import l2_normalize
from winnow.models import Embedder, Head
from winnow.pooling.base import as_tokens
from winnow.studies.artifacts import StoredRun, require_run
from winnow.studies.base import Findings, Task
from winnow.studies.delta_cover_report import CLASSES, COVER, LOST, RANDOM, RANKS, draw, told
from winnow.studies.poolings import LOSSES, WORDS
from winnow.studies.sweeps import gsp
from winnow.training import Callback, Trainer, load_config
from winnow.training.build import build_setup, init_objective, load_splits, resolve_config
from winnow.training.evaluation import embed
from winnow.training.inputs import FeatureInputs

if TYPE_CHECKING:
    from winnow.training.build import TrainingSetup
    from winnow.training.config import RunConfig

METHODS = {"GAP": ["pooling=gap"], "GSP": gsp(0.05, 20), "GSP, soft": gsp(0.3, 5), "GMP": ["pooling=gmp_projected"]}
KEPT = (2, 3, 4, 6)  # images of each class
SIDE = 4  # local features are averaged to a map of this side, to compare them sooner
DRAWS = 10  # of random subsets


@dataclass
class Keeper(Callback):
    """Keeps the validation embeddings of every checkpoint, and what the whole set says of it."""

    model: nn.Module
    val: FeatureInputs
    embeddings: list[Tensor] = field(default_factory=list)

    def validated(self, entry: Mapping[str, float], improved: bool, by: str = "MAP@R") -> None:
        """Embed the validation images."""
        self.embeddings.append(l2_normalize(embed(self.model, self.val)))


def cover_images(features: Tensor, count: int) -> Tensor:
    r"""Pick images whose local features cover those of all: always the image with the worst-covered local feature.

    $$i_{t+1} = \arg\max_i \max_j \min_{k \in \text{local features picked so far}} \lVert x_{ij} - x_k \rVert_2$$

    Args:
        features: (N, n, d) local features.
        count: Images to pick, at most N; the first is that whose local features are farthest from the mean of all.

    Returns:
        (count,) int64.
    """
    if not 0 < count <= len(features):
        raise ValueError(f"cannot pick {count} of {len(features)} images")
    points = features.flatten(0, 1)
    nearest = (points - points.mean(dim=0)).norm(dim=1).view(features.shape[:2])
    picks: list[int] = []
    for step in range(count):
        gaps = nearest.amax(dim=1)
        gaps[picks] = -1.0
        picks.append(int(gaps.argmax()))
        distances = torch.cdist(points, features[picks[-1]]).amin(dim=1).view(features.shape[:2])
        nearest = distances if step == 0 else torch.minimum(nearest, distances)
    return torch.tensor(picks)


def subsets(features: Tensor, labels: Tensor, kept: int, seed: int) -> dict[str, Tensor]:
    """Return subsets of as many images: a cover of each class, random images of each, all of some random classes."""
    generator = torch.Generator().manual_seed(seed)
    groups = [torch.nonzero(labels == label).flatten() for label in sorted(set(labels.tolist()))]
    cover = torch.cat([group[cover_images(features[group], min(kept, len(group)))] for group in groups])
    drawn = torch.cat([group[torch.randperm(len(group), generator=generator)[:kept]] for group in groups])
    order = torch.randperm(len(groups), generator=generator).tolist()
    whole: list[Tensor] = []
    for number in order:
        if sum(map(len, whole)) >= len(cover):
            break
        whole.append(groups[number])
    return {COVER: cover, RANDOM: drawn, CLASSES: torch.cat(whole)}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's tau-a: the share of pairs in the same order less the share in the other; a tie is neither."""
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    signs = [(first[i] - first[j]) * (second[i] - second[j]) for i, j in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(pairs)


def checkpoints(task: Task, words: Sequence[str], seeds: int) -> tuple[list[Tensor], FeatureInputs]:
    """Train some heads; return the validation embeddings of every checkpoint of theirs, and the validation images.

    Raises:
        ConfigError: for a run that was made with other settings.
        DataError: where a run is missing and nothing more is to be trained.
    """
    base = resolve_config(load_config(None, list(words)))
    prepared = build_setup(base, load_splits(base, task.shared), Callback(), task.shared)
    found: list[Tensor] = []
    val = prepared.val
    assert isinstance(val, FeatureInputs), "a frozen backbone feeds features"
    for name, own in METHODS.items():
        for seed in range(seeds):
            config = resolve_config(load_config(None, [*words, *own, f"seed={seed}"]))

            def make(config: RunConfig = config) -> StoredRun:
                return StoredRun({}, {"embeddings": torch.stack(embed_checkpoints(config, prepared, val))})

            place = f"{name.replace(', ', '-')}-seed{seed}"
            kept = require_run(task, place, {"config": config.model_dump(mode="json")}, make)
            found += kept.tensors["embeddings"].unbind()
            task.note(f"{name}, seed {seed}: {len(kept.tensors['embeddings'])} checkpoints")
    return found, val


def embed_checkpoints(config: RunConfig, prepared: TrainingSetup, val: FeatureInputs) -> list[Tensor]:
    """Train a head; return the validation embeddings of its checkpoints."""
    torch.manual_seed(config.seed)
    backbone = prepared.embedder.backbone
    embedder = Embedder(backbone, Head(backbone.num_features, config.dim, config.pooling), config)
    learner = init_objective(replace(prepared, config=config, embedder=embedder))
    keeper = Keeper(learner.model, val)
    Trainer(config, learner, prepared.train, val, callback=keeper).fit()
    return keeper.embeddings


def study(task: Task) -> Findings:
    """Validation on images that cover the others: how few rank checkpoints as all of them do? (new, section 6.3).

    Cost: 2 minutes; in full 15 minutes.
    """
    steps, every, seeds = (150, 25, 1) if task.small else (1000, 100, 3)
    words = [*WORDS, *LOSSES["C2"], "dim=128", f"train.max_steps={steps}", f"train.eval_steps={every}"]
    embeddings, val = checkpoints(task, words, seeds)
    labels = torch.from_numpy(val.labels)
    maps = val.whole()
    maps = maps if maps.dim() == 3 else adaptive_avg_pool2d(maps, SIDE)
    rows = table(embeddings, labels, as_tokens(maps))
    settings = {"small": task.small, "words": words, "seeds": seeds, "checkpoints": len(embeddings),
                "draws of random subsets": DRAWS}  # fmt: skip
    text = told(rows, f"{len(embeddings)} checkpoints of {len(METHODS)} heads", len(labels), DRAWS)
    return Findings("Validation on a cover", text, rows, draw(rows), settings)


def table(embeddings: Sequence[Tensor], labels: Tensor, features: Tensor) -> list[dict[str, Any]]:
    """Return for every way and size how well a subset ranks checkpoints, and what choosing by it costs."""

    def judge(rows: Tensor) -> list[float]:
        return [retrieval_metrics(each[rows], labels[rows])["MAP@R"] for each in embeddings]

    whole = judge(torch.arange(len(labels)))
    rows = []
    for kept in KEPT:
        drawn = [subsets(features, labels, kept, seed) for seed in range(DRAWS)]
        for way in (COVER, RANDOM, CLASSES):
            chosen = [one[way] for one in (drawn[:1] if way == COVER else drawn)]
            scores = [judge(subset) for subset in chosen]
            taus = [rank_correlation(whole, each) for each in scores]
            lost = [max(whole) - whole[each.index(max(each))] for each in scores]
            rows.append({
                "way": way, "images of a class": kept, "share, %": round(100 * len(chosen[0]) / len(labels), 1),
                RANKS: round(statistics.mean(taus), 3), "worst": round(min(taus), 3),
                LOST: round(100 * statistics.mean(lost), 3),
            })  # fmt: skip
    return rows
