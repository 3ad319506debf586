"""A Bayesian search over CCP's pull and its number of proxies (Fig. 3.5)."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from winnow.data.datasets import fold_range
from winnow.errors import DataError, MissingExtraError
from winnow.protocols.spec import ABLATION
from winnow.report.figures import contour_figure
from winnow.studies import synthetic_images
from winnow.studies.base import Findings, Task, paragraphs, with_data
from winnow.studies.ccp_sweeps import FULL, LOSSES, SMALL, WHERE, ccp, images_of
from winnow.studies.cub_losses import CONFIG
from winnow.studies.outcomes import finished, verdict
from winnow.tuning import Search, importances, parse_space, storage_errors

PULL, PROXIES = "references.proximal_weight", "references.proxies_per_class"
POOL = 16  # the documents', whatever the number of proxies
SPACE = [f"{PULL}=1e-7..10:log", f"{PROXIES}=1..16"]
TRIALS = {True: 12, False: 30}
CLASSES = 100  # of CUB's training half, which the documents' ablations cut in three and train on two parts of
HELD = fold_range(CLASSES, 1, ABLATION.parts)
SPLIT = [f"data.train_classes=1-{HELD.start}", f"data.val_classes={HELD.start + 1}-{HELD.stop}",
         f"train.patience={ABLATION.patience[0]}"]  # fmt: skip
LOW, HIGH = 1e-5, 1e-1  # where the documents' pulls work well
FEW, SOME = 4, 8  # proxies of a class
ENOUGH = 10  # trials to tell what decides
LEAST, TOO_FEW = 2, "cannot be told from so few trials"  # of each kind that are compared

Trial = tuple[float, int, float]
"""The pull, the proxies of a class, and the MAP@R of validation in percent."""


def make_search(task: Task) -> Search:
    """Return the search: C2 with CCP, by validation classes alone."""
    space, _ = parse_space(SPACE)
    own = [*LOSSES[task.small]["C2"], *ccp(pool=POOL)]
    if task.small:
        words = [f"data={images_of(task)}", *synthetic_images.SINGLE_EMOJI, *SMALL, *own]
        return Search(None, words, space, task.runs)
    where = [] if task.data is None else [f"data={task.data}"]
    return Search(CONFIG, [*FULL, *SPLIT, *own, *where], space, task.runs)


@with_data(small=False, full=True)
def study(task: Task) -> Findings:
    """A search by Optuna over CCP's pull lambda and its proxies of a class, with C2 (Fig. 3.5).

    Cost: 1 minute (12 trials; needs the optuna extra); in full 30 trials on CUB-200-2011 and a GPU.
    """
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("optuna", "optuna", "winnow study ccp-search")
    search, count = make_search(task), TRIALS[task.small]
    if task.only_finished:
        tried = search.open()
    else:
        if task.small:
            synthetic_images.write_single_emoji(images_of(task))
        tried = search.run(count, on_end=_note(task), cache=task.shared)
    with storage_errors(search.database):
        read = tried.trials
        trials = [(one.params[PULL], one.params[PROXIES], 100 * one.value) for one in read if one.value is not None]
        decides = importances(tried) if len(trials) >= ENOUGH else {}
    if not trials:
        raise DataError(f"no trial of ccp-search is finished in {task.runs}: leave out --only-finished")
    rows: list[dict[str, Any]] = [
        {"pull": float(f"{pull:.3g}"), "proxies": proxies, "validation MAP@R": round(value, 2)}
        for pull, proxies, value in sorted(trials, key=lambda one: -one[2])
    ]
    missing = finished(len(trials), count, task.command("ccp-search"), "trials")
    text = paragraphs(told(trials), how(task.small, decides), missing)
    places, values = [(pull, proxies) for pull, proxies, _ in trials], [value for _, _, value in trials]
    figure = contour_figure(("lambda", "proxies of a class"), places, values, (True, False), "MAP@R")
    settings = {"small": task.small, "space": SPACE, "trials": count, "words": list(search.overrides)}
    if search.file is not None:
        settings["config"] = search.file
    return Findings("A search over CCP's settings", text, rows, figure, settings, {"importances": decides})


def _note(task: Task) -> Callable[[int, Mapping[str, Any], float | None], None]:
    def ended(number: int, params: Mapping[str, Any], value: float | None) -> None:
        told = "failed" if value is None else f"{100 * value:.2f}"
        task.note(f"trial {number}: pull {params[PULL]:.2g}, {params[PROXIES]} proxies: {told}")

    return ended


def how(small: bool, decides: Mapping[str, float]) -> str:
    """Say how it was made, and what decides by PED-ANOVA, as far as that is known."""
    # The split is the documents' own here, and so is no difference to tell of.
    made = WHERE[True] if small else (
        f"Made on CUB-200-2011 as the documents' ablations are, classes 1-{HELD.start} training, {HELD.start + 1}-"
        f"{HELD.stop} validating and a patience of {ABLATION.patience[0]}, with ResNet-50 (the documents: "
        "BN-Inception), average pooling and unit vectors (there only shortened where they are long)."
    )  # fmt: skip
    shares = ", ".join(f"{key.rpartition('.')[2]} {100 * share:.0f} %" for key, share in decides.items())
    of_it = f" Of what decides (PED-ANOVA): {shares}." if shares else ""
    return f"{made} The loss is C2, a pool has {POOL} images, and scores are of the validation classes.{of_it}"


def told(trials: Sequence[Trial]) -> str:
    """Check: neither a tiny nor a large pull does well, and more proxies help, at last by less."""
    pull, proxies, value = max(trials, key=lambda one: one[2])
    said = (
        f"The best of {len(trials)} trials has lambda = {pull:.2g} and {proxies} proxies, {value:.2f} MAP@R; the "
        "documents chose 2e-4 and 8. They claim:"
    )
    return paragraphs(said, "\n".join(f"- {item}" for item in [*_told_pull(trials), *_told_proxies(trials)]))


def _told_pull(trials: Sequence[Trial]) -> list[str]:
    below = [value for pull, _, value in trials if pull < LOW]
    within = [value for pull, _, value in trials if LOW <= pull <= HIGH]
    above = [value for pull, _, value in trials if pull > HIGH]
    within_it = f"with lambda from {LOW:g} to {HIGH:g}"
    return [
        f"without a pull, or with next to none, scores are lower than {within_it}: {_compared(within, below)}",
        f"with a large one they are too: {_compared(within, above)}",
    ]


def _told_proxies(trials: Sequence[Trial]) -> list[str]:
    # A large pull would hide what the number of proxies does.
    few, some, many = ([value for pull, proxies, value in trials if pull <= HIGH and low < proxies <= high]
                       for low, high in ((0, FEW), (FEW, SOME), (SOME, POOL)))  # fmt: skip
    saturates = TOO_FEW
    if min(map(len, (few, some, many))) >= LEAST:
        first, second, third = map(statistics.mean, (few, some, many))
        agrees = "agrees" if third - second < second - first else "does not agree"
        saturates = f"{second - first:+.2f} from few to {SOME}, {third - second:+.2f} beyond, {agrees} (by the means)"
    return [
        f"more proxies help (with no large pull, more than {FEW} beside fewer): {_compared(some + many, few)}",
        f"that saturates: {saturates}",
    ]


def _compared(better: Sequence[float], worse: Sequence[float]) -> str:
    r"""Say what trials have in the mean, and whether they are better than others.

    That is by more than the standard error of the difference of their means:

    $$s^2 = s_1^2 / n_1 + s_2^2 / n_2$$
    """
    if min(len(better), len(worse)) < LEAST:
        return TOO_FEW
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in (better, worse)))
    one, other = statistics.mean(better), statistics.mean(worse)
    return f"{one:.2f} and {other:.2f} in the mean, {verdict(one - other, error, of='trial')}"
