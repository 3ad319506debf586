"""The red, blue and green map: what an under-estimated mu costs a linear program, and what smoothing gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from winnow.functional import clip_norm, gsp, hard_selection, pairwise_distance
from winnow.report.style import new_figure, styled
from winnow.studies.base import Findings, Task, paragraphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE, BLOCK = 10, 5
TRUE, UNDER = 0.5, 0.2  # the share of what is to be pooled, and what is taken for it
SHARPNESS = (1.0, 5.0, 10.0, 20.0, 50.0)
PROTOTYPES = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
NOISE = 0.35
IGNORED = 0.1  # of the average weight: a feature below it counts as left out


def toy_map(seed: int) -> tuple[Tensor, Tensor]:
    """Return features (100, 3), the colours of a map with a red and a blue block on green, and which are in a block."""
    kind = torch.full((SIDE, SIDE), 1)
    kind[:BLOCK, :BLOCK], kind[BLOCK:, BLOCK:] = 0, 2
    generator = torch.Generator().manual_seed(seed)
    colours = torch.eye(3)[kind] * (1 - NOISE) + NOISE * torch.rand(SIDE, SIDE, 3, generator=generator)
    return colours.flatten(0, 1), (kind != 1).flatten()


def linear_program(features: Tensor, mu: float) -> Tensor:
    """Return the weights (n,) of problem (P1) for features (n, d)."""
    costs = pairwise_distance(clip_norm(features), clip_norm(PROTOTYPES))
    return hard_selection(-costs.amin(dim=1), mu)


def smoothed(features: Tensor, mu: float, eps: float) -> Tensor:
    """Return the weights (n,) of problem (P2)."""
    return gsp(features[None], PROTOTYPES, mu, eps).weights[0]


def solve(features: Tensor) -> dict[str, tuple[float, float | None, Tensor]]:
    """Return every problem's mu, eps and weights, by its name."""
    found: dict[str, tuple[float, float | None, Tensor]] = {}
    for mu in (TRUE, UNDER):
        found[f"linear program, mu {mu}"] = (mu, None, linear_program(features, mu))
    for eps in SHARPNESS:
        found[f"smoothed, mu {UNDER}, eps {eps:g}"] = (UNDER, eps, smoothed(features, UNDER, eps))
    return found


def study(task: Task) -> Findings:
    """A 10x10 map of red, blue and green: linear program against smoothed weights, mu under-estimated (Fig. 5.2).

    Cost: seconds; the same in full.
    """
    maps = 20 if task.small else 1000
    rows: list[dict[str, Any]] = []
    shown: dict[str, Tensor] = {}
    for seed in range(maps):
        features, informative = toy_map(seed)
        for place, (name, (mu, eps, weights)) in enumerate(solve(features).items()):
            if seed == 0:
                shown[name] = weights
                rows.append({"problem": name, "mu": mu, "eps": eps, "weight on red and blue, %": 0.0,
                             "left out of red and blue, %": 0.0, "features in effect": 0.0})  # fmt: skip
            left_out = weights[informative] < IGNORED / len(weights)
            rows[place]["weight on red and blue, %"] += 100 * float(weights[informative].sum()) / maps
            rows[place]["left out of red and blue, %"] += 100 * float(left_out.float().mean()) / maps
            rows[place]["features in effect"] += float(1 / weights.square().sum()) / maps
    rows = [{key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()} for row in rows]
    return Findings(
        title="The red, blue and green map",
        text=told(rows, maps),
        rows=rows,
        figure=draw(toy_map(0)[0], shown),
        settings={"small": task.small, "maps": maps, "noise": NOISE, "true mu": TRUE, "mu": UNDER,
                  "eps": list(SHARPNESS), "left out below, times the average weight": IGNORED},
    )  # fmt: skip


def told(rows: list[dict[str, Any]], maps: int) -> str:
    """Set the outcome beside the documents' claim: a program ignores what mu leaves no room for, smoothing does not."""
    linear = next(row for row in rows if row["eps"] is None and row["mu"] == UNDER)
    ways = [row for row in rows if row["eps"] is not None]
    best = min(ways, key=lambda row: (row["left out of red and blue, %"] >= 1, -row["weight on red and blue, %"]))
    lost, kept = linear["left out of red and blue, %"], best["left out of red and blue, %"]
    uniform = 100 * TRUE
    agree = lost > 25 and kept < 5 and best["weight on red and blue, %"] > uniform + 20
    sharp = ways[-1]
    claim = (
        f"{'Agrees' if agree else 'Does not agree'}: with an under-estimated mu the linear program ignores informative "
        f"features, and entropy smoothing does not. The program leaves {lost:.0f} % of the red and blue features "
        f"without weight. Smoothed with eps = {best['eps']:g}, {kept:.0f} % of them are left out (below a tenth of the "
        f"average weight), and red and blue hold {best['weight on red and blue, %']:.0f} % of the weight, where "
        f"average pooling gives them {uniform:.0f} %. It depends on eps, as the documents also say: with eps = "
        f"{sharp['eps']:g} the smoothed problem leaves out {sharp['left out of red and blue, %']:.0f} %."
    )
    how = (
        f"Half of the map is to be pooled, red and blue with a prototype each, and mu is taken for {UNDER}; means over "
        f"{maps} maps."
    )
    return paragraphs(claim, how)


@styled
def draw(features: Tensor, weights: dict[str, Tensor]) -> Figure:
    """Draw the map and each problem's weights: the darker, the higher, on a scale of its own."""
    columns = 4
    rows = -(-(len(weights) + 1) // columns)
    figure = new_figure(1.85 * columns, 2.1 * rows)
    panels: dict[str, Any] = {"feature map": np.asarray(features.view(SIDE, SIDE, 3).clamp(0, 1))}
    panels |= {name: np.asarray(each.view(SIDE, SIDE)) for name, each in weights.items()}
    for place, (name, picture) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.imshow(picture, cmap="gray_r", vmin=0, interpolation="nearest")
        axes.set_title(name.replace(", ", "\n", 1), fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
        axes.spines[:].set_visible(True)
    return figure
