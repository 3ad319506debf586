"""Data sets by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from winnow.data.sets.base import Dataset
from winnow.errors import ConfigError, nearest


class Datasets(Mapping[str, Dataset]):
    """A closed table of data sets; `in` and iteration go by their names."""

    def __init__(self, *sets: Dataset) -> None:
        self._sets = {one.name: one for one in sets}
        if len(self._sets) < len(sets):
            raise ValueError("two data sets have one name")

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._sets:
            raise ConfigError(f"there is no data set '{name}'{nearest(name, self)}; known: {', '.join(self)}")
        return self._sets[name]

    def __contains__(self, name: object) -> bool:
        return name in self._sets

    def __iter__(self) -> Iterator[str]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)
