"""Localization by pooling weights: their share inside the object's bounding box, and the pointing game."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.data import ImageSet, boxes_in_crop, resolve_subset
from winnow.data.datasets import CUB200, DATASETS
from winnow.data.emoji import EmojiCollages
from winnow.errors import ConfigError
from winnow.evaluation import pointing_game, weight_in_box
from winnow.models.embedder import grid_shape
from winnow.report.claims import estimate
from winnow.report.style import INK, PRETRAINED, method_colors, new_figure, styled
from winnow.studies.artifacts import TrainedModel, open_trained
from winnow.studies.runner import StudyRun, grid_measurement, plan_grid, train_grid
from winnow.studies.scores import Scores
from winnow.studies.settings import C2, CUB_FOLD1, EMOJI, GSP_ZSR, every_pooling, gsp, scales
from winnow.studies.spec import Claim, Column, Evidence, GridStudy, Measurement, Scale, StudyRequest, Variant
from winnow.training.build import load_splits, make_crops, resolve_config
from winnow.training.config import RunConfig
from winnow.training.overrides import Overrides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IN_BOX, POINTING, EFFECTIVE = "weight in box, %", "pointing game, %", "effective locations"
AREA, LOCATIONS = "box area, %", "locations"
SHOWN = ("GAP", "GeMean", "DeLF", "GSP", GSP_ZSR)
"""Poolings whose weights are measured. Those of GAP are uniform: the level of chance."""
BATCH = 64


# --- Measurement ------------------------------------------------------------------------------------------------------


def object_boxes(config: RunConfig, images: ImageSet) -> Tensor:
    """Return the bounding boxes of the objects in the network inputs of evaluation, as fractions (N, 4).

    Args:
        config: Config of a run, with its image sizes set.
        images: Test images of the run: emoji collages, a benchmark dataset with boxes, or a folder of CUB-200-2011.

    Raises:
        DataError: If the images have no boxes; the message names the missing file.
    """
    sizes = [images.size(index) for index in range(len(images))]
    root, indices = resolve_subset(images)
    if isinstance(root, EmojiCollages):
        corners = torch.tensor([root.foreground_box(index) for index in indices.tolist()], dtype=torch.float64)
        boxes = corners / torch.tensor(sizes, dtype=torch.float64).repeat(1, 2)
    else:
        data = config.data
        dataset = DATASETS[data.path] if data.path in DATASETS else CUB200()
        folder = (data.root or dataset.default_root) if data.path in DATASETS else data.path
        boxes = torch.from_numpy(dataset.object_boxes(folder, images))
    return boxes_in_crop(boxes, sizes, make_crops(config))


@torch.inference_mode()
def measure_weights(model: TrainedModel, boxes: Tensor) -> dict[str, float]:
    """Return the means over images of what the pooling weights of a model do with boxes.

    Args:
        model: Model, and its test images.
        boxes: Boxes (N, 4) in the network inputs, as fractions.

    Raises:
        ConfigError: If the pooling has no weights.
    """
    in_box, hits, effective, locations = list[Tensor](), list[Tensor](), list[Tensor](), 0
    count = len(model.inputs.labels)
    for start in range(0, count, BATCH):
        rows = range(start, min(start + BATCH, count))
        features = model.features(rows)
        weights = model.embedder.head(features, return_details=True).weights
        if weights is None:
            raise ConfigError(f"pooling {model.config.pooling.name}: it has no weights of locations. Use another one.")
        weights, grid = weights.double().cpu(), grid_shape(features)
        in_box.append(weight_in_box(weights, boxes[rows], *grid))
        hits.append(pointing_game(weights, boxes[rows], *grid))
        effective.append(weights.sum(dim=1).square() / weights.square().sum(dim=1))
        locations = weights.shape[1]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    means = {IN_BOX: 100 * torch.cat(in_box), POINTING: 100 * torch.cat(hits), EFFECTIVE: torch.cat(effective),
             AREA: 100 * area}  # fmt: skip
    return {name: float(values.mean()) for name, values in means.items()} | {LOCATIONS: float(locations)}


# --- Variants, columns, claims ----------------------------------------------------------------------------------------


def _variants(scale: Scale) -> Iterator[Variant]:
    # mu and eps of the emoji were chosen on their validation classes; those of CUB are the published defaults.
    every = every_pooling(scale.pick(quick=Overrides({"pooling": {"mu": 0.05, "eps": 20}}), full=Overrides()))
    sharper = scale.pick(quick={}, full={"GSP, eps 20": gsp(eps=20)})
    for name, settings in ({name: every[name] for name in SHOWN} | sharper).items():
        yield Variant(name, settings | C2[scale.name])


def _average(name: str) -> Column:
    def value(runs: Sequence[StudyRun]) -> float | None:
        found = _measured(runs, name)
        return round(statistics.fmean(found), 2) if found else None

    return Column(name, value)


def _deviation(name: str) -> Column:
    def value(runs: Sequence[StudyRun]) -> float | None:
        found = _measured(runs, name)
        return round(statistics.stdev(found), 2) if len(found) > 1 else None

    return Column(f"{name} std", value)


def _measured(runs: Sequence[StudyRun], name: str) -> list[float]:
    """Return a value of every run whose model was measured."""
    return [one for run in runs if (one := run.measured.get(name)) is not None]


def _over_gap(method: str, column: str) -> Callable[[Scores], Evidence]:
    def check(s: Scores) -> Evidence:
        ours, gap = s.cell(method, column), s.cell("GAP", column)
        return Evidence(f"{ours:.1f}%, GAP {gap:.1f}%", ours - gap)

    return check


def _over_delf(s: Scores) -> Evidence:
    ours, delf = s.cell("GSP", IN_BOX), s.cell("DeLF", IN_BOX)
    return Evidence(f"{ours:.1f}%, DeLF {delf:.1f}%", ours - delf)


# --- Study ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LocalizationStudy(GridStudy):
    """A grid whose saved models are compared with the bounding boxes of the test images."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Train the missing runs and measure their weights.

        Raises:
            DataError: If the data have no bounding boxes; found before training.
        """
        plan = plan_grid(self, request)
        config = resolve_config(plan[0][2].config)
        splits = load_splits(config, request.cache)
        assert splits.test is not None, "a study has test images"
        boxes = object_boxes(config, splits.test)
        runs = {(variant.name, seed): run for variant, seed, run in plan}
        found = train_grid(self, request)
        for name, finished in found.items():
            for position, run in enumerate(finished):
                model = open_trained(runs[name, run.seed], splits, request.cache)
                measured = measure_weights(model, boxes)
                request.note(f"{name}, seed {run.seed}: {measured[IN_BOX]:.1f}% of the weight in the box")
                finished[position] = replace(run, measured=measured)
        return grid_measurement(self, request.scale, found)

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw weight in the box and the pointing game of each pooling."""
        return {"": _draw(measured.artifacts["runs"])} if measured.rows else {}


@styled
def _draw(found: Mapping[str, Sequence[StudyRun]]) -> Figure:
    """Draw a dot and a 95% interval over seeds for each pooling; the dashed line is GAP, the level of chance."""
    figure = new_figure(7.2, 1.3 + 0.3 * len(found))
    panels = figure.subplots(1, 2, sharey=True)
    measured = {name: runs for name, runs in found.items() if _measured(runs, IN_BOX)}
    order = sorted(measured, key=lambda name: statistics.fmean(_measured(measured[name], IN_BOX)))
    colors = method_colors(measured)
    for axes, column in zip(panels, (IN_BOX, POINTING), strict=True):
        for position, name in enumerate(order):
            values = _measured(measured[name], column)
            one = estimate(values)
            if one.low is not None and one.high is not None:
                axes.plot([one.low, one.high], [position, position], color=colors[name], linewidth=2, alpha=0.6)
            axes.plot(values, [position] * len(values), ".", color=INK, markersize=3)
            axes.plot(one.mean, position, "o", color=colors[name], markersize=6)
        chance = _measured(measured.get("GAP", ()), column)
        if chance:
            axes.axvline(statistics.fmean(chance), color=PRETRAINED, linestyle=(0, (4, 3)), linewidth=1)
        axes.set_xlabel(f"{column.removesuffix(', %')} (%)")
        axes.set_xlim(left=0)
        axes.grid(axis="x", visible=True)
    panels[0].set_yticks(range(len(order)), order)
    panels[0].set_ylim(-0.6, max(len(order), 1) - 0.4)
    return figure


_DETAILS = (
    "C2. The weight of a location counts by the part of its cell that lies in the bounding box of the object. Weights "
    "of GAP are uniform, so its share is the area of the box: the level of chance. In the pointing game the location "
    "with the largest weight hits if its center lies in the box"
)
LOCALIZATION = LocalizationStudy(
    name="localization", title="Localization by pooling weights", measures="pooling weight inside the box",
    source="", group="Generalized Sum Pooling", metric=IN_BOX,
    scales=scales(
        EMOJI(steps=600, seeds=3, cost="3 minutes, 15 runs", source="",
              details=f"GSP with mu 0.05 and eps 20; the box is that of the drawing that gives the class; {_DETAILS}"),
        CUB_FOLD1(seeds=3, cost="18 runs on CUB-200-2011 with its bounding boxes, a GPU", source="",
                  details=f"GSP with mu 0.3 and eps 5 where the name states nothing else; {_DETAILS}"),
    ),
    variants=_variants,
    columns=(_average(IN_BOX), _deviation(IN_BOX), _average(POINTING), _deviation(POINTING), _average(EFFECTIVE),
             _average(AREA), _average(LOCATIONS)),
    claims=(
        Claim("GSP puts more of its weight in the box than GAP", "new", _over_gap("GSP", IN_BOX)),
        Claim(f"{GSP_ZSR} puts more of its weight in the box than GAP", "new", _over_gap(GSP_ZSR, IN_BOX)),
        Claim("GSP puts more of its weight in the box than DeLF", "new", _over_delf),
        Claim("GSP hits the object more often than GAP in the pointing game", "new", _over_gap("GSP", POINTING)),
        Claim(f"{GSP_ZSR} hits the object more often than GAP in the pointing game", "new",
              _over_gap(GSP_ZSR, POINTING)),
    ),
)  # fmt: skip
