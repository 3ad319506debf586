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
from torch import Tensor

from winnow.data import Crops, ImageSet, ImageStore
from winnow.errors import TrainingError
from winnow.models import Backbone
from winnow.training.inputs import CropInputs, FeatureInputs

Progress = Callable[[int, int], None]


def cache_folder() -> Path:
    """Return where features are kept on disk: `$WINNOW_CACHE`, or the user's cache folder."""
    base = os.environ.get("WINNOW_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "winnow"


@torch.no_grad()
def compute_features(
    backbone: Backbone, inputs: CropInputs, device: torch.device, *, progress: Progress | None = None
) -> Tensor:
    """Return the backbone's maps (N, C, h, w) or tokens (N, n, C) of every image's centre crop, on the CPU."""
    backbone.to(device).to(memory_format=torch.channels_last).freeze()  # type: ignore[call-overload]
    batch = 8 if device.type == "cpu" else 128  # larger ones leave a CPU's caches and are several times slower
    count = len(inputs.labels)
    maps: Tensor | None = None
    for start in range(0, count, batch):
        stop = min(start + batch, count)
        images = inputs.test(range(start, stop)).contiguous(memory_format=torch.channels_last)
        part = backbone(images).float().cpu()
        if maps is None:
            maps = torch.empty(count, *part.shape[1:])
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
    folder = None
    if keep == "disk":
        key = f"{backbone.fingerprint()}-{images.fingerprint()}-{crops.resize}-{crops.size}-{on_error}"
        folder = cache_folder() / "features" / key
        if (folder / "meta.json").is_file():
            meta = json.loads((folder / "meta.json").read_text())
            maps = torch.from_numpy(np.load(folder / "maps.npy", mmap_mode="c"))
            labels = images.labels[np.array(meta["kept"], dtype=np.int64)]
            names = [images.name(i) for i in meta["kept"]]
            return FeatureInputs(maps, labels, names, device), [(n, r) for n, r in meta["skipped"]]
    # Every image is needed once only, so none is kept decoded.
    store = ImageStore(images, resize=crops.resize, cache="none", device=device, on_error=on_error)
    maps = compute_features(backbone, CropInputs(store, crops), device, progress=progress)
    if folder is not None:
        _write(folder, maps, {"kept": store.kept.tolist(), "skipped": store.skipped})
    names = [store.name(i) for i in range(len(store))]
    return FeatureInputs(maps, store.labels, names, device), store.skipped


def _write(folder: Path, maps: Tensor, meta: dict[str, object]) -> None:
    """Write features so that a folder is either whole or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
    try:
        np.save(partial / "maps.npy", maps.numpy())
        (partial / "meta.json").write_text(json.dumps(meta))
        if not folder.exists():
            partial.rename(folder)
    except OSError as error:
        raise TrainingError(
            f"the features could not be written to {folder} ({error.strerror}): free some room, set WINNOW_CACHE to "
            "another folder, or use data.features=ram"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
