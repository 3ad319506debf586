"""Files of a run folder, safe against interruptions."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from winnow.errors import ConfigError, ModelError, add_component_hint
from winnow.files import lock, make_folder, parse_json
from winnow.integrity import check_file, check_listed, forget_checksum, write_checked, write_checked_text
from winnow.training.config import RunConfig, first_difference, read_recorded
from winnow.training.data_record import DataRecord
from winnow.training.overrides import read_yaml
from winnow.training.results import RunResult, ValidationEntry

_IMAGES = "images"  # metadata key of the image set of saved embeddings


class RunDir:
    """Paths and files of one run.

    - `config.yaml`: the resolved config; `plan.yaml` of a sweep is in the folder above
    - `data.csv.gz`: the images of every split, which a resumed run must find again
    - `log.jsonl`: one line for each validation
    - `checkpoint.pt`: all state that resuming needs
    - `best.pt`: weights of the best validation
    - `model/`: the trained model
    - `test.safetensors`: embeddings and labels of the test images, with `train.save_embeddings`
    - `result.json`: the result of a finished run
    - `bad_batch.txt`: images of a step whose loss was not finite
    - `SHA256SUMS`: checksums of these files, verified when they are opened

    The command line adds `curves.png`, and `problems.svg` with CCP.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.data_file = self.path / "data.csv.gz"
        self.log_file = self.path / "log.jsonl"
        self.checkpoint_file = self.path / "checkpoint.pt"
        self.best_file = self.path / "best.pt"
        self.result_file = self.path / "result.json"
        self.model_folder = self.path / "model"
        self.embeddings_file = self.path / "test.safetensors"
        checked = (self.config_file, self.log_file, self.checkpoint_file, self.best_file, self.result_file,
                   self.embeddings_file)  # fmt: skip
        self._checked = tuple(file.name for file in checked)  # of a run of version 0.1.0 that is resumed

    def create(self, config: RunConfig) -> None:
        """Start a new run.

        Raises:
            ConfigError: If the folder already contains a run.
        """
        if self.config_file.exists():
            raise ConfigError(
                f"{self.path}: folder already contains a run. Resume it or choose another folder.", hint="existing_run"
            )
        make_folder(self.path)
        write_checked_text(self.config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))

    def discard(self) -> None:
        """Remove a created run that could not start."""
        for file in (self.config_file, self.data_file):
            forget_checksum(file)
            file.unlink(missing_ok=True)
        with suppress(OSError):  # the folder may contain other files
            self.path.rmdir()

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from training this run.

        Raises:
            OutputError: If another process trains it; raised on entering.
        """
        return lock(self.config_file, f"training {self.path}")

    def read_config(self) -> RunConfig:
        """Read the config of a run.

        Raises:
            ModelError: If the file is missing or damaged.
            ConfigError: If this version does not have one of the settings.
        """
        if not self.config_file.is_file():
            raise ModelError(f"{self.path}: not a run folder, {self.config_file.name} is missing. Check the path.")
        check_listed(self.config_file, remedy=f"Restore it, or remove {self.path} and train again.")
        try:
            tree = read_yaml(self.config_file)
        except ConfigError:
            tree = {}
        if "seed" not in tree:  # the last key that `create` writes; a cut-off file would be read with defaults
            raise ModelError(
                f"{self.config_file}: file empty or damaged. Restore it, or remove {self.path} and train again."
            )
        try:
            return read_recorded(tree)
        except ConfigError as error:
            raise ConfigError(f"{self.config_file}: {error}{add_component_hint(error)}") from None

    def check_resumable(self, config: RunConfig) -> None:
        """Raise `ConfigError` if the run was started with a different config.

        Raises:
            ConfigError: If a setting differs; the message names the first.
            ModelError: If the config is missing or damaged.
        """
        key = first_difference(config.model_dump(mode="json"), self.read_config().model_dump(mode="json"))
        if key is not None:
            raise ConfigError(
                f"{self.path}: the run was started with another {key}. Resume it with its own config, or remove it "
                "and train again."
            )

    def write_data(self, record: DataRecord) -> str:
        """Write the images of the run; return the digest of the record."""
        write_checked(self.data_file, record.write, adopt=self._checked)
        return record.digest()

    def check_data(self, now: DataRecord) -> tuple[str, int]:
        """Compare the images of the run with the present ones.

        Returns:
            Digest of the record, "" if there is none, as in version 0.1.0; and the number of files whose time changed
            and whose size and digest did not.

        Raises:
            DataError: If images were removed, added, replaced, or moved to another class or split.
            ModelError: If the record is damaged.
        """
        if not self.data_file.is_file():
            return "", 0
        check_file(self.data_file)
        record = DataRecord.read(self.data_file)
        return record.digest(), record.check(now, str(self.path))

    def read_result(self) -> RunResult | None:
        """Return the result; None if the run is not finished.

        A damaged result counts as missing while the checkpoint exists: resuming the run writes it again.

        Raises:
            ModelError: If the result is damaged and only training again could replace it.
        """
        if not self.result_file.is_file():
            return None
        try:
            check_file(self.result_file)
            return RunResult.from_json(self.result_file.read_text(encoding="utf-8"))
        except (OSError, ValueError, ModelError):
            if self.checkpoint_file.is_file() and self.best_file.is_file():
                return None
        raise ModelError(
            f"{self.result_file}: file damaged or changed, and the run has no checkpoint. Restore the file, or remove "
            f"{self.path} and train again."
        )

    @property
    def is_finished(self) -> bool:
        """Whether the run has a result; raises as `read_result` does."""
        return self.read_result() is not None

    def check_finished(self) -> None:
        """Raise `ModelError` if the run has no result yet."""
        if not self.is_finished:
            check_listed(self.result_file, remedy="Resume the run, which writes it again.")
            raise ModelError(f"{self.path}: the run is not finished. Resume it first.", hint="unfinished_run")

    def read_history(self) -> list[ValidationEntry]:
        """Read the log: one entry for each validation.

        Raises:
            ModelError: If the file is missing or damaged. A resumed run writes it again from its checkpoint.
        """
        check_listed(self.log_file, remedy="Restore it or train again.")
        try:
            lines = self.log_file.read_text(encoding="utf-8").splitlines()
            return [ValidationEntry.from_dict(parse_json(line)) for line in lines]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(f"{self.log_file}: file missing or damaged. Restore it or train again.") from None

    def write_history(self, history: Iterable[ValidationEntry]) -> None:
        """Write the whole log, so a resumed run drops the lines after its checkpoint."""
        lines = (json.dumps(entry.to_dict()) + "\n" for entry in history)
        write_checked_text(self.log_file, "".join(lines), adopt=self._checked)

    def write_result(self, result: RunResult) -> None:
        """Write the result, which marks the run as finished."""
        write_checked_text(self.result_file, result.to_json(), adopt=self._checked)

    def write_embeddings(self, embeddings: Tensor, labels: Tensor, names: Sequence[str]) -> None:
        """Save test embeddings (N, dim), labels (N,), and a fingerprint of the images."""
        state = {"embeddings": embeddings.float().cpu().contiguous(), "labels": labels.cpu()}
        metadata = ImageSetFingerprint.compute(labels, names).metadata()
        write_checked(self.embeddings_file, lambda partial: save_file(state, partial, metadata), adopt=self._checked)

    def read_embeddings(self) -> tuple[Tensor, Tensor]:
        """Return the saved test embeddings (N, dim) and labels (N,)."""
        try:
            check_file(self.embeddings_file, remedy=self._embeddings_remedy)
            state = load_file(self.embeddings_file)
            return state["embeddings"], state["labels"]
        except (OSError, SafetensorError, KeyError):
            raise self._unreadable_embeddings() from None

    def read_images(self) -> ImageSetFingerprint:
        """Return the fingerprint of the images whose embeddings are saved."""
        check_listed(self.embeddings_file, remedy=self._embeddings_remedy)
        try:
            with safe_open(self.embeddings_file, "pt") as file:
                return ImageSetFingerprint.read(file.get_tensor("labels"), file.metadata())
        except (OSError, SafetensorError, KeyError):
            raise self._unreadable_embeddings() from None

    def _unreadable_embeddings(self) -> ModelError:
        return ModelError(f"{self.embeddings_file}: file missing or damaged. {self._embeddings_remedy}")

    @property
    def _embeddings_remedy(self) -> str:
        return (
            f"Restore it, or remove {self.path} and train again with train.save_embeddings=true, which protocols set."
        )

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint of a finished run: most of its size on disk."""
        self.check_finished()
        for file in (self.checkpoint_file, self.best_file):
            forget_checksum(file)
            file.unlink(missing_ok=True)

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Save tensors and plain values."""
        write_checked(path, lambda partial: torch.save(dict(state), partial), adopt=self._checked)

    def load(self, path: Path) -> dict[str, Any]:
        """Load a state that `save` wrote.

        Raises:
            ModelError: If the file is missing or damaged.
        """
        if not path.is_file():
            raise ModelError(f"{path}: file missing. Train the run again.")
        check_file(path, remedy="Restore it or train the run again.")
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError):
            raise ModelError(f"{path}: not a checkpoint, or damaged. Restore it or train the run again.") from None
        return state


@dataclass(frozen=True)
class ImageSetFingerprint:
    """Hashes of an image set, to detect embeddings of different images."""

    labels: str  # hash of the labels in order
    names: str | None  # hash of names and labels; None in files of earlier versions

    @classmethod
    def compute(cls, labels: Tensor, names: Sequence[str]) -> ImageSetFingerprint:
        """Hash images by their labels (N,) and names."""
        numbers = labels.tolist()
        both = (f"{label} {name}" for label, name in zip(numbers, names, strict=True))
        return cls(_hash(map(str, numbers)), _hash(both))

    @classmethod
    def read(cls, labels: Tensor, metadata: Mapping[str, str] | None) -> ImageSetFingerprint:
        """Read the metadata of a file of embeddings.

        A file without metadata has only its labels (N,).
        """
        return cls(_hash(map(str, labels.tolist())), (metadata or {}).get(_IMAGES))

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a file of embeddings."""
        return {} if self.names is None else {_IMAGES: self.names}

    def matches(self, other: ImageSetFingerprint) -> bool:
        """Return whether both are the same images in the same order.

        Labels alone are compared if one has no names.
        """
        if self.names is None or other.names is None:
            return self.labels == other.labels
        return self.names == other.names


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
