"""ONNX files."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from winnow.errors import MissingExtraError, ModelError
from winnow.export.module import ExportedEmbedder


def check_installed() -> None:
    """Refuse where a package is missing."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "ONNX export")


def write_onnx(
    module: ExportedEmbedder, example: Tensor, path: Path, names: tuple[str, ...], any_size: bool, about: str
) -> None:
    """Write a module as ONNX; `about` goes into the file's metadata as `winnow`."""
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
    except Exception as error:  # exporters raise all kinds of errors
        raise ModelError((str(error).strip().splitlines() or [type(error).__name__])[0][:200]) from None
    finally:
        log.setLevel(level)
    assert program is not None, "it is returned, because no file was named"
    program.model.metadata_props["winnow"] = about
    program.save(str(path), external_data=False)


def load_onnx(path: Path) -> Callable[[Tensor], list[Tensor]]:
    """Return what onnxruntime makes of images by a file."""
    import onnxruntime  # type: ignore[import-untyped, unused-ignore]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> list[Tensor]:
        try:
            return [torch.from_numpy(each) for each in session.run(None, {"images": images.numpy()})]
        except Exception as error:  # onnxruntime has types of its own
            raise ModelError((str(error).strip().splitlines() or [type(error).__name__])[0][:200]) from None

    return run
