"""What CCP costs: time of a step and of a new problem, and memory, beside the plain loss (section 3.3.2.3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.data import ImageCache
from winnow.profiling import measure, measure_all, pick_device
from winnow.references import ChanceConstrainedProxies
from winnow.studies.base import Findings, Task, paragraphs
from winnow.studies.ccp_cost_report import BATCH, LARGE, SHORTEST, THEIR_COUNT, draw, how, told
from winnow.studies.timing import NoiseImages, TimingSetup, saved_bytes
from winnow.training import Trainer
from winnow.training.engine.stream import run_to_end

if TYPE_CHECKING:
    from winnow.training.engine.stream import Steps

PLAIN = "C2"
CASES = {"C2 + CCP, CUB": (75, "cub"), "C2 + CCP, SOP": (8488, "sop")}  # classes of a fold; CUB's are the plain loss's
SIZES = {True: ("tf_efficientnet_lite0", 64, 2, 5), False: (LARGE, 227, 20, 10)}
"""By whether it is small: network, pixels, steps timed at once, and how often."""
MB = 2**20


def study(task: Task) -> Findings:
    """Time of a step, of a new problem, and memory of CCP beside the plain loss, measured in turns (section 3.3.2.3).

    Cost: 20 seconds; in full 2 minutes on a GPU.
    """
    device = pick_device("auto")
    network, crop, steps, repeats = SIZES[task.small]
    first = next(iter(CASES.values()))[0]
    store = ImageCache(NoiseImages(crop, first), resize=crop, cache="device", device=device)
    words = [f"backbone={network}", "backbone.weights=random", "backbone.train=full", f"image.resize={crop}",
             f"image.crop={crop}", f"train.device={device.type}", "pooling=gap", "dim=128", "loss=c2", "train.lr=1e-6",
             "train.eval_steps=1000000"]  # fmt: skip
    setup = TimingSetup(device, store, words, steps, num_classes=first)
    trainers = {PLAIN: setup.build_trainer(BATCH)}
    for name, (classes, preset) in CASES.items():
        own = replace(setup, num_classes=classes)
        trainers[name] = own.build_trainer(BATCH, "references=ccp", f"references.preset={preset}")
    task.note(f"steps of {network} at {crop} pixels on {device.type}")
    picked = {name: picking_time(trainers[name], device, repeats) for name in CASES}
    # A whole problem also embeds its pool, which is of the classes that have images: CUB's.
    begun = {name: begin_problem(trainers[name]) for name, (classes, _) in CASES.items() if classes == first}
    works = {name: driven(trainer, setup.training_loop(trainer)) for name, trainer in trainers.items()}
    timings = measure_all(works, device=device, repeats=repeats, warmup=2)
    plain = timings[PLAIN].median / steps
    rows: list[dict[str, Any]] = []
    for name, trainer in trainers.items():
        each, problem = timings[name].median / steps, begun.get(name)
        rows.append({
            "method": name, "proxies": proxies_of(trainer), "step, ms": 1e3 * each, "ratio": each / plain,
            "picking proxies, ms": 1e3 * picked[name] if name in picked else None,
            "new problem, ms": None if problem is None else 1e3 * problem,
            **memory_of(trainer),
        })  # fmt: skip
    settings = {"small": task.small, "device": device.type, "network": network, "crop": crop, "batch": BATCH,
                "steps": steps, "repeats": repeats, "steps of a problem": SHORTEST}  # fmt: skip
    text = paragraphs(told(rows), how(network, crop, device.type))
    return Findings("What CCP costs", text, rows, draw(rows), settings)


def driven(trainer: Trainer, steps: Callable[[], Steps[None]]) -> Callable[[], None]:
    """Return what takes steps on the trainer's own stream."""
    return lambda: run_to_end(trainer.stream.run_on(steps()))


def begin_problem(trainer: Trainer) -> float:
    """Solve a first problem by fiat, and return the seconds the second takes to begin."""
    problems, references = trainer.ccp_solver, trainer.objective.references
    assert problems is not None, "only CCP begins problems"
    assert isinstance(references, ChanceConstrainedProxies), "and it has problems"

    def validate() -> float:
        started = time.perf_counter()
        run_to_end(trainer.stream.run_on(problems.iter_update(0, 0.5, over=False)))
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    # It begins the first, is better than nothing, and then no better as often as patience allows.
    seconds = [validate() for _ in range(2 + references.patience)]
    assert len(problems.history) == 2, "the last of them begins the second problem"
    return seconds[-1]


def picking_time(trainer: Trainer, device: torch.device, repeats: int) -> float:
    """Return the seconds that new proxies of all classes take to be picked, out of pools of made embeddings."""
    references = trainer.objective.references
    assert isinstance(references, ChanceConstrainedProxies), "only CCP picks proxies"
    count, width = len(references.proxies) // references.proxies_per_class, references.proxies.shape[1]
    pool = torch.randn(count, references.pool_size, width, generator=torch.Generator().manual_seed(0)).to(device)
    classes = torch.arange(count, device=device)
    proxies = references.proxies.detach().clone()
    normalize = trainer.objective.loss.normalizer

    def pick() -> None:
        references.seed(pool, classes, first=False, normalize=normalize)

    seconds = measure(pick, device=device, repeats=repeats, warmup=1).median
    with torch.no_grad():
        references.proxies.copy_(proxies)
    return seconds


def proxies_of(trainer: Trainer) -> int:
    """Return how many proxies a learner has in all."""
    references = trainer.objective.references
    return len(references.proxies) if isinstance(references, ChanceConstrainedProxies) else 0


def memory_of(trainer: Trainer) -> dict[str, float]:
    """Return what a run holds in MB: for a backward pass, in weights, gradients and moments, and in older weights."""
    learner = trainer.objective
    trained = sum(map(_bytes, (p for p in learner.parameters() if p.requires_grad)))
    others = sum(map(_bytes, (p for p in learner.parameters() if not p.requires_grad)))
    previous = 0 if learner.proximal is None else sum(map(_bytes, learner.proximal.target.values()))
    best = 0 if trainer.ccp_solver is None else sum(map(_bytes, learner.state_dict().values()))
    indices = trainer.sampler.batch(0)
    images = trainer.train.train(indices, torch.Generator().manual_seed(0))
    labels = torch.from_numpy(trainer.train.labels[indices]).to(trainer.device)
    learner.train()
    kept = saved_bytes(lambda: learner(images, labels))
    parts = {"kept for backward, MB": kept, "weights, gradients and moments, MB": 4 * trained + others,
             "previous weights, MB": previous, "best weights of a problem, MB": best}  # fmt: skip
    proxies = _bytes(learner.references.proxies) if isinstance(learner.references, ChanceConstrainedProxies) else 0
    wholes = {"in all, MB": sum(parts.values()), THEIR_COUNT: previous + proxies}
    return {name: size / MB for name, size in (parts | wholes).items()}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
