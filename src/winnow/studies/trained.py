"""The model that a run came to, opened again to look at what it makes of its test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from winnow.data import Splits
from winnow.models import Embedder
from winnow.models.factory import read_state_dict
from winnow.training.build import build_setup, resolve_config
from winnow.training.cache import RunCache
from winnow.training.callbacks import Callback
from winnow.training.config import RunConfig
from winnow.training.engine.precision import make_fabric
from winnow.training.inputs import Inputs
from winnow.training.sweep import PlannedRun


@dataclass(frozen=True)
class Trained:
    """A trained model and the test images of its run.

    Attributes:
        config: The run's.
        embedder: With the run's best weights, on its device, for judging.
        inputs: The test images.
        frozen: Whether these are already what the backbone makes of them.
    """

    config: RunConfig
    embedder: Embedder
    inputs: Inputs
    frozen: bool

    def features(self, indices: Sequence[int]) -> Tensor:
        """Return what the backbone makes of test images."""
        batch = self.inputs.test(indices)
        return batch if self.frozen else self.embedder.backbone(batch)


def open_trained(run: PlannedRun, splits: Splits, shared: RunCache) -> Trained:
    """Return the model of a finished run.

    Args:
        run: Finished.
        splits: Its images, of which only those to test on are looked at.
        shared: What it has in common with others.
    """
    assert splits.test is not None, "a study compares on test images"
    config = resolve_config(run.config)
    prepared = build_setup(config, replace(splits, train=splits.test, val=splits.test), Callback(), shared)
    embedder = prepared.embedder.to(make_fabric(config).device).eval()
    weights = run.run_dir.model_folder / "model.safetensors"
    embedder.load_state(read_state_dict(weights), str(weights))
    return Trained(config, embedder, prepared.val, prepared.frozen)
