"""Linear program and smoothed weights on a toy map with an underestimated mu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from winnow.functional import clip_norm, gsp, hard_selection, pairwise_distance
from winnow.report.style import new_figure, styled
from winnow.studies.scores import Scores
from winnow.studies.settings import scales
from winnow.studies.spec import Claim, Evidence, Measurement, Row, Scale, Study, StudyRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE, BLOCK = 10, 5
TRUE, UNDER = 0.5, 0.2  # fraction of the map that is informative, and its underestimate
SHARPNESS = (1.0, 5.0, 10.0, 20.0, 50.0)
PROTOTYPES = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
NOISE = 0.35
IGNORED = 0.1  # a feature below this many times the mean weight counts as ignored
WEIGHT, LOST, EFFECTIVE = "weight on red and blue, %", "red and blue ignored, %", "effective features"
MANY, FEW, MORE = 25.0, 5.0, 20.0  # percent of features ignored, and points of weight above uniform


def toy_map(seed: int) -> tuple[Tensor, Tensor]:
    """Return the colors (100, 3) of a green map with a red and a blue block.

    The second tensor (100,) states whether each feature is in a block.
    """
    kind = torch.full((SIDE, SIDE), 1)
    kind[:BLOCK, :BLOCK], kind[BLOCK:, BLOCK:] = 0, 2
    generator = torch.Generator().manual_seed(seed)
    colors = torch.eye(3)[kind] * (1 - NOISE) + NOISE * torch.rand(SIDE, SIDE, 3, generator=generator)
    return colors.flatten(0, 1), (kind != 1).flatten()


def linear_program(features: Tensor, mu: float) -> Tensor:
    """Return the weights (n,) of problem (P1) of [GSP] for features (n, d)."""
    costs = pairwise_distance(clip_norm(features), clip_norm(PROTOTYPES))
    return hard_selection(-costs.amin(dim=1), mu)


def smoothed(features: Tensor, mu: float, eps: float) -> Tensor:
    """Return the weights (n,) of problem (P2) of [GSP] for features (n, d)."""
    return gsp(features[None], PROTOTYPES, mu, eps).weights[0]


def solve(features: Tensor) -> dict[str, tuple[float, float | None, Tensor]]:
    """Return mu, eps, and weights of every problem by its name."""
    found: dict[str, tuple[float, float | None, Tensor]] = {}
    for mu in (TRUE, UNDER):
        found[f"linear program, mu {mu}"] = (mu, None, linear_program(features, mu))
    for eps in SHARPNESS:
        found[_smoothed(eps)] = (UNDER, eps, smoothed(features, UNDER, eps))
    return found


def measure_maps(maps: int) -> list[Row]:
    """Return the table: means over maps for every problem."""
    rows: dict[str, dict[str, Any]] = {}
    for seed in range(maps):
        features, informative = toy_map(seed)
        for name, (mu, eps, weights) in solve(features).items():
            row = rows.setdefault(name, {"problem": name, "mu": mu, "eps": eps, WEIGHT: 0.0, LOST: 0.0, EFFECTIVE: 0.0})
            ignored = weights[informative] < IGNORED / len(weights)
            row[WEIGHT] += 100 * float(weights[informative].sum()) / maps
            row[LOST] += 100 * float(ignored.float().mean()) / maps
            row[EFFECTIVE] += float(1 / weights.square().sum()) / maps
    return [
        {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}
        for row in rows.values()
    ]


# --- Claims and figure ------------------------------------------------------------------------------------------------

PROGRAM = f"linear program, mu {UNDER}"


def _smoothed(eps: float) -> str:
    return f"smoothed, mu {UNDER}, eps {eps:g}"


def _ignores(s: Scores) -> Evidence:
    lost = s.cell(PROGRAM, LOST)
    return Evidence(f"{lost:.0f}% of red and blue ignored; above {MANY:.0f}% by", lost - MANY)


def _smoothing_keeps(s: Scores) -> Evidence:
    """Use the eps with the most weight on red and blue that ignores under 1% of them."""
    lost, weight = ({eps: s.cell(_smoothed(eps), column) for eps in SHARPNESS} for column in (LOST, WEIGHT))
    best = min(SHARPNESS, key=lambda eps: (lost[eps] >= 1, -weight[eps]))
    ours = f"eps {best:g}: {lost[best]:.0f}% ignored, {weight[best]:.0f}% of the weight on red and blue"
    return Evidence(ours, min(FEW - lost[best], weight[best] - 100 * TRUE - MORE))


def _depends_on_eps(s: Scores) -> Evidence:
    lost = s.cell(_smoothed(SHARPNESS[-1]), LOST)
    return Evidence(f"eps {SHARPNESS[-1]:g}: {lost:.0f}% ignored; above {FEW:.0f}% by", lost - FEW)


@dataclass(frozen=True, kw_only=True)
class ToyMap(Study):
    """Weights of seven problems on random maps; nothing is trained."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Solve every problem on every map."""
        maps = request.scale.pick(quick=20, full=1000)
        settings = {"maps": maps, "noise": NOISE, "true mu": TRUE, "mu": UNDER, "eps": list(SHARPNESS),
                    "ignored below, times the mean weight": IGNORED}  # fmt: skip
        return Measurement(rows=measure_maps(maps), settings=settings)

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the first map and the weights of every problem on it."""
        features, _ = toy_map(0)
        return {"": _draw(features, {name: weights for name, (_, _, weights) in solve(features).items()})}


@styled
def _draw(features: Tensor, weights: Mapping[str, Tensor]) -> Figure:
    """Draw the map, and weights per problem: black is the largest of a panel."""
    columns = 4
    figure = new_figure(1.85 * columns, 2.1 * -(-(len(weights) + 1) // columns))
    panels: dict[str, Any] = {"feature map": np.asarray(features.view(SIDE, SIDE, 3).clamp(0, 1))}
    panels |= {name: np.asarray(each.view(SIDE, SIDE)) for name, each in weights.items()}
    for number, (name, panel) in enumerate(panels.items()):
        axes = figure.add_subplot(-(-len(panels) // columns), columns, number + 1)
        axes.imshow(panel, cmap="gray_r", vmin=0, interpolation="nearest")
        axes.set_title(name.replace(", ", "\n", 1), fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
        axes.spines[:].set_visible(True)
    return figure


_SETTING = (
    f"10 x 10 maps, half of them informative (red and blue, with a prototype each), mu underestimated as {UNDER}; "
    f"a feature below {IGNORED:g} times the mean weight counts as ignored. Means over {{}} maps."
)
TOY_MAP = ToyMap(
    name="toy-map", title="Linear program and smoothed weights on a toy map",
    measures="hard vs. soft selection, low mu", source="[Thesis], Fig. 5.2", group="Generalized Sum Pooling",
    scales=scales(
        Scale("quick", cost="seconds", setting=_SETTING.format(20)),
        Scale("full", cost="seconds", setting=_SETTING.format("1,000")),
    ),
    claims=(
        Claim("With an underestimated mu the linear program ignores informative features", "[Thesis], Fig. 5.2",
              _ignores),
        Claim("Entropy smoothing ignores few of them", "[Thesis], Fig. 5.2", _smoothing_keeps),
        Claim("A large eps ignores informative features again", "[Thesis], Fig. 5.2", _depends_on_eps),
    ),
)  # fmt: skip
