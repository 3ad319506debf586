"""Search over the proximal weight of CCP and its number of proxies."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from winnow.data.datasets import fold_range
from winnow.errors import MissingExtraError
from winnow.protocols.spec import ABLATION
from winnow.report.claims import Estimate, format_points, student_quantile
from winnow.report.figures import contour_figure
from winnow.studies.scores import Scores
from winnow.studies.settings import C2, CUB_CCP, NOTHING, SINGLE_EMOJI, ccp, scales, train
from winnow.studies.spec import Claim, Evidence, Measurement, Row, Study, StudyRequest, Variant
from winnow.training.overrides import Overrides
from winnow.tuning import Search, importances, parse_space, storage_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHT, PROXIES = "references.proximal_weight", "references.proxies_per_class"
SPACE = [f"{WEIGHT}=1e-7..10:log", f"{PROXIES}=1..16"]
POOL = 16  # as published, whatever the number of proxies
TRIALS = {"quick": 12, "full": 30}
ENOUGH = 10  # trials for importances
CLASSES = 100  # training classes of CUB-200-2011, of which the published ablation validates on the last third
HELD_OUT = fold_range(CLASSES, 1, ABLATION.parts)
SPLIT = Overrides({"data": {"train_classes": f"1-{HELD_OUT.start}",
                            "val_classes": f"{HELD_OUT.start + 1}-{HELD_OUT.stop}"}})  # fmt: skip

# --- Claims -----------------------------------------------------------------------------------------------------------

LOW, HIGH = 1e-5, 1e-1  # range of the published proximal weights that work well
FEW, SOME = 4, 8  # proxies of a class
SCORE = "validation MAP@R"
FIGURE = "[Thesis], Fig. 3.5"


def contrast(groups: Sequence[Sequence[float]], coefficients: Sequence[float]) -> Estimate:
    r"""Return a weighted sum of the means of groups with its interval of Welch and Satterthwaite.

    $$\Delta = \sum_g c_g \bar v_g, \quad s^2 = \sum_g s_g^2, \quad s_g^2 = c_g^2 \frac{\mathrm{Var}(v_g)}{n_g}, \quad
      \nu = \frac{s^4}{\sum_g s_g^4 / (n_g - 1)}, \quad \Delta \pm t_{\nu,\,0.975} \, s$$

    Args:
        groups: At least two values of each group.
        coefficients: c, one for each group.

    Returns:
        The estimate; its n is the size of the smallest group.
    """
    mean = sum(c * statistics.fmean(each) for c, each in zip(coefficients, groups, strict=True))
    variances = [c**2 * statistics.variance(each) / len(each) for c, each in zip(coefficients, groups, strict=True)]
    variance, n = sum(variances), min(map(len, groups))
    if variance == 0:
        return Estimate(mean, 0.0, mean, mean, n)
    freedom = variance**2 / sum(one**2 / (len(each) - 1) for one, each in zip(variances, groups, strict=True))
    half = student_quantile(freedom) * math.sqrt(variance)
    return Estimate(mean, None, mean - half, mean + half, n)


def _compare(s: Scores, groups: Mapping[str, Sequence[float]], coefficients: Sequence[float]) -> Evidence:
    """Return the contrast of named groups of trials."""
    s.require(all(len(each) > 1 for each in groups.values()), "trials: expected two of each kind. Run more.")
    found = contrast(list(groups.values()), coefficients)
    ours = ", ".join(f"{statistics.fmean(each):.2f} ({name}, {len(each)} trials)" for name, each in groups.items())
    return Evidence(ours, found.mean, interval=found)


def _trials(s: Scores) -> Mapping[tuple[float, float], float]:
    """Return the scores of trials by proximal weight and number of proxies."""
    return s.grid("trials")


def _by_weight(s: Scores) -> dict[str, list[float]]:
    """Return the scores with proximal weights below, within, and above the published range."""
    scores = [(weight, score) for (weight, _), score in _trials(s).items()]
    return {
        "below": [score for weight, score in scores if weight < LOW],
        "within": [score for weight, score in scores if LOW <= weight <= HIGH],
        "above": [score for weight, score in scores if weight > HIGH],
    }


def _worse(side: str) -> Callable[[Scores], Evidence]:
    def check(s: Scores) -> Evidence:
        groups = _by_weight(s)
        return _compare(s, {"within": groups["within"], side: groups[side]}, (1, -1))

    return check


def _by_proxies(s: Scores) -> list[list[float]]:
    """Return the scores with few, some, and many proxies; a large weight would hide what their number does."""
    return [
        [score for (weight, proxies), score in _trials(s).items() if weight <= HIGH and low < proxies <= high]
        for low, high in ((0, FEW), (FEW, SOME), (SOME, POOL))
    ]


def _more_proxies(s: Scores) -> Evidence:
    few, some, many = _by_proxies(s)
    return _compare(s, {f"more than {FEW}": some + many, "fewer": few}, (1, -1))


def _saturates(s: Scores) -> Evidence:
    few, some, many = _by_proxies(s)
    found = _compare(s, {f"up to {FEW}": few, f"up to {SOME}": some, "more": many}, (-1, 2, -1))
    first, second = statistics.fmean(some) - statistics.fmean(few), statistics.fmean(many) - statistics.fmean(some)
    ours = f"{format_points(first)} up to {SOME}, {format_points(second)} beyond"
    return Evidence(ours, found.margin, interval=found.interval)


Trial: TypeAlias = tuple[float, int, float]
"""Proximal weight, proxies of a class, and MAP@R on validation classes in percent."""

# --- Study ------------------------------------------------------------------------------------------------------------


def make_search(request: StudyRequest) -> Search:
    """Return the search, on validation classes alone."""
    scale = request.scale
    settings = scale.base | scale.needs.prepare(request) | C2[scale.name] | ccp(pool_size=POOL)
    return Search(scale.file, settings.to_args(), parse_space(SPACE)[0], request.runs)


@dataclass(frozen=True, kw_only=True)
class CCPSearch(Study):
    """Trials of a Bayesian search."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Run the missing trials.

        Raises:
            MissingExtraError: If Optuna is not installed.
        """
        if importlib.util.find_spec("optuna") is None:
            raise MissingExtraError("optuna", "optuna", "winnow study ccp-search")
        search, count = make_search(request), TRIALS[request.scale.name]

        def note(number: int, values: Mapping[str, Any], score: float | None) -> None:
            result = "failed" if score is None else f"{100 * score:.2f}"
            request.note(f"trial {number}: weight {values[WEIGHT]:.2g}, {values[PROXIES]} proxies: {result}")

        tried = search.run(count, on_end=note, cache=request.cache) if request.train else search.open()
        with storage_errors(search.database):
            finished = [one for one in tried.trials if one.value is not None]
            trials = [(one.params[WEIGHT], one.params[PROXIES], 100 * one.value) for one in finished]
            decisive = importances(tried) if len(trials) >= ENOUGH else {}
        rows = [
            {"proximal weight": float(f"{weight:.3g}"), "proxies": proxies, SCORE: round(score, 2)}
            for weight, proxies, score in sorted(trials, key=lambda one: -one[2])
        ]
        settings: dict[str, Any] = {"space": SPACE, "trials": count, "words": list(search.overrides)}
        if search.file is not None:
            settings["config"] = search.file
        missing = {"trials": list(range(len(trials), count))} if len(trials) < count else {}
        return self.measurement(rows, trials, settings, missing, {"importances": decisive})

    def measurement(
        self, rows: Sequence[Row], trials: Sequence[Trial], settings: Mapping[str, Any],
        missing: Mapping[str, Sequence[int]], details: Mapping[str, Any],
    ) -> Measurement:  # fmt: skip
        """Return the measurement in which each trial is a variant."""
        variants = [Variant(f"trial {number}", NOTHING, "trials", weight, proxies)
                    for number, (weight, proxies, _) in enumerate(trials)]  # fmt: skip
        exact = [{"trial": one.name, SCORE: score} for one, (_, _, score) in zip(variants, trials, strict=True)]
        return Measurement(
            rows=rows, exact=exact, variants=variants, settings=settings, missing=missing, planned=settings["trials"],
            details=details,
        )  # fmt: skip

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds."""
        rows: Sequence[Row] = content["rows"]
        trials = [(row["proximal weight"], row["proxies"], row[SCORE]) for row in rows]
        return self.measurement(rows, trials, content["settings"], content.get("missing", {}), {})

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw the scores over both settings."""
        if not measured.rows:
            return {}
        places = [(row["proximal weight"], row["proxies"]) for row in measured.rows]
        scores = [row[SCORE] for row in measured.rows]
        return {"": contour_figure(("proximal weight", "proxies of a class"), places, scores, (True, False), "MAP@R")}


_DETAILS = f"C2, {POOL} images in a pool, scores of the validation classes, one run per trial"
_QUICK = SINGLE_EMOJI(seeds=0, cost="1 minute, 12 trials (Optuna)", details=_DETAILS,
                      source="[Thesis]: CUB-200-2011, fine-tuned BN-Inception")  # fmt: skip
_FULL = CUB_CCP(seeds=0, cost="30 trials (Optuna) on CUB-200-2011, a GPU", source="")
CCP_SEARCH = CCPSearch(
    name="ccp-search", title="Search over the proximal weight and the proxies of CCP",
    measures="proximal weight, proxies (Optuna)", source=FIGURE, group="Chance-constrained proxies", metric=SCORE,
    scales=scales(
        _QUICK,
        replace(
            _FULL, base=_FULL.base | SPLIT | train(patience=ABLATION.patience.small),
            setting=f"CUB-200-2011, classes 1-{HELD_OUT.start} train, {HELD_OUT.start + 1}-{HELD_OUT.stop} validate as "
                    f"in the published ablations, ResNet-50, GAP, unit vectors; {_DETAILS}. [Thesis]: BN-Inception, "
                    "embeddings scaled into the unit ball.",
        ),
    ),
    claims=(
        Claim(f"A proximal weight below {LOW:g} scores lower than one up to {HIGH:g}", FIGURE, _worse("below")),
        Claim(f"So does one above {HIGH:g}", FIGURE, _worse("above")),
        Claim(f"More than {FEW} proxies score higher than fewer", FIGURE, _more_proxies),
        Claim(f"More proxies help less beyond {SOME}", FIGURE, _saturates),
    ),
)  # fmt: skip
