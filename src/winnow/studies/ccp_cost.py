"""Time and memory of CCP, compared with the loss alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.data import ImageCache
from winnow.profiling import measure, measure_all, pick_device
from winnow.references import ChanceConstrainedProxies
from winnow.report.claims import format_points
from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.scores import Scores
from winnow.studies.settings import scales
from winnow.studies.spec import Claim, Evidence, Measurement, Row, Scale, Study, StudyRequest
from winnow.studies.timing import NoiseImages, TimingSetup, saved_bytes
from winnow.training import Trainer
from winnow.training.engine.stream import run_to_end

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.training.engine.stream import Steps

PLAIN, CUB, SOP = "C2", "C2 + CCP, CUB", "C2 + CCP, SOP"
CASES = {CUB: (75, "cub"), SOP: (8488, "sop")}  # classes of a fold and preset; the loss alone has the classes of CUB
BATCH = 32
SHORTEST = 100  # steps of the shortest subproblem: four validations, 25 steps apart
MB = 2**20
TIME, RATIO, PICKING, NEW = "step, ms", "ratio", "picking proxies, ms", "new subproblem, ms"
TOTAL, COUNTED = "total, MB", "last weights and proxies, MB"
"""`COUNTED` is what [Thesis] counts: no gradients, moments, and best weights."""

LONGER = 10.0  # percent of a step; [Thesis]: 8% (97 ms without CCP, 105 ms with it)
PICKED = {CUB: 10.0, SOP: 400.0}  # ms; [Thesis]: no more than CCP adds to a step (5 to 10 ms), 200 to 400 ms on SOP
MEMORY = 60.0  # MB, with the largest model of [Thesis]


@dataclass(frozen=True)
class Timed:
    """Network and repetitions of the timings."""

    network: str
    crop: int  # pixels
    steps: int  # in one timing
    repeats: int


# --- Measurement ------------------------------------------------------------------------------------------------------


def measure_costs(
    timed: Timed, cases: Mapping[str, tuple[int, str]], device: torch.device, note: Callable[[str], None]
) -> list[Row]:
    """Return a row of time and memory for the loss alone and for each case.

    Timings of steps are interleaved.
    """
    first = next(iter(cases.values()))[0]
    images = ImageCache(NoiseImages(timed.crop, first), resize=timed.crop, cache="device", device=device)
    settings = [f"backbone={timed.network}", "backbone.weights=random", "backbone.train=full",
                f"image.resize={timed.crop}", f"image.crop={timed.crop}", f"train.device={device.type}", "pooling=gap",
                "dim=128", "loss=c2", "train.lr=1e-6", "train.eval_steps=1000000"]  # fmt: skip
    setup = TimingSetup(device, images, settings, timed.steps, num_classes=first)
    trainers = {PLAIN: setup.build_trainer(BATCH)}
    for name, (classes, preset) in cases.items():
        own = replace(setup, num_classes=classes)
        trainers[name] = own.build_trainer(BATCH, "references=ccp", f"references.preset={preset}")
    note(f"steps of {timed.network} at {timed.crop} pixels on {device.type}")
    picking = {name: picking_time(trainers[name], device, timed.repeats) for name in cases}
    # A new subproblem also embeds its pool, which needs images of all classes: CUB has them.
    new = {name: start_problem(trainers[name]) for name, (classes, _) in cases.items() if classes == first}
    works = {name: on_stream(trainer, setup.training_loop(trainer)) for name, trainer in trainers.items()}
    timings = measure_all(works, device=device, repeats=timed.repeats, warmup=2)
    seconds = {name: timings[name].median / timed.steps for name in trainers}

    def ms(found: float | None) -> float | None:
        return None if found is None else 1e3 * found

    return [
        {"method": name, "proxies": count_proxies(trainer), TIME: ms(seconds[name]),
         RATIO: seconds[name] / seconds[PLAIN], PICKING: ms(picking.get(name)), NEW: ms(new.get(name)),
         **memory_of(trainer)}
        for name, trainer in trainers.items()
    ]  # fmt: skip


def on_stream(trainer: Trainer, steps: Callable[[], Steps[None]]) -> Callable[[], None]:
    """Return a callable that takes the steps on the stream of a trainer."""
    return lambda: run_to_end(trainer.stream.run_on(steps()))


def start_problem(trainer: Trainer) -> float:
    """End the first subproblem; return the seconds that the second takes to start."""
    problems, references = trainer.ccp_solver, trainer.objective.references
    assert problems is not None, "only CCP has subproblems"
    assert isinstance(references, ChanceConstrainedProxies), "the references of CCP"

    def validate() -> float:
        started = time.perf_counter()
        run_to_end(trainer.stream.run_on(problems.iter_update(0, 0.5, over=False)))
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    # The first call starts the first subproblem and the second improves on it; then patience runs out.
    seconds = [validate() for _ in range(2 + references.patience)]
    assert len(problems.history) == 2, "the last call starts the second subproblem"
    return seconds[-1]


def picking_time(trainer: Trainer, device: torch.device, repeats: int) -> float:
    """Return the seconds to pick proxies of all classes from random embeddings."""
    references = trainer.objective.references
    assert isinstance(references, ChanceConstrainedProxies), "the references of CCP"
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


def count_proxies(trainer: Trainer) -> int:
    """Return the number of proxies of all classes."""
    references = trainer.objective.references
    return len(references.proxies) if isinstance(references, ChanceConstrainedProxies) else 0


def memory_of(trainer: Trainer) -> dict[str, float]:
    """Return the memory of a run in MB.

    Its components are tensors saved for backward, weights with their states, and copies of weights.
    """
    objective = trainer.objective
    trained = sum(map(_bytes, (p for p in objective.parameters() if p.requires_grad)))
    others = sum(map(_bytes, (p for p in objective.parameters() if not p.requires_grad)))
    previous = 0 if objective.proximal is None else sum(map(_bytes, objective.proximal.target.values()))
    best = 0 if trainer.ccp_solver is None else sum(map(_bytes, objective.state_dict().values()))
    indices = trainer.sampler.batch(0)
    images = trainer.train.train(indices, torch.Generator().manual_seed(0))
    labels = torch.from_numpy(trainer.train.labels[indices]).to(trainer.device)
    objective.train()
    saved = saved_bytes(lambda: objective(images, labels))
    parts = {"saved for backward, MB": saved, "weights, gradients, and moments, MB": 4 * trained + others,
             "previous weights, MB": previous, "best weights of a subproblem, MB": best}  # fmt: skip
    proxies = _bytes(objective.references.proxies) if isinstance(objective.references, ChanceConstrainedProxies) else 0
    totals = {TOTAL: sum(parts.values()), COUNTED: previous + proxies}
    return {name: size / MB for name, size in (parts | totals).items()}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# --- Claims -----------------------------------------------------------------------------------------------------------


def _step_claim(case: str) -> Claim:
    def check(s: Scores) -> Evidence:
        longer = 100 * (s.cell(case, RATIO) - 1)
        return Evidence(f"{format_points(longer, 1)}%; below {LONGER:g}% by", LONGER - longer, "% of a step")

    return Claim(f"{case}: a step takes at most {LONGER:g}% longer", _SOURCE, check)


def _picking_claim(case: str) -> Claim:
    def check(s: Scores) -> Evidence:
        picking = s.cell(case, PICKING)
        return Evidence(f"{picking:.1f} ms; below {PICKED[case]:g} ms by", PICKED[case] - picking, "ms")

    return Claim(f"{case}: picking new proxies takes at most {PICKED[case]:g} ms", _SOURCE, check)


def _memory_claim(case: str) -> Claim:
    def check(s: Scores) -> Evidence:
        counted = s.cell(case, COUNTED)
        return Evidence(f"{counted:.1f} MB; below {MEMORY:g} MB by", MEMORY - counted, "MB")

    return Claim(f"{case}: the last weights and the proxies take at most {MEMORY:g} MB", _SOURCE, check)


def _long_run(s: Scores) -> Evidence:
    """Add the start of a subproblem, spread over the steps of the shortest one."""
    longer = 100 * (s.cell(CUB, RATIO) - 1)
    total = longer + 100 * s.cell(CUB, NEW) / SHORTEST / s.cell(PLAIN, TIME)
    ours = f"{s.cell(CUB, NEW):.0f} ms every {SHORTEST} steps: {format_points(total, 1)}% of a step"
    return Evidence(f"{ours}; below {LONGER:g}% by", LONGER - total, "% of a step")


# --- Study ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CCPCost(Study):
    """Timings on images of noise; nothing is trained to the end."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Measure time and memory."""
        device, timed = pick_device("auto"), request.scale.pick(quick=QUICK, full=FULL)
        rows = measure_costs(timed, CASES, device, request.note)
        settings = {"device": device.type, "network": timed.network, "crop": timed.crop, "batch": BATCH,
                    "steps": timed.steps, "repeats": timed.repeats, "steps of a subproblem": SHORTEST}  # fmt: skip
        return Measurement(rows=rows, settings=settings)

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the time of a step with the picking of proxies, and memory."""
        return {"": _draw(measured.rows)}


@styled
def _draw(rows: Sequence[Row]) -> Figure:
    figure = new_figure(8.0, 2.9)
    left, right = figure.subplots(1, 2)
    names = [row["method"] for row in rows]
    first, second = method_colors("ab").values()
    own = [row[TIME] for row in rows]
    extra = [(row[PICKING] or 0.0) / SHORTEST for row in rows]
    left.barh(names, own, color=first, height=0.6, label="step")
    left.barh(names, extra, left=own, color=second, height=0.6, label=f"picking proxies every {SHORTEST} steps")
    left.set_title("Time of a step (ms)")
    components = [key for key in rows[0] if key.endswith(", MB") and key not in (TOTAL, COUNTED)]
    ends = [0.0] * len(rows)
    for component, color in method_colors(components).items():
        sizes = [row[component] for row in rows]
        right.barh(names, sizes, left=ends, color=color, height=0.6, label=component.removesuffix(", MB"))
        ends = [a + b for a, b in zip(ends, sizes, strict=True)]
    right.set_title("Memory (MB)")
    right.set_yticks(range(len(names)), [""] * len(names))
    for axes in (left, right):
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return figure


QUICK, FULL = Timed("tf_efficientnet_lite0", 64, steps=2, repeats=5), Timed("resnet50", 227, steps=20, repeats=10)
_SOURCE = "[Thesis], section 3.3"
_SETTING = (
    "{} with random weights, images of noise, batches of "
    f"{BATCH}; proxies are picked from random embeddings. [Thesis]: BN-Inception, RTX 2080 Ti."
)
CCP_COST = CCPCost(
    name="ccp-cost", title="Time and memory of CCP", measures="time and memory per step", source=_SOURCE,
    group="Chance-constrained proxies",
    scales=scales(
        Scale("quick", cost="20 seconds", setting=_SETTING.format("EfficientNet-Lite0 at 64 pixels")),
        Scale("full", cost="2 minutes, with CUDA", setting=_SETTING.format("ResNet-50 at 227 pixels")),
    ),
    claims=(
        *(claim(case) for case in CASES for claim in (_step_claim, _picking_claim, _memory_claim)),
        Claim(f"{CUB}: new subproblems have no significant effect in the long run", _SOURCE, _long_run),
    ),
)  # fmt: skip
