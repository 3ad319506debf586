"""Export of models to ONNX and TorchScript, checked by their runtimes."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

import winnow
from winnow.errors import ConfigError, MissingExtraError, ModelError, did_you_mean
from winnow.files import write_atomically
from winnow.functional import NORMALIZERS
from winnow.models import Embedder
from winnow.models.backbone import first_line
from winnow.pooling import POOLINGS

__all__ = ["FORMATS", "ExportedModel", "export_model"]

FORMATS = ("onnx", "torchscript")
TOLERANCE = 1e-4
METADATA_FILE = "winnow.json"  # inside a TorchScript file

Run = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class ExportedModel:
    """A model that was exported to a file."""

    path: Path
    outputs: tuple[str, ...]  # names of the outputs
    any_size: bool  # the file accepts images of any size, not only the crop size of the model
    difference: float  # largest absolute difference from the outputs of the model


def export_model(model: Embedder, path: str | Path, format: str = "onnx") -> ExportedModel:
    """Export a model to ONNX or TorchScript and check the outputs of the file.

    The input is `images`, float32 (B, 3, H, W), RGB in [0, 1]; mean and standard deviation are applied inside. The
    batch size is free. The outputs are `embedding` (B, dim), normalized as the config of the model says, and, if the
    pooling has weights, `weights`: (B, h, w), or (B, n) for networks that return tokens. Resizing and cropping are
    described in the metadata of the file.

    Args:
        model: Model to export.
        path: File to write.
        format: "onnx" (for onnxruntime; needs the `onnx` extra) or "torchscript" (for torch alone).

    Raises:
        ConfigError: If the format is unknown.
        ModelError: If the network cannot be exported, or the outputs of the file differ from the model's.
        MissingExtraError: If a package for ONNX is not installed.
    """
    if format not in FORMATS:
        raise ConfigError(f"format={format}: expected one of {', '.join(FORMATS)}{did_you_mean(format, FORMATS)}")
    if format == "onnx":
        _check_onnx_installed()
    path, module = Path(path), ExportModule(model).eval()
    crop = model.config.image.crop
    trials = [torch.rand(2, 3, crop, crop), torch.rand(3, 3, crop, crop), torch.rand(1, 3, crop, crop)]
    other = torch.rand(2, 3, crop + 32, crop + 64)  # a multiple of every usual stride
    names = ("embedding", "weights")[: len(_outputs(module, trials[0]))]
    write, load = (_write_onnx, _load_onnx) if format == "onnx" else (_write_torchscript, _load_torchscript)
    problem = ""
    # Networks with a fixed number of positions accept one size; most others accept any size.
    for any_size in (False,) if POOLINGS[model.config.pooling.name].layout == "fixed" else (True, False):
        about = json.dumps(_metadata(model, names, any_size), indent=2)
        found: list[float] = []

        def attempt(partial: Path, any_size: bool = any_size, about: str = about, found: list[float] = found) -> None:
            write(module, trials[0], partial, names, any_size, about)
            try:
                found.append(_largest_difference(load(partial), module, [*trials, other] if any_size else trials))
            except RuntimeError as error:  # an operation rejects this image size
                raise ModelError(first_line(error)) from None
            if not found[0] <= TOLERANCE:  # true for NaN as well
                raise ModelError(f"outputs differ by {found[0]:.1e}")

        try:
            write_atomically(path, attempt)
        except ModelError as error:
            problem = str(error)
            continue
        return ExportedModel(path, names, any_size, found[0])
    raise ModelError(f"{path}: {model.config.backbone.name} cannot be exported to {format} ({problem}). "
                     "Use the other format.")  # fmt: skip


class ExportModule(nn.Module):
    """Exported module: from crops to normalized vectors and pooling weights.

    Weights are (B, h, w) for maps and (B, n) for tokens.

    Args:
        model: Model to export. It is copied to the CPU in inference mode.
    """

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        own = copy.deepcopy(model).cpu().eval()
        _replace_same_padding(own.backbone)
        self.backbone, self.head = own.backbone, own.head
        self.normalize = NORMALIZERS[own.config.normalize]
        self.has_weights = own.head.pooling.has_weights

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Embed a batch of crops."""
        features = self.backbone(images)
        result = self.head(features, return_details=True)
        vectors = self.normalize(result.vector.float())
        if result.weights is None or not self.has_weights:
            return vectors
        weights = result.weights.float()
        if features.dim() == 4:
            weights = weights.reshape(features.shape[0], features.shape[2], features.shape[3])
        return vectors, weights


class SamePadding(nn.Module):
    r"""Convolution with TensorFlow's "same" padding, which a graph can record.

    The total padding of a side of length x is $(\lceil x / s \rceil - 1) s + k - x$, with the larger half at the end.
    It is never negative for a kernel at least as wide as its stride.
    """

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        """Pad and convolve."""
        c: Any = self.convolution
        padding = []
        for side in (1, 0):  # torch pads the last dimension first
            length, stride = x.shape[2 + side], c.stride[side]
            total = ((length + stride - 1) // stride - 1) * stride + c.dilation[side] * (c.kernel_size[side] - 1)
            total = total + 1 - length
            padding += [total // 2, total - total // 2]
        return conv2d(pad(x, padding), c.weight, c.bias, c.stride, 0, c.dilation, c.groups)


def _replace_same_padding(module: nn.Module) -> None:
    """Replace timm's "same"-padded convolutions, which record a fixed size."""
    for name, child in module.named_children():
        narrow = isinstance(child, nn.Conv2d) and min(child.kernel_size) < max(child.stride)
        if type(child).__name__ == "Conv2dSame" and not narrow:
            setattr(module, name, SamePadding(child))
        else:
            _replace_same_padding(child)


def _metadata(model: Embedder, names: tuple[str, ...], any_size: bool) -> dict[str, object]:
    """Return the description of input and outputs that is stored in the file."""
    image, config = model.config.image, model.config
    size = "any height and width" if any_size else f"height and width {image.crop}"
    return {
        "made_by": f"winnow {winnow.__version__}",
        "input": f"images: float32 (batch, 3, height, width), RGB in [0, 1], {size}; mean and std are applied inside",
        "preprocessing": [
            "rotate the image upright by its EXIF orientation; put transparent images on white; convert to RGB",
            f"resize so that the short side has {image.resize} pixels (bilinear, antialiased)",
            f"crop the {image.crop} x {image.crop} pixels at the center",
            "divide by 255",
        ],
        "resize": image.resize,
        "crop": image.crop,
        "outputs": list(names),
        "normalize": config.normalize,
        "distance": "Euclidean",
        "fingerprint": model.fingerprint(),
        "config": config.model_dump(),
    }


def _check_onnx_installed() -> None:
    """Raise `MissingExtraError` if a package for ONNX is missing."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "ONNX export")


def _write_onnx(
    module: ExportModule, example: Tensor, path: Path, names: tuple[str, ...], any_size: bool, about: str
) -> None:
    """Write a module as ONNX, with `about` as the metadata entry `winnow`."""
    shapes = {0: "batch", 2: "height", 3: "width"} if any_size else {0: "batch"}
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module, (example,), dynamo=True, dynamic_shapes=(shapes,),
                input_names=["images"], output_names=list(names), verbose=False,
            )  # fmt: skip
    except Exception as error:  # exporters raise errors of many types
        raise ModelError(first_line(error)) from None
    finally:
        log.setLevel(level)
    assert program is not None, "returned because no file name was passed"
    program.model.metadata_props["winnow"] = about
    program.save(str(path), external_data=False)


def _load_onnx(path: Path) -> Run:
    """Return a function that runs an ONNX file in onnxruntime."""
    import onnxruntime  # type: ignore[import-untyped, unused-ignore]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> list[Tensor]:
        try:
            return [torch.from_numpy(each) for each in session.run(None, {"images": images.numpy()})]
        except Exception as error:  # onnxruntime raises its own types
            raise ModelError(first_line(error)) from None

    return run


def _write_torchscript(
    module: ExportModule, example: Tensor, path: Path, names: tuple[str, ...], any_size: bool, about: str
) -> None:
    """Write a module as TorchScript, with `about` as the extra file `winnow.json`."""
    buffer = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trace warns about constants; other sizes are checked afterwards
            traced = torch.jit.trace(module, (example,), check_trace=False)  # type: ignore[no-untyped-call]
            torch.jit.save(torch.jit.freeze(traced.eval()), buffer, _extra_files={METADATA_FILE: about})
    except Exception as error:
        raise ModelError(first_line(error)) from None
    path.write_bytes(buffer.getvalue())


def _load_torchscript(path: Path) -> Run:
    """Return a function that runs a TorchScript file in torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    return lambda images: _outputs(loaded, images)


@torch.no_grad()
def _outputs(module: nn.Module, images: Tensor) -> list[Tensor]:
    """Return all outputs of a module as a list."""
    result = module(images)
    return list(result) if isinstance(result, tuple) else [result]


def _largest_difference(run: Run, module: ExportModule, trials: list[Tensor]) -> float:
    """Return the largest difference between outputs of a file and of the module."""
    largest = 0.0
    for images in trials:
        expected = _outputs(module, images)
        for found, wanted in zip(run(images), expected, strict=True):
            if found.shape != wanted.shape:
                raise ModelError(f"images {tuple(images.shape)}: expected an output of shape {tuple(wanted.shape)}, "
                                 f"got {tuple(found.shape)}")  # fmt: skip
            largest = max(largest, float((found - wanted).abs().max()))
    return largest
