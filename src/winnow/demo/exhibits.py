"""What the report shows: neighbours, heat maps and the patches prototypes like."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from PIL import Image

from winnow.data import ImageSet
from winnow.evaluation import RetrievalResult
from winnow.functional import clip_norm, pairwise_distance
from winnow.models import Embedder
from winnow.pooling import GSP
from winnow.report.content import HeatMap, Neighbour, Prototype, Query
from winnow.training.inputs import Inputs

QUERIES, HEATMAPS, PROTOTYPES, PATCHES = 6, 8, 12, 8


def spread(count: int, wanted: int) -> list[int]:
    """Return indices spread evenly over a range, so that what is shown is not picked by hand."""
    wanted = min(count, wanted)
    return [int((i + 0.5) * count / wanted) for i in range(wanted)]


def queries(images: ImageSet, results: Mapping[str, RetrievalResult]) -> list[Query]:
    """Return evenly spread queries with the nearest neighbours that each method found."""
    made = []
    for index in spread(len(images), QUERIES):
        found = {}
        for name, result in results.items():
            row = zip(result.neighbors[index].tolist(), result.distances[index].tolist(), strict=True)
            found[name] = [
                Neighbour(images.read(i), bool(images.labels[i] == images.labels[index]), d, _class(images, i))
                for i, d in row
            ]
        made.append(Query(images.read(index), _class(images, index), found))
    return made


def heatmaps(images: ImageSet, embedders: Mapping[str, Embedder]) -> list[HeatMap]:
    """Return the weights of each method over evenly spread images."""
    chosen = [index + 1 for index in spread(len(images) - 1, HEATMAPS)]  # others than the queries'
    pictures = [images.read(i) for i in chosen]
    seen = {name: embedder.explain(pictures) for name, embedder in embedders.items()}
    made = []
    for position, index in enumerate(chosen):
        weights = {}
        for name, explanations in seen.items():
            grid = explanations[position].weights
            if grid is not None:
                weights[name] = grid
        image = next(iter(seen.values()))[position].image
        made.append(HeatMap(image, _class(images, index), weights))
    return made


@torch.no_grad()
def prototypes(images: ImageSet, inputs: Inputs, embedder: Embedder) -> list[Prototype]:
    """Return the prototypes with the largest shares, and the patches of test images nearest to each."""
    pooling = embedder.head.pooling
    if not isinstance(pooling, GSP) or not pooling.prototypes_ready:
        return []
    best_distance: list[torch.Tensor] = []
    best_place: list[torch.Tensor] = []
    shares = torch.zeros(len(pooling.prototypes))
    count = len(inputs.labels)
    embedder.eval()
    for start in range(0, count, 256):
        maps = inputs.test(range(start, min(start + 256, count)))
        local = embedder.head.projection(maps.flatten(2).mT)
        shares += pooling(local, return_details=True).attributes.sum(dim=0)
        distance = pairwise_distance(clip_norm(local), clip_norm(pooling.prototypes))  # (B, n, m)
        nearest, place = distance.min(dim=1)  # the best place of each image, so that patches differ
        best_distance.append(nearest)
        best_place.append(place)
    distances, places = torch.cat(best_distance), torch.cat(best_place)
    rows, columns = maps.shape[2], maps.shape[3]
    made = []
    for index in shares.argsort(descending=True)[:PROTOTYPES].tolist():
        order = distances[:, index].argsort()[:PATCHES].tolist()
        patches = [_patch(images.read(i), int(places[i, index]), rows, columns) for i in order]
        made.append(Prototype(index, float(shares[index]) / count, patches))
    return made


def _patch(image: Image.Image, place: int, rows: int, columns: int, reach: float = 1.75) -> Image.Image:
    """Cut out the surroundings of one place of the grid, as wide as the local feature mainly sees."""
    height, width = image.height / rows, image.width / columns
    y, x = (place // columns + 0.5) * height, (place % columns + 0.5) * width
    left = min(max(0.0, x - reach * width), image.width - 2 * reach * width)
    top = min(max(0.0, y - reach * height), image.height - 2 * reach * height)
    box = (round(left), round(top), round(left + 2 * reach * width), round(top + 2 * reach * height))
    return image.crop(box)


def _class(images: ImageSet, index: int) -> str:
    return images.class_names[int(images.labels[index])]
