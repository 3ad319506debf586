"""What a resized and recompressed copy of a set costs a retrieval, measured with a frozen backbone."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from winnow.data import CropTransform, ImageSet, load_images, resize_short
from winnow.data.emoji import load_emoji
from winnow.errors import DataError
from winnow.evaluation import retrieval_metrics
from winnow.models import Backbone, Embedder
from winnow.pooling.base import as_tokens
from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.base import Findings, Task, paragraphs
from winnow.studies.cub_losses import CONFIG
from winnow.training import load_config
from winnow.training.build import make_crops, resolve_config
from winnow.training.features import extract_features

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORIGINAL, COPY = Path("data/cub200_original"), Path("data/cub200_2011")
FINE = 92  # a quality of WebP that should cost nothing; the copy has 70
AT_ONCE = 512  # images whose maps are held at a time


class Recompressed(ImageSet):
    """Images as they come out of WebP at some quality.

    Args:
        images: The originals.
        quality: Of WebP, 0 to 100.
        short: Length that the short side is shrunk to before; None to leave it.
    """

    def __init__(self, images: ImageSet, quality: int, short: int | None = None) -> None:
        self.images, self.quality, self.short = images, quality, short
        self.labels, self.class_names = images.labels, images.class_names

    def name(self, index: int) -> str:
        """Return the original's name."""
        return self.images.name(index)

    def read(self, index: int) -> Image.Image:
        """Compress and decompress an image."""
        content = io.BytesIO()
        image = self.images.read(index).convert("RGB")
        if self.short is not None and min(image.size) > self.short:
            image = resize_short(image, self.short)
        image.save(content, "WEBP", quality=self.quality)
        return Image.open(content)

    def cache_key(self, index: int) -> str:
        """Return the original's identity, the quality and the size."""
        return f"{self.images.cache_key(index)}:webp{self.quality}:{self.short}"


def average_features(images: ImageSet, backbone: Backbone, crops: CropTransform, note: Callable[[str], None]) -> Tensor:
    """Return the unit averages (N, C) of a backbone's local features."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    means = []
    for start in range(0, len(images), AT_ONCE):
        rows = range(start, min(start + AT_ONCE, len(images)))
        part = images.select(rows)
        means.append(as_tokens(extract_features(backbone, part, crops, device)[0].whole()).mean(dim=1))
        note(f"{rows.stop} of {len(images)} images")
    return normalize(torch.cat(means), dim=1)


def sets(task: Task) -> tuple[Mapping[str, ImageSet], list[str], str | None]:
    """Return what is compared, originals first, and the words and file of the config of its backbone."""
    if task.small:
        images = load_emoji(images_per_class=3, distilled=True).test  # averages of cluttered ones find nothing
        assert images is not None, "the embedded set has a test split"
        return {"original": images, **{f"WebP {q}": Recompressed(images, q) for q in (80, 30)}}, ["data=emoji"], None
    for folder in (ORIGINAL, COPY):
        if not folder.is_dir():
            raise DataError(f"this study compares {ORIGINAL}, the class folders of the original CUB-200-2011, with "
                            f"{COPY}, and {folder} is not there")  # fmt: skip
    originals = load_images(ORIGINAL)
    fine = Recompressed(originals, quality=FINE, short=256)
    whole = {"original": originals, "copy": load_images(COPY), f"WebP {FINE}": fine}
    half = len(originals.class_names) // 2
    return {name: images.select_classes(range(half, 2 * half)) for name, images in whole.items()}, [], CONFIG


def study(task: Task) -> Findings:
    """What a resized, recompressed copy of a set costs: a frozen backbone's retrieval on it and on the original.

    Cost: 1 minute; in full, with both sets of CUB-200-2011 images, 40 minutes on two cores.
    """
    compared, words, file = sets(task)
    config = resolve_config(load_config(file, words))
    backbone, crops = Embedder.create(config).backbone, make_crops(config)
    rows: list[dict[str, Any]] = []
    vectors: dict[str, Tensor] = {}
    for name, images in compared.items():
        task.note(name)
        vectors[name] = average_features(images, backbone, crops, task.note)
        found = retrieval_metrics(vectors[name], images.labels)
        # Both sets are read in the order of their names, so that the same image has the same place.
        alike = (vectors[name] * next(iter(vectors.values()))).sum(dim=1).mean().item()
        rows.append({"set": name, "images": len(images), "MAP@R": round(100 * found["MAP@R"], 2),
                     "P@1": round(100 * found["P@1"], 2), "cosine to the original": round(alike, 4)})  # fmt: skip
    return Findings(
        title="What a copy of the images costs",
        text=told(rows, task.small),
        rows=rows,
        figure=draw(rows),
        settings={"small": task.small, "words": words, "config": file},
    )


def told(rows: Sequence[Mapping[str, Any]], small: bool) -> str:
    """Say what each copy costs."""
    first, *copies = rows
    costs = [f"- {row['set']}: {row['MAP@R'] - first['MAP@R']:+.2f} points." for row in copies]
    what = (
        "The embedded set's test classes without clutter, and the same pictures after WebP at two qualities."
        if small
        else "The 100 test classes of CUB-200-2011: the original JPEG files, the copy whose short side is at most 256 "
        f"pixels, in WebP of quality 70, that most results here are made with, and one of that size at quality {FINE}."
    )
    way = "Unit averages of a frozen pretrained backbone's local features, nothing trained, the same crops."
    cost = "\n".join([f"MAP@R of the original is {first['MAP@R']:.2f}. From it, of each copy:", "", *costs])
    return paragraphs(cost, f"{what} {way}")


@styled
def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw MAP@R and P@1 of every set."""
    figure = new_figure(5.6, 2.6)
    colours = method_colors([row["set"] for row in rows])
    for axes, metric in zip(figure.subplots(1, 2), ("MAP@R", "P@1"), strict=True):
        for place, row in enumerate(rows):
            bar = axes.bar(place, row[metric], color=colours[row["set"]], alpha=0.75)
            axes.bar_label(bar, fmt="%.2f")
        axes.set_xticks(range(len(rows)), [row["set"] for row in rows])
        axes.set_title(f"{metric}, percent")
    return figure
