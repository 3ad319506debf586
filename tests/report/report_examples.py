"""Small comparisons to write pages from."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from winnow.report import Comparison, HeatMap, Method, MethodRun, Neighbor, NextStep, Prototype, Query


def history(best: float, steps: int = 4) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [{"step": 0, "seconds": 0.0, "val/MAP@R": 0.01, "val/P@1": 0.02}]
    entries += [
        {"step": 10 * k, "seconds": 1.0 * k, "loss": 2.0 / k, "val/MAP@R": best * k / steps, "val/P@1": best}
        for k in range(1, steps + 1)
    ]
    return entries


def method(name: str, values: list[float], meaning: str = "Does something.", seeds: list[int] | None = None) -> Method:
    """Make a method of the given MAP@R per seed; its other metrics follow from it, each in its own way."""
    runs = [
        MethodRun(
            seed, {"MAP@R": value, "P@1": 0.1 + value**2, "P@R": value**0.5, "R@5": 0.9}, history(value), 40 + seed
        )
        for seed, value in zip(range(len(values)) if seeds is None else seeds, values, strict=True)
    ]
    return Method(name, meaning, runs)


def picture(seed: int, size: tuple[int, int] = (24, 18)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def peaked(height: int = 6, width: int = 8) -> np.ndarray:
    weights = np.full((height, width), 0.1)
    weights[1:3, 5:7] = 4.0
    return weights / weights.sum()


def full(gap: list[float] | None = None, gsp: list[float] | None = None, hostile: str = "") -> Comparison:
    """Make a comparison in which there is something of everything; `hostile` is part of every text."""
    average = method(f"average pooling{hostile}", gap or [0.10, 0.13, 0.11], f"The mean.{hostile}")
    pooled = method(f"GSP{hostile}", gsp or [0.20, 0.26, 0.25], f"Keeps what matters.{hostile}")
    found = [Neighbor(picture(k), k % 2 == 0, 0.1 * k, f"thing {k}{hostile}") for k in range(4)]
    names = average.name, pooled.name
    flat = np.full((6, 8), 1 / 48)
    return Comparison(
        title=f"A comparison{hostile}",
        summary=f"What it is about.{hostile}\n\nAnd more.",
        tuning=f"Tuned on validation classes.{hostile}",
        methods=[average, pooled],
        baseline=(f"pretrained{hostile}", {"MAP@R": 0.02, "P@1": 0.05, "P@R": 0.03}),
        queries=[Query(picture(9), f"query{hostile}", dict.fromkeys(names, found))],
        next_steps=[NextStep(f"winnow serve{hostile}", f"Search.{hostile}")],
        heatmaps=[HeatMap(picture(5), f"image{hostile}", {names[0]: flat, names[1]: peaked()})],
        prototypes=[Prototype(3, 0.125, [picture(k) for k in range(5)]), Prototype(4, 0.05, [picture(7)])],
        settings={f"pooling{hostile}": {"mu": 0.3, "name": f"gsp{hostile}"}, "seeds": [0, 1, 2]},
        provenance={"command": f"winnow demo{hostile}", "commit": None, "machine": {"cores": 2}},
    )
