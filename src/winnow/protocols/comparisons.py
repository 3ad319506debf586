"""Which methods of a table are compared in pairs."""

from __future__ import annotations

from collections.abc import Sequence

from winnow.protocols.variants import Variant


def comparisons(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Return which methods are compared with which: each with its base, wherever it stands, the others with the first.

    The base of the first is not compared with it once more.
    """
    based = {method: base for method in methods if (base := base_of(method, methods)) is not None}
    first = methods[0]
    return [
        (method, based.get(method, first))
        for method in methods
        if method in based or (method != first and based.get(first) != method)
    ]


def base_of(method: str, methods: Sequence[str]) -> str | None:
    """Return, of those that a method adds to, the one with most of its settings, then additions; None without any."""
    variants = {other: Variant.read(other) for other in methods}
    bases = [other for other in methods if variants[other].parts < Variant.read(method).parts]
    return max(bases, key=lambda base: (len(variants[base].settings), len(variants[base].parts)), default=None)
