"""Geometry of test classes after the plain loss and after each problem of CCP."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.errors import MissingExtraError
from winnow.evaluation import retrieval_metrics
from winnow.functional import greedy_k_center, pairwise_distance
from winnow.report.style import method_colors, new_figure, styled
from winnow.studies.artifacts import StoredRun, keep_run, solve_problems
from winnow.studies.runner import plan_grid
from winnow.studies.scores import Scores, mean_rows
from winnow.studies.settings import C2, CUB_CCP, SINGLE_EMOJI, ccp, scales
from winnow.studies.spec import Claim, Evidence, GridStudy, Measurement, Row, Scale, StudyRequest, Variant
from winnow.training import Callback, RunConfig, Trainer
from winnow.training.build import build_setup, init_objective, load_splits, resolve_config
from winnow.training.engine.precision import make_fabric
from winnow.training.evaluation import embed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN, MANY = "C2", "C2 + CCP"
RADIUS, APART = "covering radius", "inter-class distance"
SHOWN = 20  # classes in the figure
THIRD = 3  # last problem of the published figure

# --- Measures ---------------------------------------------------------------------------------------------------------


def radii(points: Tensor) -> Tensor:
    r"""Return the covering radii of n points by 1, 2, ..., n of them: $\delta_k = \max_i \min_{c \le k} |x_i - x_c|$.

    The first point is the one whose farthest point is nearest, the others follow by greedy k-center.
    """
    distances = pairwise_distance(points, points)
    distances.fill_diagonal_(0.0)
    first = distances.amax(dim=1).argmin()[None]
    if len(points) == 1:
        return distances[0]
    order = torch.cat([first, greedy_k_center(points, len(points) - 1, points[first])])
    return distances[order].cummin(dim=0).values.amax(dim=1)


def geometry(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the mean covering radius of the classes, and the mean distance of images of different classes."""
    embeddings = embeddings.double()
    members = [embeddings[labels == label] for label in torch.unique(labels)]
    within = sum(pairwise_distance(own, own).sum() for own in members)
    between = pairwise_distance(embeddings, embeddings).sum() - within
    pairs = len(labels) ** 2 - sum(len(own) ** 2 for own in members)
    radius = torch.stack([radii(own).mean() for own in members]).mean()
    return {RADIUS: float(radius), APART: float(between / max(pairs, 1))}


def radius_curve(embeddings: Tensor, labels: Tensor) -> list[float]:
    """Return the mean radius of the classes around 1, 2, ... images, up to the size of the smallest class."""
    each = [radii(embeddings[labels == label].double()) for label in torch.unique(labels)]
    most = min(map(len, each))
    curve: list[float] = torch.stack([one[:most] for one in each]).mean(dim=0).tolist()
    return curve


def solved(request: StudyRequest, name: str, config: RunConfig) -> StoredRun | None:
    """Train a run, or read its result: a row per problem, and embeddings of some classes.

    Raises:
        ConfigError: If the stored run has other settings.
    """

    def train() -> StoredRun:
        splits = load_splits(config, request.cache)
        own = resolve_config(config, splits.train)
        setup = build_setup(own, splits, Callback(), request.cache)
        setup.embedder.to(make_fabric(own).device)
        trainer = Trainer(own, init_objective(setup), setup.train, setup.val)
        objective, test = trainer.objective, setup.test
        assert test is not None, "a study has test classes"
        problems = solve_problems(trainer)
        records = [] if trainer.ccp_solver is None else trainer.ccp_solver.records()
        records = records or [{"steps": trainer.state.step, "best": trainer.state.best}]
        rows: list[dict[str, Any]] = []
        curves: list[list[float]] = []
        tensors: dict[str, Tensor] = {}
        labels = torch.from_numpy(test.labels)
        for problem, record in zip(problems, records, strict=True):
            if not problem.weights:
                continue  # the run ended before the first validation of the problem
            objective.load_state_dict(problem.weights)
            embeddings = objective.loss.normalizer(embed(objective.model, test, batch=own.train.eval_batch_size)).cpu()
            score = 100 * retrieval_metrics(embeddings, test.labels)["MAP@R"]
            tensors[f"{len(rows)}.embeddings"] = embeddings[labels < SHOWN]
            measured = geometry(embeddings, labels)
            rows.append({"steps": record["steps"], "validation MAP@R": round(100 * record["best"], 2),
                         "MAP@R": round(score, 2), **{key: round(value, 4) for key, value in measured.items()},
                         "radius / distance": round(measured[RADIUS] / measured[APART], 4)})  # fmt: skip
            curves.append(radius_curve(embeddings, labels))
        request.note(f"{name}, seed {config.seed}: MAP@R {rows[-1]['MAP@R']:.2f} after {len(rows)} problems")
        return StoredRun({"rows": rows, "curves": curves}, tensors | {"labels": labels[labels < SHOWN]})

    settings = {"config": config.model_dump(mode="json")}
    return keep_run(request, f"{name.lower().replace(' + ', '-')}-seed{config.seed}", settings, train)


# --- Claims -----------------------------------------------------------------------------------------------------------

MEASURES = {"MAP@R": (1, 1, "points"), RADIUS: (-1, 100, "percent"), APART: (1, 100, "percent")}
"""Published direction of each measure, its factor, and its unit; the radius of the unit sphere is 100%."""
MOMENTS = {
    "through the problems": (("first problem", f"{MANY}, first"), ("third", f"{MANY}, third")),
    "compared with C2": (("C2", f"{PLAIN}, best"), ("CCP", f"{MANY}, best")),
}


def summarize(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one seed that claims read: first and third (or last) problem, and the best validation."""
    found: list[Row] = []
    for method in (PLAIN, MANY):
        own = [row for row in rows if row["method"] == method]
        moments = {"first": own[0], "third": own[min(THIRD, len(own)) - 1]} if len(own) > 1 else {}
        if own:
            moments["best"] = max(own, key=lambda row: row["validation MAP@R"])
        found += [{"row": f"{method}, {moment}", **row} for moment, row in moments.items()]
    return found


def _changes(column: str, moments: Sequence[tuple[str, str]]) -> Callable[[Scores], Evidence]:
    sign, factor, unit = MEASURES[column]

    def check(s: Scores) -> Evidence:
        before, after = (factor * s.cell(row, column) for _, row in moments)
        ours = ", ".join(f"{value:.2f} ({name})" for value, (name, _) in zip((before, after), moments, strict=True))
        return Evidence(ours, sign * (after - before), unit)

    return check


def _claims() -> Iterator[Claim]:
    for when, moments in MOMENTS.items():
        for column, (sign, _, _) in MEASURES.items():
            verb = "increases" if sign > 0 else "decreases"
            yield Claim(f"{column[0].upper()}{column[1:]} {verb} {when}", "[Thesis], Fig. 3.3",
                        _changes(column, moments))  # fmt: skip


# --- Study ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """Embeddings of some test classes after a problem."""

    name: str
    embeddings: Tensor  # (N, d)
    labels: Tensor  # (N,)
    row: Row
    curve: Sequence[float]  # mean radius of the classes around 1, 2, ... images


@dataclass(frozen=True, kw_only=True)
class CCPGeometry(GridStudy):
    """Grid whose runs are solved problem by problem."""

    @property
    def takes_overrides(self) -> bool:
        """Runs are stored in a form of their own."""
        return False

    def measure(self, request: StudyRequest) -> Measurement:
        """Train the missing runs, and measure every problem.

        Raises:
            MissingExtraError: If scikit-learn, which draws the figure, is not installed.
        """
        if importlib.util.find_spec("sklearn") is None:
            raise MissingExtraError("scikit-learn", "studies", "winnow study ccp-geometry")
        runs: dict[tuple[str, int], StoredRun] = {}
        missing: dict[str, list[int]] = {}
        for variant, seed, planned in plan_grid(self, request):
            run = solved(request, variant.name, planned.config)
            if run is None:
                missing.setdefault(variant.name, []).append(seed)
            else:
                runs[variant.name, seed] = run
        rows = [
            {"method": method, "seed": seed, "problem": number if method == MANY else None, **row}
            for (method, seed), run in runs.items() for number, row in enumerate(run.numbers["rows"], 1)
        ]  # fmt: skip
        settings = {"words": request.scale.base.to_args(), "seeds": list(request.scale.seeds)}
        first = {method: runs[method, seed] for method, seed in reversed(runs)}  # of the first seed
        planned_runs = len(runs) + sum(map(len, missing.values()))
        return self.measurement(rows, settings, missing, planned_runs, {"moments": moments_of(first)})

    def measurement(
        self, rows: Sequence[Row], settings: Mapping[str, Any], missing: Mapping[str, Sequence[int]], planned: int,
        artifacts: Mapping[str, Any],
    ) -> Measurement:  # fmt: skip
        """Return the measurement with the rows that claims read."""
        seeds = dict.fromkeys(row["seed"] for row in rows)
        by_seed = {seed: summarize([row for row in rows if row["seed"] == seed]) for seed in seeds}
        return Measurement(
            rows=rows, exact=mean_rows(list(by_seed.values())), by_seed=by_seed, missing=missing, planned=planned,
            settings=settings, artifacts=artifacts,
        )  # fmt: skip

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds; embeddings are missing."""
        return self.measurement(content["rows"], content["settings"], content.get("missing", {}), 0, {})

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the embeddings by t-SNE; nothing where they are missing."""
        moments: Sequence[Moment] = measured.artifacts.get("moments", ())
        return {"": draw(moments)} if moments else {}


def moments_of(runs: Mapping[str, StoredRun]) -> list[Moment]:
    """Return what is drawn of one run of each variant: C2, and CCP after the first three problems and the last."""
    found: list[Moment] = []
    for method in (PLAIN, MANY):
        if method not in runs:
            continue
        numbers, tensors = runs[method].numbers, runs[method].tensors
        last = len(numbers["rows"]) - 1
        for position in sorted({0, 1, 2, last} & set(range(last + 1))):
            name = PLAIN if method == PLAIN else f"CCP, problem {position + 1}"
            found.append(Moment(name, tensors[f"{position}.embeddings"], tensors["labels"], numbers["rows"][position],
                                numbers["curves"][position]))  # fmt: skip
    return found


def _variants(scale: Scale) -> Iterator[Variant]:
    yield Variant(PLAIN, C2[scale.name])
    yield Variant(MANY, C2[scale.name] | ccp())


_DETAILS = (
    "C2; test classes at the best validation of each problem. The covering radius of a class is the mean over k of its "
    "radius around k of its images"
)
_SOURCE = "[Thesis]: BN-Inception, validation classes, embeddings scaled into the unit ball"
CCP_GEOMETRY = CCPGeometry(
    name="ccp-geometry", title="Geometry of test classes through the problems of CCP",
    measures="t-SNE and covering radii", source="[Thesis], Fig. 3.3", group="Chance-constrained proxies",
    scales=scales(
        SINGLE_EMOJI(seeds=2, cost="1 minute, 4 runs", details=_DETAILS, source=_SOURCE),
        CUB_CCP(seeds=3, cost="6 runs on CUB-200-2011, a GPU", details=_DETAILS, source=_SOURCE),
    ),
    variants=_variants, claims=tuple(_claims()),
)  # fmt: skip


# --- Figure -----------------------------------------------------------------------------------------------------------

PERPLEXITY = 20


def project(embeddings: Tensor) -> Any:
    """Return embeddings (N, d) in the plane by t-SNE, which starts from principal components."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(embeddings) - 1) / 3)
    return TSNE(init="pca", random_state=0, perplexity=perplexity).fit_transform(embeddings.double().numpy())


@styled
def draw(moments: Sequence[Moment]) -> Figure:
    """Draw some classes in the plane at each moment, and the mean radius of the classes around k images."""
    across = min(len(moments) + 1, 3)
    down = -(-(len(moments) + 1) // across)
    figure = new_figure(2.9 * across, 3.0 * down)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    *planes, curves = panels[: len(moments) + 1]
    for empty in panels[len(moments) + 1 :]:
        empty.set_axis_off()
    for axes, one in zip(planes, moments, strict=True):
        axes.scatter(*project(one.embeddings).T, c=one.labels, cmap="tab20", s=4, linewidths=0)
        axes.set_title(one.name)
        axes.set_xlabel(f"MAP@R {one.row['MAP@R']:.1f}, radius {one.row[RADIUS]:.3f}, distance {one.row[APART]:.3f}",
                        fontsize=7.5)  # fmt: skip
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
    for one, color in zip(moments, method_colors([one.name for one in moments]).values(), strict=True):
        curves.plot(range(1, len(one.curve) + 1), one.curve, color=color, label=one.name)
    curves.set_title("Mean covering radius")
    curves.set_xlabel("images that cover a class")
    curves.legend(fontsize=8)
    return figure
