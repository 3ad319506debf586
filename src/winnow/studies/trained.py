"""The model that a run came to, opened again to look at what it makes of its test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from winnow.data import Splits
from winnow.models import Embedder
from winnow.models.weights import read_state
from winnow.training.arithmetic import make_fabric
from winnow.training.config import Config
from winnow.training.inputs import Inputs
from winnow.training.monitor import Monitor
from winnow.training.plan import Planned
from winnow.training.prepare import prepare, resolve_config
from winnow.training.shared import Shared


@dataclass(frozen=True)
class Trained:
    """A trained model and the test images of its run.

    Attributes:
        config: The run's.
        embedder: With the run's best weights, on its device, for judging.
        inputs: The test images.
        frozen: Whether these are already what the backbone makes of them.
    """

    config: Config
    embedder: Embedder
    inputs: Inputs
    frozen: bool

    def features(self, indices: Sequence[int]) -> Tensor:
        """Return what the backbone makes of test images."""
        batch = self.inputs.test(indices)
        return batch if self.frozen else self.embedder.backbone(batch)


def open_trained(run: Planned, splits: Splits, shared: Shared) -> Trained:
    """Return the model of a finished run.

    Args:
        run: Finished.
        splits: Its images, of which only those to test on are looked at.
        shared: What it has in common with others.
    """
    assert splits.test is not None, "a study compares on test images"
    config = resolve_config(run.config)
    prepared = prepare(config, replace(splits, train=splits.test, val=splits.test), Monitor(), shared)
    embedder = prepared.embedder.to(make_fabric(config).device).eval()
    weights = run.folder.model_folder / "model.safetensors"
    embedder.load_state(read_state(weights), str(weights))
    return Trained(config, embedder, prepared.val, prepared.frozen)
