"""Re-ranking of the neighbors of GAP and GSP: query expansion, k-reciprocal."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from winnow.evaluation import KReciprocal, reranked_metrics, retrieval_metrics
from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.runner import grid_measurement, restore_grid, train_grid
from winnow.studies.scores import BY_SEED, Scores, seed_means
from winnow.studies.settings import C2, CUB_FOLD1, EMOJI, gsp, pooling, scales, train
from winnow.studies.spec import Claim, Evidence, GridStudy, Measurement, Row, Scale, StudyRequest, Variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from winnow.studies.runner import StudyRun

METRICS = ("MAP@R", "P@1", "P@R", "R@8")
PLAIN = "none"
RERANKINGS = {"aqe": ("aqe", 5), "reciprocal, k1 = 8": ("reciprocal", 8), "reciprocal, k1 = 20": ("reciprocal", 20)}
"""Name and neighborhood size of each re-ranking. Emoji classes have 8 images, classes of CUB-200-2011 about 60."""


def search_metrics(embeddings: Tensor, labels: Tensor, reranking: str) -> dict[str, float]:
    """Return the metrics of a set that is searched in itself, in percent."""
    if reranking == PLAIN:
        found = retrieval_metrics(embeddings, labels)
    else:
        name, size = RERANKINGS[reranking]
        found = reranked_metrics(embeddings, labels, name, num_neighbors=size, settings=KReciprocal(k1=size))
    return {metric: 100 * found[metric] for metric in METRICS}


def run_rows(run: StudyRun) -> Iterator[Row]:
    """Yield a row of one run for each re-ranking, not rounded."""
    assert run.run_dir is not None, "embeddings lie in the folder of the run"
    embeddings, labels = run.run_dir.read_embeddings()
    for reranking in (PLAIN, *RERANKINGS):
        yield {"search": f"{run.variant}, {reranking}", **search_metrics(embeddings, labels, reranking)}


def table(by_seed: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return the table: means over seeds, and the standard deviation of MAP@R."""
    rows: list[Row] = []
    for name in dict.fromkeys(row["search"] for own in by_seed.values() for row in own):
        own = [row for rows in by_seed.values() for row in rows if row["search"] == name]
        method, _, reranking = name.partition(", ")
        row = {"method": method, "re-ranking": reranking, "runs": len(own)}
        row |= {metric: round(statistics.mean(one[metric] for one in own), 2) for metric in METRICS}
        row["MAP@R std"] = round(statistics.stdev(one["MAP@R"] for one in own), 2) if len(own) > 1 else None
        rows.append(row)
    return rows


def _variants(scale: Scale) -> Iterator[Variant]:
    own = C2[scale.name] | train(save_embeddings=True)
    yield Variant("GAP", pooling("gap") | own)
    yield Variant("GSP", scale.pick(quick=gsp(0.05, 20), full=gsp()) | own)


def _raises(method: str, reranking: str) -> Claim:
    def check(s: Scores) -> Evidence:
        plain, found = s[f"{method}, {PLAIN}"], s[f"{method}, {reranking}"]
        return Evidence(f"{found:.2f}, without {plain:.2f}", found - plain)

    return Claim(f"{method}: {reranking} raises MAP@R", "new", check)


@dataclass(frozen=True, kw_only=True)
class RerankingStudy(GridStudy):
    """A grid whose saved test embeddings are searched with every re-ranking."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Train the missing runs and search their embeddings."""
        found = train_grid(self, request)
        by_seed: dict[int, list[Row]] = {seed: [] for seed in request.scale.seeds}
        for run in (run for runs in found.values() for run in runs):
            request.note(f"{run.variant}, seed {run.seed}: search with each re-ranking")
            by_seed[run.seed] += run_rows(run)
        return _with_rows(grid_measurement(self, request.scale, found), by_seed)

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement from the runs and the seeds' rows of a result file."""
        by_seed = {int(seed): rows for seed, rows in content[BY_SEED].items()}
        return _with_rows(restore_grid(self, content), by_seed)

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw MAP@R and P@1 of each re-ranking."""
        return {"": _draw(measured.by_seed)} if measured.rows else {}


def _with_rows(grid: Measurement, by_seed: Mapping[int, Sequence[Row]]) -> Measurement:
    """Return the measurement of a grid with the rows of its searches."""
    finished = {seed: rows for seed, rows in by_seed.items() if rows}
    return replace(
        grid, rows=table(finished), exact=seed_means(finished), by_seed=finished,
        details={**grid.details, BY_SEED: {str(seed): list(rows) for seed, rows in finished.items()}},
    )  # fmt: skip


@styled
def _draw(by_seed: Mapping[int, Sequence[Row]]) -> Figure:
    figure = new_figure(7.2, 3.0)
    rows = table(by_seed)
    rerankings = list(dict.fromkeys(row["re-ranking"] for row in rows))
    colors = method_colors(dict.fromkeys(row["method"] for row in rows))
    for column, metric in enumerate(("MAP@R", "P@1")):
        axes = figure.add_subplot(1, 2, column + 1)
        for number, (method, color) in enumerate(colors.items()):
            values = [[row[metric] for own in by_seed.values() for row in own if row["search"] == f"{method}, {each}"]
                      for each in rerankings]  # fmt: skip
            positions = [bar + 0.38 * (number - (len(colors) - 1) / 2) for bar in range(len(rerankings))]
            std = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values]
            means = [statistics.mean(each) for each in values]
            axes.bar(positions, means, 0.36, yerr=std, color=color, ecolor=INK, label=method)
        axes.set_xticks(range(len(rerankings)), [each.replace(", ", "\n") for each in rerankings], fontsize=7)
        axes.set_title(f"{metric} (%)")
    figure.axes[0].legend(fontsize=8)
    return figure


RERANKING = RerankingStudy(
    name="reranking", title="Re-ranking of neighbors", measures="query expansion, k-reciprocal", source="",
    group="Other",
    scales=scales(
        EMOJI(steps=600, seeds=3, cost="2 minutes, 6 runs", source="",
              details="C2, test classes of 8 images, to which k1 = 8 is fitted"),
        CUB_FOLD1(seeds=3, cost="6 runs on CUB-200-2011, a GPU", details="C2", source=""),
    ),
    variants=_variants, claims=tuple(_raises(method, each) for method in ("GAP", "GSP") for each in RERANKINGS),
)  # fmt: skip
