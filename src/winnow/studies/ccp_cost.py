"""What CCP costs: time of a step and of a new problem, and memory, beside the plain loss (section 3.3.2.3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.bench.scene import Noise, Scene
from winnow.bench.timing import measure_all, pick_device
from winnow.data import ImageStore
from winnow.references import CCP
from winnow.report.style import method_colours, new_figure, styled
from winnow.studies.base import Findings, Task
from winnow.studies.iterations import kept_bytes
from winnow.training import Trainer
from winnow.training.lane import finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.training.lane import Work

PLAIN = "C2"
CASES = {"C2 + CCP, CUB": (75, "cub"), "C2 + CCP, SOP": (8488, "sop")}  # classes of a fold; CUB's are the plain loss's
LARGE = "resnet50"
SIZES = {True: ("tf_efficientnet_lite0", 64, 2, 5), False: (LARGE, 227, 20, 10)}
"""By whether it is small: network, pixels, steps timed at once, and how often."""
BATCH, MB = 32, 2**20
SHORTEST = 100  # steps of the shortest problem: four validations, 25 steps apart
THEIRS, MOST = "97 ms a step without CCP and 105 with it (+8 %, or 5 to 10 ms)", 10.0  # percent
THEIR_MEMORY = 60.0  # MB, with their largest model
THEIR_COUNT = "in all as the documents count, MB"
"""The last problem's weights and the proxies, without gradients and moments of these and the best weights."""


def study(task: Task) -> Findings:
    """Time of a step, of a new problem, and memory of CCP beside the plain loss, measured in turns (3.3.2.3).

    Cost: 20 seconds; in full 2 minutes on a GPU.
    """
    device = pick_device("auto")
    network, crop, steps, repeats = SIZES[task.small]
    first = next(iter(CASES.values()))[0]
    store = ImageStore(Noise(crop, first), resize=crop, cache="device", device=device)
    words = [f"backbone={network}", "backbone.weights=random", "backbone.train=full", f"image.resize={crop}",
             f"image.crop={crop}", f"train.device={device.type}", "pooling=gap", "dim=128", "loss=c2", "train.lr=1e-6",
             "train.eval_every=1000000"]  # fmt: skip
    scene = Scene(device, store, words, steps, classes=first)
    trainers = {PLAIN: scene.trainer(BATCH)}
    for name, (classes, preset) in CASES.items():
        own = replace(scene, classes=classes)
        trainers[name] = own.trainer(BATCH, "references=ccp", f"references.preset={preset}")
    task.note(f"steps of {network} at {crop} pixels on {device.type}")
    # A pool is of the classes that have images, which are CUB's.
    begun = {name: begin_problem(trainers[name]) for name, (classes, _) in CASES.items() if classes == first}
    works = {name: driven(trainer, scene.loop(trainer)) for name, trainer in trainers.items()}
    timings = measure_all(works, device=device, repeats=repeats, warmup=2)
    plain = timings[PLAIN].median / steps
    rows: list[dict[str, Any]] = []
    for name, trainer in trainers.items():
        each, problem = timings[name].median / steps, begun.get(name)
        rows.append({
            "method": name, "proxies": proxies_of(trainer), "step, ms": 1e3 * each, "ratio": each / plain,
            "new problem, ms": None if problem is None else 1e3 * problem,
            "ratio, with new problems": None if problem is None else (each + problem / SHORTEST) / plain,
            **memory_of(trainer),
        })  # fmt: skip
    settings = {"small": task.small, "device": device.type, "network": network, "crop": crop, "batch": BATCH,
                "steps": steps, "repeats": repeats, "steps of a problem": SHORTEST}  # fmt: skip
    return Findings("What CCP costs", told(rows, network, crop, device.type), rows, draw(rows), settings)


def driven(trainer: Trainer, steps: Callable[[], Work[None]]) -> Callable[[], None]:
    """Return what takes steps on the trainer's own stream."""
    return lambda: finish(trainer.lane.drive(steps()))


def begin_problem(trainer: Trainer) -> float:
    """Solve a first problem by fiat, and return the seconds the second takes to begin."""
    problems, references = trainer.problems, trainer.learner.references
    assert problems is not None, "only CCP begins problems"
    assert isinstance(references, CCP), "and it has problems"

    def validate() -> float:
        started = time.perf_counter()
        finish(trainer.lane.drive(problems.validated(0, 0.5, over=False)))
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    # It begins the first, is better than nothing, and then no better as often as patience allows.
    seconds = [validate() for _ in range(2 + references.patience)]
    assert len(problems.history) == 2, "the last of them begins the second problem"
    return seconds[-1]


def proxies_of(trainer: Trainer) -> int:
    """Return how many proxies a learner has in all."""
    references = trainer.learner.references
    return len(references.proxies) if isinstance(references, CCP) else 0


def memory_of(trainer: Trainer) -> dict[str, float]:
    """Return what a run holds in MB: for a backward pass, in weights, gradients and moments, and in older weights."""
    learner = trainer.learner
    trained = sum(map(_bytes, (p for p in learner.parameters() if p.requires_grad)))
    others = sum(map(_bytes, (p for p in learner.parameters() if not p.requires_grad)))
    previous = 0 if learner.pull is None else sum(map(_bytes, learner.pull.previous.values()))
    best = 0 if trainer.problems is None else sum(map(_bytes, learner.state_dict().values()))
    indices = trainer.sampler.batch(0)
    images = trainer.train.train(indices, torch.Generator().manual_seed(0))
    labels = torch.from_numpy(trainer.train.labels[indices]).to(trainer.device)
    learner.train()
    kept = kept_bytes(lambda: learner(images, labels))
    parts = {"kept for backward, MB": kept, "weights, gradients and moments, MB": 4 * trained + others,
             "previous weights, MB": previous, "best weights of a problem, MB": best}  # fmt: skip
    proxies = _bytes(learner.references.proxies) if isinstance(learner.references, CCP) else 0
    wholes = {"in all, MB": sum(parts.values()), THEIR_COUNT: previous + proxies}
    return {name: size / MB for name, size in (parts | wholes).items()}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def told(rows: list[dict[str, Any]], network: str, crop: int, device: str) -> str:
    """Check: a step takes about 8 % longer, new problems hardly count, and memory grows by 60 MB at most."""
    plain, *others = rows
    parts = [
        f"{network} at {crop} pixels on {'a GPU' if device == 'cuda' else 'a CPU'}, batches of {BATCH}, random weights "
        f"and noise for images; steps of all methods were timed in turns. The documents report {THEIRS}, new problems "
        f"of no account, and {THEIR_MEMORY:.0f} MB more memory at most, for the last problem's weights (40 to 45 MB: "
        f"theirs is BN-Inception) and the proxies. C2 alone takes {plain['step, ms']:.1f} ms."
    ]
    for row in others:
        cost, more = 100 * (row["ratio"] - 1), row["in all, MB"] - plain["in all, MB"]
        theirs = row[THEIR_COUNT]
        said = f"{row['method']} ({row['proxies']:,} proxies): {cost:+.1f} % a step"
        if row["new problem, ms"] is not None:
            cost = 100 * (row["ratio, with new problems"] - 1)
            said += f", {cost:+.1f} % with a new problem every {SHORTEST} ({row['new problem, ms']:.0f} ms each)"
        parts.append(
            f"{said}, which {'agrees' if cost <= MOST else 'does not agree'} (up to {MOST:.0f} %); {theirs:.1f} MB as "
            f"they count, which {'agrees' if theirs <= THEIR_MEMORY else 'does not agree'}, and {more:+.1f} MB with "
            "gradients and moments of the proxies, what a backward pass keeps, and the best weights of the problem."
        )
    if network != LARGE:
        parts.append("The network is far smaller than theirs, so that proxies weigh more in its time.")
    return " ".join(parts)


@styled
def draw(rows: list[dict[str, Any]]) -> Figure:
    """Draw the time of a step, with what new problems add, and what memory is made of."""
    figure = new_figure(8.0, 2.9)
    left, right = figure.subplots(1, 2)
    names = [row["method"] for row in rows]
    slate, orange = list(method_colours("ab").values())
    own = [row["step, ms"] for row in rows]
    extra = [(row["new problem, ms"] or 0.0) / SHORTEST for row in rows]
    left.barh(names, own, color=slate, height=0.6, label="step")
    left.barh(names, extra, left=own, color=orange, height=0.6, label="share of a new problem")
    left.set_title("Time of a step, ms")
    parts = [key for key in rows[0] if key.endswith("MB") and not key.startswith("in all")]
    at = [0.0] * len(rows)
    for part, colour in method_colours(parts).items():
        sizes = [row[part] for row in rows]
        right.barh(names, sizes, left=at, color=colour, height=0.6, label=part.removesuffix(", MB"))
        at = [a + b for a, b in zip(at, sizes, strict=True)]
    right.set_title("Memory, MB")
    right.set_yticks(range(len(names)), [""] * len(names))
    for axes in (left, right):
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return figure
