"""Time, memory, and error of GSP, average pooling, the iteration, and POT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import cycle

import torch
from torch import Tensor

from benchmarks.record import Benchmark, Measurement
from winnow.errors import ConfigError
from winnow.functional import clip_norm, pairwise_distance
from winnow.functional.closed_form import unfused_gsp
from winnow.profiling import (
    Timing,
    Work,
    kernel_timings,
    measure,
    measure_all,
    measure_graph,
    peak_memory,
    pick_device,
)
from winnow.studies.iterative_gsp import (
    MU,
    STEPS,
    Pooled,
    PoolFunction,
    PoolingCase,
    PoolingProblem,
    Size,
    closed_form,
    distances,
    make_problem,
    scalar_root,
    unrolled,
)

REFERENCE = "winnow"
ITERATIONS = {"100 steps, autodiff": unrolled, "100 steps, closed form": closed_form}

_SIZES: tuple[Size, ...] = ((49, 128, 64), (64, 512, 128), (196, 128, 64), (256, 128, 128))
_BATCHES = (32, 128, 512)
_ROTATED_BYTES = 128 * 2**20  # features and gradients that runs rotate among: more than the cache of a GPU
_COPIED_BYTES = 2**30  # of the copy that measures the bandwidth of a GPU
_IN_PYTORCH = "winnow, PyTorch form"


def run_pooling(
    *,
    device: str = "auto",
    batches: Sequence[int] = (),
    sizes: Sequence[Size] = (),
    repeats: int = 15,
    note: Callable[[str], None] = lambda text: None,
) -> Benchmark:
    """Time poolings forward and backward, from pooled vectors and attributes.

    On a GPU also in bfloat16, replayed as a CUDA graph, and next to the memory floor: the time to read the features
    twice and write their gradient once, at the bandwidth of a copy in the same run.

    Args:
        device: auto, cpu, or cuda.
        batches: Images per batch; by default 32, 128, and 512 on a GPU and 32 on the CPU.
        sizes: Features, dimension, and prototypes; by default four on a GPU and the first of them on the CPU.
        repeats: Timed runs of every method.
        note: Called with progress messages.

    Returns:
        Seconds of one forward and backward; errors are relative, to the PyTorch form in float64.

    Raises:
        ConfigError: if the device does not exist.
    """
    place = pick_device(device)
    cuda = place.type == "cuda"
    batches, sizes = batches or (_BATCHES if cuda else _BATCHES[:1]), sizes or (_SIZES if cuda else _SIZES[:1])
    dtypes = (torch.float32, torch.bfloat16) if cuda else (torch.float32,)
    cases = [PoolingCase(batch, size, dtype) for dtype in dtypes for size in sizes for batch in batches]
    cases += [PoolingCase(batches[-1], sizes[0], dtype, eps=20.0, near=True) for dtype in dtypes]
    notes = ["Runs rotate among inputs that together exceed the cache of the GPU."] * cuda
    if not has_pot():
        notes.append("POT is not installed: skipped. Run pip install '.[test]'.")
    copy = _time_copy(repeats) if cuda else None
    # The C library returns small heaps to the system again and again until it has seen a larger tensor come and go,
    # as one does in training; its page faults would be timed with every method.
    torch.empty(30 * 2**20, dtype=torch.uint8)
    rows: list[Measurement] = []
    for case in cases:
        note(str(case))
        rows += _measure_case(case, place, repeats, with_pot=has_pot() and case == cases[0], copy=copy)
    return Benchmark(
        name=f"pooling-{place.type}",
        title=f"Pooling, forward and backward ({place.type})",
        reference=REFERENCE,
        settings={
            "device": place.type,
            "batches": list(batches),
            "sizes": [list(size) for size in sizes],
            "mu": MU,
            "repeats": repeats,
        },
        rows=rows,
        notes=notes,
    )


def parse_size(text: str) -> Size:
    """Return the size that is written as NxDxM.

    Raises:
        ConfigError: if it has another form.
    """
    words = text.split("x")
    if len(words) != 3 or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"size: expected FEATURESxDIMxPROTOTYPES, such as 49x128x64, got '{text}'.")
    n, d, m = map(int, words)
    return n, d, m


def average(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pooled:
    """Mean of the features."""
    return Pooled(features.mean(dim=1), None)


def gsp_in_pytorch(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pooled:
    """GSP in its PyTorch form."""
    vector, _, attributes = unfused_gsp(features, prototypes, mu, eps, None)
    return Pooled(vector, attributes)


def sums_alone(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pooled:
    r"""Lower bound of any pooling by prototypes.

    It computes distances, a log-sum-exp, and a weighted sum.

    $$g = \sum_j \operatorname{softmax}_j(l)\, f_j, \qquad l_j = \log \sum_i e^{-\varepsilon c_{ij}}$$
    """
    features = features.float()
    costs = pairwise_distance(clip_norm(features), clip_norm(prototypes))
    weights = (-eps * costs).logsumexp(dim=2).softmax(dim=1)
    return Pooled((weights[:, None] @ features).squeeze(1), None)


def partial_transport(features: Tensor, prototypes: Tensor, mu: float, eps: float) -> Pooled:
    """Entropic partial transport of POT, image by image.

    Each prototype may receive all of the mass.

    Its entropy covers the plan only, not the mass that stays, so its weights are similar but not
    equal. It stops after as many steps as the iteration of [GSP].
    """
    import ot  # type: ignore[import-untyped]

    features = features.float()
    costs = distances(features, prototypes)
    n, m = costs.shape[2], costs.shape[1]
    supply, room = costs.new_full((n,), 1 / n), costs.new_full((m,), mu)
    solve = ot.partial.entropic_partial_wasserstein
    plans = torch.stack([solve(supply, room, one.mT, 1 / eps, m=mu, numItermax=STEPS) for one in costs])
    return Pooled((plans.sum(dim=2)[:, None] @ features).squeeze(1) / mu, plans.sum(dim=1) / mu)


def has_pot() -> bool:
    """Return whether POT is installed."""
    return find_spec("ot") is not None


def _methods(device: torch.device) -> dict[str, PoolFunction]:
    """Return the methods that pool forward and backward, by name."""
    methods: dict[str, PoolFunction] = {REFERENCE: scalar_root, "average pooling": average}
    if device.type == "cuda":
        methods[_IN_PYTORCH] = gsp_in_pytorch
    else:
        methods["costs, log-sum-exp, weighted sum alone"] = sums_alone
    return methods | ITERATIONS


def _measure_case(
    case: PoolingCase, device: torch.device, repeats: int, *, with_pot: bool, copy: Timing | None
) -> list[Measurement]:
    """Measure one case; `copy` is the timing of a copy on a GPU."""
    first = make_problem(case, device)
    count = max(2, -(-_ROTATED_BYTES // (2 * first.nbytes))) if device.type == "cuda" else 1
    problems = [first, *(make_problem(case, device, seed) for seed in range(1, min(count, 4)))]
    problems += [problems[number % len(problems)].copy() for number in range(len(problems), count)]
    methods = _methods(device)
    facts = _errors(first, methods, case.eps)
    peaks: dict[str, int | None] = dict.fromkeys(methods)
    if device.type == "cuda":
        for name, method in methods.items():
            peaks[name] = peak = peak_memory(partial(first.solve, method, case.eps), device)
            assert peak is not None, "memory of a GPU can be measured"
            facts[name]["memory ratio"] = (first.nbytes + peak) / (2 * first.nbytes)
    timings = _time_methods(methods, problems, case.eps, device, repeats)
    rows = [Measurement(str(case), name, timings[name], peaks[name], facts[name]) for name in methods]
    if copy is not None:
        rows += _replayed(case, problems, methods, repeats, copy)
    if with_pot:
        rows.append(_time_pot(case, first, device))
    return rows


def _time_methods(
    methods: Mapping[str, PoolFunction],
    problems: Sequence[PoolingProblem],
    eps: float,
    device: torch.device,
    repeats: int,
) -> dict[str, Timing]:
    """Time methods round-robin, with several calls per run.

    On a GPU long methods are called once.
    """
    long = (*ITERATIONS, _IN_PYTORCH) if device.type == "cuda" else ()
    inner = {name: 1 if name in long else 10 for name in methods}
    queue = cycle(problems)

    def calls(name: str, method: PoolFunction) -> Work:
        def work() -> None:
            for _ in range(inner[name]):
                next(queue).solve(method, eps)

        return work

    works = {name: calls(name, method) for name, method in methods.items()}
    found = measure_all(works, device=device, repeats=repeats, warmup=2)
    return {name: timing.divided_by(inner[name]) for name, timing in found.items()}


def _errors(
    problem: PoolingProblem, methods: Mapping[str, PoolFunction], eps: float
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Return the largest relative error of outputs and gradients of each GSP.

    The reference is float64.
    """
    exact = problem.double().solve(gsp_in_pytorch, eps)
    found: dict[str, dict[str, float]] = {}
    for name, method in methods.items():
        if method in (average, sums_alone):
            found[name] = {}
            continue
        values, gradients = problem.solve(method, eps)
        found[name] = {"error": _largest(values, exact[0]), "gradient error": _largest(gradients, exact[1])}
    return found


def _largest(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    return max(float(((one - other).norm() / other.norm()).detach()) for one, other in zip(found, exact, strict=True))


def _replayed(
    case: PoolingCase,
    problems: Sequence[PoolingProblem],
    methods: Mapping[str, PoolFunction],
    repeats: int,
    copy: Timing,
) -> Iterator[Measurement]:
    """Yield measurements of replays, of each kernel, and of the memory floor."""
    features = problems[0].features
    floor = copy.divided_by(2 * _COPIED_BYTES / (3 * features.nbytes))
    for name in (REFERENCE, "average pooling"):
        timing = _time_graph(methods[name], problems, case.eps, repeats)
        yield Measurement(str(case), f"{name}, replayed", timing, facts={"over floor": timing.median / floor.median})
    queue = cycle(problems)
    kernels = kernel_timings(
        lambda: next(queue).solve(methods[REFERENCE], case.eps),
        repeats=min(repeats, 3),
        within=lambda name: name.endswith("_kernel"),
    )
    for name, timing in kernels.items():
        yield Measurement(str(case), f"winnow, {name.removesuffix('_kernel').replace('_', ' ')} kernel", timing)
    yield Measurement(str(case), "memory floor", floor)


def _time_graph(method: PoolFunction, problems: Sequence[PoolingProblem], eps: float, repeats: int) -> Timing:
    """Time one replay.

    The graph has all problems, whose gradients stay alive, so no cache holds them.
    """
    alive: list[object] = []

    def work() -> None:
        alive.clear()
        alive.extend(problem.solve(method, eps) for problem in problems)

    timing = measure_graph(work, repeats=repeats, warmup=1, replays=max(1, 16 // len(problems)))
    return timing.divided_by(len(problems))


def _time_copy(repeats: int) -> Timing:
    """Time a large copy within the memory of a GPU."""
    source, target = torch.empty(2, _COPIED_BYTES, dtype=torch.uint8, device="cuda")
    return measure(lambda: target.copy_(source), device=source.device, repeats=repeats)


def _time_pot(case: PoolingCase, problem: PoolingProblem, device: torch.device) -> Measurement:
    """Time POT, which has no batches and takes long: forward only, two runs."""

    def work(images: int) -> None:
        partial_transport(problem.features[:images], problem.prototypes, MU, case.eps)

    with torch.no_grad():
        work(1)
        timing = measure(partial(work, case.batch), device=device, repeats=2, warmup=0)
    return Measurement(str(case), "POT, forward only", timing)
