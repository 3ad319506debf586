"""From a model to a file, checked against the model by the program that will read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import winnow
from winnow.errors import ConfigError, ModelError, nearest
from winnow.export.module import ExportedEmbedder, outputs
from winnow.export.onnx import check_installed, load_onnx, write_onnx
from winnow.export.torchscript import load_torchscript, write_torchscript
from winnow.files import write_atomically
from winnow.models import Embedder
from winnow.pooling import POOLINGS

Run = Callable[[Tensor], list[Tensor]]

FORMATS = ("onnx", "torchscript")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """A model written to a file.

    Attributes:
        path: The file.
        outputs: Names of what it returns.
        any_size: Whether it takes images of any size, or only the model's own crops.
        difference: The largest difference of any output from the model's own, over the batches that were tried.
    """

    path: Path
    outputs: tuple[str, ...]
    any_size: bool
    difference: float


def export_model(model: Embedder, path: str | Path, format: str = "onnx") -> Exported:
    """Write a model as ONNX or TorchScript, with batches of any size, and try the file.

    The input is `images`, float32 (B, 3, H, W), RGB in [0, 1]; mean and scale are applied inside. The outputs are
    `embedding` (B, dim), normalised as the model's config says, and `weights`, where the pooling has any: (B, h, w),
    or (B, n) of a network that makes tokens. How images are to be resized and cropped is in the file's metadata.

    Args:
        model: What to export.
        path: The file.
        format: "onnx" (read by onnxruntime; needs the `onnx` extra) or "torchscript" (read by torch alone).

    Raises:
        ConfigError: for another format.
        ModelError: when the network cannot be exported, or the file's outputs differ from the model's.
        MissingExtraError: when ONNX is not installed.
    """
    if format not in FORMATS:
        raise ConfigError(f"format={format}: must be one of {', '.join(FORMATS)}{nearest(format, FORMATS)}")
    if format == "onnx":
        check_installed()
    path, module = Path(path), ExportedEmbedder(model).eval()
    crop = model.config.image.crop
    trials = [torch.rand(2, 3, crop, crop), torch.rand(3, 3, crop, crop), torch.rand(1, 3, crop, crop)]
    other = torch.rand(2, 3, crop + 32, crop + 64)  # of whole cells for every usual stride
    names = ("embedding", "weights")[: len(outputs(module, trials[0]))]
    write, load = (write_onnx, load_onnx) if format == "onnx" else (write_torchscript, load_torchscript)
    problem = ""
    # A network with a fixed number of positions takes one size; most others take any.
    for any_size in (False,) if POOLINGS[model.config.pooling["name"]].takes == "fixed" else (True, False):
        about = json.dumps(metadata(model, names, any_size), indent=2)
        found: list[float] = []

        def attempt(partial: Path, any_size: bool = any_size, about: str = about, found: list[float] = found) -> None:
            write(module, trials[0], partial, names, any_size, about)
            try:
                found.append(_difference(load(partial), module, [*trials, other] if any_size else trials))
            except RuntimeError as error:  # on an operation that does not take this size
                raise ModelError((str(error).strip().splitlines() or [type(error).__name__])[0][:200]) from None
            if not found[0] <= TOLERANCE:  # true also for NaN
                raise ModelError(f"its outputs differ by {found[0]:.1e}")

        try:
            write_atomically(path, attempt)
        except ModelError as error:
            problem = str(error)
            continue
        return Exported(path, names, any_size, found[0])
    raise ModelError(f"{model.config.backbone.name} cannot be exported as {format} ({problem}): try the other format")


def metadata(model: Embedder, names: tuple[str, ...], any_size: bool) -> dict[str, object]:
    """Say how to use the file."""
    image, config = model.config.image, model.config
    size = "any height and width" if any_size else f"height and width {image.crop}"
    return {
        "made_by": f"winnow {winnow.__version__}",
        "input": f"images: float32 (batch, 3, height, width), RGB in [0, 1], {size}; mean and scale are applied inside",
        "preprocessing": [
            "turn the image upright by its EXIF orientation; lay transparency on white; convert it to RGB",
            f"scale it so that its short side is {image.resize} pixels (bilinear, antialiased)",
            f"cut the {image.crop} x {image.crop} pixels at its centre",
            "divide by 255",
        ],
        "resize": image.resize,
        "crop": image.crop,
        "outputs": list(names),
        "normalise": config.normalise,
        "distance": "Euclidean",
        "fingerprint": model.fingerprint(),
        "config": config.model_dump(),
    }


def _difference(run: Run, module: ExportedEmbedder, trials: list[Tensor]) -> float:
    """Return the largest difference of a file's outputs from the module's."""
    largest = 0.0
    for images in trials:
        expected = outputs(module, images)
        for mine, own in zip(run(images), expected, strict=True):
            if mine.shape != own.shape:
                raise ModelError(
                    f"of images {tuple(images.shape)} it makes {tuple(mine.shape)}, not {tuple(own.shape)}"
                )
            largest = max(largest, float((mine - own).abs().max()))
    return largest
