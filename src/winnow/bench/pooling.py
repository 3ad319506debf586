"""What pooling costs: GSP forward and backward against average pooling, the documents' iteration and POT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from winnow.bench import pooling_rivals as ways
from winnow.bench.memory import peak_memory
from winnow.bench.pooling_rivals import Rival
from winnow.bench.pooling_task import MU, Case, Size, Task, made_up_task
from winnow.bench.profile import kernel_timings
from winnow.bench.record import Bench, Row
from winnow.bench.timing import Timing, Work, measure, measure_all, measure_graph, pick_device

AGAINST = "winnow"

_SIZES: tuple[Size, ...] = ((49, 128, 64), (64, 512, 128), (196, 128, 64), (256, 128, 128))
_BATCHES = (32, 128, 512)
_ROTATE = 128 * 2**20  # bytes of features and gradients among which runs rotate: more than a GPU's cache
_COPY = 2**30  # bytes of the copy that tells a GPU's bandwidth
_STEPS = ("100 steps, autodiff", "100 steps, closed form")
_TORCH = "winnow, PyTorch form"


def run_pooling(
    *,
    device: str = "auto",
    batches: Sequence[int] = (),
    sizes: Sequence[Size] = (),
    repeats: int = 15,
    note: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Time poolings forward and backward, with gradients for pooled vectors and attributes.

    On a GPU also in bfloat16, replayed as a CUDA graph, and beside the memory floor: the time in which the features
    could be read twice and their gradient be written once, at the bandwidth of a copy in the same run.

    Args:
        device: auto, cpu or cuda.
        batches: Images at once; by default 32, 128 and 512 on a GPU and 32 on the CPU.
        sizes: Features, width and prototypes; by default four on a GPU and the first of them on the CPU.
        repeats: Timed runs of every rival.
        note: Told what is being measured.

    Returns:
        Seconds of one forward and backward; errors are relative, to the PyTorch form in float64.

    Raises:
        ConfigError: if there is no such device.
    """
    place = pick_device(device)
    cuda = place.type == "cuda"
    batches, sizes = batches or (_BATCHES if cuda else _BATCHES[:1]), sizes or (_SIZES if cuda else _SIZES[:1])
    dtypes = (torch.float32, torch.bfloat16) if cuda else (torch.float32,)
    cases = [Case(batch, size, dtype) for dtype in dtypes for size in sizes for batch in batches]
    cases += [Case(batches[-1], sizes[0], dtype, eps=20.0, near=True) for dtype in dtypes]
    notes = ["Every run takes other inputs, in turn, of so many bytes that a GPU's cache does not hold them."] * cuda
    if not ways.has_pot():
        notes.append("POT is not installed: left out (pip install winnow-dml[test])")
    copy = _copy_timing(repeats) if cuda else None
    # The C library gives small heaps back to the system again and again until it has seen a larger tensor come and go,
    # as one does in training; its page faults would be timed with every rival.
    torch.empty(30 * 2**20, dtype=torch.uint8)
    rows: list[Row] = []
    for case in cases:
        note(str(case))
        with_pot = ways.has_pot() and case == cases[0]
        rows += _compare(case, place, repeats, with_pot=with_pot, copy=copy)
    return Bench(
        name=f"pooling-{place.type}",
        title=f"Pooling, forward and backward ({place.type})",
        against=AGAINST,
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


def _rivals(device: torch.device) -> dict[str, Rival]:
    """Return name to rival, those that pool forward and backward."""
    found: dict[str, Rival] = {AGAINST: ways.winnow, "average pooling": ways.average}
    if device.type == "cuda":
        found[_TORCH] = ways.winnow_in_torch
    else:
        found["costs, log-sum-exp, weighted sum alone"] = ways.sums_alone
    return found | dict(zip(_STEPS, (ways.unrolled, ways.closed_form), strict=True))


def _compare(case: Case, device: torch.device, repeats: int, *, with_pot: bool, copy: Timing | None) -> list[Row]:
    """Measure one case; `copy` is the timing of a copy on a GPU."""
    first = made_up_task(case, device)
    count = max(2, -(-_ROTATE // (2 * first.bytes))) if device.type == "cuda" else 1
    tasks = [first, *(made_up_task(case, device, seed) for seed in range(1, min(count, 4)))]
    tasks += [tasks[place % len(tasks)].elsewhere() for place in range(len(tasks), count)]
    rivals = _rivals(device)
    facts = _errors(first, rivals, case.eps)
    peaks: dict[str, int | None] = dict.fromkeys(rivals)
    if device.type == "cuda":
        for name, rival in rivals.items():
            peaks[name] = peak = peak_memory(partial(first.solve, rival, case.eps), device)
            assert peak is not None, "a GPU's memory can be measured"
            facts[name]["memory ratio"] = (first.bytes + peak) / (2 * first.bytes)
    timings = _timings(rivals, tasks, case.eps, device, repeats)
    rows = [Row(str(case), name, timings[name], peaks[name], facts[name]) for name in rivals]
    if copy is not None:
        rows += _replayed(case, tasks, rivals, repeats, copy)
    if with_pot:
        rows.append(_pot_row(case, first, device))
    return rows


def _timings(
    rivals: Mapping[str, Rival], tasks: Sequence[Task], eps: float, device: torch.device, repeats: int
) -> dict[str, Timing]:
    """Time rivals in turns, several calls in a run; on a GPU those that take long are called once."""
    long = (*_STEPS, _TORCH) if device.type == "cuda" else ()
    inner = {name: 1 if name in long else 10 for name in rivals}
    queue = cycle(tasks)

    def calls(name: str, rival: Rival) -> Work:
        def work() -> None:
            for _ in range(inner[name]):
                next(queue).solve(rival, eps)

        return work

    found = measure_all(
        {name: calls(name, rival) for name, rival in rivals.items()}, device=device, repeats=repeats, warmup=2
    )
    return {name: Timing(tuple(one / inner[name] for one in timing.seconds)) for name, timing in found.items()}


def _errors(task: Task, rivals: Mapping[str, Rival], eps: float) -> dict[str, dict[str, float]]:
    """Return how far each GSP is off that in float64: the worst of its outputs, and the worst of its gradients."""
    exact = task.wide().solve(ways.winnow_in_torch, eps)
    found: dict[str, dict[str, float]] = {}
    for name, rival in rivals.items():
        if rival in (ways.average, ways.sums_alone):
            found[name] = {}
            continue
        values, gradients = task.solve(rival, eps)
        found[name] = {"error": _worst(values, exact[0]), "gradient error": _worst(gradients, exact[1])}
    return found


def _worst(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    return max(float(((one - other).norm() / other.norm()).detach()) for one, other in zip(found, exact, strict=True))


def _replayed(
    case: Case, tasks: Sequence[Task], rivals: Mapping[str, Rival], repeats: int, copy: Timing
) -> Iterator[Row]:
    """Yield rows of what is replayed as a CUDA graph, of its kernels one by one, and of the memory floor."""
    features = tasks[0].features
    floor = Timing(tuple(seconds * 3 * features.nbytes / (2 * _COPY) for seconds in copy.seconds))
    for name in (AGAINST, "average pooling"):
        timing = _graph_timing(rivals[name], tasks, case.eps, repeats)
        yield Row(str(case), f"{name}, replayed", timing, facts={"over floor": timing.median / floor.median})
    queue = cycle(tasks)
    kernels = kernel_timings(
        lambda: next(queue).solve(rivals[AGAINST], case.eps),
        repeats=min(repeats, 3),
        within=lambda name: name.endswith("_kernel"),
    )
    for name, timing in kernels.items():
        yield Row(str(case), f"its {name.removesuffix('_kernel').replace('_', ' ')} kernel alone", timing)
    yield Row(str(case), "memory floor", floor)


def _graph_timing(rival: Rival, tasks: Sequence[Task], eps: float, repeats: int) -> Timing:
    """Time one replay; all tasks are in the graph, and each keeps its gradients, so that no cache holds them."""
    kept: list[object] = []

    def work() -> None:
        kept.clear()
        kept.extend(task.solve(rival, eps) for task in tasks)

    timing = measure_graph(work, repeats=repeats, warmup=1, replays=max(1, 16 // len(tasks)))
    return Timing(tuple(seconds / len(tasks) for seconds in timing.seconds))


def _copy_timing(repeats: int) -> Timing:
    """Time a large copy within a GPU's memory."""
    source, target = torch.empty(2, _COPY, dtype=torch.uint8, device="cuda")
    return measure(lambda: target.copy_(source), device=source.device, repeats=repeats)


def _pot_row(case: Case, task: Task, device: torch.device) -> Row:
    """Time POT, which has no batches and takes long: forward only, and few runs."""

    def work(images: int) -> None:
        ways.partial_transport(task.features[:images], task.prototypes, MU, case.eps)

    with torch.no_grad():
        work(1)
        timing = measure(partial(work, case.batch), device=device, repeats=2, warmup=0)
    return Row(str(case), "POT, forward only", timing)
