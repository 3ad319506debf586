"""How fast a retrieval is evaluated, and in how much memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from winnow.bench.evaluate_rivals import AGAINST, METRICS, Rival, Task, rivals
from winnow.bench.memory import peak_memory
from winnow.bench.record import Bench, Row
from winnow.bench.timing import measure_all, pick_device
from winnow.errors import WinnowError

_LATENT = 48
_AGREE = 1e-3


@dataclass(frozen=True)
class Case:
    """Sizes of one task.

    Attributes:
        queries: How many.
        width: Dimensions of an embedding.
        per_class: Embeddings of a class, on average.
        gallery: Number of references; 0: the queries themselves.
    """

    queries: int
    width: int
    per_class: int
    gallery: int = 0

    def __str__(self) -> str:
        among = f" in {self.gallery:,}" if self.gallery else ""
        return f"{self.queries:,}{among} x {self.width}, classes of {self.per_class:,}"


def run_evaluate(
    *,
    device: str = "auto",
    count: int = 60502,
    widths: Sequence[int] = (128, 512),
    gallery: int = 0,
    deep: int = 20000,
    repeats: int = 3,
    note: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Time the evaluation of made-up embeddings by winnow and its rivals.

    Every rival first runs once, for its memory and its metrics, which must agree; then they are timed in turns.

    Args:
        device: `auto`, `cpu` or `cuda`.
        count: Number of embeddings, in classes of 5; the default is that of Stanford Online Products.
        widths: Dimensions of an embedding, a case for each.
        gallery: If not 0, a case of `count` queries in a gallery of so many, at the first of the widths.
        deep: If not 0, a case of so many embeddings in 20 classes, at the first of the widths.
        repeats: Runs of every rival.
        note: Is told what is being done.

    Raises:
        ConfigError: if there is no such device.
        WinnowError: if the rivals' metrics do not agree.
    """
    where = pick_device(device)
    competing, notes = rivals(where)
    cases = [Case(count, width, per_class=5) for width in widths]
    if deep:
        cases.append(Case(deep, widths[0], per_class=max(2, deep // 20)))
    if gallery:
        cases.append(Case(count, widths[0], per_class=5, gallery=gallery))
    rows: list[Row] = []
    for case in cases:
        note(f"{case}: {', '.join(competing)}")
        rows += _compare(case, competing, where, repeats)
    return Bench(
        name=f"evaluate-{where.type}",
        title=f"Exact evaluation of a retrieval ({where.type})",
        against=AGAINST if AGAINST in competing else "torch",
        settings={
            "device": where.type,
            "count": count,
            "widths": list(widths),
            "gallery": gallery,
            "deep": deep,
            "repeats": repeats,
        },
        rows=rows,
        notes=notes,
    )


def made_up_task(case: Case, device: torch.device, seed: int = 0) -> Task:
    """Return unit embeddings that are about as hard to search as those of a trained network.

    A class is a centre in a space of few dimensions; its members lie around it, some near and some far, and are turned
    into the space of the embeddings with some noise of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    total = case.gallery or case.queries
    classes = max(1, total // case.per_class)
    centres = torch.randn(classes, _LATENT, generator=generator)
    turn = torch.randn(_LATENT, case.width, generator=generator) / _LATENT**0.5

    def members(number: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(classes, (number,), generator=generator)
        spread = 0.4 + 0.8 * torch.rand(number, 1, generator=generator)
        latent = centres[labels] + spread * torch.randn(number, _LATENT, generator=generator)
        noise = torch.randn(number, case.width, generator=generator)
        return normalize((latent @ turn).add_(noise, alpha=0.2), dim=1).to(device), labels.to(device)

    references = members(total)
    return Task(*members(case.queries), *references) if case.gallery else Task(*references)


def _compare(case: Case, competing: Mapping[str, Rival], device: torch.device, repeats: int) -> list[Row]:
    task = made_up_task(case, device)
    found: dict[str, dict[str, float]] = {}
    peaks: dict[str, int | None] = {}
    for name, rival in competing.items():
        peaks[name] = peak_memory(lambda name=name, rival=rival: found.update({name: rival(task)}), device)  # type: ignore[misc]
    _check_agreement(case, found)
    timings = measure_all(
        {name: partial(rival, task) for name, rival in competing.items()}, device=device, repeats=repeats, warmup=0
    )
    facts = {name: {"MAP@R": metrics["MAP@R"]} for name, metrics in found.items()}
    return [Row(str(case), name, timings[name], peaks[name], facts[name]) for name in competing]


def _check_agreement(case: Case, found: Mapping[str, Mapping[str, float]]) -> None:
    """Raise if rivals judge differently: their times would not compare."""
    for metric in METRICS:
        values = {name: metrics[metric] for name, metrics in found.items()}
        if not max(values.values()) - min(values.values()) <= _AGREE:
            told = ", ".join(f"{name} {value:.5f}" for name, value in values.items())
            raise WinnowError(f"{case}: the rivals do not agree on {metric} ({told}), so their times do not compare")
