"""Make `import torchvision` work beside a CPU build of torch.

The compiled operators of a torchvision built for CUDA do not load beside a CPU build of torch. torchvision tolerates
that, but it then registers shapes for two operators that do not exist and fails. timm imports it, and winnow needs none
of those operators; declaring the two is enough.
"""

from __future__ import annotations

import importlib
import sys

import torch

_KEEP_ALIVE: list[torch.library.Library] = []


def ensure_torchvision() -> None:
    """Import torchvision, declaring its missing operators if that is all that is wrong."""
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
        _KEEP_ALIVE.append(library)
        importlib.import_module("torchvision")
