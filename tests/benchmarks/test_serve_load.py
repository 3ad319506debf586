"""A load is measured once the memory of the service is steady."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.serve import _WARM_UP_ROUNDS, Load, _warm_up_until_steady


@pytest.mark.parametrize(
    ("memory", "rounds", "settled"),
    [([100, 105, 110, 115, 300], 3, 115),
     ([100e6, 150e6, 150.5e6, 150.6e6, 180e6, 180.1e6, 180.2e6, 180.3e6, 900e6], 7, 180.3e6),
     ([100e6, 90e6, 80e6, 70e6], 3, 70e6), ([None, None], 1, None)],
)  # fmt: skip
def test_it_searches_until_memory_is_steady(
    memory: list[float | None], rounds: int, settled: float | None
) -> None:  # fmt: skip
    seen: Iterator[float | None] = iter(memory)
    searches: list[int] = []

    def search() -> Load:
        searches.append(1)
        return Load()

    assert _warm_up_until_steady(search, lambda: next(seen)) == settled  # type: ignore[arg-type, return-value]
    assert len(searches) == rounds


def test_it_ends_where_memory_never_is_steady() -> None:
    grown = iter(range(0, 100 * 10**7, 10**7))
    assert _warm_up_until_steady(Load, lambda: next(grown)) == _WARM_UP_ROUNDS * 10**7
