"""What the documents' k iterations cost and how far they are from the root that ends them all (Fig. 5.9)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from winnow.functional import clip_norm, gsp_weights, pairwise_distance
from winnow.profiling import measure_all, pick_device
from winnow.studies.base import Findings, Task
from winnow.studies.iterations_report import STEP, TIME, draw, told
from winnow.studies.iterative_gsp import (
    MU,
    PoolFunction,
    PoolingCase,
    PoolingProblem,
    closed_form,
    iterate,
    make_problem,
    scalar_root,
    unrolled,
)
from winnow.studies.timing import saved_bytes, time_step

ROOT, AUTODIFF, CLOSED = "scalar root", "autodiff", "closed form"
STEPS = (5, 25, 50, 100, 200)
MANY = (5, 10, 25, 50, 100, 200, 400, 1000)
EPS = (0.5, 5.0, 20.0, 100.0)
SHARES = (0.05, 0.3, 0.7, 0.95)
SHOWN = (25, 100, 1000)
SHARP = 20.0


def study(task: Task) -> Findings:
    """Cost, memory and error of k iterations by autodiff and by closed form, and of the scalar root (Fig. 5.9).

    Cost: seconds; in full 1 minute on a GPU, 3 without one.
    """
    device = pick_device("auto")
    case = PoolingCase(8 if task.small else 32, (49, 128, 64))
    task.note(f"time and memory: {case} on {device.type}")
    rows = cost_rows(case, device, STEPS, repeats=5 if task.small else 20)
    task.note("a whole training step")
    step = time_step(case.batch, task.small, device)
    rows = [{**row, "of a step, %": 100 * row[TIME] / step.ms} for row in rows]
    task.note("errors against the root")
    errors = find_errors(case, MANY)
    settings = {"small": task.small, "case": str(case), "device": device.type, "step": step.of, "k": list(STEPS),
                "mu": MU, "k of errors": list(MANY), "eps of errors": list(EPS),
                "mu of errors": list(SHARES)}  # fmt: skip
    return Findings(
        title="Iterations and the root",
        text=told(rows, errors, device.type, step),
        rows=[*rows, {"way": STEP, TIME: step.ms}, *error_table(errors)],
        figure=draw(rows, errors),
        settings=settings,
        details={"errors": errors},
    )


def cost_rows(case: PoolingCase, device: torch.device, steps: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Return time of a forward and backward, bytes kept in between, and the error of gradients, for every k."""
    problem = make_problem(case, device)
    ways: dict[tuple[str, int | None], PoolFunction] = {(ROOT, None): scalar_root}
    ways |= {(name, k): partial(rival, steps=k) for name, rival in ((AUTODIFF, unrolled), (CLOSED, closed_form))
             for k in steps}  # fmt: skip
    exact = {eps: problem.double().solve(scalar_root, eps)[1] for eps in (case.eps, SHARP)}
    works = {f"{name} {k}": partial(problem.solve, rival, case.eps) for (name, k), rival in ways.items()}
    timings = measure_all(works, device=device, repeats=repeats, warmup=2)
    rows: list[dict[str, Any]] = []
    for (name, k), rival in ways.items():
        kept = saved_bytes(lambda rival=rival: rival(problem.features, problem.prototypes, MU, case.eps))  # type: ignore[misc]
        errors = {f"gradient error at eps {eps:g}, %": 100 * gradient_error(problem, rival, eps, exact[eps])
                  for eps in exact}  # fmt: skip
        time = timings[f"{name} {k}"].median
        rows.append({"way": name, "k": k, TIME: 1e3 * time, "kept for backward, MB": kept / 2**20, **errors})
    return rows


def gradient_error(problem: PoolingProblem, rival: PoolFunction, eps: float, exact: Sequence[Tensor]) -> float:
    """Return how far the worse of the gradients, of features and of prototypes, is from the exact one, relatively."""
    found = problem.solve(rival, eps)[1]
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))


def find_errors(case: PoolingCase, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return the worst error of a weight after k iterations in float64, in percent of the largest there can be."""
    problem = make_problem(case, torch.device("cpu"))
    features, prototypes = problem.features.detach().double(), problem.prototypes.detach().double()
    costs = pairwise_distance(clip_norm(features), clip_norm(prototypes)).mT
    n = costs.shape[2]
    errors = []
    for eps in EPS:
        for mu in SHARES:
            exact = gsp_weights(costs, mu, eps).weights
            for k in steps:
                weights = (1 / n - iterate(costs, mu, eps, k)[0]) / mu
                error = 100 * n * mu * float((weights - exact).abs().max())
                errors.append({"eps": eps, "mu": mu, "k": k, "error": error})
    return errors


def error_table(errors: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each eps and mu, with the errors after some numbers of steps."""
    rows: dict[tuple[float, float], dict[str, Any]] = {}
    for one in errors:
        row = rows.setdefault((one["eps"], one["mu"]), {"way": "iteration", "eps": one["eps"], "mu": one["mu"]})
        if one["k"] in SHOWN:
            row[f"weight off after {one['k']}, %"] = float(f"{one['error']:.2g}")
    return list(rows.values())
