"""The folder of a run: what is in it, written so that a kill at any moment leaves the last good state."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from winnow.errors import ConfigError, ModelError, add_component_hint
from winnow.files import lock, make_folder, write_atomically, write_text
from winnow.training.config import Config, make_config
from winnow.training.embedded import EmbeddedImages
from winnow.training.words import read_yaml


class RunFolder:
    """Paths and files of one training run.

    `config.yaml` the resolved config; `log.jsonl` one line per validation; `checkpoint.pt` everything needed to go on;
    `best.pt` the weights of the best validation; `model/` the trained model; `test.safetensors` the test images'
    embeddings and labels, where they are kept; `result.json` what was measured. The command line adds `curves.png`, and
    `problems.svg` with CCP; a loss that is not finite leaves `bad_batch.txt`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.log_file = self.path / "log.jsonl"
        self.checkpoint_file = self.path / "checkpoint.pt"
        self.best_file = self.path / "best.pt"
        self.result_file = self.path / "result.json"
        self.model_folder = self.path / "model"
        self.embeddings_file = self.path / "test.safetensors"

    def create(self, config: Config) -> None:
        """Start a new run; an existing one is never overwritten."""
        if self.config_file.exists():
            raise ConfigError(
                f"{self.path} already holds a run: go on with it by --resume, or choose another folder with --out"
            )
        make_folder(self.path)
        write_text(self.config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))

    def discard(self) -> None:
        """Take a run back that was created and came to nothing, so that its folder can be used again."""
        self.config_file.unlink(missing_ok=True)
        with suppress(OSError):  # something else may be in it
            self.path.rmdir()

    def held(self) -> AbstractContextManager[None]:
        """Keep other processes from training this run meanwhile.

        Raises:
            OutputError: on entering, when another process trains it.
        """
        return lock(self.config_file, f"training {self.path}")

    def read_config(self) -> Config:
        """Read the config of an existing run.

        Raises:
            ModelError: where there is none, or a damaged one.
            ConfigError: for settings this version does not have.
        """
        if not self.config_file.is_file():
            raise ModelError(f"{self.path} is not a run folder: {self.config_file.name} is missing")
        try:
            tree = read_yaml(self.config_file)
        except ConfigError:
            tree = {}
        if "seed" not in tree:  # the last that `create` writes: without it defaults would stand for what is cut off
            raise ModelError(
                f"{self.config_file} is empty or damaged: put a copy in its place, or remove {self.path} and train the "
                "run anew"
            )
        try:
            return make_config(tree)
        except ConfigError as error:
            raise ConfigError(f"{self.config_file}: {error}{add_component_hint(error)}") from None

    def read_result(self) -> dict[str, Any] | None:
        """Return what was measured; None where the run is not finished.

        A damaged result is as good as none while the checkpoint is there: the run that goes on from it measures again.

        Raises:
            ModelError: for a damaged result that only training anew could replace.
        """
        if not self.result_file.is_file():
            return None
        try:
            result: Any = json.loads(self.result_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            result = None
        if isinstance(result, dict) and "metrics" in result:
            return result
        if self.checkpoint_file.is_file() and self.best_file.is_file():
            return None
        raise ModelError(
            f"{self.result_file} is empty or damaged, and the run's checkpoint is gone: put a copy in its place, or "
            f"remove {self.path} and train the run anew"
        )

    @property
    def is_finished(self) -> bool:
        """Whether there is a result; raises as `read_result` does."""
        return self.read_result() is not None

    def check_finished(self) -> None:
        """Refuse a run that has no result yet."""
        if not self.is_finished:
            raise ModelError(f"the run {self.path} is not finished: go on with `winnow train --resume {self.path}`")

    def read_history(self) -> list[dict[str, Any]]:
        """Read the log: one entry per validation.

        Raises:
            ModelError: where it is missing or damaged. A run that is resumed writes it anew from its checkpoint.
        """
        try:
            return [json.loads(line) for line in self.log_file.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError):
            raise ModelError(f"{self.log_file} is missing or damaged: how the run went cannot be told") from None

    def write_history(self, history: list[dict[str, Any]]) -> None:
        """Write the log whole; a resumed run drops the lines after its checkpoint this way."""
        write_text(self.log_file, "".join(json.dumps(entry) + "\n" for entry in history))

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what was measured; with it the run is finished."""
        write_text(self.result_file, json.dumps(result, indent=2) + "\n")

    def write_embeddings(self, embeddings: Tensor, labels: Tensor, names: Sequence[str]) -> None:
        """Keep the test images' embeddings (N, dim), as they were compared, their labels (N,) and a mark of both."""
        state = {"embeddings": embeddings.float().cpu().contiguous(), "labels": labels.cpu()}
        told = EmbeddedImages.of(labels, names).metadata()
        write_atomically(self.embeddings_file, lambda partial: save_file(state, partial, told))

    def read_embeddings(self) -> tuple[Tensor, Tensor]:
        """Return what `write_embeddings` kept."""
        try:
            state = load_file(self.embeddings_file)
            return state["embeddings"], state["labels"]
        except (OSError, SafetensorError, KeyError):
            raise self._without_embeddings() from None

    def read_images(self) -> EmbeddedImages:
        """Return what tells the images of kept embeddings from others."""
        try:
            with safe_open(self.embeddings_file, "pt") as file:
                return EmbeddedImages.read(file.get_tensor("labels"), file.metadata())
        except (OSError, SafetensorError, KeyError):
            raise self._without_embeddings() from None

    def _without_embeddings(self) -> ModelError:
        return ModelError(
            f"{self.embeddings_file} cannot be read: put a copy in its place, or remove {self.path} and train the run "
            "anew (train.keep_embeddings, which protocols set)"
        )

    def drop_checkpoint(self) -> None:
        """Remove what only an unfinished run needs: most of what a run takes on disk."""
        self.check_finished()
        self.checkpoint_file.unlink(missing_ok=True)
        self.best_file.unlink(missing_ok=True)

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Save tensors and plain values."""
        write_atomically(path, lambda partial: torch.save(dict(state), partial))

    def load(self, path: Path) -> dict[str, Any]:
        """Load what `save` wrote."""
        if not path.is_file():
            raise ModelError(f"{path} is missing; start the run anew")
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError):
            raise ModelError(f"{path} is not a checkpoint of winnow, or it is damaged; start the run anew") from None
        return state
