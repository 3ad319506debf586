"""The folder of a run: what is in it, written so that a kill at any moment leaves the last good state."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from winnow.errors import ConfigError, ModelError, TrainingError
from winnow.training.config import Config, load_config


class RunFolder:
    """Paths and files of one training run.

    `config.yaml` the resolved config; `log.jsonl` one line per validation; `checkpoint.pt` everything needed to go on;
    `best.pt` the weights of the best validation; `model/` the trained model; `result.json` what was measured. The
    command line adds `curves.png`; a loss that is not finite leaves `bad_batch.txt`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.log_file = self.path / "log.jsonl"
        self.checkpoint_file = self.path / "checkpoint.pt"
        self.best_file = self.path / "best.pt"
        self.result_file = self.path / "result.json"
        self.model_folder = self.path / "model"

    def create(self, config: Config) -> None:
        """Start a new run; an existing one is never overwritten."""
        if self.config_file.exists():
            raise ConfigError(
                f"{self.path} already holds a run: go on with it by --resume, or choose another folder with --out"
            )
        self._make()
        self.write_text(self.config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))

    def read_config(self) -> Config:
        """Read the config of an existing run."""
        if not self.config_file.is_file():
            raise ModelError(f"{self.path} is not a run folder: {self.config_file.name} is missing")
        return load_config(self.config_file)

    def read_result(self) -> dict[str, Any]:
        """Read what a finished run measured."""
        if not self.result_file.is_file():
            raise ModelError(f"the run {self.path} is not finished: go on with `winnow train --resume {self.path}`")
        result: dict[str, Any] = json.loads(self.result_file.read_text())
        return result

    def write_json(self, path: Path, value: Any) -> None:
        """Write JSON atomically."""
        self.write_text(path, json.dumps(value, indent=2) + "\n")

    def write_text(self, path: Path, text: str) -> None:
        """Write text atomically."""
        self._write(path, lambda partial: partial.write_text(text))

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Save tensors and plain values atomically: the file is the old state or the new one, never half of it."""
        self._write(path, lambda partial: torch.save(dict(state), partial))

    def load(self, path: Path) -> dict[str, Any]:
        """Load what `save` wrote."""
        if not path.is_file():
            raise ModelError(f"there is no checkpoint {path}: the run ended before its first validation; start it anew")
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ModelError(f"{path} is not a checkpoint of winnow: {str(error).splitlines()[0]}") from None
        return state

    def write_log(self, history: list[dict[str, Any]]) -> None:
        """Write one line per validation; a resumed run drops the lines after its checkpoint this way."""
        self.write_text(self.log_file, "".join(json.dumps(entry) + "\n" for entry in history))

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the run folder {self.path} cannot be made: {error.strerror}") from None

    def _write(self, path: Path, write: Any) -> None:
        partial = path.with_name(f".{path.name}.partial")
        try:
            write(partial)
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
        except (OSError, RuntimeError) as error:  # torch.save wraps a full disk in a RuntimeError
            partial.unlink(missing_ok=True)
            kept = f"; the last good checkpoint is {self.checkpoint_file}" if self.checkpoint_file.exists() else ""
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise TrainingError(f"{path} could not be written ({reason}): free some room{kept}") from None
