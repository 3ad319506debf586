"""Retrieval on original images and on resized copies, with a frozen backbone."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
from winnow.studies.settings import CONFIG, EMOJI_IMAGES, scales
from winnow.studies.spec import DataNeed, Measurement, Row, Scale, Study, StudyRequest
from winnow.training import load_config
from winnow.training.build import make_crops, resolve_config
from winnow.training.features import extract_features
from winnow.training.overrides import Overrides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORIGINAL, COPY = Path("data/cub200_original"), Path("data/cub200_2011")
FINE = 92  # WebP quality without visible loss; the copies of most results have 70
SHORT = 256  # pixels of the short side of a copy, at most
BATCH = 512  # images whose feature maps are in memory at one time
COSINE = "cosine to the original"


class Recompressed(ImageSet):
    """Images compressed by WebP and decompressed again.

    Args:
        images: Original images.
        quality: WebP quality, 0 to 100.
        short: Length of the short side, to which larger images are resized first; None leaves sizes unchanged.
    """

    def __init__(self, images: ImageSet, quality: int, short: int | None = None) -> None:
        self.images, self.quality, self.short = images, quality, short
        self.labels, self.class_names = images.labels, images.class_names

    def name(self, index: int) -> str:
        """Return the name of the original."""
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
        """Return the key of the original with quality and size."""
        return f"{self.images.cache_key(index)}:webp{self.quality}:{self.short}"


def average_features(images: ImageSet, backbone: Backbone, crops: CropTransform, note: Callable[[str], None]) -> Tensor:
    """Return the normalized means (N, C) of local features."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    means = []
    for start in range(0, len(images), BATCH):
        rows = range(start, min(start + BATCH, len(images)))
        batch = extract_features(backbone, images.select(rows), crops, device)[0].whole()
        means.append(as_tokens(batch).mean(dim=1))
        note(f"{rows.stop} of {len(images)} images")
    return normalize(torch.cat(means), dim=1)


def emoji_copies() -> dict[str, ImageSet]:
    """Return the emoji test classes without clutter, and two copies of them.

    Mean features retrieve nothing in clutter.
    """
    images = load_emoji(images_per_class=3, distilled=True).test
    assert images is not None, "the bundled emoji dataset has a test split"
    return {"original": images, **{f"WebP {quality}": Recompressed(images, quality) for quality in (80, 30)}}


def cub_copies() -> dict[str, ImageSet]:
    """Return the test classes of CUB-200-2011: originals, copies, and fine copies.

    Raises:
        DataError: If a folder is missing.
    """
    for folder in (ORIGINAL, COPY):
        if not folder.is_dir():
            raise DataError(
                f"{folder}: folder not found. Put the class folders of CUB-200-2011 in {ORIGINAL}, and the resized "
                f"copies in {COPY}."
            )
    originals = load_images(ORIGINAL)
    fine = Recompressed(originals, quality=FINE, short=SHORT)
    whole = {"original": originals, "copy": load_images(COPY), f"WebP {FINE}": fine}
    half = len(originals.class_names) // 2
    return {name: images.select_classes(range(half, 2 * half)) for name, images in whole.items()}


def measure_copies(
    compared: Mapping[str, ImageSet], config: Path | str | None, base: Overrides, note: Callable[[str], None]
) -> list[Row]:
    """Return a row of retrieval metrics for each copy.

    The first copy is the original; all have the same order of images.
    """
    resolved = resolve_config(load_config(config, base.to_args()))
    backbone, crops = Embedder.create(resolved).backbone, make_crops(resolved)
    rows: list[Row] = []
    original: Tensor | None = None
    for name, images in compared.items():
        note(name)
        vectors = average_features(images, backbone, crops, note)
        original = vectors if original is None else original
        metrics = retrieval_metrics(vectors, images.labels)
        cosine = (vectors * original).sum(dim=1).mean().item()
        rows.append({"copy": name, "images": len(images), "MAP@R": round(100 * metrics["MAP@R"], 2),
                     "P@1": round(100 * metrics["P@1"], 2), COSINE: round(cosine, 4)})  # fmt: skip
    return rows


@dataclass(frozen=True, kw_only=True)
class Copies(Study):
    """A frozen backbone on several copies of the same images; nothing is trained."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Embed every copy and evaluate retrieval."""
        scale = request.scale
        rows = measure_copies(emoji_copies() if request.quick else cub_copies(), scale.file, scale.base, request.note)
        return Measurement(rows=rows, settings={"words": scale.base.to_args(), "config": scale.file})

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw MAP@R and P@1 of every copy."""
        return {"": _draw(measured.rows)}


@styled
def _draw(rows: Sequence[Row]) -> Figure:
    figure = new_figure(5.6, 2.6)
    colors = method_colors([row["copy"] for row in rows])
    for axes, metric in zip(figure.subplots(1, 2), ("MAP@R", "P@1"), strict=True):
        for position, row in enumerate(rows):
            bar = axes.bar(position, row[metric], color=colors[row["copy"]], alpha=0.75)
            axes.bar_label(bar, fmt="%.2f")
        axes.set_xticks(range(len(rows)), [row["copy"] for row in rows])
        axes.set_title(f"{metric} (%)")
    return figure


_SETTING = "normalized means of a pretrained backbone's local features, nothing trained."
COPIES = Copies(
    name="copies", title="Retrieval on resized image copies", measures="cost of resized image copies", source="",
    group="Other",
    scales=scales(
        Scale("quick", Overrides.parse("data=emoji"), needs=EMOJI_IMAGES, cost="1 minute",
              setting=f"Bundled emoji, test classes without clutter, as drawn and after WebP compression; {_SETTING}"),
        Scale("full", needs=DataNeed("CUB-200-2011, original and copy", has_folder=False), cost="40 minutes",
              setting="Test classes of CUB-200-2011: original JPEG files, copies with a short side of at most "
                      f"{SHORT} pixels in WebP of quality 70, and copies of this size with quality {FINE}; {_SETTING}",
              file=CONFIG),
    ),
)  # fmt: skip
