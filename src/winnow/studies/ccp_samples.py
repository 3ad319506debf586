"""Embeddings in two dimensions with samples instead of proxies."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.artifacts import StoredRun, keep_run
from winnow.studies.ccp_plane import CCP, SAMPLES, identity, make_config, plane_scale, sizes_of, solve, title_of
from winnow.studies.scores import Scores
from winnow.studies.settings import train
from winnow.studies.spec import Claim, Evidence, Measurement, Row, Scales, Study, StudyRequest
from winnow.studies.synthetic_images import GrayImages, load_gray_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.training.config import RunConfig

PUBLISHED = {"samples": 98.06, "proxies": 97.21}
COMPARED = {"samples": SAMPLES, "proxies": CCP}
SCORE, THESIS = "test MAP@R", "[Thesis], MNIST"


def _samples_higher(s: Scores) -> Evidence:
    return Evidence(f"{s['samples']:.2f}, proxies {s['proxies']:.2f}", s["samples"] - s["proxies"])


def _proxies_near(s: Scores) -> Evidence:
    behind, published = s["samples"] - s["proxies"], PUBLISHED["samples"] - PUBLISHED["proxies"]
    return Evidence(f"{behind:.2f} behind; below {published:.2f} by", published - behind)


@dataclass(frozen=True, kw_only=True)
class CCPSamples(Study):
    """Runs that compare embeddings with samples of the batch, and with proxies."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Train the missing runs."""
        images = load_gray_images(request.data, quick=request.quick)
        rows: list[dict[str, Any]] = []
        missing: dict[str, list[int]] = {}
        for seed in request.scale.seeds:
            for method, settings in COMPARED.items():
                numbers = self.trained(request, method, make_config(request.scale, settings, seed), images)
                if numbers is None:
                    missing.setdefault(method, []).append(seed)
                else:
                    rows.append({"method": method, "seed": seed, **numbers, THESIS: PUBLISHED[method]})
        steps = make_config(request.scale, CCP, 0).train.max_steps
        settings_of = {**sizes_of(request.scale, images), "steps": steps}
        return self.measurement(rows, settings_of, missing, len(request.scale.seeds) * len(COMPARED))

    def measurement(
        self, rows: Sequence[Row], settings: Mapping[str, Any], missing: Mapping[str, Sequence[int]], planned: int
    ) -> Measurement:
        """Return the measurement with the means over seeds."""
        found = {method: [row[SCORE] for row in rows if row["method"] == method] for method in COMPARED}
        seeds = dict.fromkeys(row["seed"] for row in rows)
        exact = [{"method": name, SCORE: statistics.fmean(each)} for name, each in found.items() if each]
        by_seed = {seed: [row for row in rows if row["seed"] == seed] for seed in seeds}
        return Measurement(
            rows=rows, exact=exact, by_seed=by_seed, missing=missing, planned=planned, settings=settings,
            details=title_of(self, settings),
        )  # fmt: skip

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds."""
        return self.measurement(content["rows"], content["settings"], content.get("missing", {}), 0)

    def trained(
        self, request: StudyRequest, method: str, config: RunConfig, images: GrayImages
    ) -> dict[str, Any] | None:
        """Train a run, or read its numbers; None if it is missing and nothing is to be trained.

        Raises:
            ConfigError: If the stored run has other settings.
        """

        def make() -> StoredRun:
            request.note(f"{method}, seed {config.seed}: at most {config.train.max_steps} steps")
            solutions, records = solve(config, images)
            one, record = max(zip(solutions, records, strict=False), key=lambda pair: pair[1]["best"])
            return StoredRun({
                SCORE: 100 * one.test, "validation MAP@R": 100 * record["best"],
                "steps": sum(each["steps"] for each in records),
                "problems": len(records) if method == "proxies" else None,
            })  # fmt: skip

        stored = keep_run(request, f"{method}-seed{config.seed}", identity(config, images), make)
        return None if stored is None else dict(stored.numbers)

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the scores and the published ones."""
        return {"": draw(measured.rows)} if measured.rows else {}


SOURCE = "[Thesis], section 3.3.1"
CCP_SAMPLES = CCPSamples(
    name="ccp-samples", title="Samples and proxies in two dimensions", measures="proxies vs. samples, 2-D",
    source="[Thesis], section 3.3", group="Chance-constrained proxies", metric=SCORE,
    scales=Scales(
        plane_scale("quick", steps=600, seeds=2, cost="1 minute, 4 runs",
                    settings=train(lr="1e-2", eval_steps=20)),  # few steps are large ones
        plane_scale("full", steps=10_000, seeds=3, cost="6 runs, 30 minutes, less on a GPU"),
    ),
    claims=(
        Claim("Samples improve on proxies", SOURCE, _samples_higher),
        Claim(f"Proxies are at most {PUBLISHED['samples'] - PUBLISHED['proxies']:.2f} points behind", SOURCE,
              _proxies_near),
    ),
)  # fmt: skip


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis on which values near each other can be distinguished; percent end at 100."""
    room = max(0.15 * (max(values) - min(values)), 0.5)
    return max(min(values) - room, 0.0), min(max(values) + room, 100.0)


@styled
def draw(rows: Sequence[Row]) -> Figure:
    """Draw test MAP@R of every run, the means, and the published values."""
    figure = new_figure(4.6, 2.6)
    axes = figure.subplots()
    for position, (method, color) in enumerate(method_colors(COMPARED).items()):
        values = [row[SCORE] for row in rows if row["method"] == method]
        if values:
            axes.barh(position, statistics.mean(values), color=color, alpha=0.75, height=0.55)
            axes.plot(values, [position] * len(values), ".", color=INK, markersize=4)
        axes.plot(PUBLISHED[method], position, "D", color="white", markeredgecolor=INK,
                  label="[Thesis]" if not position else None)  # fmt: skip
    axes.set_yticks(range(len(COMPARED)), list(COMPARED))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set_xlim(*limits([*(row[SCORE] for row in rows), *PUBLISHED.values()]))
    axes.set_title("Test MAP@R (%); the axis does not start at 0")
    figure.legend(loc="outside lower center", fontsize=8)
    return figure
