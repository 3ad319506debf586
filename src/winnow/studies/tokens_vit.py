"""Does GSP help on the tokens of a vision transformer? Beyond the documents, whose backbones are convolutional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from winnow.studies.base import Findings, Task, paragraphs, with_data, with_runs
from winnow.studies.cub_losses import CONFIG
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import Found, deviation, findings, scores
from winnow.studies.sweeps import CUB_LOSSES, gsp
from winnow.studies.synthetic_images import write_cifar

CLASS, MEAN = "class token", "mean of tokens"
NO_CLAIM = "The documents pool maps of convolutions only, so that there is no claim to check."
MADE = (30, 6)  # made-up training and test images of each class
WEIGHTS = Path("data/vit_small_patch16_224.dino.safetensors")  # else timm's download

# A transformer of 64 channels and 6 blocks from nothing, on collages of 64 pixels: 16 tokens, 4 of them of the cell
# that gives the class.
SMALL = [
    "data=cifar_collage", "backbone=test_vit", "backbone.weights=random", "backbone.train=full", "image.resize=64",
    "image.crop=64", "augment.scale=[1, 1]", "augment.ratio=[1, 1]", "augment.hflip=false", "dim=64",
    "train.projection_init=random", "train.classes_per_batch=16", "train.samples_per_class=2", "train.lr=1e-3",
    "train.eval_steps=50", "train.max_steps=300",
]  # fmt: skip
SMALL_LOSSES: Mapping[str, Sequence[str]] = {"PNCA": ["loss=proxy_nca"]}
FULL = ["backbone=vit_small_patch16_224.dino", "image.resize=256", "image.crop=224"]


def methods(small: bool) -> dict[str, list[str]]:
    """Return the words of what is compared; mu is the share that counts where that is known, else the documents'."""
    own = gsp(0.25, 10, 16) if small else gsp(0.3, 5)
    weight = 0.5 if small else 0.1
    return {
        CLASS: ["backbone.tokens=cls", "pooling=gap"],
        MEAN: ["pooling=gap"],
        "GeM": ["pooling=gemean"],
        "GSP": own,
        "GSP + ZSR": [*own, f"zsr={weight:g}"],
    }


def comparison(task: Task) -> Comparison:
    """Return every way to make one vector of the tokens, with each loss."""
    losses = SMALL_LOSSES if task.small else CUB_LOSSES
    made = [Method(f"{name}, {loss}", [*words, *extra], loss)
            for loss, extra in losses.items() for name, words in methods(task.small).items()]  # fmt: skip
    if task.small:
        return Comparison(made, (0, 1), [*SMALL, f"data.root={folder_of(task)}"])
    weights = str(WEIGHTS) if WEIGHTS.is_file() else "auto"
    return Comparison(made, (0, 1, 2), [*FULL, f"backbone.weights={weights}"], CONFIG)


def folder_of(task: Task) -> Path:
    """Return where the images of a small study are: made-up ones, unless a folder of Cifar-100 was named."""
    return task.data or task.runs / "cifar100"


@with_data(small=True, full=True)
@with_runs
def study(task: Task) -> Findings:
    """GSP on a vision transformer's tokens, beside its class token, their mean and GeM (new).

    Cost: 3 minutes (10 runs), on made-up pictures; in full 30 runs on CUB-200-2011, a ViT's weights and a GPU.
    """
    if task.small and task.data is None and not task.only_finished:
        write_cifar(folder_of(task), train=MADE[0], test=MADE[1])
    compared = comparison(task)
    found = compared.train(task)
    where = (
        "A transformer of 64 channels trained from nothing on collages of "
        + ("made-up pictures" if task.data is None else task.data.name)
        + ", of whose 16 tokens four show what gives the class"
        if task.small
        else "ViT-S/16 with DINO's weights, all of it trained on the first fold of CUB-200-2011"
    )
    text = paragraphs(NO_CLAIM, told(found, list(methods(task.small))), f"{where}.")
    rows = compared.rows(found)
    figure = compared.figure(found, "What is made of a transformer's tokens")
    return findings(task, "tokens-vit", "Pooling a transformer's tokens", text, compared, found, figure, rows)


def told(found: Found, names: Sequence[str]) -> str:
    """Say for each loss whether GSP is ahead of the best that needs no prototypes, beside how far seeds deviate."""
    reached = scores(found)
    items = []
    for loss in dict.fromkeys(method.rpartition(", ")[2] for method in found):
        by_name = {name: reached[f"{name}, {loss}"] for name in names if f"{name}, {loss}" in reached}
        if len(by_name) < len(names):
            items.append(f"- {loss}: runs are missing, so that nothing can be said yet.")
            continue
        ours = {name: score for name, score in by_name.items() if "GSP" in name}
        rivals = {name: score for name, score in by_name.items() if "GSP" not in name}
        best, rival = max(ours, key=by_name.__getitem__), max(rivals, key=by_name.__getitem__)
        gain = ours[best] - rivals[rival]
        both = {name: found[f"{name}, {loss}"] for name in (best, rival)}
        spread = deviation(both) if all(len(runs) > 1 for runs in both.values()) else None
        verdict = (
            "what GSP does cannot be told from one seed" if spread is None
            else "GSP helps" if gain > spread else "GSP harms" if gain < -spread
            else "what GSP does cannot be told from what seeds deviate by"
        )  # fmt: skip
        beside = "" if spread is None else f"; seeds deviate by {spread:.2f}"
        listed = ", ".join(f"{name} {score:.2f}" for name, score in by_name.items())
        items.append(
            f"- {loss}: {verdict}. MAP@R is {listed}; {best} is {gain:+.2f} points from the best of the others, "
            f"{rival}{beside}. From the mean of the same tokens GSP is {by_name['GSP'] - by_name[MEAN]:+.2f}, from the "
            f"class token {by_name['GSP'] - by_name[CLASS]:+.2f}."
        )
    return "\n".join(items)
