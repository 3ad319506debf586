"""How fast training steps are: against the bare backbone, against the eager loop, alone and side by side."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import torch

from winnow.bench.record import Bench, Row
from winnow.bench.scene import CLASSES, Noise, Scene
from winnow.bench.timing import Timing, measure_all, pick_device
from winnow.bench.train_rivals import GSP, Rival, make_rivals, warm
from winnow.data import ImageCache
from winnow.errors import ConfigError

AGAINST = "average pooling, loop"


def run_train(
    *,
    device: str = "auto",
    batches: Sequence[int] = (32, 112),
    packs: Sequence[int] = (1, 2, 4, 8),
    compiled: bool = False,
    precision: str = "32-true",
    backbone: str = "resnet50",
    crop: int = 227,
    steps: int = 20,
    repeats: int = 5,
    note: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Time training steps of a whole network on images that are on the device already.

    Rivals of every batch size: the bare backbone's step on fixed images; the loop with average pooling, computed
    step by step with contiguous weights as PyTorch does by default, and in channels-last order; the loop as `winnow
    train` runs it, with average pooling and with GSP and ZSR, and the same steps on fixed images. Then runs side by
    side. Weights are random; only time is measured.

    Args:
        device: auto, cpu or cuda.
        batches: Batch sizes, multiples of 4.
        packs: How many runs are driven side by side, at the first batch size.
        compiled: Also with a compiled backbone; that takes minutes.
        precision: That of `train.precision`.
        backbone: Which network.
        crop: Pixels of the crops.
        steps: Steps in one timed run.
        repeats: Timed runs of every rival.
        note: Told what is being measured.

    Returns:
        Seconds of one step, and for runs side by side the steps per second of all together.

    Raises:
        ConfigError: for a batch size that the made-up images do not give.
    """
    wrong = next((batch for batch in batches if batch % 4 or not 8 <= batch <= 4 * CLASSES), None)
    if wrong is not None:
        raise ConfigError(f"a batch of {wrong}: choose a multiple of 4 from 8 to {4 * CLASSES}")
    place = pick_device(device)
    resize = crop + crop // 8
    store = ImageCache(Noise(resize), resize=resize, cache="device", device=place)
    words = [
        f"backbone={backbone}", "backbone.weights=random", "backbone.train=full", f"image.crop={crop}", "dim=128",
        f"image.resize={resize}", f"train.device={place.type}", f"train.precision={precision}", "train.lr=1e-6",
        "train.eval_steps=1000000",
    ]  # fmt: skip
    scene = Scene(place, store, words, steps)
    rows: list[Row] = []
    for batch in batches:
        note(f"batch {batch}")
        rivals = make_rivals(scene, batch, compiled)
        facts = {name: {"images/s": batch} for name in rivals}
        rows += _rows(f"batch {batch}", scene, {name: [one] for name, one in rivals.items()}, repeats, facts)
        del rivals
        _free(place)
    runs = [scene.trainer(batches[0], *GSP, f"seed={seed}") for seed in range(max(packs, default=0))]
    lanes = [(run.stream, scene.loop(run)) for run in runs]
    for run in runs:
        warm(run)
    note(f"side by side, batch {batches[0]}")
    packed = {f"{k} side by side": lanes[:k] for k in packs}
    rows += _rows(f"GSP + ZSR, batch {batches[0]}", scene, packed, repeats, {n: {"steps/s": 1.0} for n in packed})
    notes = [] if place.type == "cuda" else ["without a GPU nothing is replayed: fixed images and graphs are left out"]
    settings = {
        "device": place.type, "batches": list(batches), "packs": list(packs), "compiled": compiled,
        "precision": precision, "backbone": backbone, "crop": crop, "steps": steps, "repeats": repeats,
    }  # fmt: skip
    return Bench(f"train-{place.type}", f"training steps, {backbone} at {crop} pixels", AGAINST, settings, rows, notes)


def _rows(
    case: str,
    scene: Scene,
    rivals: Mapping[str, Sequence[Rival]],
    repeats: int,
    rates: Mapping[str, Mapping[str, float]],
) -> list[Row]:
    """Time rivals in turns; of rivals that are several runs, all are driven side by side.

    `rates` names what is done once per step, such as images, to tell how many there are in a second.
    """

    def together(runs: Sequence[Rival]) -> Callable[[], None]:
        def work() -> None:
            going = [lane.run_on(steps()) for lane, steps in runs]
            while going:
                going = [one for one in going if next(one, "over") is None]

        return work

    works = {name: together(runs) for name, runs in rivals.items()}
    rows = []
    for name, timing in measure_all(works, device=scene.device, repeats=repeats, warmup=1).items():
        count = scene.count * len(rivals[name])
        each = Timing(tuple(seconds / count for seconds in timing.seconds))
        rows.append(Row(case, name, each, facts={fact: k / each.median for fact, k in rates[name].items()}))
    return rows


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
