"""TorchScript files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from winnow.errors import ModelError
from winnow.export.module import ExportedEmbedder, outputs

METADATA = "winnow.json"


def write_torchscript(
    module: ExportedEmbedder, example: Tensor, path: Path, names: tuple[str, ...], any_size: bool, about: str
) -> None:
    """Write a module as TorchScript; `about` goes into the file as `winnow.json`."""
    buffer = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a trace keeps fixed; the file is tried on other sizes
            traced = torch.jit.trace(module, (example,), check_trace=False)  # type: ignore[no-untyped-call]
            torch.jit.save(torch.jit.freeze(traced.eval()), buffer, _extra_files={METADATA: about})
    except Exception as error:
        raise ModelError((str(error).strip().splitlines() or [type(error).__name__])[0][:200]) from None
    path.write_bytes(buffer.getvalue())


def load_torchscript(path: Path) -> Callable[[Tensor], list[Tensor]]:
    """Return what torch makes of images by a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    return lambda images: outputs(loaded, images)
