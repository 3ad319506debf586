"""Feature maps on disk, image by image: whoever needs an image's map finds it, and a killed process loses little."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.errors import OutputError
from winnow.files import make_folder

PIECE_BYTES = 64 << 20  # what a kill loses at most: seconds of work
_ABANDONED_S = 3600


class MapsOnDisk:
    """Maps (N, ...) that lie in files, in any order; none is read before it is taken.

    Args:
        pieces: Maps of each file.
        places: (N, 2) int64, the piece of each map and its row there.
    """

    def __init__(self, pieces: Sequence[Tensor], places: NDArray[np.int64]) -> None:
        self.pieces, self.places = pieces, places

    def __len__(self) -> int:
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """Bytes of all maps."""
        return len(self) * self.pieces[0][0].nbytes if len(self) else 0

    def take(self, rows: Tensor) -> Tensor:
        """Return some maps (B, ...) in RAM."""
        return torch.stack([self.pieces[piece][row] for piece, row in self.places[rows.numpy()].tolist()])

    def to(self, device: torch.device) -> Tensor:
        """Return all maps on a device, never holding more than some of them in RAM on the way to another."""
        whole = torch.empty(len(self), *self.pieces[0].shape[1:], device=device)
        for start in range(0, len(self), 128):
            stop = min(start + 128, len(self))
            whole[start:stop] = self.take(torch.arange(start, stop)).to(device)
        return whole


class KeptFeatures:
    """A folder of maps, found by the identity of their images.

    They are added in pieces, each a file of maps and then a list of whose they are, without which it does not count.
    Several processes may add at a time: the same images in the same order make the same piece.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.folder = folder
        self._pieces: list[Tensor] = []
        self._places: dict[str, tuple[int, int]] = {}
        for index in sorted(folder.glob("*.json")):
            self._open(index)
        for partial in folder.glob(".partial-*"):  # of processes that were killed
            with suppress(OSError):
                if partial.stat().st_mtime < time.time() - _ABANDONED_S:
                    partial.unlink()

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Return which of some images have no map here."""
        return [i for i, key in enumerate(keys) if key not in self._places]

    def of(self, keys: Sequence[str]) -> MapsOnDisk:
        """Return the maps of some images, all of which must be here."""
        return MapsOnDisk(self._pieces, np.array([self._places[key] for key in keys], dtype=np.int64).reshape(-1, 2))

    def add(self, keys: Sequence[str], parts: Iterable[Tensor]) -> None:
        """Keep the maps of some images as they come, (n, ...) at a time: a piece whenever there are enough for one.

        Raises:
            OutputError: when the disk is full or cannot be written to.
        """
        held: list[Tensor] = []
        done = 0
        for part in parts:
            held.append(part)
            if sum(each.nbytes for each in held) >= PIECE_BYTES:
                done += self._add_piece(keys[done:], torch.cat(held))
                held = []
        if held:
            self._add_piece(keys[done:], torch.cat(held))

    def _add_piece(self, keys: Sequence[str], maps: Tensor) -> int:
        """Keep maps (n, ...) of the first n images; return n."""
        own = list(keys[: len(maps)])
        name = hashlib.sha256("\n".join(own).encode()).hexdigest()[:20]
        self._write(self.folder / f"{name}.npy", lambda file: np.save(file, maps.numpy()))
        index = self.folder / f"{name}.json"
        self._write(index, lambda file: file.write(json.dumps(own).encode()))
        self._open(index)
        return len(own)

    def _open(self, index: Path) -> None:
        """Read a piece; a damaged one is as good as absent, and is replaced when its images are asked for."""
        try:
            keys = json.loads(index.read_text(encoding="utf-8"))
            # Mapped copy-on-write, because torch does not know read-only memory.
            maps = torch.from_numpy(np.load(index.with_suffix(".npy"), mmap_mode="c"))
        except (OSError, ValueError, EOFError):
            return
        if len(maps) == len(keys):
            self._places.update({key: (len(self._pieces), row) for row, key in enumerate(keys)})
            self._pieces.append(maps)

    def _write(self, path: Path, write: Callable[[IO[bytes]], object]) -> None:
        partial = None
        try:
            number, partial = tempfile.mkstemp(dir=self.folder, prefix=".partial-")
            with open(number, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError as error:
            raise OutputError(
                f"features could not be written to {self.folder} ({error.strerror}): free some room, set WINNOW_CACHE "
                "to another folder, or use data.features=ram"
            ) from None
        finally:
            if partial is not None:
                Path(partial).unlink(missing_ok=True)
