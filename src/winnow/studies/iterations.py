"""Cost and error of k iterations of GSP, and of the root that replaces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.functional import clip_norm, gsp_weights, pairwise_distance
from winnow.profiling import measure_all, pick_device
from winnow.report.style import method_colors, new_figure, styled
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
from winnow.studies.scores import Scores
from winnow.studies.settings import scales
from winnow.studies.spec import Claim, Evidence, Measurement, Row, Scale, Study, StudyRequest
from winnow.studies.timing import saved_bytes, time_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT, AUTODIFF, CLOSED, STEP = "scalar root", "autodiff", "closed form", "training step"
STEPS = (5, 25, 50, 100, 200)  # iterations that are timed
MANY = (5, 10, 25, 50, 100, 200, 400, 1000)  # iterations whose error is computed
EPS = (0.5, 5.0, 20.0, 100.0)
FRACTIONS = (0.05, 0.3, 0.7, 0.95)  # mu
SHOWN = (25, 100, 1000)  # iterations whose error is in the table
SHARP = 20.0  # eps at which gradients are compared in addition to the case's own
TIME, SAVED, OF_STEP = "time, ms", "saved for backward, MB", "of a training step, %"

PUBLISHED_K, CONVERGED_K = 100, 50  # iterations in [GSP]; the number after which they converge
PUBLISHED = ((0.5, 0.3), (5.0, 0.3))  # eps and mu in [GSP]
LITTLE = 10.0  # percent of a training step that counts as marginal
CONVERGED = 1.0  # percent of the largest possible weight


def iterated(method: str, k: int) -> str:
    """Return the name of a row."""
    return f"{method}, k {k}"


def error_column(k: int) -> str:
    """Return the column with the error of a weight after k iterations.

    Errors are in percent of the largest possible weight.
    """
    return f"weight error after {k}, %"


# --- Measurement ------------------------------------------------------------------------------------------------------


def cost_rows(case: PoolingCase, device: torch.device, steps: Sequence[int], repeats: int) -> list[Row]:
    """Return time, memory, and error of gradients for every k.

    Time is that of a forward and backward pass; memory is what is saved between them.
    """
    problem = make_problem(case, device)
    solvers: dict[tuple[str, int | None], PoolFunction] = {(ROOT, None): scalar_root}
    solvers |= {(name, k): partial(solver, steps=k) for name, solver in ((AUTODIFF, unrolled), (CLOSED, closed_form))
                for k in steps}  # fmt: skip
    exact = {eps: problem.double().solve(scalar_root, eps)[1] for eps in (case.eps, SHARP)}
    works = {key: partial(problem.solve, solver, case.eps) for key, solver in solvers.items()}
    named = {ROOT if k is None else iterated(name, k): work for (name, k), work in works.items()}
    timings = measure_all(named, device=device, repeats=repeats, warmup=2)
    rows: list[Row] = []
    for (row, timing), ((_, k), solver) in zip(timings.items(), solvers.items(), strict=True):
        saved = saved_bytes(partial(solver, problem.features, problem.prototypes, MU, case.eps))
        errors = {f"gradient error at eps {eps:g}, %": 100 * gradient_error(problem, solver, eps, exact[eps])
                  for eps in exact}  # fmt: skip
        rows.append({"solver": row, "k": k, TIME: 1e3 * timing.median, SAVED: saved / 2**20, **errors})
    return rows


def gradient_error(problem: PoolingProblem, solver: PoolFunction, eps: float, exact: Sequence[Tensor]) -> float:
    """Return the larger relative error of the gradients of features and prototypes."""
    found = problem.solve(solver, eps)[1]
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))


def find_errors(case: PoolingCase, steps: Sequence[int]) -> list[Row]:
    """Return the largest error of a weight after k iterations in float64.

    Errors are in percent of the largest possible weight.
    """
    problem = make_problem(case, torch.device("cpu"))
    features, prototypes = problem.features.detach().double(), problem.prototypes.detach().double()
    costs = pairwise_distance(clip_norm(features), clip_norm(prototypes)).mT
    n = costs.shape[2]
    errors: list[Row] = []
    for eps in EPS:
        for mu in FRACTIONS:
            exact = gsp_weights(costs, mu, eps).weights
            for k in steps:
                weights = (1 / n - iterate(costs, mu, eps, k)[0]) / mu
                error = 100 * n * mu * float((weights - exact).abs().max())
                errors.append({"eps": eps, "mu": mu, "k": k, "error": error})
    return errors


def error_rows(errors: Sequence[Row], shown: Sequence[int]) -> list[Row]:
    """Return a row for each eps and mu, with errors that are not rounded."""
    rows: dict[str, dict[str, Any]] = {}
    for one in errors:
        name = f"iteration, eps {one['eps']:g}, mu {one['mu']:g}"
        row = rows.setdefault(name, {"solver": name, "eps": one["eps"], "mu": one["mu"]})
        if one["k"] in shown:
            row[error_column(one["k"])] = one["error"]
    return list(rows.values())


def rounded(row: Row) -> Row:
    """Return a row with errors of two digits."""
    return {key: float(f"{value:.2g}") if key.startswith("weight error") else value for key, value in row.items()}


@dataclass(frozen=True, kw_only=True)
class Iterations(Study):
    """Timings and errors of one synthetic pooling problem; nothing is trained."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Time the solvers and a training step, and compute the errors."""
        device, scale = pick_device("auto"), request.scale
        case = PoolingCase(scale.pick(quick=8, full=32), (49, 128, 64))
        request.note(f"time and memory: {case} on {device.type}")
        costs = cost_rows(case, device, STEPS, repeats=scale.pick(quick=5, full=20))
        request.note("a training step")
        step = time_step(case.batch, request.quick, device)
        costs = [{**row, OF_STEP: 100 * row[TIME] / step.ms} for row in costs]
        request.note("errors of the iteration")
        errors = find_errors(case, MANY)
        rows = [*costs, {"solver": STEP, TIME: step.ms}, *map(rounded, error_rows(errors, SHOWN))]
        settings = {"case": str(case), "device": device.type, "step": step.of, "k": list(STEPS), "mu": MU,
                    "k of errors": list(MANY), "eps of errors": list(EPS), "mu of errors": list(FRACTIONS)}  # fmt: skip
        return _measurement(rows, errors, settings)

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds."""
        return _measurement(content["rows"], content["errors"], content["settings"])

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw time and memory over k, and the error of a weight over k."""
        return {"": _draw(measured.rows, measured.details["errors"])}


def _measurement(rows: Sequence[Row], errors: Sequence[Row], settings: Mapping[str, Any]) -> Measurement:
    exact = [row for row in rows if "eps" not in row]
    return Measurement(
        rows=rows, exact=[*exact, *error_rows(errors, MANY)], settings=settings, details={"errors": errors}
    )


# --- Claims -----------------------------------------------------------------------------------------------------------


def _growth(s: Scores, method: str) -> tuple[str, float]:
    """Return the times at both ends of k, and their difference in percent of a step."""
    low, high = (s.cell(iterated(method, k), TIME) for k in (STEPS[0], STEPS[-1]))
    return f"{low:.2f} to {high:.2f} ms from k = {STEPS[0]} to {STEPS[-1]}", 100 * (high - low) / s.cell(STEP, TIME)


def _autodiff_grows(s: Scores) -> Evidence:
    ours, growth = _growth(s, AUTODIFF)
    return Evidence(f"{ours}; more than {LITTLE:g}% of a training step by", growth - LITTLE, "% of a step")


def _closed_form_is_flat(s: Scores) -> Evidence:
    ours, growth = _growth(s, CLOSED)
    return Evidence(f"{ours}; less than {LITTLE:g}% of a training step by", LITTLE - growth, "% of a step")


def _little_overhead(s: Scores) -> Evidence:
    time, step = s.cell(iterated(CLOSED, PUBLISHED_K), TIME), s.cell(STEP, TIME)
    ours = f"{time:.2f} of {step:.1f} ms at k = {PUBLISHED_K}; less than {LITTLE:g}% by"
    return Evidence(ours, LITTLE - 100 * time / step, "% of a step")


def _saves_no_iterations(s: Scores) -> Evidence:
    low, high = (s.cell(iterated(CLOSED, k), SAVED) for k in (STEPS[0], STEPS[-1]))
    return Evidence(f"{high / low:.2f} times as much at k = {STEPS[-1]}; below 1.05 by", 1.05 - high / low, "times")


def _converges(s: Scores) -> Evidence:
    cells = [s.cell(f"iteration, eps {eps:g}, mu {mu:g}", error_column(CONVERGED_K)) for eps, mu in PUBLISHED]
    worst = max(cells)
    return Evidence(f"error of {worst:.1g}% at k = {CONVERGED_K}; below {CONVERGED:g}% by", CONVERGED - worst, "%")


# --- Figure -----------------------------------------------------------------------------------------------------------


@styled
def _draw(rows: Sequence[Row], errors: Sequence[Row]) -> Figure:
    figure = new_figure(7.6, 5.2)
    grid = figure.add_gridspec(2, 2)
    for column, key in enumerate((TIME, SAVED)):
        _draw_costs(figure.add_subplot(grid[0, column]), rows, key)
    _draw_errors(figure.add_subplot(grid[1, :]), errors)
    return figure


def _draw_costs(axes: Axes, rows: Sequence[Row], key: str) -> None:
    """Draw a column of the table over k, and the scalar root as a dashed line."""
    by_name = {row["solver"]: row for row in rows}
    colors = method_colors((AUTODIFF, CLOSED, ROOT))
    for method in (AUTODIFF, CLOSED):
        line = {k: by_name[iterated(method, k)][key] for k in STEPS}
        axes.plot(list(line), list(line.values()), "o-", color=colors[method], markersize=3, label=method)
    axes.axhline(by_name[ROOT][key], color=colors[ROOT], linestyle=(0, (4, 2)), label=ROOT)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("iterations k")
    name, unit = key.split(", ")
    axes.set_title(f"{name.capitalize()} ({unit})")
    axes.legend(fontsize=7.5)


def _draw_errors(axes: Axes, errors: Sequence[Row]) -> None:
    """Draw the error of a weight over k: a color per eps, a line style per mu."""
    colors = method_colors(dict.fromkeys(f"eps {row['eps']:g}" for row in errors))
    styles = dict(zip(dict.fromkeys(row["mu"] for row in errors), ("-", "--", "-.", ":"), strict=False))
    for eps, mu in dict.fromkeys((row["eps"], row["mu"]) for row in errors):
        line = {row["k"]: max(row["error"], 1e-13) for row in errors if (row["eps"], row["mu"]) == (eps, mu)}
        axes.plot(list(line), list(line.values()), styles[mu], color=colors[f"eps {eps:g}"], linewidth=1.3)
    handles = [axes.plot([], [], color=color)[0] for color in colors.values()]
    handles += [axes.plot([], [], style, color="black")[0] for style in styles.values()]
    names = [*colors, *(f"mu {mu:g}" for mu in styles)]
    axes.legend(handles, names, fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("iterations k")
    axes.set_title("Largest error of a weight (% of the largest possible weight)")


_SETTING = (
    "Forward and backward pass of GSP alone on synthetic features: 49 features of 128 dimensions, 64 prototypes, "
    "batches of {}. A training step is one of {} with the contrastive loss and average pooling. [Thesis]: training on "
    "CUB-200-2011 with BN-Inception, RTX 2080 Ti."
)
_SOURCE = "[Thesis], Fig. 5.9"
ITERATIONS = Iterations(
    name="iterations", title="Cost and error of the iterations of GSP", measures="cost and error of k iterations",
    source=_SOURCE, group="Generalized Sum Pooling",
    scales=scales(
        Scale("quick", cost="seconds", setting=_SETTING.format(8, "EfficientNet-Lite0 at 224 pixels")),
        Scale("full", cost="3 minutes, 1 with CUDA", setting=_SETTING.format(32, "ResNet-50 at 227 pixels")),
    ),
    claims=(
        Claim("Autodiff costs substantially more time as k grows", _SOURCE, _autodiff_grows),
        Claim("With the closed-form gradient k has a marginal effect on time", _SOURCE, _closed_form_is_flat),
        Claim("With the closed-form gradient GSP is a small overhead", _SOURCE, _little_overhead),
        Claim("The closed-form gradient saves no iterations for the backward pass", _SOURCE, _saves_no_iterations),
        Claim(f"The iteration converges for k > {CONVERGED_K}", _SOURCE, _converges),
    ),
)  # fmt: skip
