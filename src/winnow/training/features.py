"""A frozen backbone's feature maps, computed once and kept in RAM or on disk."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.data import Crops, ImageSet, ImageStore
from winnow.data.store import Progress
from winnow.errors import OutputError
from winnow.files import make_folder
from winnow.models import Backbone
from winnow.training.inputs import CropInputs, FeatureInputs

CPU_BATCH = 8  # larger ones leave a CPU's caches and are several times slower


def cache_folder() -> Path:
    """Return where features are kept on disk: `$WINNOW_CACHE`, or the user's cache folder."""
    base = os.environ.get("WINNOW_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "winnow"


@torch.no_grad()
def compute_features(
    backbone: Backbone,
    inputs: CropInputs,
    device: torch.device,
    *,
    allocate: Callable[[tuple[int, ...]], Tensor] = torch.empty,
    progress: Progress | None = None,
) -> Tensor:
    """Return the backbone's maps (N, C, h, w) or tokens (N, n, C) of every image's centre crop, on the CPU.

    `allocate` makes the float32 tensor of a shape that they are written into, piece by piece.
    """
    backbone.to(device).freeze()
    batch = CPU_BATCH if device.type == "cpu" else 128
    count = len(inputs.labels)
    maps: Tensor | None = None
    for start in range(0, count, batch):
        stop = min(start + batch, count)
        part = backbone(inputs.test(range(start, stop))).float().cpu()
        if maps is None:
            maps = allocate((count, *part.shape[1:]))
        maps[start:stop] = part
        if progress is not None:
            progress(stop, count)
    assert maps is not None, "an image set is never empty"
    return maps


def frozen_inputs(
    backbone: Backbone,
    images: ImageSet,
    crops: Crops,
    device: torch.device,
    *,
    keep: Literal["ram", "disk"] = "ram",
    on_error: Literal["raise", "skip"] = "raise",
    progress: Progress | None = None,
) -> tuple[FeatureInputs, list[tuple[str, str]]]:
    """Make a set's features, or find them on disk.

    On disk they are keyed by the backbone's weights, the images and the crop, so that a change of any makes new ones.

    Returns:
        The features, and the (name, reason) of each image that was skipped.
    """

    def compute(allocate: Callable[[tuple[int, ...]], Tensor]) -> tuple[Tensor, ImageStore]:
        # Every image is needed once only, so none is kept decoded; but to skip is to have looked at all of them.
        cache: Literal["auto", "none"] = "auto" if on_error == "skip" else "none"
        store = ImageStore(images, resize=crops.resize, cache=cache, device=device, on_error=on_error)
        made = compute_features(backbone, CropInputs(store, crops), device, allocate=allocate, progress=progress)
        return made, store

    if keep == "ram":
        maps, store = compute(torch.empty)
        names = [store.name(i) for i in range(len(store))]
        return FeatureInputs(maps, store.labels, names, device), store.skipped
    key = f"{backbone.fingerprint()}-{images.fingerprint()}-{crops.resize}-{crops.size}-{on_error}"
    folder = cache_folder() / "features" / key
    found = _read(folder)
    if found is None:
        _write(folder, compute)
        found = _read(folder)
        assert found is not None, "features just written can be read"
    maps, kept, skipped = found
    return FeatureInputs(maps, images.labels[kept], [images.name(int(i)) for i in kept], device), skipped


def _read(folder: Path) -> tuple[Tensor, NDArray[np.int64], list[tuple[str, str]]] | None:
    """Map features from disk; None where there are none, or damaged ones."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        # Mapped copy-on-write, because torch does not know read-only memory.
        maps = torch.from_numpy(np.load(folder / "maps.npy", mmap_mode="c"))
        return maps, np.array(meta["kept"], dtype=np.int64), [(name, reason) for name, reason in meta["skipped"]]
    except (OSError, ValueError, KeyError):
        return None


def _write(folder: Path, compute: Callable[[Callable[[tuple[int, ...]], Tensor]], tuple[Tensor, ImageStore]]) -> None:
    """Compute features into files so that a folder is either whole or absent, never holding all of them in RAM."""
    make_folder(folder.parent)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))

    def allocate(shape: tuple[int, ...]) -> Tensor:
        mapped = np.lib.format.open_memmap(partial / "maps.npy", mode="w+", dtype=np.float32, shape=shape)
        return torch.from_numpy(mapped)

    try:
        maps, store = compute(allocate)
        del maps  # writes what is still in memory
        meta = {"kept": store.kept.tolist(), "skipped": store.skipped}
        (partial / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        if _read(folder) is not None:
            return  # the same, which another process has made meanwhile and may be reading
        shutil.rmtree(folder, ignore_errors=True)  # damaged ones
        partial.rename(folder)
    except OSError as error:
        if _read(folder) is not None:
            return
        raise OutputError(
            f"the features could not be written to {folder} ({error.strerror}): free some room, set WINNOW_CACHE to "
            "another folder, or use data.features=ram"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
