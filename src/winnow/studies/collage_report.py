"""What the study of collages says: its table, figure, paragraph, and pictures of pooling weights."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from winnow.data import ImageSet
from winnow.models import Embedder
from winnow.report.heatmap import overlay
from winnow.report.style import INK, method_colours, new_figure, save, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Runs = Sequence[Mapping[str, Any]]
Found = Mapping[tuple[str, str], Mapping[str, Runs]]
"""(what the backbone was pretrained on, loss), then pooling, to the results of its runs."""

GAIN = 17
"""Points of MAP@R by which GSP is ahead of average pooling in the documents."""
NEAR = 5
"""Points by which a gain may differ from that and still agree with it."""
EXCEPT = {("C2", "NetVLAD 64x128"), ("C2", "NetVLAD 8x16")}
"""Loss and pooling that the documents have ahead of GSP."""

_ZOOM = 4
_SHOWN = 4


def scores(runs: Runs, metric: str = "MAP@R") -> list[float]:
    """Return a metric on the test classes in percent, of every run."""
    return [100 * run["metrics"]["test"][metric] for run in runs]


def table(found: Found, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each pooling: MAP@R with each loss and backbone, its deviation over seeds, what is missing."""
    poolings = list(next(iter(found.values())))
    rows = []
    for pooling in poolings:
        row: dict[str, Any] = {"pooling": pooling}
        missing = []
        for (seen, loss), by_name in found.items():
            values = scores(by_name[pooling])
            row[f"{loss}, {seen}"] = round(statistics.mean(values), 2) if values else None
            if len(seeds) > 1:
                row[f"{loss}, {seen}: sd"] = round(statistics.stdev(values), 2) if len(values) > 1 else None
            lacking = [str(seed) for seed in seeds if seed not in {run["config"]["seed"] for run in by_name[pooling]}]
            missing += [f"{loss}, {seen}: seeds {', '.join(lacking)}"] if lacking else []
        row["missing"] = "; ".join(missing)
        rows.append(row)
    if not any(row["missing"] for row in rows):
        for row in rows:
            del row["missing"]
    return rows


def told(
    found: Found,
    pretraining: Mapping[str, Mapping[str, Any] | None],
    seeds: Sequence[int],
    command: str,
    *,
    frozen: bool,
    made: bool,
) -> str:
    """Return the paragraph.

    Args:
        found: The results.
        pretraining: What the backbones were pretrained on, to the record of it.
        seeds: That every run was asked for with.
        command: What trains the missing runs.
        frozen: Whether the backbone stayed as pretrained.
        made: Whether the images are made up, so that what the documents say of Cifar-100 does not bear on them.
    """
    asked = sum(len(by_name) for by_name in found.values()) * len(seeds)
    trained = sum(len(runs) for by_name in found.values() for runs in by_name.values())
    way = "A frozen ResNet-20" if frozen else "ResNet-20, all of it trained"
    sentences = [
        f"Collages of 2 x 2 images of {'made-up classes' if made else 'Cifar-100'}, of which one gives the label, a "
        "super-class, and three are background; the classes of both are disjoint between training, validation and test "
        f"(2/1/2 of each super-class). {way}, 128 numbers for an image where the name says no other, Adam 1e-3, halved "
        "after 5 validations without a gain, 16 x 4 images in a batch, no augmentation, the best weights by "
        "validation. GSP has the documents' settings (mu = "
        "0.2, eps = 10, 64 prototypes, ZSR 0.5), the others those of their papers; C2's margins are those of the "
        "embedded set's study. MAP@R in percent on the test classes. Distilled is average pooling on the foreground "
        "images alone.",
        *_backbones(pretraining),
    ]
    if not made:
        sentences.append(
            f"The documents report a gain of about {GAIN} points of GSP over average pooling, and no pooling ahead of "
            "it but NetVLAD with C2; their numbers are in figures only, and their backbone had seen all classes."
        )
    for (seen, loss), by_name in found.items():
        sentences += _standing(seen, loss, by_name, beside=not made)
    sentences += _short(found)
    if trained < asked:
        sentences.append(f"{trained} of {asked} runs are in: `{command}` trains the others.")
    return " ".join(sentences)


def _short(found: Found) -> list[str]:
    """Say how long runs were, and which of them training never made better."""
    runs = [(name, loss, run) for (_, loss), by_name in found.items() for name, of in by_name.items() for run in of]
    if not runs:
        return []
    told = [f"Runs took at most {max(run['steps'] for _, _, run in runs):,} steps."]
    idle = sorted({f"{name} with {loss}" for name, loss, run in runs if run["best_step"] == 0})
    if idle:
        told.append(f"By validation the weights before training were the best of {', '.join(idle)}.")
    return told


def _backbones(pretraining: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Say what each backbone had seen, and how well it names what it had not."""
    told = [
        f"{record['images']:,} training images of {record['classes']} classes ({seen}; "
        f"{100 * record['accuracy']:.1f} % of their {record['held_out']:,} test images named rightly)"
        for seen, record in pretraining.items()
        if record is not None
    ]
    if not told:
        return []
    return [
        f"Backbones were pretrained by classification on {' or '.join(told)}. Collages are made of training and test "
        "images alike: the first backbone has seen no image of a validation or test class, the second has "
        "seen the training images in them, five in six, with their classes."
    ]


def _standing(seen: str, loss: str, by_name: Mapping[str, Runs], *, beside: bool) -> list[str]:
    """Say how GSP stands with one loss on one backbone, beside what the documents say if that is wanted."""
    means = {name: statistics.mean(scores(runs)) for name, runs in by_name.items() if runs}
    if not {"GAP", "GSP"} <= set(means):
        return []
    bounds = [name for name in means if name.startswith("distilled")]
    ours = {name for name in means if "GSP" in name or "ZSR" in name}
    ahead = sorted((name for name in means if means[name] > means["GSP"] and name not in {*ours, *bounds}),
                   key=means.__getitem__, reverse=True)  # fmt: skip
    gain = means["GSP"] - means["GAP"]
    zsr = f", with ZSR {means['GSP + ZSR'] - means['GAP']:+.1f}" if "GSP + ZSR" in means else ""
    bound = f"; the distilled bound is {means[bounds[0]] - means['GAP']:+.1f}" if bounds else ""
    unexpected = [name for name in ahead if (loss, name) not in EXCEPT]
    agrees = abs(gain - GAIN) <= NEAR and not unexpected
    verdict = f" ({'as' if agrees else 'unlike what'} the documents report)" if beside else ""
    rivals = f"ahead of it: {', '.join(ahead)}" if ahead else "no other pooling is ahead of it"
    return [f"{loss}, {seen}: GSP {gain:+.1f} points from average pooling{zsr}{bound}; {rivals}{verdict}."]


@styled
def draw(found: Found, bound: str) -> Figure:
    """Draw MAP@R of every pooling: a panel for each backbone, a bar for each loss, the upper bounds as dashed lines."""
    shown = [name for name in next(iter(found.values())) if name != bound]
    backbones, losses = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    # A backbone without any run yet has no panel, unless none has one.
    backbones = [seen for seen in backbones if any(any(found[seen, loss].values()) for loss in losses)] or backbones
    colours = method_colours(losses)
    figure = new_figure(8.0, 1.3 + 0.36 * len(shown))
    panels = figure.subplots(1, len(backbones), sharey=True, squeeze=False)[0]
    height = 0.8 / len(losses)
    for axes, seen in zip(panels, backbones, strict=True):
        for number, loss in enumerate(losses):
            by_name = found[seen, loss]
            for place, name in enumerate(shown):
                values = scores(by_name[name])
                if values:
                    at = place + (number - (len(losses) - 1) / 2) * height
                    axes.barh(at, statistics.mean(values), color=colours[loss], alpha=0.75, height=height)
                    axes.plot(values, [at] * len(values), ".", color=INK, markersize=2.5)
            if by_name.get(bound):
                best = statistics.mean(scores(by_name[bound]))
                axes.axvline(best, color=colours[loss], linestyle=(0, (4, 3)), linewidth=1)
        axes.set_title(f"pretrained on {seen}")
        axes.set_xlabel("MAP@R on unseen classes, percent")
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
    panels[0].set_yticks(range(len(shown)), shown)
    panels[0].invert_yaxis()
    handles = [panels[0].barh(0, 0, color=colours[loss]) for loss in losses]
    figure.legend(handles, [f"{loss} (dashed: distilled)" for loss in losses], loc="outside lower center", ncols=2)
    return figure


@styled
def save_heat_maps(path: Path, models: Mapping[str, Path], train: ImageSet, test: ImageSet) -> None:
    """Draw what models look at in a few training and test collages: a row for each, a column for each model.

    Args:
        path: The picture.
        models: What to call each model, and its folder.
        train: Collages, of which some are drawn.
        test: Likewise.
    """
    picked = [(kind, images.read(int(index))) for kind, images in (("train", train), ("test", test))
              for index in np.linspace(0, len(images) - 1, _SHOWN).astype(int)]  # fmt: skip
    pictures = [image for _, image in picked]
    columns: dict[str, list[Image.Image]] = {"": [_enlarged(image) for image in pictures]}
    for name, folder in models.items():
        seen = Embedder.from_pretrained(folder).explain(pictures)
        columns[name] = [_enlarged(one.image) if one.weights is None else overlay(_enlarged(one.image), one.weights)
                         for one in seen]  # fmt: skip
    figure = new_figure(1.4 * len(columns), 1.35 * len(pictures))
    grid = figure.subplots(len(pictures), len(columns), squeeze=False)
    for row, (kind, _) in enumerate(picked):
        for column, (name, images) in enumerate(columns.items()):
            axes = grid[row, column]
            axes.imshow(np.asarray(images[row]))
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(False)
            axes.set_title(name if row == 0 else "", loc="center")
            axes.set_ylabel(kind if column == 0 else "")
    save(figure, path)


def _enlarged(image: Image.Image) -> Image.Image:
    """Return an image with pixels large enough to see."""
    return image.resize((_ZOOM * image.width, _ZOOM * image.height), Image.Resampling.NEAREST)
