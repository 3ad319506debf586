"""Grids of chance-constrained proxies: their pool, the batch, and alternating subproblems."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from winnow.report.claims import format_points
from winnow.studies.scores import Scores, mean
from winnow.studies.settings import (
    C2,
    CUB_CCP,
    CUB_XBM,
    NOTHING,
    PAIR_LOSSES,
    SINGLE_EMOJI,
    ccp,
    component,
    scales,
    train,
)
from winnow.studies.spec import Claim, Column, Curve, Evidence, GridStudy, Scale, Variant

if TYPE_CHECKING:
    from winnow.studies.runner import StudyRun

GPU = "runs on CUB-200-2011, a GPU"
CCP_GROUP = "Chance-constrained proxies"
ABLATION = (
    "[Thesis]: BN-Inception, two thirds of the training classes for training, evaluated on the last third, embeddings "
    "scaled into the unit ball, Cars196 as well"
)
FAIR = "[Thesis]: BN-Inception, all four folds, embeddings scaled into the unit ball, Cars196 as well"


# --- ccp-pool: Fig. 3.6 -----------------------------------------------------------------------------------------------

PROXIES = (1, 4, 8)


def _pool_variants(scale: Scale) -> Iterator[Variant]:
    yield Variant("C2", C2[scale.name], "batch")
    for k in PROXIES:
        for b in (k, *scale.pick(quick=(12, 20), full=(12, 24))):  # b = k selects at random
            settings = C2[scale.name] | ccp(proxies_per_class=k, pool_size=b)
            yield Variant(f"C2 + CCP, {k} of {b}", settings, f"K = {k}", x=b, y=k)


def _pool_mean(s: Scores, k: int) -> float:
    return mean(s.sweep(f"K = {k}"))


def _pool_gain(s: Scores, k: int) -> float:
    by_pool = s.sweep(f"K = {k}")
    return mean([score for b, score in by_pool.items() if b > k]) - by_pool[k]


def _more_proxies(s: Scores) -> Evidence:
    ours = ", ".join(f"{_pool_mean(s, k):.2f} with {k}" for k in PROXIES)
    return Evidence(ours, _pool_mean(s, PROXIES[-1]) - _pool_mean(s, PROXIES[0]))


def _larger_pool(s: Scores) -> Evidence:
    gains = {k: _pool_gain(s, k) for k in PROXIES[1:]}
    ours = ", ".join(f"{format_points(gain)} with {k}" for k, gain in gains.items())
    return Evidence(f"{ours}; the lower", min(gains.values()))


def _single_proxy(s: Scores) -> Evidence:
    return Evidence("", _pool_gain(s, PROXIES[0]))


def _random_proxies(s: Scores) -> Evidence:
    random = s[f"C2 + CCP, {PROXIES[-1]} of {PROXIES[-1]}"]
    return Evidence(f"{random:.2f}, C2 {s['C2']:.2f}", random - s["C2"])


CCP_POOL = GridStudy(
    name="ccp-pool", title="CCP over the number of proxies and the pool they are selected from",
    measures="proxies and candidates per class", source="[Thesis], Fig. 3.6", group=CCP_GROUP,
    scales=scales(
        SINGLE_EMOJI(seeds=2, cost="1 minute, 20 runs", details="C2", source=ABLATION),
        CUB_CCP(seeds=3, cost=f"30 {GPU}", details="C2", source=ABLATION),
    ),
    variants=_pool_variants, figure=Curve(x="pool", y="proxies", baseline="C2"),
    claims=(
        Claim("More proxies per class help", "[Thesis], Fig. 3.6", _more_proxies),
        Claim("A larger pool helps several proxies", "[Thesis], Fig. 3.6", _larger_pool),
        Claim("A larger pool does not change a single proxy", "[Thesis], Fig. 3.6", _single_proxy, equal=0.5),
        Claim("Randomly selected proxies improve on the loss alone", "[Thesis], Fig. 3.6", _random_proxies),
    ),
)  # fmt: skip


# --- ccp-batch: Fig. 3.8 ----------------------------------------------------------------------------------------------

BATCHES = (16, 32, 64, 128)
AS_WELL = 0.5  # points that count as no loss


def _batch_variants(scale: Scale) -> Iterator[Variant]:
    for name, extra in (("C2", NOTHING), ("C2 + CCP", ccp())):
        for batch in BATCHES:
            settings = C2[scale.name] | extra | train(classes_per_batch=batch // 4)
            yield Variant(f"{name}, batch {batch}", settings, name, x=batch)


def _growth(s: Scores, group: str) -> tuple[str, float]:
    small, large = (s[f"{group}, batch {batch}"] for batch in (BATCHES[0], BATCHES[-1]))
    return f"{small:.2f} with {BATCHES[0]}, {large:.2f} with {BATCHES[-1]}", large - small


def _large_batches_help(s: Scores) -> Evidence:
    return Evidence(*_growth(s, "C2"))


def _small_batches_suffice(s: Scores) -> Evidence:
    ours, loss = _growth(s, "C2 + CCP")
    return Evidence(f"{ours}; {AS_WELL} minus the difference", AS_WELL - loss)


CCP_BATCH = GridStudy(
    name="ccp-batch", title="C2 with and without CCP over the batch size", measures="batch size",
    source="[Thesis], Fig. 3.8", group=CCP_GROUP,
    scales=scales(
        SINGLE_EMOJI(seeds=2, cost="1 minute, 16 runs", details="four images of a class in a batch", source=FAIR),
        CUB_CCP(seeds=3, cost=f"24 {GPU}", details="four images of a class in a batch", source=FAIR),
    ),
    variants=_batch_variants, figure=Curve(x="batch", log=True),
    claims=(
        Claim("The loss alone gains from larger batches", "[Thesis], Fig. 3.8", _large_batches_help),
        Claim(f"CCP loses less than {AS_WELL} points with small batches", "[Thesis], Fig. 3.8",
              _small_batches_suffice),
    ),
)  # fmt: skip


# --- ccp-alternate: Fig. 3.7, Table 3.3 -------------------------------------------------------------------------------

ONE, CCP = ", one problem", " + CCP"
STEPS = {
    name: {"[Thesis], SOP, 1000 steps": sop, "[Thesis], In-shop, 1000 steps": shop}
    for name, sop, shop in (
        ("C2", 62, 114), ("C2 + XBM", 81, 93), ("C2 + CCP", 69, 127), ("MS", 67, 98), ("MS + CCP", 91, 131),
        ("Triplet", 93, 73), ("Triplet + CCP", 124, 115),
    )
}  # fmt: skip
"""Published thousands of steps on SOP and In-shop (Table 3.3)."""
LEAST, MOST = 10, 35  # published percent of additional steps
FEWEST_VALIDATIONS = 4  # of a subproblem: the first is a gain, three more are none


def _alternate_variants(scale: Scale) -> Iterator[Variant]:
    memory = scale.pick(quick=component("references", "memory", num_batches=10, start_step=50), full=CUB_XBM)
    for loss, settings in PAIR_LOSSES[scale.name].items():
        kinds = {"": NOTHING, ONE: ccp(max_problems=1), CCP: ccp()} | ({" + XBM": memory} if loss == "C2" else {})
        for kind, extra in kinds.items():
            published = STEPS.get(loss + kind, {})
            yield Variant(loss + kind, settings | extra, kind.lstrip(", +") or "batch", published=published)


def solved_steps(runs: Sequence[StudyRun]) -> list[int]:
    """Return the steps of the subproblems of runs, without the last of each run, which the end of the run cut off."""
    return [problem.steps for run in runs for problem in run.result.problems[:-1]]


def _total_steps(runs: Sequence[StudyRun]) -> float:
    return round(statistics.mean(run.result.steps for run in runs))


def _problems(runs: Sequence[StudyRun]) -> float | None:
    counts = [len(run.result.problems) for run in runs]
    return round(statistics.mean(counts), 1) if any(counts) else None


def _median_steps(runs: Sequence[StudyRun]) -> float | None:
    solved = solved_steps(runs)
    return statistics.median(solved) if solved else None


def _shortest(runs: Sequence[StudyRun]) -> float | None:
    """Return the percentage of subproblems that end after the fewest possible steps."""
    training = runs[0].result.config["train"]
    fewest = FEWEST_VALIDATIONS * (training.get("eval_steps") or training["eval_every"])
    solved = solved_steps(runs)
    return round(100 * statistics.fmean(steps <= fewest for steps in solved), 1) if solved else None


def _alternate_claims(loss: str) -> tuple[Claim, ...]:
    def improves(other: str) -> Claim:
        def check(s: Scores) -> Evidence:
            both, plain = s[loss + CCP], s[loss + other]
            return Evidence(f"{both:.2f}, {plain:.2f}", both - plain)

        name = "one subproblem" if other == ONE else "the loss alone"
        return Claim(f"{loss}: CCP improves on {name}", "[Thesis], Fig. 3.7", check)

    def more_steps(s: Scores) -> Evidence:
        more = 100 * (s.cell(loss + CCP, "steps") / s.cell(loss, "steps") - 1)
        return Evidence(f"{format_points(more, 0)}%; within the range by", min(more - LEAST, MOST - more), "percent")

    def not_cut_short(s: Scores) -> Evidence:
        short = s.cell(loss + CCP, SHORTEST)
        return Evidence(f"{short:.0f}% end after the fewest steps; below half by", 50 - short, "percent")

    return (
        improves(ONE), improves(""),
        Claim(f"{loss}: CCP takes {LEAST} to {MOST}% more steps", "[Thesis], Table 3.3", more_steps),
        Claim(f"{loss}: most subproblems outlast the fewest steps", "[Thesis], section 3.3", not_cut_short),
    )  # fmt: skip


SHORTEST = "shortest problems, %"
CCP_ALTERNATE = GridStudy(
    name="ccp-alternate", title="Alternating subproblems, one subproblem, and the loss alone",
    measures="new proxies vs. fixed proxies", source="[Thesis], Fig. 3.7", group=CCP_GROUP,
    scales=scales(
        SINGLE_EMOJI(seeds=2, cost="1 minute, 20 runs", source=ABLATION,
                     details="one problem keeps the first proxies of CCP"),
        CUB_CCP(seeds=3, cost=f"30 {GPU}", details="one problem keeps the first proxies of CCP", source=ABLATION),
    ),
    variants=_alternate_variants,
    columns=(
        Column("total steps", _total_steps), Column("problems", _problems),
        Column("steps of a problem, median", _median_steps), Column(SHORTEST, _shortest),
    ),
    claims=tuple(claim for loss in ("C2", "MS", "Triplet") for claim in _alternate_claims(loss)),
)  # fmt: skip
