"""An index as it was opened: what it holds, where its vectors are, and what searches them. Replaced, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winnow.errors import DataError
from winnow.index.approximate import open_finder
from winnow.index.exact import Finder
from winnow.index.generation import Generation, Row
from winnow.index.manifest import Manifest


@dataclass(frozen=True, eq=False)
class Opened:
    """One state of an index.

    Attributes:
        manifest: What it holds.
        generation: Its vectors and entries.
        finder: Proposes neighbours among the vectors.
    """

    manifest: Manifest
    generation: Generation
    finder: Finder

    @classmethod
    def read(cls, path: Path) -> Opened:
        """Open what the folder of an index holds now.

        Raises:
            DataError: when it is no index, or its generation is missing.
        """
        for _ in range(5):  # another process may switch between the two readings
            manifest = Manifest.read(path)
            folder = path / manifest.generation
            try:
                generation = Generation(folder)
                return cls(manifest, generation, open_finder(manifest.kind, generation.vectors, folder))
            except FileNotFoundError:
                continue
        raise DataError(f"{path} is damaged: {manifest.generation} is missing; build it anew")

    def rows(self) -> dict[str, Row]:
        """Return all entries by path, as they would be written again."""
        known = self.generation.table.known()
        return {path: Row(number, path, name, key, number) for number, path, key, name in known}
