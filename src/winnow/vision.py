"""Import of torchvision next to any build of torch."""

from __future__ import annotations

import importlib
import sys

import torch

_TORCHVISION_LIBRARIES: list[torch.library.Library] = []  # a library is unregistered when it is collected


def ensure_torchvision() -> None:
    """Import torchvision, also where its compiled operators do not load.

    A torchvision built for CUDA cannot load its operators next to a CPU build of torch. It tolerates that, but then
    registers shapes for `nms` and `qnms`, which do not exist, and fails. timm imports torchvision, but winnow uses
    none of these operators. Declaring both is enough.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, operator):
                schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                library.define(schema)  # type: ignore[no-untyped-call]
        _TORCHVISION_LIBRARIES.append(library)
        importlib.import_module("torchvision")
